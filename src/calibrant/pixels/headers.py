"""Whether files hold score maps, by their headers: asked for every file, so that it imports nothing heavy."""

import os
from pathlib import Path
from typing import IO, Any, Literal
from zipfile import ZipFile

import numpy as np

from calibrant.errors import FormatError

#: The arrays of which one holds the scores.
FORMS: tuple[Literal["logits", "probs"], ...] = ("logits", "probs")


def holds_images(source: str | os.PathLike[str]) -> bool:
    """Return whether a path names score maps: a ``.npy`` file, a ``.npz`` file or a folder with maps.

    Only headers are read. What cannot be read is no map; reading it says why.
    """
    path = Path(source)
    if path.is_dir():
        first = next((each for each in sorted(path.iterdir()) if each.suffix in (".npz", ".npy")), None)
        return first is not None and (first.suffix == ".npy" or _dimensions(first) > 2)
    return path.suffix == ".npy" or (path.is_file() and _dimensions(path) > 3)


def _dimensions(path: Path) -> int:
    """Return how many dimensions the scores in a ``.npz`` file have; 0 if it is none."""
    if path.suffix != ".npz":
        return 0
    try:
        with ZipFile(path) as archive:
            names = [f"{form}.npy" for form in FORMS if f"{form}.npy" in archive.namelist()]
            return max((len(opened_array(archive, name)[1]) for name in names), default=0)
    except Exception:  # a file that is damaged, which the reader of its format says
        return 0


def opened_array(archive: ZipFile, name: str) -> tuple[IO[bytes], tuple[int, ...], np.dtype[Any]]:
    """Return an array of an archive as a stream behind its header, its shape and its type."""
    file = archive.open(name)
    version = np.lib.format.read_magic(file)
    headers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    shape, in_columns, kind = headers[version](file)
    if kind.hasobject or (in_columns and len(shape) > 1):
        file.close()
        raise FormatError(
            f"{name}: expected numbers in C order, got {'objects' if kind.hasobject else 'Fortran order'}; "
            "save np.ascontiguousarray(...)"
        )
    return file, shape, kind
