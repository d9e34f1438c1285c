"""CIFAR-10 and CIFAR-100, from Hugging Face parquet files or from the original binaries."""

import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from calibrant.errors import FormatError
from calibrant.extras import optional
from calibrant.training.datasets.dataset import LabelledData, Splits, check_folder, folder_with, read_data
from calibrant.training.datasets.pictures import decode
from calibrant.training.datasets.sampling import divide

# Images, uint8 of shape (n, 3, 32, 32), and their labels.
_Part: TypeAlias = tuple[Tensor, Tensor]

_PIXELS = 3 * 32 * 32
_BINARIES = {
    10: {"train": [f"data_batch_{part}.bin" for part in range(1, 6)], "test": ["test_batch.bin"]},
    100: {"train": ["train.bin"], "test": ["test.bin"]},
}
_PICKLES = {10: ["data_batch_1", "test_batch"], 100: ["train", "meta"]}
_SHARD = re.compile(r"-(\d+)-of-(\d+)\.parquet$")

# The names of the classes in the official order.
CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
# fmt: off
CIFAR100 = (
    "apple", "aquarium_fish", "baby", "bear", "beaver", "bed", "bee", "beetle", "bicycle", "bottle",
    "bowl", "boy", "bridge", "bus", "butterfly", "camel", "can", "castle", "caterpillar", "cattle",
    "chair", "chimpanzee", "clock", "cloud", "cockroach", "couch", "crab", "crocodile", "cup",
    "dinosaur", "dolphin", "elephant", "flatfish", "forest", "fox", "girl", "hamster", "house",
    "kangaroo", "keyboard", "lamp", "lawn_mower", "leopard", "lion", "lizard", "lobster", "man",
    "maple_tree", "motorcycle", "mountain", "mouse", "mushroom", "oak_tree", "orange", "orchid",
    "otter", "palm_tree", "pear", "pickup_truck", "pine_tree", "plain", "plate", "poppy",
    "porcupine", "possum", "rabbit", "raccoon", "ray", "road", "rocket", "rose", "sea", "seal",
    "shark", "shrew", "skunk", "skyscraper", "snail", "snake", "spider", "squirrel", "streetcar",
    "sunflower", "sweet_pepper", "table", "tank", "telephone", "television", "tiger", "tractor",
    "train", "trout", "tulip", "turtle", "wardrobe", "whale", "willow_tree", "wolf", "woman",
    "worm",
)
# fmt: on


def load_cifar10(path: Path, *, validation: float = 0.1, seed: int = 0) -> Splits:
    """Return CIFAR-10 from a folder with ``train*.parquet`` and ``test*.parquet`` or ``data_batch_*.bin``.

    The files may also be in a subfolder. The Python version of the archive is pickled and refused.
    """
    return _load(path, CIFAR10, validation=validation, seed=seed)


def load_cifar100(path: Path, *, validation: float = 0.1, seed: int = 0) -> Splits:
    """Return CIFAR-100 with its fine labels, from parquet or from ``train.bin`` and ``test.bin``."""
    return _load(path, CIFAR100, validation=validation, seed=seed)


def _load(path: Path, classes: tuple[str, ...], *, validation: float, seed: int) -> Splits:
    train, test = (LabelledData(*part, classes, "image") for part in _parts(path, len(classes)))
    return Splits(*divide(train, None, test, share=validation, seed=seed))


def _parts(path: Path, n_classes: int) -> list[_Part]:
    """Return the training and the test part."""
    check_folder(path, f"CIFAR-{n_classes}")
    shards = {part: _find_shards(path, part) for part in ("train", "test")}
    if shards["train"] and shards["test"]:
        return [_read_shards(shards[part], n_classes) for part in ("train", "test")]
    if any(shards.values()):
        missing = "test" if shards["train"] else "train"
        raise FormatError(f"{path}: expected train*.parquet and test*.parquet, got no {missing}*.parquet")
    files = _BINARIES[n_classes]
    folder = folder_with(path, [*files["train"], *files["test"]])
    if folder is not None:
        return [_read_binaries(folder, names, n_classes) for names in files.values()]
    if folder_with(path, _PICKLES[n_classes]) is not None:
        raise FormatError(
            f"{path}: expected CIFAR-{n_classes} as parquet or binary files, got the Python version, whose "
            "pickles are never read; fetch the binary version"
        )
    raise FormatError(
        f"{path}: expected train*.parquet and test*.parquet, or {files['train'][0]} and {files['test'][0]}, "
        "got neither; name the folder they are in"
    )


def _read_binaries(folder: Path, names: Sequence[str], n_classes: int) -> _Part:
    """Read files of records: one or two label bytes and 3,072 pixels.

    CIFAR-100 has a coarse label before the fine one; the fine one is returned.
    """
    for name in names:
        if not (folder / name).exists():
            raise FormatError(
                f"{folder}: expected {', '.join(names)}, got no {name}; "
                "unpack the whole archive of the binary version"
            )
    parse = partial(_records, n_classes=n_classes)
    records = np.concatenate([read_data(folder / name, "CIFAR records", parse) for name in names])
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


def _find_shards(folder: Path, part: str) -> list[Path]:
    """Return the parquet files of a part (``train`` or ``test``), in order; refuse an incomplete set."""
    shards = sorted(folder.rglob(f"{part}*.parquet"))
    numbered = [match for shard in shards if (match := _SHARD.search(shard.name))]
    if numbered and len(numbered) == len(shards) and len(shards) != int(numbered[0][2]):
        raise FormatError(
            f"{folder}: expected {int(numbered[0][2])} files {part}-*.parquet, got {len(shards)}; "
            "keep the files of one copy, all of them, in the folder"
        )
    return shards


def _read_shards(shards: Sequence[Path], n_classes: int) -> _Part:
    parse = partial(_shard, n_classes=n_classes)
    images, labels = zip(*(read_data(shard, "CIFAR in parquet", parse) for shard in shards), strict=True)
    return torch.cat(images), torch.cat(labels)


def _shard(path: Path, n_classes: int) -> _Part:
    with optional("CIFAR in parquet"):
        import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        names = file.schema_arrow.names
        image = _column(names, ("img", "image"))
        label = _column(names, ("fine_label", "label") if n_classes == 100 else ("label",))
        table = file.read(columns=[image, label])
    if table.num_rows == 0:
        raise FormatError("expected images, got a table without rows; copy the file again")
    labels = _labels(table[label], label, n_classes)
    encoded = _encoded(table[image], image)
    return decode(encoded, [f"row {row}" for row in range(len(encoded))], size=(32, 32)), labels


def _column(names: Sequence[str], wanted: Sequence[str]) -> str:
    for name in wanted:
        if name in names:
            return name
    raise FormatError(
        f"expected a column {' or '.join(wanted)}, got {', '.join(names) or 'none'}; "
        "check that it is the CIFAR you mean"
    )


def _encoded(column: Any, name: str) -> list[bytes]:  # noqa: ANN401  # pyarrow has no types
    import pyarrow as pa

    if not pa.types.is_struct(column.type) or column.type.get_field_index("bytes") < 0:
        raise FormatError(
            f"expected {name} with bytes and path, got {column.type}; export it with its images"
        )
    encoded: list[bytes | None] = column.combine_chunks().field("bytes").to_pylist()
    if None in encoded:
        raise FormatError(
            f"expected encoded images in {name}, got none in row {encoded.index(None)}; "
            "export it with the images inside"
        )
    return [picture for picture in encoded if picture is not None]


def _labels(column: Any, name: str, n_classes: int) -> Tensor:  # noqa: ANN401  # pyarrow has no types
    labels = column.to_numpy()
    if column.null_count or labels.dtype.kind not in "iu":
        raise FormatError(f"expected whole numbers in {name}, got {column.type} or gaps; export it again")
    if labels.min() < 0 or labels.max() >= n_classes:
        wrong = labels.min() if labels.min() < 0 else labels.max()
        raise FormatError(
            f"expected {name} from 0 to {n_classes - 1}, got {wrong}; check that it is the CIFAR you mean"
        )
    return torch.from_numpy(labels.astype(np.int64))
