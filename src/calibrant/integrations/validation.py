"""The validation set in a training loop of another library: which samples count, and what is logged."""

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from calibrant.data.predictions import Predictions
from calibrant.errors import InputError
from calibrant.evaluation.evaluate import evaluate
from calibrant.losses.loss import Loss
from calibrant.losses.parts.batch import IGNORED, rows

#: The measures that are logged by default.
DEFAULT_MEASURES = ("accuracy", "nll", "brier", "ece", "ece_equal_mass")


def validation_rows(logits: Tensor, labels: Tensor, loss: Loss | None) -> tuple[Tensor, Tensor]:
    """Return logits and labels on the CPU, without the samples that the loss, or a term of it, ignores."""
    z, y, _ = rows(logits.detach(), labels, ignore_index=_ignored(loss))
    return z.cpu(), y.cpu()


def validation_weights(weights: Tensor, labels: Tensor, loss: Loss | None) -> Tensor:
    """Return the weights of the samples of :func:`validation_rows`, on the CPU."""
    if weights.shape != labels.shape:
        raise InputError(
            f"weights: expected one for each label, shape {tuple(labels.shape)}, got {tuple(weights.shape)}"
        )
    return weights.detach()[labels != _ignored(loss)].cpu().double()


def _ignored(loss: Loss | None) -> int:
    labels_to_ignore = [getattr(part, "ignore_index", None) for part in loss.modules()] if loss else []
    return next((label for label in labels_to_ignore if label is not None), IGNORED)


def validation_predictions(
    logits: Tensor, labels: Tensor, *, of_labels: bool = False, weights: Tensor | None = None
) -> Predictions | None:
    """Return predictions for a report, on the CPU; None if their measures are undefined."""
    count = len(labels) if weights is None else int((weights > 0).sum())
    if count < 2 or not bool(torch.isfinite(logits).all()):
        return None
    weights = None if weights is None else weights.cpu()
    classes = Predictions(logits=logits.cpu(), labels=labels.cpu(), weights=weights)
    if not of_labels:
        return classes
    return Predictions(confidence=classes.to_probs()[:, 1], correct=labels.cpu() == 1, weights=weights)


def validation_measures(
    logits: Tensor,
    labels: Tensor,
    *,
    measures: Sequence[str],
    n_bins: int,
    of_labels: bool = False,
    weights: Tensor | None = None,
) -> Mapping[str, float]:
    """Return the measures by name; all are NaN for fewer than two predictions, or if one is not finite.

    With ``of_labels`` each sample is an entry of a label matrix: measures are those of the probability of the
    label, class 1, and accuracy is the share of entries that are right at a probability of one half. Samples
    count by their weights if there are any; measures that take no weights are NaN then.
    """
    undefined = dict.fromkeys(measures, math.nan)
    count = len(labels) if weights is None else int((weights > 0).sum())
    if count < 2 or not bool(torch.isfinite(logits).all()):
        return undefined
    classes = Predictions(logits=logits, labels=labels, weights=weights)
    if not of_labels:
        return {**undefined, **evaluate(classes, measures=measures, n_bins=n_bins).metrics}
    entries = Predictions(confidence=classes.to_probs()[:, 1], correct=labels == 1, weights=weights)
    measured = dict(evaluate(entries, measures=measures, n_bins=n_bins).metrics)
    if "accuracy" in measured:
        measured |= evaluate(classes, measures=["accuracy"]).metrics
    return measured
