"""What one temperature cannot repair: the measure by which an epoch is chosen before calibration."""

import torch

from calibrant.inputs import ArrayLike
from calibrant.metrics.proper import negative_log_likelihood
from calibrant.posthoc.fitting.temperature_search import likeliest_temperature
from calibrant.posthoc.fitting_set import FittingSet
from calibrant.threads import few_threads


@torch.no_grad()
def nll_after_temperature(logits: ArrayLike, labels: ArrayLike, *, weights: ArrayLike | None = None) -> float:
    r"""Return the negative log-likelihood after temperature scaling fitted on the same samples.

    .. math:: \min_T \; -\frac1n \sum_i \log \mathrm{softmax}(z_i / T)_{y_i}

    It is the part of the likelihood that a post-hoc method cannot win back: how well a network separates the
    classes. The NLL itself rises as soon as a network becomes overconfident, although its predictions still
    improve. So an epoch that is calibrated afterwards is chosen by this measure, *refine, then calibrate*.

    Args:
        logits: Scores of shape ``(n, k)``, or ``(n,)`` for the log-odds of class 1.
        labels: Integer classes of shape ``(n,)``.
        weights: How much each sample counts, shape ``(n,)``.

    Example:
        >>> logits, labels = [[4.0, 0.0], [0.0, 4.0], [4.0, 0.0], [4.0, 0.0]], [0, 1, 0, 1]
        >>> round(nll_after_temperature(logits, labels), 4)  # right in three of four, always equally sure
        0.5623

    References:
        Berta, Holzmüller, Jordan and Bach, "Rethinking Early Stopping: Refine, Then Calibrate",
        arXiv 2501.19195, 2025.
    """
    data = FittingSet.of(logits, labels, weights=weights)
    with few_threads(data.logits.numel()):
        scaled = data.logits.double() / likeliest_temperature(data)
        return negative_log_likelihood(logits=scaled, labels=data.labels, weights=data.weights)
