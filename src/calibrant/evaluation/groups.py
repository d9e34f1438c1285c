"""Calibration of each group, such as the subject of a question, with a test corrected for all groups."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from calibrant.data.predictions import Groups, Predictions
from calibrant.errors import InputError
from calibrant.evaluation.evaluate import evaluate
from calibrant.evaluation.tables import groups_table
from calibrant.inference.calibration_test import cumulative_difference, refined_test
from calibrant.inference.corrections import Correction, corrected
from calibrant.inference.intervals import Interval, wilson_interval
from calibrant.inference.rows import check_level, generator
from calibrant.inference.units import Units
from calibrant.inputs import Progress
from calibrant.metrics.cumulative import CumulativeDifference
from calibrant.metrics.names import resolve_measures
from calibrant.results import FrozenDict, Result
from calibrant.show.table import Table

#: Groups with fewer samples, or fewer units, are shown but not tested.
FEWEST_TESTED = 10


@dataclass(frozen=True, eq=False)
class GroupTest(Result):
    """The mean error of a group, and whether chance explains its miscalibration.

    Attributes:
        n: Number of samples.
        n_units: Number of units, whole or in part, that they belong to; without units, of samples.
        accuracy: Share of right predictions, by weight if samples have weights.
        mean_confidence: Mean confidence.
        gap: Mean confidence minus accuracy: positive is overconfident.
        gap_low: Lower end of the interval of the gap: Wilson's for the accuracy, given the confidences, with
            the effective number of samples.
        gap_high: Its upper end.
        statistic: Range of the cumulative difference (Kuiper) in standard deviations; NaN if not tested.
        p_value: Probability that a calibrated model reaches this statistic; NaN if not tested.
        p_corrected: The p-value corrected for the number of groups that are tested.
    """

    n: int
    n_units: int
    accuracy: float
    mean_confidence: float
    gap: float
    gap_low: float
    gap_high: float
    statistic: float
    p_value: float
    p_corrected: float


@dataclass(frozen=True, eq=False)
class GroupRow(GroupTest):
    """Calibration of one group.

    Attributes:
        name: Name of the group.
        metrics: The measures by name; NaN where the group leaves one undefined.
        intervals: Bootstrap intervals by name, if requested and defined.
    """

    name: str
    metrics: Mapping[str, float]
    intervals: Mapping[str, Interval]


@dataclass(frozen=True, eq=False)
class GroupTable(Result):
    """Calibration of each group, the worst first.

    Attributes:
        rows: First the groups whose miscalibration is significant after the correction, then the others that
            were tested, then those with fewer than ten samples; each from the largest absolute gap down.
        correction: How p-values were corrected for the number of groups: ``"holm"`` limits the chance of any
            false alarm, ``"benjamini_hochberg"`` the share of false alarms among the alarms.
        level: Level of the intervals. A group is significant if its corrected p-value is at most one minus
            the level.
        overall: The measures of all samples together.
        within: The mean of each measure over the groups, weighted by their numbers of samples, or by the
            weights of these.
        skipped: Requested measures that were not computed, with the reason.
    """

    rows: tuple[GroupRow, ...]
    correction: Correction
    level: float
    overall: Mapping[str, float]
    within: Mapping[str, float]
    skipped: Mapping[str, str]

    @property
    def n_significant(self) -> int:
        """Number of groups whose miscalibration is significant after the correction."""
        return sum(is_significant(row, self.level) for row in self.rows)

    @property
    def sentence(self) -> str:
        """How many groups are miscalibrated, by which test and correction."""
        return sentence_on_groups(self.rows, correction=self.correction, level=self.level)

    def to_table(self, by: str = "group") -> Table:
        """Return the groups, those beyond chance emphasised; ``by`` is what made them."""
        return groups_table(self, by)


_TITLES: dict[Correction, str] = {
    "holm": "Holm's correction",
    "benjamini_hochberg": "Benjamini-Hochberg correction",
}


def by_group(
    predictions: Predictions,
    *,
    measures: str | Sequence[str] = ("ece", "smece"),
    n_bins: int = 15,
    intervals: bool = False,
    n_resamples: int = 200,
    correction: Correction = "holm",
    level: float = 0.95,
    seed: int = 0,
    progress: Progress | None = None,
) -> GroupTable:
    """Measure the calibration of each group of labelled predictions, and test it.

    Confidences are those of the predicted class, or those of a black box. The test is that of
    :func:`~calibrant.inference.calibration_test` with the statistic ``"kuiper"``; its p-values are corrected
    for the number of groups. Groups with fewer than ten samples are shown but not tested. If samples have
    units, the hits of a unit are drawn together in the test, the interval of the gap has the effective number
    of samples, and groups with rows of fewer than ten units are not tested.

    Groups of several columns, such as race and sex, are those of each column and those of the columns
    together. All of them are tested, with one correction, as far as they have ten samples or units.

    If samples have weights, all of this counts them by weight. Samples of weight 0, and groups without any
    others, are left out.

    Args:
        predictions: Predictions with ``groups``.
        measures: Names of measures; by default binned and smooth calibration error.
        n_bins: Number of bins of the binned measures.
        intervals: Whether to bootstrap an interval for each measure; the gap always has one.
        n_resamples: Number of bootstrap resamples.
        correction: ``"holm"`` or ``"benjamini_hochberg"``.
        level: Level of the intervals and of the test.
        seed: Equal seeds give equal results.
        progress: Called with the name of the current group, the number done, and the total.

    Example:
        >>> from calibrant import Predictions
        >>> table = by_group(
        ...     Predictions(
        ...         confidence=[0.9] * 200,
        ...         correct=[True] * 90 + [False] * 10 + [True] * 50 + [False] * 50,
        ...         groups=["art"] * 100 + ["law"] * 100,
        ...     )
        ... )
        >>> [(row.name, round(row.gap, 2), row.p_corrected < 0.05) for row in table.rows]
        [('law', 0.4, True), ('art', 0.0, False)]
        >>> table.sentence
        "1 of 2 groups are miscalibrated (Kuiper test, Holm's correction, level 0.05)"
    """
    predictions = predictions.counted()
    groups = _check_groups(predictions)
    level, named = check_level(level), resolve_measures(measures)
    outcomes, (names, places) = predictions.outcomes(), _places(groups)
    units = None if predictions.units is None else predictions.units.cpu()
    cells = [
        cumulative_difference(
            outcomes.take(rows),
            Units.of(None if units is None else units[rows.cpu()], len(rows), at_least=1),
        )
        for rows in places
    ]
    tests = group_tests(cells, correction=correction, level=level, seed=seed)
    sizes = [float(outcomes.counts[place].sum()) for place in places]
    rows = []
    for done, (name, place, test) in enumerate(zip(names, places, tests, strict=True)):
        if progress is not None:
            progress(name, done, len(places))
        metrics: Mapping[str, float] = FrozenDict({})
        known: Mapping[str, Interval] = FrozenDict({})
        if len(place) > 1:
            found = evaluate(
                predictions.take(place),
                measures=named,
                n_bins=n_bins,
                intervals=intervals,
                n_resamples=n_resamples,
                level=level,
                seed=seed,
            )
            metrics, known = found.metrics, found.intervals
        rows.append(GroupRow(**vars(test), name=name, metrics=metrics, intervals=known))
    overall = evaluate(predictions, measures=named, n_bins=n_bins)
    return GroupTable(
        rows=tuple(sorted(rows, key=lambda row: worst_first(row, level))),
        correction=correction,
        level=level,
        overall=overall.metrics,
        # Of several columns, the groups of all together are those that share no sample.
        within=FrozenDict(
            {
                name: _within(rows[-len(groups.names) :], sizes[-len(groups.names) :], name)
                for name in overall.metrics
            }
        ),
        skipped=overall.skipped,
    )


def group_tests(
    groups: Iterable[CumulativeDifference],
    *,
    correction: Correction = "holm",
    level: float = 0.95,
    seed: int = 0,
) -> list[GroupTest]:
    """Return the gap of each group with its interval, and the corrected test.

    Args:
        groups: The cumulative difference of each group, of samples or of bins.
        correction: ``"holm"`` or ``"benjamini_hochberg"``.
        level: Level of the intervals.
        seed: Equal seeds give equal p-values.
    """
    cells = list(groups)
    n_tested = sum(each.n_units >= FEWEST_TESTED for each in cells)
    generators = generator(seed).spawn(len(cells))
    tests = [
        refined_test(each, n_tests=n_tested, rng=rng, fewest=FEWEST_TESTED)
        for each, rng in zip(cells, generators, strict=True)
    ]
    p_values = np.array([test.p_value for test in tests])
    p_corrected = corrected(p_values, correction)
    rows = []
    for each, test, p in zip(cells, tests, p_corrected, strict=True):
        accuracy = min(float(each.hits.sum()) / each.total, 1.0)
        confidence = float(each.count @ each.confidence) / each.total
        low, high = wilson_interval(accuracy, each.effective, level=level)
        rows.append(
            GroupTest(
                n=each.n,
                n_units=each.n_units,
                accuracy=accuracy,
                mean_confidence=confidence,
                gap=confidence - accuracy,
                gap_low=confidence - high,
                gap_high=confidence - low,
                statistic=test.statistic,
                p_value=test.p_value,
                p_corrected=float(p),
            )
        )
    return rows


def sentence_on_groups(tests: Sequence[GroupTest], *, correction: Correction, level: float) -> str:
    """Return in a sentence how many groups are miscalibrated, by which test and correction."""
    tested = [test for test in tests if not math.isnan(test.p_value)]
    return (
        f"{sum(is_significant(test, level) for test in tested)} of {len(tested)} groups are miscalibrated "
        f"(Kuiper test, {_TITLES[correction]}, level {1 - level:.2g})"
    )


def worst_first(test: GroupTest, level: float) -> tuple[int, float]:
    """Return the place of a group in a table: significant ones, others, untested ones; by absolute gap."""
    kind = 2 if math.isnan(test.p_value) else int(not is_significant(test, level))
    return kind, -abs(test.gap)


def is_significant(test: GroupTest, level: float) -> bool:
    """Return whether the miscalibration of a group is significant after the correction."""
    return test.p_corrected <= 1 - level


def _check_groups(predictions: Predictions) -> Groups:
    if predictions.groups is None:
        raise InputError(
            "predictions: expected groups, got none; pass groups=, or name the column that holds them"
        )
    return predictions.groups


def _places(groups: Groups) -> tuple[list[str], list[torch.Tensor]]:
    """Return the names of all groups and the rows of each; those of several columns together come last."""
    names: list[str] = []
    places: list[torch.Tensor] = []
    for each in groups.families:
        order = torch.argsort(each.codes, stable=True)
        names += each.names
        places += order.split(torch.bincount(each.codes, minlength=len(each.names)).tolist())
    return names, places


def _within(rows: Sequence[GroupRow], sizes: Sequence[float], name: str) -> float:
    """Return the mean of a measure over the groups for which it is defined, weighted by their sizes."""
    values = [row.metrics.get(name, math.nan) for row in rows]
    defined = [(size, value) for size, value in zip(sizes, values, strict=True) if not math.isnan(value)]
    total = sum(size for size, _ in defined)
    return sum(size * value for size, value in defined) / total if total else math.nan


def group_to_dict(test: GroupTest) -> dict[str, Any]:
    """Return the gap and the test of a group as plain values."""
    return {
        "n": test.n,
        **({"n_units": test.n_units} if test.n_units < test.n else {}),
        "accuracy": test.accuracy,
        "mean_confidence": test.mean_confidence,
        "gap": test.gap,
        "gap_interval": [test.gap_low, test.gap_high],
        "statistic": test.statistic,
        "p_value": test.p_value,
        "p_corrected": test.p_corrected,
    }
