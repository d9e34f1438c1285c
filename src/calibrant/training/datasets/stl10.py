"""STL-10 (Coates et al., AISTATS 2011), from its original binary files."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch

from calibrant.errors import FormatError
from calibrant.training.datasets.dataset import LabelledData, Splits, find_data_files, read_data
from calibrant.training.datasets.pictures import check_size, resized
from calibrant.training.datasets.sampling import divide

STL10_FILES = ("train_X.bin", "train_y.bin", "test_X.bin", "test_y.bin")
STL10 = ("airplane", "bird", "car", "cat", "deer", "dog", "horse", "monkey", "ship", "truck")
_SIDE = 96


def load_stl10(
    path: Path, *, size: int | Sequence[int] = _SIDE, validation: float = 0.1, seed: int = 0
) -> Splits:
    """Return the labelled images of STL-10 from a folder with ``train_X.bin``, ``train_y.bin``, ``test_*``.

    Args:
        path: The folder; the files may also be in a subfolder.
        size: Side of the images in pixels, or height and width; another one than 96 resizes them.
        validation: Share of the training part that becomes the validation part.
        seed: Which samples that share is.
    """
    shape = check_size(size)
    folder = find_data_files(path, STL10_FILES, "STL-10 as binary files")
    train, test = (resized(_part(folder, part), shape) for part in ("train", "test"))
    return Splits(*divide(train, None, test, share=validation, seed=seed))


def _part(folder: Path, part: str) -> LabelledData:
    labels = read_data(folder / f"{part}_y.bin", "labels of STL-10", _labels)
    pixels = read_data(folder / f"{part}_X.bin", "images of STL-10", partial(_pixels, n=len(labels)))
    return LabelledData(torch.from_numpy(pixels), torch.from_numpy(labels), STL10, "image")


def _labels(path: Path) -> np.ndarray:
    labels = np.fromfile(path, dtype=np.uint8)
    if labels.min() < 1 or labels.max() > len(STL10):
        wrong = labels.min() if labels.min() < 1 else labels.max()
        raise FormatError(f"expected labels from 1 to {len(STL10)}, got {wrong}; the file is damaged")
    return labels.astype(np.int64) - 1


def _pixels(path: Path, n: int) -> np.ndarray:
    expected = n * 3 * _SIDE**2
    found = path.stat().st_size
    if found != expected:
        raise FormatError(
            f"expected {expected} bytes for {n} labels, got {found}; "
            "the file is truncated or belongs to other labels"
        )
    # The file goes down the columns of a channel, one after the other.
    by_column = np.fromfile(path, dtype=np.uint8).reshape(n, 3, _SIDE, _SIDE)
    return np.ascontiguousarray(by_column.transpose(0, 1, 3, 2))
