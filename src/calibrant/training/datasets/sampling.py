"""The samples and labels of each part: splits, held-out classes, long tails, label noise."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from calibrant.errors import InputError
from calibrant.training.datasets.dataset import FOREIGN, LabelledData, Splits

# Share of a data set without a test part that becomes its test part, the same samples for every seed.
TEST_SHARE = 0.2


def stratified_split(
    labels: Tensor, *, share: float, seed: int = 0, units: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return the row numbers to keep and those to hold out, each in ascending order.

    The held-out part has ``share`` of all samples, rounded, and the same share of each class; samples that
    rounding leaves over come from the classes with the largest remainders. A class never loses its last
    sample. With units, these are held out as a whole, and each belongs to the class of its first sample.

    Example:
        >>> kept, held = stratified_split(torch.tensor([0, 0, 0, 0, 1, 1, 1, 1]), share=0.25)
        >>> len(kept), len(held)
        (6, 2)
        >>> patients = torch.tensor([7, 7, 7, 8, 9, 9, 5, 5])
        >>> kept, held = stratified_split(torch.tensor([0, 0, 0, 0, 1, 1, 1, 1]), share=0.5, units=patients)
        >>> set(patients[kept].tolist()) & set(patients[held].tolist())
        set()
    """
    if not 0 < share < 1:
        raise InputError(f"share: expected a number between 0 and 1, got {share}; 0.1 holds out a tenth")
    if units is not None:
        _, first, place = np.unique(units.numpy(), return_index=True, return_inverse=True)
        order = np.argsort(first)  # units in the order in which they appear
        _, held_units = stratified_split(labels[torch.from_numpy(first[order])], share=share, seed=seed)
        held_rows = torch.from_numpy(np.isin(place, order[held_units.numpy()]))
        return (~held_rows).nonzero()[:, 0], held_rows.nonzero()[:, 0]
    y = labels.numpy()
    order = np.random.default_rng([seed, 0]).permutation(len(y))
    counts = np.bincount(y)
    quotas = _quotas(counts, share)
    # Sorted by class, in a random order within each, so that the first few of a class are a random choice.
    by_class = order[np.argsort(y[order], kind="stable")]
    rank = np.arange(len(y)) - np.repeat(np.cumsum(counts) - counts, counts)
    held = np.zeros(len(y), dtype=bool)
    held[by_class] = rank < np.repeat(quotas, counts)
    if not held.any():
        raise InputError(
            f"share: expected one that holds out at least one of {len(y)} samples and leaves one of each "
            f"class, got {share}; raise it or give more samples"
        )
    mask = torch.from_numpy(held)
    return (~mask).nonzero()[:, 0], mask.nonzero()[:, 0]


def _quotas(counts: np.ndarray, share: float) -> np.ndarray:
    """Divide the number of held-out samples over the classes by largest remainders."""
    exact = counts * share
    quotas = np.floor(exact).astype(np.int64)
    left = round(float(exact.sum())) - int(quotas.sum())
    can_give = quotas + 1 < counts
    by_remainder = np.argsort(np.where(can_give, quotas - exact, 1.0), kind="stable")
    quotas[by_remainder[: min(left, int(can_give.sum()))]] += 1
    return quotas


def check_validation(share: float) -> None:
    """Refuse a validation share outside of (0, 1)."""
    if not 0 < share < 1:
        raise InputError(
            f"validation: expected a share between 0 and 1, got {share}; 0.1 takes a tenth of training"
        )


def divide(
    train: LabelledData,
    validation: LabelledData | None,
    test: LabelledData | None,
    *,
    share: float,
    seed: int,
) -> tuple[LabelledData, LabelledData, LabelledData]:
    """Return all three parts; those that are missing are taken from the training part.

    The test part is the same for every seed, so that runs with different seeds are compared on the same
    samples; the validation part is ``share`` of the rest and depends on the seed. No unit is split.
    """
    if test is None:
        kept, held = stratified_split(train.labels, share=TEST_SHARE, units=train.units)
        train, test = train.take(kept), train.take(held)
    if validation is None:
        check_validation(share)
        kept, held = stratified_split(train.labels, share=share, seed=seed, units=train.units)
        train, validation = train.take(kept), train.take(held)
    return train, validation, test


def limited(train: LabelledData, limit: int, *, n_classes: int, seed: int) -> LabelledData:
    """Return this many samples, the same share of each class and at least one."""
    if limit < n_classes:
        raise InputError(
            f"limit: expected at least one sample of each of {n_classes} classes, got {limit}; raise it"
        )
    # A class that cannot give its share leaves too many samples: the next round takes them from the others.
    while len(train) > limit:
        kept, _ = stratified_split(train.labels, share=1 - limit / len(train), seed=seed)
        train = train.take(kept)
    return train


def hold_out_classes(splits: Splits, classes: Sequence[int | str]) -> Splits:
    """Return splits without these classes; their test samples are the out-of-distribution set ``held_out``.

    The other classes are renumbered without gaps, in the same order.

    Args:
        splits: The whole data.
        classes: Numbers of classes, or their names.
    """
    k = splits.n_classes
    out = {_class_number(name, splits) for name in classes}
    if k - len(out) < 2:
        raise InputError(
            f"foreign_classes: expected at least two classes to remain, got {len(out)} of {k} held out; "
            "hold out fewer"
        )
    kept = [c for c in range(k) if c not in out]
    renumbered = torch.full((k,), FOREIGN)
    renumbered[kept] = torch.arange(len(kept))
    names = splits.train.class_names
    kept_names = None if names is None else tuple(names[c] for c in kept)

    def without(part: LabelledData) -> LabelledData:
        rows = _not_empty(renumbered[part.labels] >= 0, "no sample of a remaining class")
        labels = renumbered[part.labels[rows]]
        return replace(part.take(rows), labels=labels, class_names=kept_names)

    held = _not_empty(renumbered[splits.test.labels] < 0, "no test sample of these classes")
    return replace(
        splits,
        train=without(splits.train),
        validation=without(splits.validation),
        test=without(splits.test),
        shifted={name: without(part) for name, part in splits.shifted.items()},
        foreign={**splits.foreign, "held_out": splits.test.take(held).as_foreign()},
    )


def _not_empty(rows: Tensor, otherwise: str) -> Tensor:
    if not bool(rows.any()):
        raise InputError(f"foreign_classes: expected samples on both sides, got {otherwise}; choose others")
    return rows


def _class_number(name: int | str, splits: Splits) -> int:
    names = splits.train.class_names or ()
    if isinstance(name, int) and 0 <= name < splits.n_classes:
        return name
    if isinstance(name, str) and name in names:
        return names.index(name)
    known = f"a name or a number from 0 to {splits.n_classes - 1}"
    raise InputError(f"foreign_classes: expected {known}, got {name!r}; see the class names of the data")


def check_imbalance(imbalance: float) -> None:
    """Refuse a ratio of the rarest class to the most common one outside of (0, 1]."""
    if not 0 < imbalance <= 1:
        raise InputError(
            f"imbalance: expected a ratio of the rarest class to the most common above 0 and at most 1, "
            f"got {imbalance}; 0.1 makes the rarest a tenth"
        )


def long_tail_counts(counts: Tensor, *, imbalance: float) -> Tensor:
    r"""Return how many samples each class keeps if class sizes fall off exponentially.

    .. math:: n_c = n_0 \, r^{c / (k - 1)}

    Class 0 is the most common and class ``k - 1`` the rarest. :math:`n_0` is as large as the classes allow;
    every class keeps at least one sample.

    Args:
        counts: Samples that each of the ``k`` classes has.
        imbalance: The ratio ``r`` of the rarest class to the most common one; 0.1 makes it a tenth.

    Example:
        >>> long_tail_counts(torch.tensor([100, 100, 100]), imbalance=0.01)
        tensor([100,  10,   1])

    References:
        Cui et al., "Class-Balanced Loss Based on Effective Number of Samples", CVPR 2019.
    """
    check_imbalance(imbalance)
    if int(counts.min()) < 1:
        raise InputError(
            f"imbalance: expected samples of every class, got none of class {int(counts.argmin())}; "
            "leave that class out"
        )
    k = len(counts)
    profile = torch.tensor(imbalance, dtype=torch.float64) ** (torch.arange(k) / max(k - 1, 1))
    largest = (counts / profile).min()
    # Rounding must not take a sample from a count that is whole.
    return (largest * profile + 1e-6).floor().long().clamp(min=1)


def long_tail(labels: Tensor, *, imbalance: float, seed: int = 0, n_classes: int | None = None) -> Tensor:
    """Return the row numbers, in ascending order, of a long-tailed choice of the samples."""
    kept = long_tail_counts(torch.bincount(labels, minlength=n_classes or 0), imbalance=imbalance)
    generator = np.random.default_rng([seed, 1])
    y = labels.numpy()
    chosen = [generator.permutation(np.flatnonzero(y == c))[:count] for c, count in enumerate(kept.tolist())]
    return torch.from_numpy(np.sort(np.concatenate(chosen)))


def check_rate(rate: float) -> None:
    """Refuse a share of wrong labels outside of [0, 1]."""
    if not 0 <= rate <= 1:
        raise InputError(
            f"label_noise: expected a share of labels from 0 to 1, got {rate}; 0.1 spoils a tenth"
        )


def symmetric_label_noise(labels: Tensor, *, rate: float, n_classes: int, seed: int = 0) -> Tensor:
    """Return labels with exactly the share ``rate`` of them wrong, rounded to whole samples.

    A wrong label is drawn from the ``n_classes - 1`` other classes, all equally likely. Use it for training
    data only: noise in validation or test data would change what is measured.

    Example:
        >>> noisy = symmetric_label_noise(torch.zeros(10, dtype=torch.int64), rate=0.3, n_classes=4)
        >>> int((noisy != 0).sum())
        3
    """
    check_rate(rate)
    if n_classes < 2:
        raise InputError(
            f"label_noise: expected at least two classes to confuse, got {n_classes}; leave the noise out"
        )
    generator = np.random.default_rng([seed, 2])
    n = len(labels)
    rows = torch.from_numpy(generator.permutation(n)[: round(rate * n)])
    step = torch.from_numpy(generator.integers(1, n_classes, size=len(rows)))
    noisy = labels.clone()
    noisy[rows] = (labels[rows] + step) % n_classes
    return noisy
