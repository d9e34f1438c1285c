"""Predictions on disk: the suffix of the file decides the format."""

import os
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, cast

from calibrant.data.columns import Rows
from calibrant.data.contents import select_form
from calibrant.data.predictions import Predictions
from calibrant.errors import FormatError
from calibrant.files import atomic_path, reading

# Module and class by name, so that pyarrow is imported only if a table is read or written.
FORMATS = {
    ".npz": ("calibrant.data.archives", "Npz"),
    ".parquet": ("calibrant.data.tables", "Parquet"),
    ".csv": ("calibrant.data.tables", "Csv"),
    ".safetensors": ("calibrant.data.archives", "Safetensors"),
    ".jsonl": ("calibrant.data.json_lines", "JsonLines"),
}


class Format(Protocol):
    """What every format offers for a file."""

    def __init__(self, path: Path) -> None: ...

    def read(self) -> tuple[dict[str, Any], list[str]]:
        """Return the unchecked values under our keys, and the names of all arrays or columns."""

    def read_columns(self, wanted: Sequence[str]) -> Rows:
        """Return columns by name, as they are; refuse a name that the file lacks."""

    def write(self, predictions: Predictions) -> None:
        """Write the predictions to the file."""


def load_predictions(path: str | os.PathLike[str], *, need_labels: bool = True) -> Predictions:
    """Read predictions from a ``.npz``, ``.parquet``, ``.csv`` or ``.safetensors`` file.

    The file names ``logits``, ``probs``, or ``confidence`` with ``correct``; ``labels``; and may name
    ``features``, ``class_names`` and ``metadata``. Tables may spread a matrix over columns ``logits_0``,
    ``logits_1``, ... or ``logits_<class name>``. Other names are ignored, and so are ``confidence`` and
    ``correct`` next to logits or probabilities, and ``labels`` next to a full pair; a file with both logits
    and probabilities is refused. Nothing is ever unpickled.

    Args:
        path: The file; its suffix decides the format.
        need_labels: Whether a file without labels (or pairs) is refused.

    Raises:
        FormatError: The file is missing, has another format than its suffix, or lacks something needed.
        InputError: The values are not valid predictions; the message starts with the file's name.
    """
    path = Path(path)
    form = _format(path)
    with reading(path.name, f"a {path.suffix} file"):
        _check_is_file(path)
        values, names = form(path).read()
        return Predictions(**select_form(values, names, need_labels=need_labels))


def save_predictions(predictions: Predictions, path: str | os.PathLike[str]) -> None:
    """Write predictions to a ``.npz``, ``.parquet``, ``.csv`` or ``.safetensors`` file, all or nothing.

    Loading returns what was saved, except that ``.npz`` and ``.parquet`` store bfloat16 as float32, and that
    ``.csv`` stores all numbers as float64 and no metadata.
    """
    form = _format(Path(path))
    with atomic_path(path) as temporary:
        form(temporary).write(predictions)


def _format(path: Path) -> type[Format]:
    if path.suffix.lower() not in FORMATS:
        raise FormatError(
            f"{path.name}: expected a file named {', '.join(FORMATS)}, got {path.suffix or 'no suffix'!r}; "
            "the suffix decides the format"
        )
    module, name = FORMATS[path.suffix.lower()]
    return cast("type[Format]", getattr(import_module(module), name))


def _check_is_file(path: Path) -> None:
    if path.is_dir():
        raise FormatError("expected a file, got a directory; name a file inside it")
    if not path.exists():
        raise FormatError(f"no such file in {path.parent}; check the path")
    if path.stat().st_size == 0:
        raise FormatError("expected predictions, got an empty file; write it again")
