"""AURC as a loss (Zhou et al., "A Novel Characterization of the Population Area Under the Risk Coverage
Curve and Rates of Finite Sample Estimators", 2025); the rank-based relative of the selective risk loss.
"""  # noqa: D205  # the title does not fit on one line

from typing import Unpack

import torch
import torch.nn.functional as F
from torch import Tensor

from calibrant.losses.loss import SampleLoss, SampleOptions
from calibrant.losses.parts.batch import IGNORED, Reduction, check_weight, rows
from calibrant.losses.parts.global_batch import global_rows
from calibrant.losses.parts.sample_values import reduce_rows
from calibrant.losses.parts.scores import Score, confidence_score


def aurc_loss(
    logits: Tensor,
    labels: Tensor,
    *,
    score: Score = "msp",
    weight: Tensor | None = None,
    ignore_index: int = IGNORED,
    reduction: Reduction = "mean",
) -> Tensor:
    r"""Mean cross-entropy of the samples that are answered, over all shares of samples to answer.

    .. math:: \frac{1}{n} \sum_i \alpha_i \,(-\log p_{i y_i}), \quad
        \alpha_i = \sum_{j=1}^{r_i} \frac{1}{n - j + 1} \approx -\log\Big(1 - \frac{r_i}{n + 1}\Big)

    ``r_i`` is the rank of the sample's confidence in the global batch, 1 for the least sure; equal
    confidences share the mean of their weights. This is exactly the area under the risk-coverage curve of the
    batch. Ranks have no gradient. The weights average to one, but the surest sample has about ``log n``: a
    confident mistake costs much and an unsure one little, so hard samples are learned late.

    Args:
        logits: Scores of shape ``(n, k)`` or ``(n, k, ...)``.
        labels: Integer classes.
        score: What ranks the samples: ``"msp"``, ``"margin"`` or ``"neg_entropy"``.
        weight: One weight per class.
        ignore_index: Label of the samples that count for nothing.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.

    Example:
        >>> logits = torch.tensor([[2.0, 0.0], [1.0, 0.0]])
        >>> round(float(aurc_loss(logits, torch.tensor([0, 1]))), 4)
        0.4235
    """
    check_weight(weight, logits)
    z, y = rows(logits, labels, ignore_index=ignore_index)
    log_p = F.log_softmax(z, dim=1)
    with torch.no_grad():
        share = rank_weights(confidence_score(log_p, score))
    values = share * F.nll_loss(log_p, y, reduction="none")
    return reduce_rows(values, labels, reduction=reduction, weight=weight, ignore_index=ignore_index)


def rank_weights(confidence: Tensor) -> Tensor:
    """Return the weight that each sample has in the area under the global batch's risk-coverage curve."""
    ranked = global_rows(confidence).sort().values
    n = len(ranked)
    steps = 1 / torch.arange(n, 0, -1, dtype=ranked.dtype, device=ranked.device)
    # Entry r is the sum of the weights of the r least sure samples.
    total = torch.cat([steps.new_zeros(1), steps.cumsum(dim=0).cumsum(dim=0)])
    first = torch.searchsorted(ranked, confidence)
    last = torch.searchsorted(ranked, confidence, right=True)
    return (total[last] - total[first]) / (last - first)


class AURCLoss(SampleLoss):
    """Module form of :func:`aurc_loss`."""

    def __init__(self, score: Score = "msp", **shared: Unpack[SampleOptions]) -> None:
        super().__init__(**shared)
        self.score: Score = score

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of a batch."""
        return aurc_loss(logits, labels, score=self.score, **self.shared)

    def extra_repr(self) -> str:
        """Say what makes this loss differ from another of its kind."""
        return f"score={self.score!r}"
