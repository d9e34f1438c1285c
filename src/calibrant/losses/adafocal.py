"""AdaFocal (Ghosh et al., "AdaFocal: Calibration-aware Adaptive Focal Loss", NeurIPS 2022)."""

from collections.abc import Mapping
from typing import Any, Unpack

import torch
from torch import Tensor

from calibrant.errors import InputError
from calibrant.inputs import check_count
from calibrant.losses.loss import SampleLoss, SampleOptions
from calibrant.losses.parts.batch import IGNORED, Reduction, check_weight, reduce_loss, true_class_nll
from calibrant.losses.parts.epoch_records import EpochRecords
from calibrant.losses.parts.validation_bins import bin_of_true_class, equal_width_edges, validation_bins


def adafocal_loss(
    logits: Tensor,
    labels: Tensor,
    *,
    edges: Tensor,
    gammas: Tensor,
    weight: Tensor | None = None,
    ignore_index: int = IGNORED,
    reduction: Reduction = "mean",
) -> Tensor:
    r"""Focal or inverse focal loss with the exponent of the bin that the true class's probability is in.

    .. math:: L(z, y) = \begin{cases} -(1 - p_y)^{\gamma_b} \log p_y & \gamma_b \ge 0 \\
        -(1 + p_y)^{|\gamma_b|} \log p_y & \gamma_b < 0 \end{cases}

    Args:
        logits: Scores of shape ``(n, k)`` or ``(n, k, ...)``.
        labels: Integer classes.
        edges: Rising edges of the bins, shape ``(m + 1,)``; a bin holds its upper edge.
        gammas: Exponent of each bin, shape ``(m,)``; negative ones mean inverse focal loss.
        weight: One weight per class.
        ignore_index: Label of the samples that count for nothing.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.

    Example:
        >>> logits, label = torch.tensor([[2.0, 0.0]]), torch.tensor([0])  # p_y = 0.88
        >>> edges, gammas = torch.tensor([0.0, 0.5, 1.0]), torch.tensor([3.0, -1.0])
        >>> round(float(adafocal_loss(logits, label, edges=edges, gammas=gammas)), 4)
        0.2387
    """
    check_weight(weight, logits)
    nll = true_class_nll(logits, labels, ignore_index=ignore_index)
    gamma = gammas.to(nll.dtype)[bin_of_true_class(nll, edges)]
    # 1 - p rounds to 0 for a sure sample, where a power below 1 has no finite slope.
    miss = (-torch.expm1(-nll)).clamp_min(torch.finfo(nll.dtype).eps)
    values = torch.where(gamma < 0, 2 - miss, miss).pow(gamma.abs()) * nll
    return reduce_loss(values, labels, reduction=reduction, weight=weight, ignore_index=ignore_index)


def updated_gammas(
    gammas: Tensor, gap: Tensor, *, lam: float, gamma_max: float, gamma_min: float, switch: float
) -> Tensor:
    r"""Raise the exponents where validation is overconfident and lower them where it is underconfident.

    Lines 16 to 23 of Algorithm 1: multiply by :math:`\exp(\pm\lambda (C - A))`, stay within the bounds,
    and pass to the other kind of loss where the exponent has become smaller than ``switch``.

    Args:
        gammas: Exponents of the last epoch, shape ``(m,)``.
        gap: Mean confidence minus accuracy of each bin, shape ``(m,)``.
        lam: Speed.
        gamma_max: Largest exponent of focal loss.
        gamma_min: Minus the largest exponent of inverse focal loss.
        switch: Size below which an exponent changes its sign.
    """
    focal = gammas >= 0
    factor = torch.exp(lam * gap)
    moved = torch.where(focal, (gammas * factor).clamp_max(gamma_max), (gammas / factor).clamp_min(gamma_min))
    return torch.where(moved.abs() < switch, torch.where(focal, -switch, switch), moved)


class AdaFocalLoss(SampleLoss):
    """Focal loss whose exponents follow the calibration on the validation set, epoch by epoch.

    Training starts with ``gamma`` in bins of equal width. After each epoch ``update(logits, labels)`` with
    the validation set makes bins of equal count from its top-label confidences and moves each bin's exponent
    by its calibration error. See :func:`adafocal_loss` and :func:`updated_gammas`. ``history`` has one entry
    per update: the ``edges``, the ``gap`` (confidence minus accuracy, 0 for an empty bin) and the ``gammas``.

    Args:
        n_bins: Number of bins; the paper found 10 to 20 best.
        lam: How fast exponents move.
        gamma: Exponent to start with.
        gamma_max: Largest exponent of focal loss.
        gamma_min: Minus the largest exponent of inverse focal loss.
        switch: Size below which focal loss becomes inverse focal loss and back.
        shared: Class weights, ``ignore_index`` and ``reduction``.

    Example:
        >>> loss = AdaFocalLoss(n_bins=2)
        >>> loss.update(torch.tensor([[3.0, 0.0], [2.0, 0.0]]), torch.tensor([1, 0]))
        >>> loss.gammas  # unsure and right, sure and wrong
        tensor([0.8876, 2.5924])
    """

    edges: Tensor
    gammas: Tensor

    validates = True

    def __init__(
        self,
        n_bins: int = 15,
        lam: float = 1.0,
        *,
        gamma: float = 1.0,
        gamma_max: float = 20.0,
        gamma_min: float = -2.0,
        switch: float = 0.2,
        **shared: Unpack[SampleOptions],
    ) -> None:
        super().__init__(**shared)
        if not gamma_min <= -switch < 0 < switch <= gamma_max:
            raise InputError(
                "switch: expected a positive number within gamma_min and gamma_max, "
                f"got {switch} with {gamma_min} and {gamma_max}"
            )
        if not lam > 0:
            raise InputError(f"lam: expected a positive number, got {lam}")
        self.n_bins = check_count(n_bins, "n_bins")
        self.lam = lam
        self.gamma_max = gamma_max
        self.gamma_min = gamma_min
        self.switch = switch
        self.register_buffer("edges", equal_width_edges(n_bins))
        self.register_buffer("gammas", torch.full((n_bins,), float(gamma)))
        self.records = EpochRecords({"edges": n_bins + 1, "gap": n_bins, "gammas": n_bins})

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of a batch."""
        return adafocal_loss(logits, labels, edges=self.edges, gammas=self.gammas, **self.shared)

    @torch.no_grad()
    def update(self, logits: Tensor | None = None, labels: Tensor | None = None) -> None:
        """Take the bins of the validation set and move their exponents; each process passes its share."""
        bins = validation_bins(logits, labels, n_bins=self.n_bins, ignore_index=self.ignore_index)
        gap = -bins.gap.to(self.gammas)
        self.edges.copy_(bins.edges)
        self.gammas.copy_(
            updated_gammas(
                self.gammas,
                gap,
                lam=self.lam,
                gamma_max=self.gamma_max,
                gamma_min=self.gamma_min,
                switch=self.switch,
            )
        )
        self.records.add(edges=self.edges, gap=gap, gammas=self.gammas)

    @property
    def history(self) -> list[Mapping[str, Any]]:
        """Edges, gap and exponents of each epoch, oldest first."""
        return self.records.entries

    def extra_repr(self) -> str:
        """Say what makes this loss differ from another of its kind."""
        return f"n_bins={self.n_bins}, lam={self.lam}"
