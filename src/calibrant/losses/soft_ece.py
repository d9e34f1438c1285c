"""Soft-binned calibration error as a training term (Karandikar et al., NeurIPS 2021)."""

import torch
from torch import Tensor

from calibrant.losses.loss import Loss
from calibrant.losses.parts.batch import IGNORED
from calibrant.losses.parts.top_label import top_label_confidence
from calibrant.surrogates.soft_bins import soft_ece


def soft_ece_loss(
    logits: Tensor, labels: Tensor, *, n_bins: int = 15, lam: float = 200.0, ignore_index: int = IGNORED
) -> Tensor:
    r"""Mean gap between confidence and accuracy over bins that share their samples.

    .. math:: \sum_b \frac{\sum_i w_{ib}}{n}
        \Big| \frac{\sum_i w_{ib} (r_i - [\hat y_i = y_i])}{\sum_i w_{ib}} \Big|, \quad
        w_{ib} = \mathrm{softmax}_b\big(-\lambda (r_i - c_b)^2\big), \quad r_i = \max_k p_{ik}

    A term to add to a loss that classifies: ``CrossEntropyLoss() + SoftECELoss()``. A bin with few samples
    is noisy, so small batches want few bins. The batch is the global one under data-parallel training.

    Args:
        logits: Scores of shape ``(n, k)`` or ``(n, k, ...)``.
        labels: Integer classes.
        n_bins: Number of bins over the unit interval.
        lam: Sharpness of the bins; see :func:`~calibrant.surrogates.soft_membership`.
        ignore_index: Label of the samples that count for nothing.

    Example:
        >>> round(float(soft_ece_loss(torch.tensor([[2.0, 0.0], [2.0, 0.0]]), torch.tensor([0, 1]))), 4)
        0.3808
    """
    confidence, correct = top_label_confidence(logits, labels, ignore_index=ignore_index)
    if not len(correct):
        return confidence.sum().to(torch.promote_types(logits.dtype, torch.float32))
    value = soft_ece(confidence, correct, n_bins=n_bins, lam=lam)
    return value.to(torch.promote_types(logits.dtype, torch.float32))


class SoftECELoss(Loss):
    """Module form of :func:`soft_ece_loss`."""

    def __init__(self, n_bins: int = 15, lam: float = 200.0, *, ignore_index: int = IGNORED) -> None:
        super().__init__()
        self.n_bins = n_bins
        self.lam = lam
        self.ignore_index = ignore_index

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the term of a batch."""
        return soft_ece_loss(logits, labels, n_bins=self.n_bins, lam=self.lam, ignore_index=self.ignore_index)

    def extra_repr(self) -> str:
        """Say what makes this term differ from another of its kind."""
        return f"n_bins={self.n_bins}, lam={self.lam}"
