"""Evaluate predictions: every measure that can be computed from them, as one frozen value."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from calibrant.bins import Bins, equal_width_bins
from calibrant.data import Predictions
from calibrant.errors import InputError
from calibrant.inputs import ArrayLike, check_count
from calibrant.outcomes import Outcomes
from calibrant.registry import MEASURES, Measure


@dataclass(frozen=True, eq=False)
class Evaluation:
    """How honest a classifier's confidence is, in fractions of one.

    ``k`` is None when only confidences were known; ``metrics`` then holds what can be computed from
    them. A measure that these data leave undefined is NaN.
    """

    n: int
    k: int | None
    metrics: Mapping[str, float]
    bins: Bins


def evaluate(predictions: Predictions, *, n_bins: int = 15) -> Evaluation:
    """Compute the core measures of labelled predictions.

    Args:
        predictions: Logits or probabilities with labels, or confidences with hits.
        n_bins: Number of bins of the binned measures.

    Example:
        >>> from calibrant import Predictions
        >>> result = evaluate(Predictions(confidence=[0.9, 0.8, 0.6], correct=[True, True, False]))
        >>> round(result.metrics["ece"], 3), result.k
        (0.3, None)
    """
    n_bins = check_count(n_bins, "n_bins")
    outcomes = predictions.outcomes()
    if len(outcomes) < 2:
        raise InputError(
            "predictions: expected at least two samples, got 1; calibration is a property of many predictions"
        )
    metrics = {
        name: measure.function(**_arguments(measure, predictions, outcomes, n_bins))
        for name, measure in MEASURES.items()
        if measure.reads == "outcomes" or predictions.k is not None
    }
    return Evaluation(
        predictions.n, predictions.k, MappingProxyType(metrics), equal_width_bins(outcomes, n_bins)
    )


def _arguments(
    measure: Measure, predictions: Predictions, outcomes: Outcomes, n_bins: int
) -> dict[str, ArrayLike | None]:
    """Collect what a measure reads; those of logits take probabilities where only these are known."""
    arguments: dict[str, ArrayLike | None] = dict(measure.options or {})
    if measure.takes_bins:
        arguments["n_bins"] = n_bins
    if measure.reads == "outcomes":
        return arguments | {"confidence": outcomes.confidence, "correct": outcomes.correct}
    if measure.reads == "logits" and predictions.logits is not None:
        return arguments | {"logits": predictions.logits, "labels": predictions.labels}
    return arguments | {"probs": predictions.to_probs(), "labels": predictions.labels}
