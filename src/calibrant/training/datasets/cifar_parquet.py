"""CIFAR as the Hugging Face Hub keeps it: parquet with encoded images and their labels."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calibrant.errors import FormatError
from calibrant.training.datasets.pictures import decode
from calibrant.training.datasets.reading import read

_SHARD = re.compile(r"-(\d+)-of-(\d+)\.parquet$")


def find_shards(folder: Path, part: str) -> list[Path]:
    """Return the parquet files of a part (``train`` or ``test``), in order; refuse an incomplete set."""
    shards = sorted(folder.rglob(f"{part}*.parquet"))
    numbered = [match for shard in shards if (match := _SHARD.search(shard.name))]
    if numbered and len(numbered) == len(shards) and len(shards) != int(numbered[0][2]):
        raise FormatError(
            f"{folder}: expected {int(numbered[0][2])} files {part}-*.parquet, got {len(shards)}; "
            "keep the files of one copy, all of them, in the folder"
        )
    return shards


def read_shards(shards: Sequence[Path], *, n_classes: int) -> tuple[Tensor, Tensor]:
    """Return the images, uint8 of shape ``(n, 3, 32, 32)``, and the labels of all files together."""
    parts = [read(shard, "CIFAR in parquet", lambda path: _shard(path, n_classes)) for shard in shards]
    images = torch.cat([images for images, _ in parts])
    return images, torch.cat([labels for _, labels in parts])


def _shard(path: Path, n_classes: int) -> tuple[Tensor, Tensor]:
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
