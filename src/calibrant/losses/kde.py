"""ECE-KDE as a training term (Popordanoska et al., "A Consistent and Differentiable Lp Canonical
Calibration Error Estimator", NeurIPS 2022); added to cross-entropy it is their KDE-XE.
"""  # noqa: D205  # the title does not fit on one line

import math
from typing import Literal, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from calibrant.errors import InputError
from calibrant.losses.loss import Loss
from calibrant.losses.parts.batch import IGNORED, rows
from calibrant.losses.parts.global_batch import global_rows
from calibrant.losses.parts.top_label import top_label

KDEMode: TypeAlias = Literal["top_label", "canonical"]

# Below this a probability is at the border of the simplex, where the kernel is its limit from inside.
_BORDER = 1e-15


def kde_loss(
    logits: Tensor,
    labels: Tensor,
    *,
    p: float = 1.0,
    bandwidth: float = 0.02,
    mode: KDEMode = "top_label",
    ignore_index: int = IGNORED,
) -> Tensor:
    r"""Distance between each prediction and what similar predictions of the batch came to.

    .. math:: \frac{1}{n} \sum_j \Big\| \frac{\sum_{i \ne j} k(x_j; x_i)\, y_i}{\sum_{i \ne j} k(x_j; x_i)}
        - x_j \Big\|_p^p

    ``k(x; c)`` is the density at ``x`` of the Dirichlet distribution with parameters ``c / bandwidth + 1``.
    A term to add to a loss that classifies: ``CrossEntropyLoss() + 0.5 * KDELoss()``. Time and memory are
    quadratic in the size of the global batch. A batch of one has no neighbours and the value 0.

    ``"top_label"`` judges the confidence in the predicted class with the beta kernel: one dimension, which a
    batch fills. ``"canonical"``, the paper's own choice, judges whole distributions: with more classes than
    a batch has samples per class, the nearest neighbours are of other classes and pull the wrong way (on
    noisy digits with batches of 128, half a ``KDELoss`` beside cross-entropy left 74 % accuracy with
    ``"top_label"`` and 64 % with ``"canonical"``; cross-entropy alone 75 %).

    Args:
        logits: Scores of shape ``(n, k)`` or ``(n, k, ...)``.
        labels: Integer classes.
        p: The order of the error, at least 1; the p-th power is returned, without the root.
        bandwidth: Width of the kernel: about ``sqrt(bandwidth * x * (1 - x))`` around a confidence ``x``.
        mode: ``"top_label"`` or ``"canonical"``.
        ignore_index: Label of the samples that count for nothing.

    Example:
        >>> logits = torch.tensor([[0.0, math.log(3.0)]] * 3)
        >>> round(float(kde_loss(logits, torch.tensor([1, 1, 1]))), 4)
        0.25
    """
    if not 1 <= p < math.inf:
        raise InputError(f"p: expected a number of at least 1, got {p}")
    if not 0 < bandwidth < math.inf:
        raise InputError(f"bandwidth: expected a positive number, got {bandwidth}")
    if mode == "top_label":
        sure, correct = top_label(logits, labels, ignore_index=ignore_index)
        # log(1 - r) from log r, without the loss of digits near r = 1; r = 1 itself is at the border.
        doubt = torch.log(-torch.expm1(sure.clamp_max(-_BORDER)))
        log_points = torch.stack([sure, doubt], dim=1)
        seen, stated = correct[:, None], sure.exp()[:, None]
    elif mode == "canonical":
        z, y = rows(logits, labels, ignore_index=ignore_index)
        log_points = global_rows(F.log_softmax(z, dim=1).double())
        seen, stated = F.one_hot(global_rows(y), z.shape[1]).double(), log_points.exp()
    else:
        raise InputError(f"mode: expected 'top_label' or 'canonical', got {mode!r}")
    dtype = torch.promote_types(logits.dtype, torch.float32)
    if len(seen) < 2:
        return (log_points.sum() * 0).to(dtype)
    expected = neighbour_share(log_points, bandwidth=bandwidth) @ seen
    return ((expected - stated).abs().pow(p).sum() / len(seen)).to(dtype)


def neighbour_share(log_points: Tensor, *, bandwidth: float) -> Tensor:
    """Return how much each sample counts as a neighbour of each other; rows sum to one, the diagonal is 0.

    Args:
        log_points: Logarithms of distributions, shape ``(n, k)``.
        bandwidth: Width of the Dirichlet kernel.
    """
    points = log_points.exp()
    log_norm = torch.lgamma(points / bandwidth + 1).sum(dim=1)  # less a constant: every row sums to one
    log_kernel = log_points.clamp_min(math.log(_BORDER)) @ (points / bandwidth).T - log_norm
    itself = torch.eye(len(points), dtype=torch.bool, device=points.device)
    return torch.softmax(log_kernel.masked_fill(itself, -math.inf), dim=1)


class KDELoss(Loss):
    """Module form of :func:`kde_loss`."""

    def __init__(
        self,
        p: float = 1.0,
        bandwidth: float = 0.02,
        mode: KDEMode = "top_label",
        *,
        ignore_index: int = IGNORED,
    ) -> None:
        super().__init__()
        self.p = p
        self.bandwidth = bandwidth
        self.mode: KDEMode = mode
        self.ignore_index = ignore_index

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the term of a batch."""
        return kde_loss(
            logits,
            labels,
            p=self.p,
            bandwidth=self.bandwidth,
            mode=self.mode,
            ignore_index=self.ignore_index,
        )

    def extra_repr(self) -> str:
        """Say what makes this term differ from another of its kind."""
        return f"p={self.p}, bandwidth={self.bandwidth}, mode={self.mode!r}"
