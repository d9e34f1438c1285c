"""MMCE (Kumar et al., "Trainable Calibration Measures from Kernel Mean Embeddings", ICML 2018)."""

import math
from dataclasses import KW_ONLY, dataclass
from typing import Annotated

import torch
from torch import Tensor

from calibrant.errors import InputError
from calibrant.losses.loss import BatchLoss
from calibrant.losses.parts.batch import IGNORED, number_of
from calibrant.losses.parts.confidence import top_label_confidence

# exp(1 / width) must leave room for sums in double precision.
_NARROWEST = 0.002


def mmce_loss(
    logits: Tensor, labels: Tensor, *, width: float = 0.2, weighted: bool = False, ignore_index: int = IGNORED
) -> Tensor:
    r"""Return how far samples of similar confidence are miscalibrated in the same direction.

    .. math:: \mathrm{MMCE} = \Big( \sum_{i,j} \frac{e_i}{n_i} \frac{e_j}{n_j}\,
        e^{-|r_i - r_j| / w} \Big)^{1/2}, \quad e_i = [\hat y_i = y_i] - r_i, \quad r_i = \max_k p_{ik}

    By default every ``n_i`` is the number of samples. With ``weighted=True`` it is the number of correct
    samples for a correct one and of mistakes for a mistake, so that the few mistakes of a good model count as
    much as its many correct predictions; without mistakes (or without correct predictions) in the batch that
    half of the sum is empty. The weighted form is much larger: on noisy digits
    ``2.0 * MMCELoss(weighted=True)`` cost 14 points of accuracy, ``2.0 * MMCELoss()`` one.

    A term to add to a classification loss: ``CrossEntropyLoss() + 2.0 * MMCELoss()``. Over sorted
    confidences the kernel factorises, so the double sum is exact in O(n log n) time and O(n) memory. It is a
    norm, which has a kink at zero: a perfect batch has the value 0 and no gradient. Under data-parallel
    training the batch is the global one.

    Args:
        logits: Scores of shape ``(n, k)`` or ``(n, k, ...)``.
        labels: Integer classes.
        width: The ``w`` of the kernel, at least 0.002. The paper uses 0.2; code that divides by ``2 * 0.2``,
            as several released versions do, uses 0.4.
        weighted: Whether correct predictions and mistakes each make up half of the sum.
        ignore_index: Label of the samples to ignore.

    Example:
        >>> logits = torch.tensor([[0.0, math.log(3.0)]] * 4)
        >>> round(float(mmce_loss(logits, torch.tensor([0, 0, 1, 1]))), 4)
        0.25
    """
    if not _NARROWEST <= width < math.inf:
        raise InputError(f"width: expected a number of at least {_NARROWEST}, got {width}")
    confidence, correct, kept = top_label_confidence(logits, labels, ignore_index=ignore_index)
    error = correct - confidence if kept is None else (correct - confidence) * kept
    number = number_of(kept, len(error))
    if weighted:
        n_correct = (correct if kept is None else correct * kept).sum()
        error = error / torch.where(correct > 0, n_correct, number - n_correct).clamp_min(1)
    else:
        error = error / number
    square = kernel_energy(confidence, error, width=width)
    # The root has an infinite slope at zero, and rounding may leave a sum of squares slightly below zero.
    positive = ~(square <= 0)  # NaN stays NaN
    root = torch.where(positive, torch.where(positive, square, 1).sqrt(), 0)
    return root.to(torch.promote_types(logits.dtype, torch.float32))


def kernel_energy(points: Tensor, masses: Tensor, *, width: float) -> Tensor:
    r"""Return :math:`\sum_{ij} m_i m_j e^{-|x_i - x_j| / w}` for points between 0 and 1, in O(n log n).

    Equal points do not pull at each other: the derivative of the absolute value at zero is taken as 0.
    """
    x, order = points.sort()
    mass = masses[order]
    fixed = x.detach()
    first, last = torch.searchsorted(fixed, fixed), torch.searchsorted(fixed, fixed, right=True)
    growth = torch.exp(x / width)
    # For x_i > x_j the kernel is exp(-x_i / w) exp(x_j / w): a prefix sum over the points strictly below.
    below = _prefix(mass * growth)[first]
    equal = _prefix(mass)
    return (mass * (2 * below / growth + equal[last] - equal[first])).sum()


def _prefix(values: Tensor) -> Tensor:
    """Return the sums of the first 0, 1, ..., n values."""
    return torch.cat([values.new_zeros(1), values.cumsum(dim=0)])


@dataclass(eq=False, repr=False)
class MMCELoss(BatchLoss):
    """Module form of :func:`mmce_loss`."""

    width: Annotated[float, "Width of the kernel, at least 0.002; code that divides by 2 * 0.2 has 0.4."] = (
        0.2
    )
    _: KW_ONLY
    weighted: Annotated[bool, "Whether correct predictions and mistakes each make up half of the sum."] = (
        False
    )

    function = staticmethod(mmce_loss)
