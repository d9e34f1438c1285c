"""Charbonnier-SoftECE as a training term ("Sample Margin-Aware Recalibration of Temperature", Sec. 3.4)."""

import torch
from torch import Tensor

from calibrant.losses.loss import Loss
from calibrant.losses.parts.batch import IGNORED
from calibrant.losses.parts.top_label import top_label_confidence
from calibrant.surrogates.charbonnier import charbonnier_soft_ece


def charbonnier_loss(
    logits: Tensor,
    labels: Tensor,
    *,
    n_bins: int = 15,
    lam: float = 200.0,
    delta: float = 1e-3,
    ignore_index: int = IGNORED,
) -> Tensor:
    r"""Soft-binned calibration error whose gradient fades as a bin's gap closes.

    .. math:: \sum_b \frac{\sum_i w_{ib}}{n} \sqrt{\mathrm{gap}_b^2 + \delta^2}

    Bins and gaps are those of :func:`~calibrant.losses.soft_ece.soft_ece_loss`, of which this is the smooth
    relative. When every gap is zero the value is ``delta``, not zero. A term to add to a loss that
    classifies: ``CrossEntropyLoss() + CharbonnierLoss()``.

    Args:
        logits: Scores of shape ``(n, k)`` or ``(n, k, ...)``.
        labels: Integer classes.
        n_bins: Number of bins over the unit interval.
        lam: Sharpness of the bins.
        delta: Size below which a gap counts as closed.
        ignore_index: Label of the samples that count for nothing.

    Example:
        >>> round(float(charbonnier_loss(torch.tensor([[0.0, 0.0], [0.0, 0.0]]), torch.tensor([0, 1]))), 6)
        0.001
    """
    confidence, correct = top_label_confidence(logits, labels, ignore_index=ignore_index)
    if not len(correct):
        return confidence.sum().to(torch.promote_types(logits.dtype, torch.float32))
    value = charbonnier_soft_ece(confidence, correct, n_bins=n_bins, lam=lam, delta=delta)
    return value.to(torch.promote_types(logits.dtype, torch.float32))


class CharbonnierLoss(Loss):
    """Module form of :func:`charbonnier_loss`."""

    def __init__(
        self, n_bins: int = 15, lam: float = 200.0, delta: float = 1e-3, *, ignore_index: int = IGNORED
    ) -> None:
        super().__init__()
        self.n_bins = n_bins
        self.lam = lam
        self.delta = delta
        self.ignore_index = ignore_index

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the term of a batch."""
        return charbonnier_loss(
            logits,
            labels,
            n_bins=self.n_bins,
            lam=self.lam,
            delta=self.delta,
            ignore_index=self.ignore_index,
        )

    def extra_repr(self) -> str:
        """Say what makes this term differ from another of its kind."""
        return f"n_bins={self.n_bins}, lam={self.lam}, delta={self.delta}"
