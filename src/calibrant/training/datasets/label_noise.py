"""Symmetric label noise: a share of the labels is replaced by another class, all being equally likely."""

import numpy as np
import torch
from torch import Tensor

from calibrant.errors import InputError


def check_rate(rate: float) -> None:
    """Refuse what is no share of the labels."""
    if not 0 <= rate <= 1:
        raise InputError(
            f"label_noise: expected a share of labels from 0 to 1, got {rate}; 0.1 spoils a tenth"
        )


def symmetric_label_noise(labels: Tensor, *, rate: float, n_classes: int, seed: int = 0) -> Tensor:
    """Return labels of which exactly ``rate`` (rounded to whole samples) are wrong.

    A noisy label is drawn from the ``n_classes - 1`` other classes and so never right by chance. For training
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
