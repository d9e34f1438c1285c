"""Columns of the comparison: which candidate is best, and which are not significantly worse."""

import math
from collections.abc import Mapping, Sequence

from calibrant.data.predictions import Predictions
from calibrant.evaluation.evaluate import MAX_WORK, inputs_of
from calibrant.inference.paired import Measured, differences_from
from calibrant.inputs import ArrayLike
from calibrant.metrics.measure import Measure
from calibrant.metrics.names import MEASURES
from calibrant.outcomes import Outcomes
from calibrant.report.page import ComparedMeasure

_N_BINS = 15
_LEVEL = 0.95
# With more samples, binned errors are not tested: they are computed again for each resample.
_BINNED_UP_TO = 200_000


def to_test(
    predictions: Predictions, outcomes: Outcomes, metrics: Mapping[str, float]
) -> dict[str, Measured]:
    """Return what tests need of a candidate: a few numbers for each sample, however many classes.

    Args:
        predictions: Labelled predictions.
        outcomes: Their outcomes.
        metrics: Their measures; those that are means over samples or depend on bins are tested.
    """
    inputs = inputs_of(predictions, outcomes, predictions.weights)
    return {
        name: Measured.of(
            MEASURES[name].function,
            inputs[MEASURES[name].reads],
            MEASURES[name].arguments(_N_BINS),
            value=value,
        )
        for name, value in metrics.items()
        if math.isfinite(value) and can_test(MEASURES[name])
    }


def can_test(measure: Measure) -> bool:
    """Return whether a measure is tested: means over samples and measures of bins, which take little time."""
    return measure.terms is not None or measure.of_bins is not None


def compared_measures(
    names: Sequence[str],
    metrics: Mapping[str, Mapping[str, float | None]],
    models: Mapping[str, Mapping[str, Measured]],
    *,
    units: ArrayLike | None = None,
    seed: int = 0,
) -> tuple[ComparedMeasure, ...]:
    """Mark the best of each measure, and those that are not significantly worse by ``paired_difference``.

    Args:
        names: Measures from :data:`calibrant.metrics.names.MEASURES`.
        metrics: Measures of each candidate.
        models: What the tests need of each candidate, for the same samples; if any is missing, nothing is
            tested.
        units: The samples that are drawn together.
        seed: Seed of the resamples.
    """
    compared = []
    for name in names:
        measure = MEASURES[name]
        values = {who: value for who, each in metrics.items() if (value := each.get(name)) is not None}
        top = measure.best(list(values.values())) if len(values) > 1 else math.nan
        best = tuple(who for who, value in values.items() if value == top)
        others = [who for who in values if who not in best]
        p_values = {}
        if best and others and _can_test(name, models, metrics):
            contest = {who: models[who][name] for who in (best[0], *others)}
            found = differences_from(contest, best[0], units=units, seed=seed, max_work=MAX_WORK)
            p_values = {who: each.p_value for who, each in found.items()}
        near = tuple(who for who, p_value in p_values.items() if p_value >= 1 - _LEVEL)
        look = (measure.short, measure.title, measure.better, measure.percent)
        compared.append(ComparedMeasure(name, *look, best, near, bool(p_values), p_values))
    return tuple(compared)


def _can_test(
    name: str, models: Mapping[str, Mapping[str, Measured]], candidates: Mapping[str, object]
) -> bool:
    if any(name not in models.get(who, {}) for who in candidates):
        return False
    total = sum(len(each[name]) for each in models.values())
    return MEASURES[name].terms is not None or total <= _BINNED_UP_TO
