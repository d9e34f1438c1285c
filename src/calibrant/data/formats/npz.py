"""NumPy archives: one array per key, class names as an array of text, metadata as JSON text."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from zipfile import BadZipFile, is_zipfile

import numpy as np

from calibrant.data.formats.arrays import to_arrays
from calibrant.data.formats.notes import from_text, to_text
from calibrant.data.keys import ARRAYS
from calibrant.data.predictions import Predictions
from calibrant.errors import FormatError


def names(path: Path) -> list[str]:
    """Return the names of all arrays in the archive."""
    with _open(path) as archive:
        return list(archive.files)


def read(path: Path) -> dict[str, Any]:
    """Return the arrays with our keys; pickled ones are refused, never loaded."""
    with _open(path) as archive:
        found = [key for key in (*ARRAYS, "class_names", "metadata") if key in archive.files]
        values: dict[str, Any] = {key: _entry(archive, key) for key in found}
    if "class_names" in values:
        values["class_names"] = values["class_names"].tolist()
    if "metadata" in values:
        values["metadata"] = from_text(str(values["metadata"]), "metadata")
    return values


def write(path: Path, predictions: Predictions) -> None:
    """Write a compressed archive without pickled content."""
    arrays = to_arrays(predictions)
    if predictions.class_names is not None:
        arrays["class_names"] = np.asarray(predictions.class_names, dtype=str)
    if predictions.metadata:
        arrays["metadata"] = np.asarray(to_text(dict(predictions.metadata)))
    with path.open("wb") as file:  # given a name, NumPy may append a suffix of its own
        np.savez_compressed(file, allow_pickle=False, **arrays)


@contextmanager
def _open(path: Path) -> Iterator[Any]:
    if not is_zipfile(path):  # np.load would take it for a pickle and advise to allow that
        raise BadZipFile("not a zip archive")
    # Given a path, np.load leaves the file open if the archive is damaged.
    with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
        yield archive


def _entry(archive: Any, key: str) -> Any:  # noqa: ANN401  # NumPy gives archives no type
    try:
        return archive[key]
    except ValueError as error:
        if "allow_pickle" not in str(error):
            raise
        dtype = "str" if key in ("class_names", "metadata") else "float"
        raise FormatError(
            f"{key}: expected plain numbers or text, got pickled Python objects, which are never read; "
            f"save np.asarray({key}, dtype={dtype}) instead"
        ) from None
