"""The original binaries of CIFAR: records of one or two label bytes and 3,072 pixels."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from calibrant.errors import FormatError
from calibrant.training.datasets.reading import read

_PIXELS = 3 * 32 * 32

TRAIN_FILES = {
    10: tuple(f"data_batch_{part}.bin" for part in range(1, 6)),
    100: ("train.bin",),
}
TEST_FILES = {10: ("test_batch.bin",), 100: ("test.bin",)}


def read_binaries(folder: Path, names: Sequence[str], *, n_classes: int) -> tuple[Tensor, Tensor]:
    """Return the images, uint8 of shape ``(n, 3, 32, 32)``, and the labels of all files together.

    CIFAR-100 has a coarse label before the fine one, which is the one returned.
    """
    for name in names:
        if not (folder / name).exists():
            raise FormatError(
                f"{folder}: expected {', '.join(names)}, got no {name}; "
                "unpack the whole archive of the binary version"
            )
    parts = [read(folder / name, "CIFAR records", lambda path: _records(path, n_classes)) for name in names]
    records = np.concatenate(parts)
    n_labels = records.shape[1] - _PIXELS
    labels = torch.from_numpy(records[:, n_labels - 1].astype(np.int64))
    pixels = np.ascontiguousarray(records[:, n_labels:]).reshape(-1, 3, 32, 32)
    return torch.from_numpy(pixels), labels


def _records(path: Path, n_classes: int) -> np.ndarray:
    width = _PIXELS + (2 if n_classes == 100 else 1)
    raw = np.fromfile(path, dtype=np.uint8)
    if len(raw) % width:
        raise FormatError(
            f"expected records of {width} bytes, got {len(raw)} bytes, which is {len(raw) % width} too many; "
            "the file is truncated or belongs to the other CIFAR"
        )
    records = raw.reshape(-1, width)
    highest = int(records[:, width - _PIXELS - 1].max())
    if highest >= n_classes:
        raise FormatError(
            f"expected labels from 0 to {n_classes - 1}, got {highest}; the file is damaged or not CIFAR"
        )
    return records
