"""Debiased calibration error: the binned error minus the part that is due to chance."""

import math
from typing import Literal, Unpack

import torch
from torch import Tensor

from calibrant.bins import Binning, Bins, top_label_bins
from calibrant.inputs import ArrayLike, check_choice
from calibrant.metrics.counted import Weighted, binned_weights
from calibrant.outcomes import Pairs, check_outcomes


def debiased_calibration_error(
    probs: ArrayLike | None = None,
    labels: ArrayLike | None = None,
    *,
    n_bins: int = 15,
    binning: Binning = "mass",
    norm: Literal["l1", "l2"] = "l2",
    **pairs: Unpack[Pairs],
) -> float:
    r"""Return the binned calibration error minus the mean contribution of noise in the accuracy of the bins.

    Even a perfectly calibrated model has a positive ECE, because the accuracy of a bin varies around its
    confidence. With :math:`s_b^2 = \mathrm{acc}_b (1 - \mathrm{acc}_b) / (n_b - 1)`,

    .. math:: \ell_2: \sqrt{\max\Big(0, \sum_b \frac{n_b}{n} (g_b^2 - s_b^2)\Big)}, \qquad
        \ell_1: \max\Big(0, \sum_b \frac{n_b}{n} \big(2 |g_b| - \mathbb{E}\,|g_b + s_b' \varepsilon|\big)\Big)

    where :math:`g_b` is the gap, :math:`\varepsilon` is standard normal, and :math:`s_b'` is :math:`s_b` with
    :math:`n_b` instead of :math:`n_b - 1`. The mean of the folded normal is in closed form, not simulated.

    The noise of a bin with a single sample is unknown. As in the authors' code, such a bin counts as zero in
    the first form; in the second it adds its plain gap. If the correction exceeds the error, the result is 0.

    Args:
        probs: Class probabilities of shape ``(n, k)``; ``confidence`` with ``correct`` may replace ``probs``
            with ``labels``, as in :func:`~calibrant.metrics.expected_calibration_error`.
        labels: Integer classes of shape ``(n,)``.
        n_bins: Number of bins.
        binning: ``"mass"`` as in the paper, or ``"width"``.
        norm: ``"l2"`` (root mean square, as in the paper's analysis) or ``"l1"`` (to compare with ECE).

    Example:
        >>> confidence, correct = [0.6] * 10, [True] * 6 + [False] * 4
        >>> debiased_calibration_error(confidence=confidence, correct=correct)
        0.0

    References:
        Kumar, Liang and Ma, "Verified Uncertainty Calibration", NeurIPS 2019.
    """
    outcomes = check_outcomes(probs, labels, **pairs).unweighed("the debiased error")
    bins = top_label_bins(
        confidence=outcomes.confidence, correct=outcomes.correct, n_bins=n_bins, binning=binning
    )
    return float(_NORMS[check_choice(norm, "norm", _NORMS)](bins))


def debiased_weights(
    probs: ArrayLike | None = None,
    labels: ArrayLike | None = None,
    *,
    n_bins: int = 15,
    binning: Binning = "mass",
    norm: Literal["l1", "l2"] = "l2",
    **pairs: Unpack[Pairs],
) -> Weighted:
    """Return :func:`debiased_calibration_error` as a function of counts."""
    outcomes = check_outcomes(probs, labels, **pairs)
    return binned_weights(outcomes, _NORMS[norm], n_bins=n_bins, binning=binning)


def _debiased_square(bins: Bins) -> Tensor:
    variance = _spread(bins) / (bins.count - 1).clamp(min=1)
    terms = torch.where(bins.count > 1, bins.gap.square() - variance, 0.0)
    return (bins.weight * terms).sum(dim=-1).clamp(min=0).sqrt()


def _debiased_absolute(bins: Bins) -> Tensor:
    size = bins.gap.abs()
    deviation = (_spread(bins) / bins.count.clamp(min=1)).sqrt()
    ratio = size / deviation.clamp(min=torch.finfo(torch.float64).tiny)
    # E |g + s e| = g erf(g / (s sqrt 2)) + 2 s phi(g / s)
    bell = torch.exp(-ratio.square() / 2) / math.sqrt(2 * math.pi)
    folded = size * torch.erf(ratio / math.sqrt(2)) + 2 * deviation * bell
    return (bins.weight * (2 * size - folded)).sum(dim=-1).clamp(min=0)


def _spread(bins: Bins) -> Tensor:
    return (bins.accuracy * (1 - bins.accuracy)).nan_to_num(0.0)


_NORMS = {"l1": _debiased_absolute, "l2": _debiased_square}
