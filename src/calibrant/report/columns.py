"""Columns of the comparison: which candidate is best, and which are not significantly worse."""

import math
from collections.abc import Mapping, Sequence

from calibrant.data.predictions import Predictions
from calibrant.evaluation.paired import paired_comparison
from calibrant.metrics.measure import Measure
from calibrant.metrics.names import MEASURES
from calibrant.report.page import ComparedMeasure

# The bootstrap of a mean resamples its terms; a binned error is computed again for each resample.
_BINNED_UP_TO = 200_000
_LEVEL = 0.95


def columns(
    names: Sequence[str],
    metrics: Mapping[str, Mapping[str, float | None]],
    predictions: Mapping[str, Predictions],
    *,
    seed: int = 0,
) -> tuple[ComparedMeasure, ...]:
    """Mark the best of each measure, and those that a paired bootstrap finds not significantly worse.

    Args:
        names: Measures from :data:`calibrant.metrics.names.MEASURES`.
        metrics: Measures of each candidate.
        predictions: Predictions of each candidate for the same samples; if any is missing, nothing is tested.
        seed: Seed of the resamples.
    """
    compared = []
    for name in names:
        measure = MEASURES[name]
        values = {who: value for who, each in metrics.items() if (value := each.get(name)) is not None}
        top = measure.best(list(values.values())) if len(values) > 1 else math.nan
        best = tuple(who for who, value in values.items() if value == top)
        tested = 0 < len(best) < len(values) and _can_test(measure, predictions, metrics)
        near = tuple(
            who
            for who in values
            if tested and who not in best and not _worse(name, predictions[who], predictions[best[0]], seed)
        )
        look = (measure.short, measure.title, measure.better, measure.percent)
        compared.append(ComparedMeasure(name, *look, best, near, tested))
    return tuple(compared)


def _can_test(
    measure: Measure, predictions: Mapping[str, Predictions], candidates: Mapping[str, object]
) -> bool:
    if any(who not in predictions for who in candidates):
        return False
    samples = sum(each.n for each in predictions.values())
    return measure.terms is not None or (measure.of_bins is not None and samples <= _BINNED_UP_TO)


def _worse(name: str, predictions: Predictions, best: Predictions, seed: int) -> bool:
    resamples = 200 if MEASURES[name].terms is None else 400
    found = paired_comparison(
        predictions, best, measures=[name], n_resamples=resamples, level=_LEVEL, seed=seed
    ).differences.get(name)
    return found is not None and math.isfinite(found.p_value) and found.p_value < 1 - _LEVEL
