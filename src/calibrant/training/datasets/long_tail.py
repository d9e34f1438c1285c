"""Long-tailed training sets: class sizes that fall off exponentially (Cui et al., CVPR 2019)."""

import numpy as np
import torch
from torch import Tensor

from calibrant.errors import InputError


def check_imbalance(imbalance: float) -> None:
    """Refuse what is no ratio of the rarest class to the most common one."""
    if not 0 < imbalance <= 1:
        raise InputError(
            f"imbalance: expected a ratio of the rarest class to the most common above 0 and at most 1, "
            f"got {imbalance}; 0.1 makes the rarest a tenth"
        )


def long_tail_counts(counts: Tensor, *, imbalance: float) -> Tensor:
    r"""Return how many samples each class keeps.

    .. math:: n_c = n_0 \, r^{c / (k - 1)}

    Class 0 is the most common and class ``k - 1`` the rarest. The largest :math:`n_0` is taken for which
    every class has enough samples; every class keeps at least one.

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
    # A count that is whole but for rounding must not lose one.
    return (largest * profile + 1e-6).floor().long().clamp(min=1)


def long_tail(labels: Tensor, *, imbalance: float, seed: int = 0, n_classes: int | None = None) -> Tensor:
    """Return the row numbers, in ascending order, of a long-tailed choice of the samples."""
    kept = long_tail_counts(torch.bincount(labels, minlength=n_classes or 0), imbalance=imbalance)
    generator = np.random.default_rng([seed, 1])
    y = labels.numpy()
    chosen = [generator.permutation(np.flatnonzero(y == c))[:count] for c, count in enumerate(kept.tolist())]
    return torch.from_numpy(np.sort(np.concatenate(chosen)))
