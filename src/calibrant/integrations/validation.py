"""The validation set in a training loop of another library: which samples count, and what is logged."""

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from calibrant.data.predictions import Predictions
from calibrant.evaluation.evaluate import evaluate
from calibrant.losses.loss import Loss
from calibrant.losses.parts.batch import IGNORED, rows

#: The measures that are logged by default.
DEFAULT_MEASURES = ("accuracy", "nll", "brier", "ece", "ece_equal_mass")


def validation_rows(logits: Tensor, labels: Tensor, loss: Loss | None) -> tuple[Tensor, Tensor]:
    """Return logits and labels on the CPU, without the samples that the loss, or a term of it, ignores."""
    labels_to_ignore = [getattr(part, "ignore_index", None) for part in loss.modules()] if loss else []
    ignored = next((label for label in labels_to_ignore if label is not None), IGNORED)
    z, y = rows(logits.detach(), labels, ignore_index=ignored)
    return z.cpu(), y.cpu()


def validation_measures(
    logits: Tensor, labels: Tensor, *, measures: Sequence[str], n_bins: int
) -> Mapping[str, float]:
    """Return the measures by name; all are NaN for fewer than two predictions, or if one is not finite."""
    if len(labels) < 2 or not bool(torch.isfinite(logits).all()):
        return dict.fromkeys(measures, math.nan)
    return evaluate(Predictions(logits=logits, labels=labels), measures=measures, n_bins=n_bins).metrics
