"""AdaFocal and CalFocal: focal losses whose exponents follow the calibration on the validation set.

Ghosh et al., "AdaFocal: Calibration-aware Adaptive Focal Loss", NeurIPS 2022. Section 4 puts each training
sample into a bin of validation confidences by the probability of its true class: where the model is
overconfident on validation, training samples of about the same probability are faded out.
"""

from dataclasses import KW_ONLY, dataclass, field
from typing import Annotated, Literal, Unpack

import torch
from torch import Tensor

from calibrant.bins import Bins, equal_mass_bins
from calibrant.errors import InputError
from calibrant.inputs import check_choice, check_count
from calibrant.losses.focal import focal_value, miss
from calibrant.losses.loss import EpochRecords, SampleLoss
from calibrant.losses.parts.batch import IGNORED, rows
from calibrant.losses.parts.global_batch import global_rows
from calibrant.losses.parts.samples import SampleOptions, Samples, takes_sample_options
from calibrant.outcomes import Outcomes

# An exponent of exp(20) already silences a sample; the exponential of a larger number would overflow.
_LARGEST_LOG_GAMMA = 20.0


@takes_sample_options
def adafocal_loss(
    logits: Tensor, labels: Tensor, *, edges: Tensor, gammas: Tensor, **shared: Unpack[SampleOptions]
) -> Tensor:
    r"""Return the focal or inverse focal loss with the exponent of the bin of the true class's probability.

    .. math:: L(z, y) = \begin{cases} -(1 - p_y)^{\gamma_b} \log p_y & \gamma_b \ge 0 \\
        -(1 + p_y)^{|\gamma_b|} \log p_y & \gamma_b < 0 \end{cases}

    With soft labels, as those of mixup, it is the mixture of the losses of the classes by their shares; each
    class has the exponent of the bin of its own probability.

    Args:
        logits: Scores of shape ``(n, k)`` or ``(n, k, ...)``.
        labels: Integer classes, or distributions in the shape of the logits.
        edges: Increasing edges of the bins, shape ``(m + 1,)``; a bin includes its upper edge.
        gammas: Exponent of each bin, shape ``(m,)``; a negative one selects inverse focal loss.
        weight: One weight per class; for integer labels.
        ignore_index: Label of the samples to ignore.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.

    Example:
        >>> logits, label = torch.tensor([[2.0, 0.0]]), torch.tensor([0])  # p_y = 0.88
        >>> edges, gammas = torch.tensor([0.0, 0.5, 1.0]), torch.tensor([3.0, -1.0])
        >>> round(float(adafocal_loss(logits, label, edges=edges, gammas=gammas)), 4)
        0.2387
    """

    def value(nll: Tensor) -> Tensor:
        gamma = gammas.to(nll.dtype)[bin_of_true_class(nll, edges)]
        missed = miss(nll)
        return torch.where(gamma < 0, 2 - missed, missed).pow(gamma.abs()) * nll

    return Samples(logits, labels, **shared).reduce_of_nll(value)


def updated_gammas(
    gammas: Tensor, gap: Tensor, *, lam: float, gamma_max: float, gamma_min: float, switch: float
) -> Tensor:
    r"""Raise the exponents where validation is overconfident and lower them where it is underconfident.

    Lines 16 to 23 of Algorithm 1: multiply by :math:`\exp(\pm\lambda (C - A))`, stay within the bounds,
    and switch to the other kind of loss where the exponent has become smaller than ``switch``. ``gap`` is
    the mean confidence minus the accuracy of each bin, shape ``(m,)``; the other options are those of
    :class:`AdaFocalLoss`.
    """
    focal = gammas >= 0
    factor = torch.exp(lam * gap)
    moved = torch.where(focal, (gammas * factor).clamp_max(gamma_max), (gammas / factor).clamp_min(gamma_min))
    return torch.where(moved.abs() < switch, torch.where(focal, -switch, switch), moved)


@dataclass(eq=False, repr=False)
class AdaFocalLoss(SampleLoss):
    """Focal loss whose exponents follow the calibration on the validation set, epoch by epoch.

    Training starts with ``gamma`` in bins of equal width. After each epoch ``update(logits, labels)`` with
    the validation set makes bins of equal count from its top-label confidences and moves the exponent of
    each bin by its calibration error. ``history`` has one entry per update: the ``edges``, the ``gap``
    (confidence minus accuracy, 0 for an empty bin) and the ``gammas``. Without updates it stays focal loss
    with exponent ``gamma``; after 5,000 batches of training it warns about that, once.

    Example:
        >>> loss = AdaFocalLoss(n_bins=2)
        >>> loss.update(torch.tensor([[3.0, 0.0], [2.0, 0.0]]), torch.tensor([1, 0]))
        >>> loss.gammas  # less confident and correct, more confident and wrong
        tensor([0.8876, 2.5924])
    """

    n_bins: Annotated[int, "Number of bins; the paper found 10 to 20 best."] = 15
    lam: Annotated[float, "How fast exponents move."] = 1.0
    _: KW_ONLY
    gamma: Annotated[float, "Exponent to start with."] = 1.0
    gamma_max: Annotated[float, "Largest exponent of focal loss."] = 20.0
    gamma_min: Annotated[float, "Minus the largest exponent of inverse focal loss."] = -2.0
    switch: Annotated[float, "Size below which focal loss becomes inverse focal loss and back."] = 0.2
    edges: Tensor = field(init=False)
    gammas: Tensor = field(init=False)

    function = staticmethod(adafocal_loss)
    shown = ("n_bins", "lam")
    validates = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.gamma_min <= -self.switch < 0 < self.switch <= self.gamma_max:
            raise InputError(
                "switch: expected a positive number within gamma_min and gamma_max, "
                f"got {self.switch} with {self.gamma_min} and {self.gamma_max}"
            )
        if not self.lam > 0:
            raise InputError(f"lam: expected a positive number, got {self.lam}")
        n_bins = self.n_bins = check_count(self.n_bins, "n_bins")
        self.register_buffer("edges", _equal_width_edges(n_bins))
        self.register_buffer("gammas", torch.full((n_bins,), float(self.gamma)))
        self.records = EpochRecords({"edges": n_bins + 1, "gap": n_bins, "gammas": n_bins})

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of a batch."""
        self._remind(logits)
        return adafocal_loss(logits, labels, edges=self.edges, gammas=self.gammas, **self.shared)

    @torch.no_grad()
    def update(self, logits: Tensor | None = None, labels: Tensor | None = None) -> None:
        """Bin the validation set and move the exponents of the bins; each process passes its share."""
        bins = validation_bins(logits, labels, n_bins=self.n_bins, ignore_index=self.ignore_index)
        gap = -bins.gap.to(self.gammas)
        limits = {"gamma_max": self.gamma_max, "gamma_min": self.gamma_min, "switch": self.switch}
        self.edges.copy_(bins.edges)
        self.gammas.copy_(updated_gammas(self.gammas, gap, lam=self.lam, **limits))
        self.records.add(edges=self.edges, gap=gap, gammas=self.gammas)


@takes_sample_options
def calfocal_loss(
    logits: Tensor,
    labels: Tensor,
    *,
    edges: Tensor,
    accuracy: Tensor,
    confidence: Tensor | None = None,
    lam: float = 10.0,
    **shared: Unpack[SampleOptions],
) -> Tensor:
    r"""Return the focal loss, faded out where probabilities exceed the accuracy on validation.

    .. math:: L(z, y) = -(1 - p_y)^{\gamma} \log p_y, \quad
        \gamma = e^{\lambda (p_y - A_b)} \text{ (case 1)} \quad\text{or}\quad
        \gamma = e^{\lambda (C_b - A_b)} \text{ (case 2)}

    ``b`` is the validation bin of ``p_y``, ``A_b`` its accuracy, ``C_b`` its mean confidence. In case 1 the
    exponent depends on the sample and has a gradient. Soft labels are read as by :func:`adafocal_loss`.

    Args:
        logits: Scores of shape ``(n, k)`` or ``(n, k, ...)``.
        labels: Integer classes, or distributions in the shape of the logits.
        edges: Increasing edges of the bins, shape ``(m + 1,)``; a bin includes its upper edge.
        accuracy: Validation accuracy of each bin, shape ``(m,)``.
        confidence: Mean validation confidence of each bin for case 2; None for case 1.
        lam: How strongly the exponent reacts; the paper's 100 costs accuracy, its 1 does little.
        weight: One weight per class.
        ignore_index: Label of the samples to ignore.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.

    Example:
        >>> logits, label = torch.tensor([[2.0, 0.0]]), torch.tensor([0])  # p_y = 0.88
        >>> edges, accuracy = torch.tensor([0.0, 1.0]), torch.tensor([0.8])
        >>> round(float(calfocal_loss(logits, label, edges=edges, accuracy=accuracy)), 4)
        0.0011
    """

    def value(nll: Tensor) -> Tensor:
        place = bin_of_true_class(nll, edges)
        if confidence is None:
            excess = torch.exp(-nll) - accuracy.to(nll.dtype)[place]
        else:
            excess = (confidence - accuracy).to(nll.dtype)[place]
        return focal_value(nll, (lam * excess).clamp_max(_LARGEST_LOG_GAMMA).exp())

    return Samples(logits, labels, **shared).reduce_of_nll(value)


@dataclass(eq=False, repr=False)
class CalFocalLoss(SampleLoss):
    """Module form of :func:`calfocal_loss`, with bins taken from the validation set by ``update``.

    Until the first update the model is assumed to be calibrated in bins of equal width. Unlike in AdaFocal,
    the exponents depend only on the last update, and return to 1 as the model becomes calibrated.
    """

    case: Annotated[
        Literal["bin", "sample"],
        "'bin' compares the confidence of a bin with its accuracy (case 2 of the paper, base of AdaFocal), "
        "'sample' compares the probability of each sample (case 1).",
    ] = "bin"
    _: KW_ONLY
    n_bins: Annotated[int, "Number of bins."] = 15
    lam: Annotated[float, "How strongly the exponent reacts."] = 10.0
    edges: Tensor = field(init=False)
    confidence: Tensor = field(init=False)
    accuracy: Tensor = field(init=False)

    function = staticmethod(calfocal_loss)
    validates = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(self.case, "case", ("bin", "sample"))
        n_bins = self.n_bins = check_count(self.n_bins, "n_bins")
        edges = _equal_width_edges(n_bins)
        self.register_buffer("edges", edges)
        self.register_buffer("confidence", edges[1:] - 0.5 / n_bins)
        self.register_buffer("accuracy", edges[1:] - 0.5 / n_bins)
        self.records = EpochRecords({"edges": n_bins + 1, "confidence": n_bins, "accuracy": n_bins})

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of a batch."""
        self._remind(logits)
        bins = {"edges": self.edges, "accuracy": self.accuracy}
        confidence = self.confidence if self.case == "bin" else None
        return calfocal_loss(logits, labels, **bins, confidence=confidence, lam=self.lam, **self.shared)

    @torch.no_grad()
    def update(self, logits: Tensor | None = None, labels: Tensor | None = None) -> None:
        """Bin the validation set; each process passes its share."""
        bins = validation_bins(logits, labels, n_bins=self.n_bins, ignore_index=self.ignore_index)
        # An empty bin, which ties can leave, is as narrow as its edge and must not move any exponent.
        self.confidence.copy_(torch.where(bins.count > 0, bins.confidence, bins.edges[1:]))
        self.accuracy.copy_(torch.where(bins.count > 0, bins.accuracy, bins.edges[1:]))
        self.edges.copy_(bins.edges)
        self.records.add(edges=self.edges, confidence=self.confidence, accuracy=self.accuracy)


def validation_bins(
    logits: Tensor | None, labels: Tensor | None, *, n_bins: int, ignore_index: int = IGNORED
) -> Bins:
    """Fill bins of equal count with the top-label confidences of the validation set of all processes."""
    if logits is None or labels is None:
        raise InputError(
            "update: expected the logits and labels of the validation set, got none; "
            "call update(logits, labels) once per epoch"
        )
    z, y, _ = rows(logits.detach(), labels, ignore_index=ignore_index)
    own = Outcomes.from_logits(z, y)
    confidence, correct = global_rows(torch.stack([own.confidence, own.correct.double()], dim=1)).unbind(1)
    if not len(confidence):
        raise InputError("labels: expected validation samples that are not ignored, got none")
    if not bool(torch.isfinite(confidence).all()):
        raise InputError(
            "logits: expected finite validation scores, got NaN or infinity; lower the step size"
        )
    return equal_mass_bins(Outcomes(confidence, correct > 0), n_bins)


def bin_of_true_class(nll: Tensor, edges: Tensor) -> Tensor:
    """Return the right-closed bin ``(edges[b], edges[b + 1]]`` of each probability ``exp(-nll)``.

    The outer bins extend to 0 and 1, whatever the outermost validation confidences were.
    """
    return torch.bucketize(torch.exp(-nll.detach()), edges[1:-1].to(nll.dtype))


def _equal_width_edges(n_bins: int) -> Tensor:
    return torch.arange(n_bins + 1) / n_bins
