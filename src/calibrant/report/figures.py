"""The numbers that charts and panels draw: a few hundred, however many samples there are."""

import math
from collections.abc import Iterable, Mapping, Sequence

from torch import Tensor

from calibrant.bins import equal_width_bins
from calibrant.data.predictions import Predictions
from calibrant.decisions.thresholds import guaranteed_risks
from calibrant.evaluation.answering import Answering, answer_when
from calibrant.evaluation.detection import score_pairs
from calibrant.evaluation.evaluate import Evaluation, positive_of
from calibrant.evaluation.groups import GroupRow, by_group
from calibrant.evaluation.paired import paired_comparison
from calibrant.evaluation.slices import ClassRow
from calibrant.evaluation.temperature_curve import TemperatureCurve, temperature_curve
from calibrant.files import without_nan
from calibrant.inference.bands import effective_counts
from calibrant.inference.intervals import wilson_interval
from calibrant.inference.paired import PairedDifference
from calibrant.metrics.accuracy import accuracy, mean_confidence
from calibrant.metrics.margin import margin_slices
from calibrant.metrics.names import MEASURES
from calibrant.metrics.ood import ood_curve
from calibrant.metrics.scores import SCORES
from calibrant.metrics.selective import risk_coverage_curve
from calibrant.outcomes import Outcomes, Pairs
from calibrant.posthoc.calibrator import Calibrator
from calibrant.posthoc.smart import SMART
from calibrant.posthoc.temperature import TemperatureScaling
from calibrant.report.page import (
    AnswerRule,
    Binned,
    ChanceLine,
    ClassLine,
    Detection,
    Difference,
    Figures,
    GroupGap,
    GroupLine,
    GroupPanel,
    MarginGroup,
    ModelPair,
    NumberList,
    OutOfDistribution,
    Risk,
    Temperatures,
    WantedTemperature,
)

#: Numbers of bins that the reader can choose from.
BIN_NUMBERS = (5, 10, 15, 20, 25, 30, 50)
#: Bins of the probability of the positive class.
POSITIVE_BINS = 10
#: Most points of a curve.
POINTS = 200
#: Most thresholds that are tested for the guaranteed risk.
RANKS = 500
MARGIN_GROUPS = 8
#: Most classes in the table.
CLASSES = 1000
#: Most groups in the table.
GROUPS = 1000
#: With more samples, only means are tested and nothing has an interval: resampling would take too long.
TESTED_UP_TO = 50_000


def figures(predictions: Predictions, outcomes: Outcomes, metrics: Mapping[str, float]) -> Figures:
    """Bin, group and thin labelled predictions.

    Args:
        predictions: Labelled predictions.
        outcomes: Their outcomes.
        metrics: Their measures; accuracy and mean confidence are computed if they are missing here.
    """
    pairs = Pairs(confidence=outcomes.confidence, correct=outcomes.correct, weights=outcomes.weights)
    risk = risk_coverage_curve(**pairs, max_points=POINTS)
    right, confidence = (
        metrics[name] if name in metrics else MEASURES[name].function(**pairs)
        for name in ("accuracy", "mean_confidence")
    )
    return Figures(
        accuracy=right,
        mean_confidence=confidence,
        bins=tuple(binned(outcomes, n_bins) for n_bins in BIN_NUMBERS),
        risk=Risk(
            coverage=_rounded(risk.coverage),
            risk=_rounded(risk.risk),
            threshold=_rounded(risk.threshold),
            guaranteed=_guaranteed(predictions, outcomes, risk.coverage),
        ),
        margins=_margins(predictions),
        answers=tuple(_answer_rule(each) for each in answer_when(outcomes)),
        positive=None if predictions.k != 2 else binned(positive_of(predictions), POSITIVE_BINS),
    )


def _guaranteed(predictions: Predictions, outcomes: Outcomes, coverage: Tensor) -> NumberList:
    """Return the risk that is guaranteed at each coverage; nothing for samples that are not like draws."""
    if outcomes.weights is not None or predictions.n_rows < predictions.n:
        return ()
    found = guaranteed_risks(outcomes, most_ranks=RANKS)
    return _or_none(found.at(coverage.tolist()))


def _answer_rule(found: Answering) -> AnswerRule:
    share, at_most = found.answered, found.at_most_wrong
    return AnswerRule(at_most, found.threshold, found.n, share, found.wrong, found.low, found.high)


def binned(outcomes: Outcomes, n_bins: int) -> Binned:
    """Return a reliability diagram with Wilson's interval of each accuracy, which is wide for few samples."""
    bins = equal_width_bins(outcomes, n_bins)
    sizes = effective_counts(outcomes, bins)
    counted = zip(
        bins.accuracy.clamp(max=1.0).tolist(), (bins.count if sizes is None else sizes).tolist(), strict=True
    )
    low, high = zip(*(wilson_interval(a, n) if n else (math.nan, math.nan) for a, n in counted), strict=True)
    return Binned(
        n_bins=n_bins,
        ece=float(bins.expected_gap()),
        count=tuple(bins.count.tolist()) if outcomes.weights is None else _rounded(bins.count),
        confidence=_or_none(bins.confidence),
        accuracy=_or_none(bins.accuracy),
        band_low=_or_none(low),
        band_high=_or_none(high),
    )


def chance_lines(measured: Mapping[str, Evaluation]) -> tuple[ChanceLine, ...]:
    """Put the calibration errors of candidates beside what a calibrated model would show by chance."""
    names = dict.fromkeys(name for each in measured.values() for name in each.by_chance)
    return tuple(
        ChanceLine(
            title,
            MEASURES[name].title,
            MEASURES[name].percent,
            each.metrics[name],
            each.by_chance[name].mean,
            each.by_chance[name].high,
            each.by_chance[name].p_value,
        )
        for name in names
        for title, each in measured.items()
        if name in each.by_chance
    )


def class_lines(rows: Sequence[ClassRow], others: Sequence[ClassRow] | None = None) -> tuple[ClassLine, ...]:
    """Return the classes, the least calibrated first; those beyond the first thousand are left out.

    Args:
        rows: The classes before calibration.
        others: The same classes after it.
    """
    after: Sequence[ClassRow | None] = [None] * len(rows) if others is None else others
    worst = sorted(zip(rows, after, strict=True), key=lambda pair: -pair[0].ece)[:CLASSES]
    return tuple(
        ClassLine(
            name=row.name,
            n=row.n,
            frequency=row.frequency,
            recall=without_nan(row.recall),
            mean_probability=row.mean_probability,
            ece=row.ece,
            mean_probability_after=None if other is None else other.mean_probability,
            ece_after=None if other is None else other.ece,
        )
        for row, other in worst
    )


def group_panel(before: Predictions, after: Predictions | None) -> GroupPanel | None:
    """Measure and test each group; None if the predictions have no groups.

    Args:
        before: Labelled predictions.
        after: The same samples after calibration, or of another model.
    """
    if before.groups is None:
        return None
    found = by_group(before, measures=("ece",))
    other = None if after is None or after.groups is None else by_group(after, measures=("ece",))
    gaps = {} if other is None else {row.name: _group_gap(row) for row in other.rows}
    lines = [
        GroupLine(row.name, row.n, row.accuracy, row.mean_confidence, _group_gap(row), gaps.get(row.name))
        for row in found.rows[:GROUPS]
    ]
    return GroupPanel(
        n_groups=len(found.rows),
        test=found.sentence,
        test_after=None if other is None else other.sentence,
        within=without_nan(found.within["ece"]),
        within_after=None if other is None else without_nan(other.within["ece"]),
        lines=tuple(lines),
    )


def _group_gap(row: GroupRow) -> GroupGap:
    ece, p_value = without_nan([row.metrics.get("ece", math.nan), row.p_corrected])
    return GroupGap(row.gap, row.gap_low, row.gap_high, ece, p_value)


def model_pairs(
    models: Mapping[str, Predictions], measures: Sequence[str], *, seed: int = 0
) -> tuple[ModelPair, ...]:
    """Test the differences between the first model and each other one, on the same samples.

    Args:
        models: Predictions by the name of the model.
        measures: Measures that all of them allow; with many samples, only those that are means over samples
            are tested.
        seed: Seed of the resamples.
    """
    (_, first), *others = models.items()
    quick = first.n <= TESTED_UP_TO
    tested = [name for name in measures if quick or MEASURES[name].terms is not None]
    pairs = []
    for name, other in others:
        found = paired_comparison(first, other, measures=tested, seed=seed).differences
        pairs.append(ModelPair(name, tuple(_difference(each, row) for each, row in found.items())))
    return tuple(pairs)


def _difference(name: str, found: PairedDifference) -> Difference:
    measure = MEASURES[name]
    return Difference(
        title=measure.title,
        better=measure.better,
        percent=measure.percent,
        first=found.value_a,
        other=found.value_b,
        difference=found.difference,
        low=found.low,
        high=found.high,
        p_value=found.p_value,
        name=name,
    )


def compared_temperatures(
    validation: Predictions, fitted_on: str, calibrators: Mapping[str, Calibrator]
) -> Temperatures | None:
    """Return the temperature at each margin by the methods that were compared.

    Args:
        validation: The labelled predictions that the methods were fitted on.
        fitted_on: What they are called on the page.
        calibrators: The fitted methods by name; None is returned unless they include ``temperature``, and
            ``smart`` with the margin as its indicator, each with any options.
    """
    smart, single = _first_variant("smart", calibrators), _first_variant("temperature", calibrators)
    if not isinstance(smart, SMART) or smart.indicator != "margin":
        return None
    if not isinstance(single, TemperatureScaling):
        return None
    return _temperatures(temperature_curve(validation, calibrator=smart, single=single), fitted_on)


def _first_variant(method: str, calibrators: Mapping[str, Calibrator]) -> Calibrator | None:
    """Return the method without options if it was fitted, else the first of its variants."""
    variants = (each for name, each in calibrators.items() if name.startswith(f"{method}("))
    return calibrators.get(method) or next(variants, None)


def _temperatures(curve: TemperatureCurve, fitted_on: str) -> Temperatures:
    return Temperatures(
        fitted_on=fitted_on,
        margins=_rounded(curve.margins),
        temperature=_rounded(curve.temperature),
        single=curve.single,
        wanted=tuple(
            WantedTemperature(_rounded(group.margins), _rounded(group.lowest), _or_none(group.highest))
            for group in curve.feasible
        ),
    )


def ood_panel(known: Predictions, foreign: Predictions | None, name: str) -> OutOfDistribution | None:
    """Rate every score that both sets of predictions allow."""
    if foreign is None:
        return None
    found = []
    for score, pair in score_pairs(known, foreign).items():
        curve = ood_curve(*pair, max_points=POINTS)
        scores = curve.scores
        areas = (scores.auroc, scores.aupr_in, scores.aupr_out, scores.fpr95)
        title = SCORES[score].title if score in SCORES else score
        found.append(Detection(title, *areas, _rounded(curve.passed), _rounded(curve.kept)))
    return OutOfDistribution(name, foreign.n, tuple(found))


def _margins(predictions: Predictions) -> tuple[MarginGroup, ...]:
    if predictions.confidence is not None:
        return ()
    assert predictions.labels is not None
    measures = {"accuracy": accuracy, "mean_confidence": mean_confidence}
    # Logarithms of probabilities have the margins of the logits.
    parts = margin_slices(
        predictions.to_logits(),
        predictions.labels,
        n_groups=MARGIN_GROUPS,
        measures=measures,
        weights=predictions.weights,
    )
    return tuple(
        MarginGroup(part.low, part.high, part.n, part.metrics["accuracy"], part.metrics["mean_confidence"])
        for part in parts
    )


def _rounded(values: Tensor | Iterable[float]) -> tuple[float, ...]:
    """Return plain numbers with nine significant digits, more than any screen shows."""
    return tuple(float(f"{float(value):.9g}") for value in values)


def _or_none(values: Tensor | Iterable[float]) -> NumberList:
    """Return rounded numbers, with None in place of undefined and infinite ones."""
    return tuple(without_nan(_rounded(values)))
