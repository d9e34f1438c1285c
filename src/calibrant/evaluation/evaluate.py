"""Evaluate predictions: the measures that can be computed from them, as one frozen value."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from calibrant.bins import Bins, equal_width_bins
from calibrant.data.predictions import Predictions
from calibrant.errors import InputError
from calibrant.inputs import Progress, check_count
from calibrant.metrics.intervals import Interval, with_interval
from calibrant.metrics.measure import Measure
from calibrant.metrics.names import MEASURES, resolve_measures
from calibrant.outcomes import Outcomes


@dataclass(frozen=True, eq=False)
class Evaluation:
    """How honest a classifier's confidence is, in fractions of one.

    Attributes:
        n: Number of samples.
        k: Number of classes; none when only confidences were known.
        metrics: The measures by name. One that these data leave undefined is NaN.
        intervals: Bootstrap intervals by name, where asked for and defined; measures that grow with the
            square of the samples have none.
        skipped: Measures that were asked for and left out, each with the reason.
        bins: Confidence and accuracy in bins of equal width, for the reliability diagram.
    """

    n: int
    k: int | None
    metrics: Mapping[str, float]
    intervals: Mapping[str, Interval]
    skipped: Mapping[str, str]
    bins: Bins


def evaluate(
    predictions: Predictions,
    *,
    measures: str | Sequence[str] = "core",
    n_bins: int = 15,
    intervals: bool = False,
    n_resamples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
    progress: Progress | None = None,
) -> Evaluation:
    """Compute measures of labelled predictions.

    Args:
        predictions: Logits or probabilities with labels, or confidences with hits.
        measures: ``"core"``, ``"all"``, or names from :data:`calibrant.metrics.names.MEASURES`.
        n_bins: Number of bins of the binned measures.
        intervals: Whether to bootstrap an interval for each measure.
        n_resamples: Number of bootstrap resamples.
        level: Coverage of the intervals.
        seed: Equal seeds give equal intervals.
        progress: Called with the measure at work, how many are done, and how many there are.

    Example:
        >>> from calibrant import Predictions
        >>> result = evaluate(Predictions(confidence=[0.9, 0.8, 0.6], correct=[True, True, False]))
        >>> round(result.metrics["ece"], 3), result.k
        (0.3, None)
    """
    n_bins = check_count(n_bins, "n_bins")
    named = resolve_measures(measures)
    outcomes = predictions.outcomes()
    if len(outcomes) < 2:
        raise InputError(
            "predictions: expected at least two samples, got 1; calibration is a property of many predictions"
        )
    arguments = _arguments_of(predictions, outcomes)
    values: dict[str, float] = {}
    known: dict[str, Interval] = {}
    skipped: dict[str, str] = {}
    for done, name in enumerate(named):
        measure = MEASURES[name]
        if progress is not None:
            progress(measure.title, done, len(named))
        reason = why_not(measure, predictions.n, predictions.k, asked_for=not isinstance(measures, str))
        if reason:
            skipped[name] = reason
            continue
        given = arguments(measure) | measure.arguments(n_bins)
        values[name] = measure.function(**given)
        # A resample repeats rows, which kernel measures take for evidence, and each would take minutes.
        if intervals and measure.max_samples is None and math.isfinite(values[name]):
            known[name] = with_interval(
                measure.function, **given, n_resamples=n_resamples, level=level, seed=seed
            )
    return Evaluation(
        predictions.n,
        predictions.k,
        MappingProxyType(values),
        MappingProxyType(known),
        MappingProxyType(skipped),
        equal_width_bins(outcomes, n_bins),
    )


def why_not(measure: Measure, n: int, k: int | None, *, asked_for: bool) -> str:
    """Say why a measure cannot be had from such predictions, or nothing if it can."""
    if k is None:
        return "" if measure.reads == "outcomes" else "needs class probabilities"
    if k < measure.min_classes:
        return f"needs at least {measure.min_classes} classes"
    if measure.max_samples is not None and n > measure.max_samples and not asked_for:
        return f"grows with the square of the samples; beyond {measure.max_samples:,} name it to have it"
    return ""


def _arguments_of(predictions: Predictions, outcomes: Outcomes) -> Callable[[Measure], dict[str, Any]]:
    """Return what a measure reads; those of logits take probabilities where only these are known."""
    by_kind: dict[str, dict[str, Any]] = {
        "outcomes": {"confidence": outcomes.confidence, "correct": outcomes.correct}
    }
    if predictions.k is not None:
        by_kind["probs"] = {"probs": predictions.to_probs(), "labels": predictions.labels}
        by_kind["logits"] = (
            by_kind["probs"]
            if predictions.logits is None
            else {"logits": predictions.logits, "labels": predictions.labels}
        )
    return lambda measure: dict(by_kind[measure.reads])
