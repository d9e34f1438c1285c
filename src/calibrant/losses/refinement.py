"""Refinement loss of RefCal ("Enhancing Deep Neural Network Reliability with Refinement and Calibration")."""

import math
from dataclasses import KW_ONLY, dataclass
from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor

from calibrant.losses.loss import EmbeddingLoss
from calibrant.losses.parts.batch import IGNORED, embedding_rows


def refinement_loss(
    embeddings: Tensor, labels: Tensor, *, normalize: bool = True, ignore_index: int = IGNORED
) -> Tensor:
    r"""Return how much closer the nearest sample of another class is than the nearest of the same class.

    .. math:: \frac{1}{n} \sum_i \Big[ \min_{p \in P_i} \tfrac12 \|z_i - z_p\|^2
        - \min_{m \in N_i} \tfrac12 \|z_i - z_m\|^2 \Big]

    ``P_i`` are the other samples of the same class in the global batch and ``N_i`` those of other classes;
    samples for which one of the two is empty are left out. The paper uses the sum, which is this times the
    number of samples that are not left out. Lower is better; the best value on the unit sphere is -2. The
    supervised contrastive loss, which the paper trains, is an upper bound (Lemma 2). This loss serves as a
    measure, and as a term whose gradient reaches only the nearest pair. Distances take O(n^2) memory, freed
    before the backward pass.

    Args:
        embeddings: Shape ``(n, d)``, or ``(n, views, d)`` with several views of each sample.
        labels: Integer classes of shape ``(n,)``.
        normalize: Whether embeddings are first scaled to the unit sphere. Without this the loss has no lower
            bound: longer vectors lower it.
        ignore_index: Label of the samples to ignore.

    Example:
        >>> z = torch.tensor([[1.0, 0.0], [1.0, 0.0], [-1.0, 0.0], [-1.0, 0.0]])
        >>> float(refinement_loss(z, torch.tensor([0, 0, 1, 1])))
        -2.0
    """
    z, y, kept = embedding_rows(embeddings, labels, ignore_index=ignore_index)
    if normalize:
        z = F.normalize(z, dim=1)
    if len(z) < 2:
        return z.sum() * 0
    with torch.no_grad():
        distance = _squared_distances(z)
        same = y[:, None] == y
        friend, foe = same.clone().fill_diagonal_(False), ~same
        if kept is not None:
            both = kept[:, None] & kept
            friend, foe = friend & both, foe & both
        counted = friend.any(dim=1) & foe.any(dim=1)
        near = distance.masked_fill(~friend, math.inf).argmin(dim=1)
        far = distance.masked_fill(~foe, math.inf).argmin(dim=1)
    gap = (z - z[near]).square().sum(dim=1) - (z - z[far]).square().sum(dim=1)
    return 0.5 * torch.where(counted, gap, 0).sum() / counted.sum().clamp_min(1)


def _squared_distances(z: Tensor) -> Tensor:
    """Return distances precise enough to find the nearest sample, also under autocast."""
    with torch.autocast(z.device.type, enabled=False):
        return torch.cdist(z, z)


@dataclass(eq=False, repr=False)
class RefinementLoss(EmbeddingLoss):
    """Module form of :func:`refinement_loss`."""

    _: KW_ONLY
    normalize: Annotated[
        bool, "Whether embeddings are first scaled to the unit sphere; if not, there is no lower bound."
    ] = True

    function = staticmethod(refinement_loss)
