"""Columns of the comparison: which candidate is best, and which are not significantly worse."""

import math
from collections.abc import Mapping, Sequence

from calibrant.data.predictions import Predictions
from calibrant.evaluation.paired import paired_comparison
from calibrant.metrics.names import MEASURES
from calibrant.report.page import Column

# Means over samples are resampled by their terms; a binned error has to be computed anew for each resample.
_QUICK = ("accuracy", "nll", "brier")
_SLOW = ("ece",)
_SLOW_UP_TO = 200_000
_LEVEL = 0.95


def columns(
    names: Sequence[str],
    metrics: Mapping[str, Mapping[str, float | None]],
    predictions: Mapping[str, Predictions],
    *,
    seed: int = 0,
) -> tuple[Column, ...]:
    """Mark the best of each measure and those that a paired bootstrap cannot tell from it.

    Args:
        names: Measures from :data:`calibrant.metrics.names.MEASURES`.
        metrics: Measures of each candidate.
        predictions: Predictions of each candidate, of the same samples; if any is missing, nothing is tested.
        seed: Of the resamples.
    """
    return tuple(_column(name, metrics, predictions, seed) for name in names)


def _column(
    name: str,
    metrics: Mapping[str, Mapping[str, float | None]],
    predictions: Mapping[str, Predictions],
    seed: int,
) -> Column:
    measure = MEASURES[name]
    values = {who: each[name] for who, each in metrics.items() if each.get(name) is not None}
    best: tuple[str, ...] = ()
    near: tuple[str, ...] = ()
    tested = False
    if measure.better != "neither" and len(values) > 1:
        pick = min if measure.better == "lower" else max
        top = pick(value for value in values.values() if value is not None)
        best = tuple(who for who, value in values.items() if value == top)
        tested = len(best) < len(values) and _can_test(name, predictions, metrics)
        if tested:
            others = [who for who in values if who not in best]
            near = tuple(
                who for who in others if not _worse(name, predictions[who], predictions[best[0]], seed)
            )
    return Column(
        name,
        measure.short,
        measure.title,
        measure.better,
        measure.percent,
        best,
        near,
        tested,
    )


def _can_test(name: str, predictions: Mapping[str, Predictions], candidates: Mapping[str, object]) -> bool:
    if any(who not in predictions for who in candidates):
        return False
    samples = sum(each.n for each in predictions.values())
    return name in _QUICK or (name in _SLOW and samples <= _SLOW_UP_TO)


def _worse(name: str, predictions: Predictions, best: Predictions, seed: int) -> bool:
    resamples = 400 if name in _QUICK else 200
    found = paired_comparison(
        predictions, best, measures=[name], n_resamples=resamples, level=_LEVEL, seed=seed
    ).differences.get(name)
    return found is not None and math.isfinite(found.p_value) and found.p_value < 1 - _LEVEL
