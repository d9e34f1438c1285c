"""Online label smoothing, OLS (Zhang et al., "Delving Deep into Label Smoothing", IEEE TIP 2021)."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, TypeAlias, Unpack

import torch
import torch.nn.functional as F
from torch import Tensor

from calibrant.errors import InputError
from calibrant.inputs import check_count
from calibrant.losses.loss import EpochRecords, SampleLoss
from calibrant.losses.parts.batch import FAR_BELOW, masked_in_batch, without_masked
from calibrant.losses.parts.global_batch import global_sum
from calibrant.losses.parts.known_gradient import Gradient
from calibrant.losses.parts.samples import SampleOptions, Samples, takes_sample_options

# Gets the probabilities and which samples are classified correctly.
LabelRecord: TypeAlias = Callable[[Tensor, Tensor], None]


@takes_sample_options
def ols_loss(
    logits: Tensor,
    labels: Tensor,
    *,
    soft_labels: Tensor,
    hard: float = 0.5,
    **shared: Unpack[SampleOptions],
) -> Tensor:
    r"""Return the cross-entropy against a mixture of the label and the soft label of its class.

    .. math:: L(z, y) = -\alpha \log p_y - (1 - \alpha) \sum_c S_{yc} \log p_c

    Where a sample has masked classes, whose logits are ``-inf``, the others share their part of the soft
    label.

    Args:
        logits: Scores of shape ``(n, k)`` or ``(n, k, ...)``.
        labels: Integer classes.
        soft_labels: A distribution :math:`S_y` for each class, shape ``(k, k)``.
        hard: Share :math:`\alpha` of the hard label; 1 is cross-entropy.
        weight: One weight per class.
        ignore_index: Label of the samples to ignore.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.

    Example:
        >>> logits, label = torch.tensor([[2.0, 0.0]]), torch.tensor([0])
        >>> round(float(ols_loss(logits, label, soft_labels=torch.tensor([[0.9, 0.1], [0.1, 0.9]]))), 4)
        0.2269
    """
    return _loss(Samples(logits, labels, **shared), soft_labels, hard)


def _loss(samples: Samples, soft_labels: Tensor, hard: float, record: LabelRecord | None = None) -> Tensor:
    if not 0 <= hard <= 1:
        raise InputError(f"hard: expected a number from 0 to 1, got {hard}")
    index, kept = samples.true_class()
    z = samples.scores
    if soft_labels.shape != (z.shape[1], z.shape[1]):
        raise InputError(
            f"soft_labels: expected shape {(z.shape[1], z.shape[1])} for logits of shape {tuple(z.shape)}, "
            f"got {tuple(soft_labels.shape)}; give OLSLoss the number of classes"
        )
    soft = soft_labels.to(z.dtype).index_select(0, index.flatten())
    soft = soft.view(*samples.labels.shape, z.shape[1]).movedim(-1, 1)
    soft = without_masked(soft, masked_in_batch(z))
    if record is not None and torch.compiler.is_compiling():  # the shortcut is not used then
        correct = (z.gather(1, index) == z.amax(dim=1, keepdim=True)).squeeze(1)
        record(F.softmax(z.detach(), dim=1), correct if kept is None else correct & kept)

    def definition(z: Tensor) -> Tensor:
        log_p = F.log_softmax(z, dim=1).clamp_min(-FAR_BELOW)
        return -hard * log_p.gather(1, index).squeeze(1) - (1 - hard) * (soft * log_p).sum(dim=1)

    return samples.reduce_known(
        kept, definition=definition, shortcut=lambda z: _shortcut(z, index, kept, soft, hard, record)
    )


def _shortcut(
    logits: Tensor, index: Tensor, kept: Tensor | None, soft: Tensor, hard: float, record: LabelRecord | None
) -> tuple[Tensor, Gradient]:
    # With u = z - max z, log p is u plus the log of the largest probability: no second table of logarithms.
    p = F.softmax(logits, dim=1)
    top, true = logits.amax(dim=1, keepdim=True), logits.gather(1, index)
    if record is not None:
        correct = (true == top).squeeze(1)
        record(p, correct if kept is None else correct & kept)
    mass = hard + (1 - hard) * soft.sum(dim=1, keepdim=True)
    below = (top - logits).clamp_max_(FAR_BELOW).mul_(soft).sum(dim=1, keepdim=True)
    values = hard * (top - true) + (1 - hard) * below - mass * p.amax(dim=1, keepdim=True).log()
    slope = p.mul_(mass).sub_(soft, alpha=1 - hard).scatter_add_(1, index, torch.full_like(true, -hard))
    return values.squeeze(1), lambda outer: outer.unsqueeze(1) * slope


@dataclass(eq=False, repr=False)
class OLSLoss(SampleLoss):
    """Label smoothing that learns, epoch by epoch, which classes resemble each other.

    During an epoch the predictions for correctly classified training samples are summed by class. At the end
    of the epoch ``update()`` makes their means the soft labels of the next one. The first epoch has uniform
    soft labels; a class without a correct prediction keeps its soft label. The loss learns only from batches
    of training: the module is in training mode and the logits have a gradient. ``history`` has, per update,
    the mean probability ``own`` that soft labels give to their class and the share of ``renewed`` classes.

    Example:
        >>> loss = OLSLoss(2)
        >>> logits = torch.tensor([[2.0, 0.0]], requires_grad=True)
        >>> _ = loss(logits, torch.tensor([0]))
        >>> loss.update()
        >>> loss.soft_labels
        tensor([[0.8808, 0.1192],
                [0.5000, 0.5000]])
    """

    n_classes: Annotated[int, "Number of classes."]
    hard: Annotated[float, "Share of the hard label, 0.5 in the paper."] = 0.5
    soft_labels: Tensor = field(init=False)
    sums: Tensor = field(init=False)

    function = staticmethod(ols_loss)

    def __post_init__(self) -> None:
        super().__post_init__()
        k = check_count(self.n_classes, "n_classes")
        self.register_buffer("soft_labels", torch.full((k, k), 1 / k))
        self.register_buffer("sums", torch.zeros(k, k))
        self.records = EpochRecords({"own": 1, "renewed": 1})

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of a batch, and add up its correct predictions while training."""
        self._remind(logits)
        learns = self.training and logits.requires_grad

        samples = Samples(logits, labels, **self.shared)

        def record(probs: Tensor, correct: Tensor) -> None:
            predictions, labels = probs.movedim(1, -1), samples.labels
            if torch.compiler.is_compiling():  # as many rows as there are samples
                predictions = torch.where(correct[..., None], predictions, 0).flatten(0, -2)
                labels = torch.where(correct, labels, 0).flatten()
            else:
                predictions, labels = predictions[correct], labels[correct]
            self.sums.index_add_(0, labels, predictions.to(self.sums.dtype))

        return _loss(samples, self.soft_labels, self.hard, record if learns else None)

    @torch.no_grad()
    def update(self, logits: Tensor | None = None, labels: Tensor | None = None) -> None:  # noqa: ARG002  # learns from training only
        """Make the mean predictions of this epoch, of all processes, the soft labels of the next."""
        sums = global_sum(self.sums)
        mass = sums.sum(dim=1, keepdim=True)
        self.soft_labels.copy_(torch.where(mass > 0, sums / mass, self.soft_labels))
        self.sums.zero_()
        self.records.add(own=self.soft_labels.diagonal().mean(), renewed=(mass > 0).double().mean())
