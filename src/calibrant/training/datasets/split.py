"""Stratified splits: every class gives the same share, and the same seed gives the same split."""

import numpy as np
import torch
from torch import Tensor

from calibrant.errors import InputError
from calibrant.training.datasets.dataset import LabelledData

# A set that comes without a test part gives this share, always the same samples whatever the seed.
TEST_SHARE = 0.2


def stratified_split(labels: Tensor, *, share: float, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return the row numbers to keep and those to hold out, each in ascending order.

    The held-out part has ``share`` of all samples, rounded; what the classes' own shares leave over goes to
    those with the largest remainders. A class never loses its last sample, so a class of one is all kept.

    Example:
        >>> kept, held = stratified_split(torch.tensor([0, 0, 0, 0, 1, 1, 1, 1]), share=0.25)
        >>> len(kept), len(held)
        (6, 2)
    """
    if not 0 < share < 1:
        raise InputError(f"share: expected a number between 0 and 1, got {share}; 0.1 holds out a tenth")
    y = labels.numpy()
    generator = np.random.default_rng([seed, 0])
    order = generator.permutation(len(y))
    counts = np.bincount(y)
    quotas = _quotas(counts, share)
    # Sorted by class in a random order within each, so that a class's first few are a random choice of it.
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


def check_validation(share: float) -> None:
    """Refuse what is no share of the training part."""
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
    """Return all three parts, taking those that are missing out of the training part.

    The test part is the same for every seed, so that runs with different seeds are compared on the same
    samples; the validation part is ``share`` of what remains and follows the seed.
    """
    if test is None:
        kept, held = stratified_split(train.labels, share=TEST_SHARE)
        train, test = train.take(kept), train.take(held)
    if validation is None:
        check_validation(share)
        kept, held = stratified_split(train.labels, share=share, seed=seed)
        train, validation = train.take(kept), train.take(held)
    return train, validation, test


def _quotas(counts: np.ndarray, share: float) -> np.ndarray:
    """Divide the held-out number over the classes by largest remainders."""
    exact = counts * share
    quotas = np.floor(exact).astype(np.int64)
    left = round(float(exact.sum())) - int(quotas.sum())
    can_give = quotas + 1 < counts
    by_remainder = np.argsort(np.where(can_give, quotas - exact, 1.0), kind="stable")
    quotas[by_remainder[: min(left, int(can_give.sum()))]] += 1
    return quotas
