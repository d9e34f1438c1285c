"""Supervised contrastive loss (Khosla et al., NeurIPS 2020), computed by pytorch-metric-learning."""

import math
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from calibrant.errors import InputError, MissingPackageError
from calibrant.losses.loss import Loss
from calibrant.losses.parts.batch import IGNORED
from calibrant.losses.parts.embeddings import embedding_rows


def supervised_contrastive_loss(
    embeddings: Tensor, labels: Tensor, *, temperature: float = 0.1, ignore_index: int = IGNORED
) -> Tensor:
    r"""Pull samples of one class together on the unit sphere and push all others away.

    .. math:: \frac{1}{n} \sum_i \frac{-1}{|P_i|} \sum_{p \in P_i}
        \log \frac{\exp(z_i \cdot z_p / \tau)}{\sum_{a \ne i} \exp(z_i \cdot z_a / \tau)}

    ``P_i`` are the other samples of the global batch of the same class, other views of the same sample
    included. A sample without any contributes nothing and is not counted, and a batch in which all samples
    are of one class, or none has a partner, has the value 0: there is nothing to contrast. Embeddings are
    normalised here. Needs ``pip install 'calibrant[train]'``.

    Args:
        embeddings: Shape ``(n, d)``, or ``(n, views, d)`` with several views of each sample.
        labels: Integer classes of shape ``(n,)``.
        temperature: Smaller looks at the nearest samples only.
        ignore_index: Label of the samples that count for nothing.

    Example:
        >>> z = torch.tensor([[1.0, 0.0], [1.0, 0.0], [-1.0, 0.0], [-1.0, 0.0]])
        >>> round(float(supervised_contrastive_loss(z, torch.tensor([0, 1, 0, 1]))), 3)
        20.0
    """
    if not 0 < temperature < math.inf:
        raise InputError(f"temperature: expected a positive number, got {temperature}")
    z, y = embedding_rows(embeddings, labels, ignore_index=ignore_index)
    if len(z) < 2:
        return z.sum() * 0
    # The products of unit vectors are divided by a small temperature: half precision would not do.
    with torch.autocast(z.device.type, enabled=False):
        result = _criterion(temperature)(z, y)["loss"]["losses"]
    if not isinstance(result, Tensor):  # nothing to contrast
        return z.sum() * 0
    counted = torch.bincount(torch.unique(y, return_inverse=True)[1])
    counted = counted[counted > 1].sum()
    return result.sum() / counted.clamp_min(1)


@lru_cache
def _criterion(temperature: float) -> nn.Module:
    """The library's loss with one value per sample, and masks that are made without lists of all pairs."""
    try:
        from pytorch_metric_learning.losses import SupConLoss  # type: ignore[import-untyped]  # has none
        from pytorch_metric_learning.reducers import DoNothingReducer  # type: ignore[import-untyped]  # has none
    except ImportError:
        raise MissingPackageError("supervised contrastive loss", "pytorch-metric-learning", "train") from None

    class MaskedSupConLoss(SupConLoss):  # type: ignore[misc]  # the library has no types
        def compute_loss(self, embeddings: Tensor, labels: Tensor, *_: object) -> dict[str, Any]:
            similarity = self.distance(embeddings)
            same = labels[:, None] == labels
            other = (~same).to(similarity.dtype)
            partner = same.fill_diagonal_(False).to(similarity.dtype)
            losses: dict[str, Any] = self._compute_loss(similarity, partner, other)
            return losses

    return MaskedSupConLoss(temperature=temperature, reducer=DoNothingReducer())


class SupervisedContrastiveLoss(Loss):
    """Module form of :func:`supervised_contrastive_loss`."""

    def __init__(self, temperature: float = 0.1, *, ignore_index: int = IGNORED) -> None:
        super().__init__()
        self.temperature = temperature
        self.ignore_index = ignore_index

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of a batch."""
        return supervised_contrastive_loss(
            embeddings, labels, temperature=self.temperature, ignore_index=self.ignore_index
        )

    def extra_repr(self) -> str:
        """Say what makes this loss differ from another of its kind."""
        return f"temperature={self.temperature}"
