"""Refinement loss of RefCal ("Enhancing Deep Neural Network Reliability with Refinement and Calibration")."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from calibrant.losses.loss import Loss
from calibrant.losses.parts.batch import IGNORED
from calibrant.losses.parts.embeddings import embedding_rows


def refinement_loss(
    embeddings: Tensor, labels: Tensor, *, normalize: bool = True, ignore_index: int = IGNORED
) -> Tensor:
    r"""How much closer the nearest sample of another class is than the nearest of the own class.

    .. math:: \frac{1}{n} \sum_i \Big[ \min_{p \in P_i} \tfrac12 \|z_i - z_p\|^2
        - \min_{m \in N_i} \tfrac12 \|z_i - z_m\|^2 \Big]

    ``P_i`` are the other samples of the global batch of the same class and ``N_i`` those of other classes;
    samples without either contribute nothing and are not counted. The paper has the sum, which is this times
    the number of samples that count. Negative is good: -2 at best on the unit sphere. It is bounded above by
    the supervised contrastive loss (Lemma 2), which is what the paper trains; beside it, this is a measure
    and a term with a gradient to the nearest pair alone. Distances take O(n^2) memory, none of it kept.

    Args:
        embeddings: Shape ``(n, d)``, or ``(n, views, d)`` with several views of each sample.
        labels: Integer classes of shape ``(n,)``.
        normalize: Whether embeddings are put on the unit sphere first. Without, the loss has no lower bound:
            longer vectors lower it.
        ignore_index: Label of the samples that count for nothing.

    Example:
        >>> z = torch.tensor([[1.0, 0.0], [1.0, 0.0], [-1.0, 0.0], [-1.0, 0.0]])
        >>> float(refinement_loss(z, torch.tensor([0, 0, 1, 1])))
        -2.0
    """
    z, y = embedding_rows(embeddings, labels, ignore_index=ignore_index)
    if normalize:
        z = F.normalize(z, dim=1)
    if len(z) < 2:
        return z.sum() * 0
    with torch.no_grad():
        distance = _squared_distances(z)
        same = y[:, None] == y
        friend, foe = same.clone().fill_diagonal_(False), ~same
        counted = friend.any(dim=1) & foe.any(dim=1)
        near = distance.masked_fill(~friend, math.inf).argmin(dim=1)
        far = distance.masked_fill(~foe, math.inf).argmin(dim=1)
    gap = (z - z[near]).square().sum(dim=1) - (z - z[far]).square().sum(dim=1)
    return 0.5 * torch.where(counted, gap, 0).sum() / counted.sum().clamp_min(1)


def _squared_distances(z: Tensor) -> Tensor:
    """Return distances good enough to tell who is nearest, whatever precision autocast would choose."""
    with torch.autocast(z.device.type, enabled=False):
        return torch.cdist(z, z)


class RefinementLoss(Loss):
    """Module form of :func:`refinement_loss`."""

    def __init__(self, *, normalize: bool = True, ignore_index: int = IGNORED) -> None:
        super().__init__()
        self.normalize = normalize
        self.ignore_index = ignore_index

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of a batch."""
        return refinement_loss(embeddings, labels, normalize=self.normalize, ignore_index=self.ignore_index)

    def extra_repr(self) -> str:
        """Say what makes this loss differ from another of its kind."""
        return f"normalize={self.normalize}"
