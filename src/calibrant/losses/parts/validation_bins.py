"""Bins of validation confidence in which training samples are placed by their true class's probability.

AdaFocal's correspondence between the two (Ghosh et al., NeurIPS 2022, Sec. 4): what the model is too sure
of on validation is held back among training samples of about the same probability.
"""

import torch
from torch import Tensor

from calibrant.bins import Bins, equal_mass_bins
from calibrant.errors import InputError
from calibrant.losses.parts.batch import IGNORED, rows
from calibrant.losses.parts.global_batch import global_rows
from calibrant.outcomes import Outcomes


def validation_bins(
    logits: Tensor | None, labels: Tensor | None, *, n_bins: int, ignore_index: int = IGNORED
) -> Bins:
    """Fill bins of equal count with the top-label confidences of the validation set of all processes."""
    if logits is None or labels is None:
        raise InputError(
            "update: expected the logits and labels of the validation set, got none; "
            "call update(logits, labels) once per epoch"
        )
    z, y = rows(logits.detach(), labels, ignore_index=ignore_index)
    own = Outcomes.from_logits(z, y)
    confidence, correct = global_rows(torch.stack([own.confidence, own.correct.double()], dim=1)).unbind(1)
    if not len(confidence):
        raise InputError("labels: expected validation samples that are not ignored, got none")
    if not bool(torch.isfinite(confidence).all()):
        raise InputError(
            "logits: expected finite validation scores, got NaN or infinity; lower the step size"
        )
    return equal_mass_bins(Outcomes(confidence, correct > 0), n_bins)


def equal_width_edges(n_bins: int) -> Tensor:
    """Return the edges to start from, before any validation."""
    return torch.arange(n_bins + 1) / n_bins


def bin_of_true_class(nll: Tensor, edges: Tensor) -> Tensor:
    """Return which right-closed bin ``(edges[b], edges[b + 1]]`` each probability ``exp(-nll)`` lies in.

    The outer bins reach to 0 and 1, whatever the outermost validation confidences were.
    """
    return torch.bucketize(torch.exp(-nll.detach()), edges[1:-1].to(nll.dtype))
