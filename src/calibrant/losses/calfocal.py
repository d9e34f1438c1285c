"""CalFocal, both cases (Ghosh et al., "AdaFocal: Calibration-aware Adaptive Focal Loss", NeurIPS 2022)."""

from collections.abc import Mapping
from typing import Any, Literal, Unpack

import torch
from torch import Tensor

from calibrant.errors import InputError
from calibrant.inputs import check_count
from calibrant.losses.focal import focal_value
from calibrant.losses.loss import SampleLoss, SampleOptions
from calibrant.losses.parts.batch import IGNORED, Reduction, check_weight, reduce_loss, true_class_nll
from calibrant.losses.parts.epoch_records import EpochRecords
from calibrant.losses.parts.validation_bins import bin_of_true_class, equal_width_edges, validation_bins

# An exponent of exp(20) already silences a sample; the exponential of more would overflow.
_LARGEST_LOG_GAMMA = 20.0


def calfocal_loss(
    logits: Tensor,
    labels: Tensor,
    *,
    edges: Tensor,
    accuracy: Tensor,
    confidence: Tensor | None = None,
    lam: float = 10.0,
    weight: Tensor | None = None,
    ignore_index: int = IGNORED,
    reduction: Reduction = "mean",
) -> Tensor:
    r"""Focal loss that fades out where probabilities exceed what validation says they are worth.

    .. math:: L(z, y) = -(1 - p_y)^{\gamma} \log p_y, \quad
        \gamma = e^{\lambda (p_y - A_b)} \text{ (case 1)} \quad\text{or}\quad
        \gamma = e^{\lambda (C_b - A_b)} \text{ (case 2)}

    ``b`` is the validation bin that :math:`p_y` is in, :math:`A_b` its accuracy, :math:`C_b` its mean
    confidence. In case 1 the exponent depends on the sample and carries a gradient.

    Args:
        logits: Scores of shape ``(n, k)`` or ``(n, k, ...)``.
        labels: Integer classes.
        edges: Rising edges of the bins, shape ``(m + 1,)``; a bin holds its upper edge.
        accuracy: Validation accuracy of each bin, shape ``(m,)``.
        confidence: Mean validation confidence of each bin for case 2; none for case 1.
        lam: How steeply the exponent answers; the paper's 100 costs accuracy, its 1 does little.
        weight: One weight per class.
        ignore_index: Label of the samples that count for nothing.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.

    Example:
        >>> logits, label = torch.tensor([[2.0, 0.0]]), torch.tensor([0])  # p_y = 0.88
        >>> edges, accuracy = torch.tensor([0.0, 1.0]), torch.tensor([0.8])
        >>> round(float(calfocal_loss(logits, label, edges=edges, accuracy=accuracy)), 4)
        0.0011
    """
    check_weight(weight, logits)
    nll = true_class_nll(logits, labels, ignore_index=ignore_index)
    place = bin_of_true_class(nll, edges)
    if confidence is None:
        excess = torch.exp(-nll) - accuracy.to(nll.dtype)[place]
    else:
        excess = (confidence - accuracy).to(nll.dtype)[place]
    gamma = (lam * excess).clamp_max(_LARGEST_LOG_GAMMA).exp()
    return reduce_loss(
        focal_value(nll, gamma), labels, reduction=reduction, weight=weight, ignore_index=ignore_index
    )


class CalFocalLoss(SampleLoss):
    """Module form of :func:`calfocal_loss`, with bins taken from the validation set by ``update``.

    Until the first update the model is taken to be calibrated in bins of equal width. Unlike AdaFocal's, the
    exponents depend on the last update alone, and return to 1 as the model becomes calibrated.

    Args:
        case: ``"bin"`` compares a bin's confidence with its accuracy (case 2 of the paper, the base of
            AdaFocal), ``"sample"`` each sample's own probability (case 1).
        n_bins: Number of bins.
        lam: How steeply the exponent answers.
        shared: Class weights, ``ignore_index`` and ``reduction``.
    """

    edges: Tensor
    confidence: Tensor
    accuracy: Tensor

    validates = True

    def __init__(
        self,
        case: Literal["bin", "sample"] = "bin",
        *,
        n_bins: int = 15,
        lam: float = 10.0,
        **shared: Unpack[SampleOptions],
    ) -> None:
        super().__init__(**shared)
        if case not in ("bin", "sample"):
            raise InputError(f"case: expected 'bin' or 'sample', got {case!r}")
        self.case = case
        self.n_bins = check_count(n_bins, "n_bins")
        self.lam = lam
        edges = equal_width_edges(n_bins)
        self.register_buffer("edges", edges)
        self.register_buffer("confidence", edges[1:] - 0.5 / n_bins)
        self.register_buffer("accuracy", edges[1:] - 0.5 / n_bins)
        self.records = EpochRecords({"edges": n_bins + 1, "confidence": n_bins, "accuracy": n_bins})

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of a batch."""
        confidence = self.confidence if self.case == "bin" else None
        return calfocal_loss(
            logits,
            labels,
            edges=self.edges,
            accuracy=self.accuracy,
            confidence=confidence,
            lam=self.lam,
            **self.shared,
        )

    @torch.no_grad()
    def update(self, logits: Tensor | None = None, labels: Tensor | None = None) -> None:
        """Take the bins of the validation set; each process passes its share."""
        bins = validation_bins(logits, labels, n_bins=self.n_bins, ignore_index=self.ignore_index)
        # An empty bin, left over by ties, is as narrow as its edge and asks for nothing.
        self.confidence.copy_(torch.where(bins.count > 0, bins.confidence, bins.edges[1:]))
        self.accuracy.copy_(torch.where(bins.count > 0, bins.accuracy, bins.edges[1:]))
        self.edges.copy_(bins.edges)
        self.records.add(edges=self.edges, confidence=self.confidence, accuracy=self.accuracy)

    @property
    def history(self) -> list[Mapping[str, Any]]:
        """Edges, confidence and accuracy of the bins of each epoch, oldest first."""
        return self.records.entries

    def extra_repr(self) -> str:
        """Say what makes this loss differ from another of its kind."""
        return f"case={self.case!r}, n_bins={self.n_bins}, lam={self.lam}"
