"""Online label smoothing, OLS (Zhang et al., "Delving Deep into Label Smoothing", IEEE TIP 2021)."""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, Unpack

import torch
import torch.nn.functional as F
from torch import Tensor

from calibrant.errors import InputError
from calibrant.inputs import check_count
from calibrant.losses.loss import SampleLoss, SampleOptions
from calibrant.losses.parts.batch import IGNORED, Reduction, check_weight, reduce_loss, widened
from calibrant.losses.parts.epoch_records import EpochRecords
from calibrant.losses.parts.global_batch import global_sum
from calibrant.losses.parts.known_gradient import Gradient, with_known_gradient
from calibrant.losses.parts.true_class import true_class_index

# Is shown the probabilities and which samples are classified correctly.
Note: TypeAlias = Callable[[Tensor, Tensor], None]


def ols_loss(
    logits: Tensor,
    labels: Tensor,
    *,
    soft_labels: Tensor,
    hard: float = 0.5,
    weight: Tensor | None = None,
    ignore_index: int = IGNORED,
    reduction: Reduction = "mean",
) -> Tensor:
    r"""Cross-entropy against a mixture of the label and what the model believes of samples of that class.

    .. math:: L(z, y) = -\alpha \log p_y - (1 - \alpha) \sum_c S_{yc} \log p_c

    Args:
        logits: Scores of shape ``(n, k)`` or ``(n, k, ...)``.
        labels: Integer classes.
        soft_labels: For each class a distribution :math:`S_y`, shape ``(k, k)``.
        hard: Share :math:`\alpha` of the hard label; 1 is cross-entropy.
        weight: One weight per class.
        ignore_index: Label of the samples that count for nothing.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.

    Example:
        >>> logits, label = torch.tensor([[2.0, 0.0]]), torch.tensor([0])
        >>> round(float(ols_loss(logits, label, soft_labels=torch.tensor([[0.9, 0.1], [0.1, 0.9]]))), 4)
        0.2269
    """
    check_weight(weight, logits)
    values, all_count = _values(logits, labels, soft_labels, hard, ignore_index)
    return reduce_loss(
        values,
        labels,
        reduction=reduction,
        weight=weight,
        ignore_index=ignore_index,
        all_count=all_count,
    )


def _values(
    logits: Tensor,
    labels: Tensor,
    soft_labels: Tensor,
    hard: float,
    ignore_index: int,
    note: Note | None = None,
) -> tuple[Tensor, bool]:
    """Return the loss of each sample, and whether it is known that none is ignored."""
    if not 0 <= hard <= 1:
        raise InputError(f"hard: expected a number from 0 to 1, got {hard}")
    index, kept = true_class_index(logits, labels, ignore_index=ignore_index)
    z = widened(logits)
    if soft_labels.shape != (z.shape[1], z.shape[1]):
        raise InputError(
            f"soft_labels: expected shape {(z.shape[1], z.shape[1])} for logits of shape {tuple(z.shape)}, "
            f"got {tuple(soft_labels.shape)}; give OLSLoss the number of classes"
        )
    soft = soft_labels.to(z.dtype).index_select(0, index.flatten())
    soft = soft.view(*labels.shape, z.shape[1]).movedim(-1, 1)

    def definition(z: Tensor) -> Tensor:
        log_p = F.log_softmax(z, dim=1)
        return -hard * log_p.gather(1, index).squeeze(1) - (1 - hard) * (soft * log_p).sum(dim=1)

    values = with_known_gradient(
        z, kept, definition=definition, shortcut=lambda z: _shortcut(z, index, kept, soft, hard, note)
    )
    return values, kept is None


def _shortcut(
    logits: Tensor, index: Tensor, kept: Tensor | None, soft: Tensor, hard: float, note: Note | None
) -> tuple[Tensor, Gradient]:
    # With u = z - max z, log p is u plus the log of the largest probability: no second table of logarithms.
    p = F.softmax(logits, dim=1)
    top, true = logits.amax(dim=1, keepdim=True), logits.gather(1, index)
    if note is not None:
        correct = (true == top).squeeze(1)
        note(p, correct if kept is None else correct & kept)
    mass = hard + (1 - hard) * soft.sum(dim=1, keepdim=True)
    below = (top - logits).mul_(soft).sum(dim=1, keepdim=True)
    values = hard * (top - true) + (1 - hard) * below - mass * p.amax(dim=1, keepdim=True).log()
    slope = p.mul_(mass).sub_(soft, alpha=1 - hard).scatter_add_(1, index, torch.full_like(true, -hard))
    return values.squeeze(1), lambda outer: outer.unsqueeze(1) * slope


class OLSLoss(SampleLoss):
    """Label smoothing that learns, epoch by epoch, which classes resemble which.

    During an epoch the predictions of training samples that are classified correctly are summed by class;
    ``update()`` at its end makes their means the soft labels of the next epoch. The first epoch has uniform
    ones; a class without a correct prediction keeps what it had. Only batches that are trained on are
    learned from: the module is in training mode and the logits carry a gradient. ``history`` has, per update,
    the mean probability ``own`` that soft labels leave to their class and the share of ``renewed`` classes.
    See :func:`ols_loss`.

    Args:
        n_classes: Number of classes.
        hard: Share of the hard label, 0.5 in the paper.
        shared: Class weights, ``ignore_index`` and ``reduction``.

    Example:
        >>> loss = OLSLoss(2)
        >>> logits = torch.tensor([[2.0, 0.0]], requires_grad=True)
        >>> _ = loss(logits, torch.tensor([0]))
        >>> loss.update()
        >>> loss.soft_labels
        tensor([[0.8808, 0.1192],
                [0.5000, 0.5000]])
    """

    soft_labels: Tensor
    sums: Tensor

    def __init__(self, n_classes: int, hard: float = 0.5, **shared: Unpack[SampleOptions]) -> None:
        super().__init__(**shared)
        k = check_count(n_classes, "n_classes")
        self.hard = hard
        self.register_buffer("soft_labels", torch.full((k, k), 1 / k))
        self.register_buffer("sums", torch.zeros(k, k))
        self.records = EpochRecords({"own": 1, "renewed": 1})

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of a batch, and remember its correct predictions while training."""
        check_weight(self.weight, logits)
        learns = self.training and logits.requires_grad

        def note(probs: Tensor, correct: Tensor) -> None:
            found = probs.movedim(1, -1)[correct].to(self.sums.dtype)
            self.sums.index_add_(0, labels[correct], found)

        values, all_count = _values(
            logits, labels, self.soft_labels, self.hard, self.ignore_index, note if learns else None
        )
        return reduce_loss(values, labels, **self.shared, all_count=all_count)

    @torch.no_grad()
    def update(self, logits: Tensor | None = None, labels: Tensor | None = None) -> None:  # noqa: ARG002  # learns from training alone
        """Make the mean predictions of this epoch, of all processes, the soft labels of the next."""
        sums = global_sum(self.sums)
        mass = sums.sum(dim=1, keepdim=True)
        self.soft_labels.copy_(torch.where(mass > 0, sums / mass, self.soft_labels))
        self.sums.zero_()
        self.records.add(own=self.soft_labels.diagonal().mean(), renewed=(mass > 0).double().mean())

    @property
    def history(self) -> list[Mapping[str, Any]]:
        """How sharp the soft labels were after each epoch, and how many were renewed."""
        return self.records.entries

    def extra_repr(self) -> str:
        """Say what makes this loss differ from another of its kind."""
        return f"n_classes={len(self.sums)}, hard={self.hard}"
