"""Supervised contrastive loss (Khosla et al., NeurIPS 2020), computed by pytorch-metric-learning."""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from calibrant.errors import InputError, MissingPackageError
from calibrant.losses.loss import EmbeddingLoss
from calibrant.losses.parts.batch import IGNORED, embedding_rows


def supervised_contrastive_loss(
    embeddings: Tensor, labels: Tensor, *, temperature: float = 0.1, ignore_index: int = IGNORED
) -> Tensor:
    r"""Pull samples of one class together on the unit sphere and push all others away.

    .. math:: \frac{1}{n} \sum_i \frac{-1}{|P_i|} \sum_{p \in P_i}
        \log \frac{\exp(z_i \cdot z_p / \tau)}{\sum_{a \ne i} \exp(z_i \cdot z_a / \tau)}

    ``P_i`` are the other samples of the same class in the global batch, including other views of the same
    sample. A sample without such a partner is left out. A batch in which all samples are of one class, or
    none has a partner, has the value 0. Embeddings are normalised here. This loss needs
    ``pip install -c constraints.txt '.[train]'``.

    Args:
        embeddings: Shape ``(n, d)``, or ``(n, views, d)`` with several views of each sample.
        labels: Integer classes of shape ``(n,)``.
        temperature: Smaller values give more weight to the nearest samples.
        ignore_index: Label of the samples to ignore.

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
    # The products of unit vectors are divided by a small temperature: half precision is not enough.
    with torch.autocast(z.device.type, enabled=False):
        result = _criterion(temperature)(z, y)["loss"]["losses"]
    if not isinstance(result, Tensor):  # nothing to contrast
        return z.sum() * 0
    counted = torch.bincount(torch.unique(y, return_inverse=True)[1])
    counted = counted[counted > 1].sum()
    return result.sum() / counted.clamp_min(1)


@lru_cache
def _criterion(temperature: float) -> nn.Module:
    """Return the library's loss with one value per sample, and with masks instead of lists of all pairs."""
    try:
        from pytorch_metric_learning.losses import SupConLoss
        from pytorch_metric_learning.reducers import DoNothingReducer
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


@dataclass(eq=False, repr=False)
class SupervisedContrastiveLoss(EmbeddingLoss):
    """Module form of :func:`supervised_contrastive_loss`."""

    temperature: Annotated[float, "Smaller values give more weight to the nearest samples."] = 0.1

    function = staticmethod(supervised_contrastive_loss)
