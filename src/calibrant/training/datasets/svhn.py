"""SVHN, Street View House Numbers (Netzer et al., 2011), from its original .mat files."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from calibrant.errors import FormatError
from calibrant.training.datasets.dataset import LabelledData, Splits, find_data_files, read_data
from calibrant.training.datasets.pictures import check_size, resized
from calibrant.training.datasets.sampling import divide

SVHN_FILES = ("train_32x32.mat", "test_32x32.mat")
DIGITS = tuple(str(digit) for digit in range(10))


def load_svhn(
    path: Path, *, size: int | Sequence[int] = 32, validation: float = 0.1, seed: int = 0
) -> Splits:
    """Return SVHN's cropped digits from a folder with ``train_32x32.mat`` and ``test_32x32.mat``.

    Args:
        path: The folder; the files may also be in a subfolder.
        size: Side of the images in pixels, or height and width; another one than 32 resizes them.
        validation: Share of the training part that becomes the validation part.
        seed: Which samples that share is.
    """
    shape = check_size(size)
    folder = find_data_files(path, SVHN_FILES, "SVHN")
    train, test = (resized(read_data(folder / name, "SVHN's .mat file", _read), shape) for name in SVHN_FILES)
    return Splits(*divide(train, None, test, share=validation, seed=seed))


def _read(path: Path) -> LabelledData:
    from scipy.io import loadmat

    content = loadmat(path, variable_names=("X", "y"))
    missing = [name for name in ("X", "y") if name not in content]
    if missing:
        raise FormatError(f"expected the variables X and y, got no {missing[0]}; take the cropped digits")
    pixels, labels = content["X"], content["y"].reshape(-1)
    if pixels.dtype != np.uint8 or pixels.shape != (32, 32, 3, len(labels)) or not len(labels):
        raise FormatError(
            f"expected X as uint8 of shape (32, 32, 3, {len(labels)}) for {len(labels)} labels, "
            f"got {pixels.dtype} of shape {pixels.shape}; copy the file again"
        )
    if labels.min() < 1 or labels.max() > 10:
        wrong = labels.min() if labels.min() < 1 else labels.max()
        raise FormatError(f"expected labels from 1 to 10, where 10 is the digit 0, got {wrong}")
    images = torch.from_numpy(np.ascontiguousarray(pixels.transpose(3, 2, 0, 1)))
    return LabelledData(images, torch.from_numpy(labels.astype(np.int64) % 10), DIGITS, "image")
