"""Handwritten digits that come with scikit-learn: 1,797 grey images of 8 x 8 pixels, the default."""

import numpy as np
import torch

from calibrant.training.datasets.dataset import LabelledData, Splits
from calibrant.training.datasets.split import divide


def load_digits(*, validation: float = 0.1, seed: int = 0) -> Splits:
    """Return the digits: a fifth for testing, the same for every seed, and the rest for the other two.

    Example:
        >>> load_digits().test
        LabelledData(n=359, image (1, 8, 8), class_names)
    """
    from sklearn.datasets import load_digits as bundled

    digits = bundled()
    # Shades are 0 to 16; the library's images are bytes.
    pixels = torch.from_numpy(np.rint(digits.images * (255 / 16)).astype(np.uint8))
    labels = torch.from_numpy(digits.target.astype(np.int64))
    data = LabelledData(pixels[:, None], labels, tuple(str(digit) for digit in range(10)), "image")
    return Splits(*divide(data, None, None, share=validation, seed=seed))
