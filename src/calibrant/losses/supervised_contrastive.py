"""Supervised contrastive loss (Khosla et al., NeurIPS 2020)."""

import math
from dataclasses import dataclass
from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor

from calibrant.errors import InputError
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
    none has a partner, has the value 0. Embeddings are normalised here.

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
    z, y, kept = embedding_rows(embeddings, labels, ignore_index=ignore_index)
    if len(z) < 2:
        return z.sum() * 0
    itself = torch.eye(len(z), dtype=torch.bool, device=z.device)
    same = y[:, None] == y
    left_out = itself if kept is None else itself | ~(kept[:, None] & kept)
    partner = same & ~left_out
    # The products of unit vectors are divided by a small temperature: half precision is not enough.
    with torch.autocast(z.device.type, enabled=False):
        u = F.normalize(z, dim=1)
        similarity = (u @ u.T / temperature).masked_fill(left_out, torch.finfo(z.dtype).min)
        log_share = similarity - torch.logsumexp(similarity, dim=1, keepdim=True)
    n_partners = partner.sum(dim=1)
    means = torch.where(partner, log_share, 0).sum(dim=1) / n_partners.clamp_min(1)
    total = -means.sum() / (n_partners > 0).sum().clamp_min(1)
    return torch.where((~same & ~left_out).any(), total, 0)  # one class alone: nothing to contrast


@dataclass(eq=False, repr=False)
class SupervisedContrastiveLoss(EmbeddingLoss):
    """Module form of :func:`supervised_contrastive_loss`."""

    temperature: Annotated[float, "Smaller values give more weight to the nearest samples."] = 0.1

    function = staticmethod(supervised_contrastive_loss)
