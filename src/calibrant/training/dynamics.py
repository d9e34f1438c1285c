"""Training dynamics: what papers plot over epochs, measured on the predictions of one epoch."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self, TypeAlias

import torch
from torch import Tensor

from calibrant.bins import equal_mass_bins
from calibrant.errors import InputError
from calibrant.files import read_dataclass
from calibrant.inputs import ArrayLike, check_count, check_labels, check_logits, check_probs, to_tensor
from calibrant.outcomes import Outcomes

_Values: TypeAlias = tuple[float | None, ...]
# Returns the probabilities of a range of rows in double precision.
_Rows: TypeAlias = Callable[[slice], Tensor]

# Numbers that are converted to double precision at once: 8 MB.
_AT_ONCE = 1 << 20
# The mean of the others is the difference of two sums; its rounding error is far below this.
_FLOOR = 1e-12
_ADAFOCAL = ("edges", "gap", "gammas")


@dataclass(frozen=True)
class ClassAgreement:
    """How similar the predictions for samples of one class are; None if no class has two samples.

    Attributes:
        kl: Mean divergence in nats of each prediction from the mean of the *other* predictions of its class.
        cosine: Mean cosine similarity of each prediction and the mean of *all* predictions of its class.
    """

    kl: float | None
    cosine: float | None


def prediction_entropy(probs: ArrayLike) -> float:
    """Return the mean entropy of the predictions, in nats.

    Args:
        probs: Class probabilities of shape ``(n, k)``; zeros contribute 0.

    Example:
        >>> round(prediction_entropy([[0.5, 0.5], [1.0, 0.0]]), 4)
        0.3466
    """
    p = check_probs(probs)
    return _entropy(_rows_of(p), *p.shape)


def class_agreement(probs: ArrayLike, labels: ArrayLike, *, batch_size: int | None = None) -> ClassAgreement:
    r"""Return how much predictions agree with those for other samples of their class (SECA, appendix A).

    .. math:: \mathrm{KL}\Big(p_i \,\Big\|\, \frac{1}{|S_i| - 1} \sum_{j \in S_i, j \ne i} p_j\Big), \qquad
        \cos\Big(p_i, \frac{1}{|S_i|} \sum_{j \in S_i} p_j\Big)

    :math:`S_i` are the samples of the class of sample ``i`` in its batch. Both are averaged over all samples
    that are not alone in :math:`S_i`; for a sample that is alone, the first is undefined and the second is
    always 1. If all are alone, both are None. Means of the others below 1e-12 count as 1e-12, so no sample
    has more than 27.7 nats.

    Args:
        probs: Class probabilities of shape ``(n, k)``.
        labels: Integer classes of shape ``(n,)``.
        batch_size: Rows are divided into batches of this size in the given order, and the last one may be
            shorter; None makes one batch of all rows. Smaller batches have noisier means, so only compare
            results of the same batch size.

    Example:
        >>> agreement = class_agreement([[0.8, 0.2], [0.4, 0.6], [0.1, 0.9]], [0, 0, 1])
        >>> round(agreement.kl, 4), round(agreement.cosine, 4)
        (0.3584, 0.9324)
    """
    p = check_probs(probs)
    y = check_labels(labels, n=p.shape[0], k=p.shape[1]).to(p.device)
    return _agreement(_rows_of(p), y, p.shape[1], batch_size)


@dataclass(frozen=True)
class BinDynamics:
    """Validation samples in bins of their confidence, and training samples in the same bins.

    The means of an empty bin are None.

    Attributes:
        edges: Bin ``b`` is the interval ``(edges[b], edges[b + 1]]``; the outer bins extend to 0 and 1.
        confidence: Mean top-label confidence of the validation samples.
        accuracy: Share of correct validation samples.
        gap: Confidence minus accuracy on validation: AdaFocal's C - A, positive where overconfident.
        count: Number of validation samples.
        train_true: Mean true-class probability of training samples, binned by that probability.
        train_true_count: Number of training samples, binned by their true-class probability.
        train_confidence: Mean top-label confidence of training samples, binned by that confidence.
        train_accuracy: Share of correct training samples, binned by their top-label confidence.
        train_count: Number of training samples, binned by their top-label confidence.
    """

    edges: tuple[float, ...]
    confidence: _Values
    accuracy: _Values
    gap: _Values
    count: tuple[int, ...]
    train_true: _Values
    train_true_count: tuple[int, ...]
    train_confidence: _Values
    train_accuracy: _Values
    train_count: tuple[int, ...]

    def as_json(self) -> dict[str, Any]:
        """Return lists by name."""
        return {name: list(values) for name, values in asdict(self).items()}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Self:
        """Build it from the output of :meth:`as_json`."""
        return read_dataclass(cls, stored, "dynamics.bins", error=InputError)


def bin_dynamics(
    val_logits: ArrayLike,
    val_labels: ArrayLike,
    train_logits: ArrayLike,
    train_labels: ArrayLike,
    *,
    n_bins: int = 15,
    edges: ArrayLike | None = None,
) -> BinDynamics:
    """Compare training and validation samples of about the same confidence (AdaFocal, Sec. 4).

    Args:
        val_logits: Logits of the validation set, shape ``(n, k)``, or logarithms of probabilities.
        val_labels: Its integer classes.
        train_logits: Logits of the training set.
        train_labels: Its integer classes.
        n_bins: Number of bins, each with the same number of validation samples.
        edges: Increasing edges of bins to use instead, such as those of another epoch.

    Example:
        >>> sure, unsure = [4.0, 0.0], [1.0, 0.0]
        >>> bins = bin_dynamics([sure, unsure], [1, 0], [sure, sure], [0, 1], n_bins=2)
        >>> [round(gap, 3) for gap in bins.gap], bins.train_true_count, bins.train_count
        ([-0.269, 0.982], (1, 1), (0, 2))
    """
    validation, _ = _outcomes(*_checked("val", val_logits, val_labels))
    train, true = _outcomes(*_checked("train", train_logits, train_labels))
    if edges is None:
        edges = equal_mass_bins(validation, check_count(n_bins, "n_bins")).edges
    given = to_tensor(edges, "edges").double().cpu()
    if given.ndim != 1 or len(given) < 2 or not bool((given.diff() >= 0).all()):
        raise InputError(f"edges: expected two or more numbers that never fall, got {given.tolist()}")
    own, right, top = validation.confidence, validation.correct.double(), train.confidence
    return BinDynamics(
        edges=tuple(given.tolist()),
        **_bin_means(given, own, "count", confidence=own, accuracy=right, gap=own - right),
        **_bin_means(given, true, "train_true_count", train_true=true),
        **_bin_means(given, top, "train_count", train_confidence=top, train_accuracy=train.correct.double()),
    )


@dataclass(frozen=True)
class EpochDynamics:
    """The dynamics of one epoch: a line of ``dynamics.jsonl``.

    Attributes:
        epoch: Number of the epoch.
        train_entropy: Mean entropy on the training set; see :func:`prediction_entropy`.
        train_kl: See :class:`ClassAgreement`, also for ``train_cosine``; ``val_...`` is validation.
        bins: Training and validation samples in bins of confidence.
        adafocal: ``edges``, ``gap`` and ``gammas`` of an AdaFocal loss after the epoch, or None.
    """

    epoch: int
    train_entropy: float
    train_kl: float | None
    train_cosine: float | None
    val_entropy: float
    val_kl: float | None
    val_cosine: float | None
    bins: BinDynamics
    adafocal: Mapping[str, Any] | None = None

    def as_json(self) -> dict[str, Any]:
        """Return numbers, lists and mappings that JSON can hold."""
        return asdict(self) | {"bins": self.bins.as_json()}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Self:
        """Build it from the output of :meth:`as_json`; other keys, such as a stage, are ignored."""
        return read_dataclass(cls, stored, "dynamics", error=InputError, ignore_unknown=True)


def measure_epoch(
    epoch: int,
    *,
    validation: tuple[ArrayLike, ArrayLike],
    train: tuple[ArrayLike, ArrayLike],
    batch_size: int | None = None,
    n_bins: int = 15,
    loss_history: Sequence[Mapping[str, Any]] = (),
) -> EpochDynamics:
    """Measure all dynamics of one epoch.

    Args:
        epoch: Its number.
        validation: Logits and labels of the validation set.
        train: Logits and labels of the training set, in the order of its batches.
        batch_size: As for :func:`class_agreement`.
        n_bins: Number of bins, unless AdaFocal has another number of gammas.
        loss_history: ``history`` of the loss after the epoch's update; AdaFocal's last entry is used.
    """
    entries = [entry for entry in loss_history if all(name in entry for name in _ADAFOCAL)]
    entry = {name: list(entries[-1][name]) for name in _ADAFOCAL} if entries else None
    measured: dict[str, Any] = {}
    for side, pair in (("train", train), ("val", validation)):
        z, y = _checked(side, *pair)
        agreement = _agreement(_softmax_of(z), y, z.shape[1], batch_size)
        measured[f"{side}_entropy"] = _entropy(_softmax_of(z), *z.shape)
        measured[f"{side}_kl"], measured[f"{side}_cosine"] = agreement.kl, agreement.cosine
    bins = bin_dynamics(*validation, *train, n_bins=len(entry["gammas"]) if entry else n_bins)
    return EpochDynamics(epoch=check_count(epoch, "epoch", at_least=0), bins=bins, adafocal=entry, **measured)


def _rows_of(probs: Tensor) -> _Rows:
    # Rounding may have made a probability slightly negative.
    return lambda rows: probs[rows].double().clamp(min=0)


def _softmax_of(logits: Tensor) -> _Rows:
    return lambda rows: torch.softmax(logits[rows].double(), dim=1)


def _blocks(start: int, stop: int, k: int) -> Iterator[slice]:
    """Divide a range of rows into blocks that are converted to double precision at once."""
    step = max(1, _AT_ONCE // k)
    return (slice(first, min(first + step, stop)) for first in range(start, stop, step))


def _entropy(rows: _Rows, n: int, k: int) -> float:
    return sum(float(torch.special.entr(rows(block)).sum()) for block in _blocks(0, n, k)) / n


def _agreement(rows: _Rows, labels: Tensor, k: int, batch_size: int | None) -> ClassAgreement:
    n = len(labels)
    step = n if batch_size is None else check_count(batch_size, "batch_size")
    sums = [_batch_agreement(rows, labels, k, start, min(start + step, n)) for start in range(0, n, step)]
    kl, cosine, count = torch.stack(sums).sum(dim=0).tolist()
    return ClassAgreement(kl / count, cosine / count) if count else ClassAgreement(None, None)


def _batch_agreement(rows: _Rows, labels: Tensor, k: int, start: int, stop: int) -> Tensor:
    """Return the sums of divergences and similarities of a batch, and their number of samples."""
    # Only classes that occur get a row, so that memory never exceeds that of the predictions.
    classes, place, count = torch.unique(labels[start:stop], return_inverse=True, return_counts=True)
    total = torch.zeros(len(classes), k, dtype=torch.float64, device=labels.device)
    for block in _blocks(start, stop, k):
        total.index_add_(0, place[block.start - start : block.stop - start], rows(block))
    result = torch.zeros(3, dtype=torch.float64, device=labels.device)
    for block in _blocks(start, stop, k):
        here = place[block.start - start : block.stop - start]
        kept = count[here] > 1
        p, here = rows(block)[kept], here[kept]
        together = total[here]
        others = ((together - p) / (count[here, None] - 1)).clamp_(min=_FLOOR)
        kl = (torch.xlogy(p, p) - p * others.log()).sum(dim=1).clamp_(min=0)
        cosine = torch.cosine_similarity(p, together, dim=1)
        result += torch.stack([kl.sum(), cosine.sum(), kept.sum()])
    return result.cpu()


def _checked(side: str, logits: ArrayLike, labels: ArrayLike) -> tuple[Tensor, Tensor]:
    z = check_logits(logits, name=f"{side}_logits")
    return z, check_labels(labels, n=z.shape[0], k=z.shape[1], name=f"{side}_labels").to(z.device)


def _outcomes(z: Tensor, y: Tensor) -> tuple[Outcomes, Tensor]:
    """Return top-label outcomes and true-class probabilities, in double precision."""
    outcomes = Outcomes.from_logits(z, y)
    # A multiple of the confidence, so that it equals the confidence exactly where the prediction is correct.
    behind = z.gather(1, y[:, None]).squeeze(1).double() - z.amax(dim=1).double()
    return outcomes, behind.exp() * outcomes.confidence


def _bin_means(edges: Tensor, by: Tensor, counted: str, **columns: Tensor) -> dict[str, tuple[Any, ...]]:
    """Bin samples by a value; return their number and the mean of each column in every bin."""
    place, n_bins = torch.bucketize(by, edges[1:-1].to(by.device)), len(edges) - 1
    count = torch.bincount(place, minlength=n_bins).tolist()
    means = {counted: tuple(count)}
    for name, column in columns.items():
        sums = torch.bincount(place, column, minlength=n_bins).tolist()
        means[name] = tuple(s / n if n else None for s, n in zip(sums, count, strict=True))
    return means
