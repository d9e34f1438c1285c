"""Archives of arrays by name: NumPy's ``.npz`` and ``.safetensors``."""

from pathlib import Path
from typing import Any
from zipfile import BadZipFile, is_zipfile

import numpy as np
from safetensors import safe_open
from safetensors.torch import save_file

from calibrant.data.contents import ARRAYS, from_text, notes_of, to_arrays, to_text
from calibrant.data.predictions import Predictions
from calibrant.errors import FormatError


class Npz:
    """One array per key, class names as an array of text, metadata as JSON text."""

    def read(self, path: Path) -> tuple[dict[str, Any], list[str]]:
        """Return the arrays with our keys, and all names; pickled arrays are refused, never loaded."""
        if not is_zipfile(path):  # np.load would take it for a pickle and advise to allow that
            raise BadZipFile("not a zip archive")
        # Given a path, np.load leaves the file open if the archive is damaged.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            names = list(archive.files)
            found = [key for key in (*ARRAYS, "class_names", "metadata") if key in names]
            values: dict[str, Any] = {key: _entry(archive, key) for key in found}
        if "class_names" in values:
            values["class_names"] = values["class_names"].tolist()
        if "metadata" in values:
            values["metadata"] = from_text(str(values["metadata"]), "metadata")
        return values, names

    def write(self, path: Path, predictions: Predictions) -> None:
        """Write a compressed archive without pickled content."""
        arrays = to_arrays(predictions)
        notes = notes_of(predictions)
        if "class_names" in notes:
            arrays["class_names"] = np.asarray(notes["class_names"], dtype=str)
        if "metadata" in notes:
            arrays["metadata"] = np.asarray(to_text(notes["metadata"]))
        with path.open("wb") as file:  # given a name, NumPy may append a suffix
            np.savez_compressed(file, allow_pickle=False, **arrays)


class Safetensors:
    """One tensor per key, class names and metadata as JSON text in the header."""

    def read(self, path: Path) -> tuple[dict[str, Any], list[str]]:
        """Return the tensors with our keys, class names and metadata from the header, and all names."""
        with safe_open(path, framework="pt") as file:
            names = list(file.keys())
            values: dict[str, Any] = {key: file.get_tensor(key) for key in ARRAYS if key in names}
            header = file.metadata() or {}
        notes = {key: header[key] for key in ("class_names", "metadata") if key in header}
        return values | {key: from_text(text, key) for key, text in notes.items()}, names

    def write(self, path: Path, predictions: Predictions) -> None:
        """Write the tensors in their own type, bfloat16 included."""
        tensors = {key: getattr(predictions, key) for key in ARRAYS if getattr(predictions, key) is not None}
        header = {key: to_text(value) for key, value in notes_of(predictions).items()}
        # Tensors that share memory, such as logits and features side by side, must be copied.
        save_file(
            {key: tensor.clone().contiguous() for key, tensor in tensors.items()}, path, metadata=header
        )


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
