"""Predictions on disk: the suffix of the name says the format."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, cast

from calibrant.data.keys import choose
from calibrant.data.predictions import Predictions
from calibrant.errors import FormatError, InputError
from calibrant.files import atomic_path

# Modules by name, so that pyarrow is imported only by those who read or write with it.
FORMATS = {
    ".npz": "calibrant.data.formats.npz",
    ".parquet": "calibrant.data.formats.parquet",
    ".csv": "calibrant.data.formats.csv",
    ".safetensors": "calibrant.data.formats.safetensors",
}


class Format(Protocol):
    """What a module in ``calibrant.data.formats`` offers."""

    def names(self, path: Path) -> list[str]:
        """Return the names of all that the file holds, ours or not."""

    def read(self, path: Path) -> dict[str, Any]:
        """Return the unchecked values of the file that have one of our keys."""

    def write(self, path: Path, predictions: Predictions) -> None:
        """Write the predictions over what is there."""


def load_predictions(path: str | os.PathLike[str], *, need_labels: bool = True) -> Predictions:
    """Read predictions from a ``.npz``, ``.parquet``, ``.csv`` or ``.safetensors`` file.

    The file names ``logits``, ``probs``, or ``confidence`` with ``correct``; ``labels``; and may name
    ``features``, ``class_names`` and ``metadata``. Tables may spread a matrix over columns ``logits_0``,
    ``logits_1``, ... or ``logits_<class name>``. Other names are ignored, and so are ``confidence`` and
    ``correct`` next to logits or probabilities, and ``labels`` next to a full pair; a file with both logits
    and probabilities is refused. Nothing is ever unpickled.

    Args:
        path: The file; its suffix says the format.
        need_labels: Whether a file without labels (or pairs) is refused.

    Raises:
        FormatError: The file is missing, is not what its suffix says, or lacks what is needed.
        InputError: The values cannot be predictions; the sentence starts with the file's name.
    """
    path = Path(path)
    form = _format(path)
    with _naming(path):
        _check_is_file(path)
        values = form.read(path)
        chosen = choose(values, form.names(path), need_labels=need_labels)
        return Predictions(**chosen)


def save_predictions(predictions: Predictions, path: str | os.PathLike[str]) -> None:
    """Write predictions to a ``.npz``, ``.parquet``, ``.csv`` or ``.safetensors`` file, all or nothing.

    What is loaded again equals what was saved, except that ``.npz`` and ``.parquet`` keep bfloat16 as
    float32, and that ``.csv`` keeps all numbers as float64 and has no place for metadata.
    """
    form = _format(Path(path))
    with atomic_path(path) as temporary:
        form.write(temporary, predictions)


def _format(path: Path) -> Format:
    module = FORMATS.get(path.suffix.lower())
    if module is None:
        known = ", ".join(FORMATS)
        raise FormatError(
            f"{path.name}: expected a file named {known}, got {path.suffix or 'no suffix'!r}; "
            "the suffix says the format"
        )
    return cast("Format", import_module(module))


def _check_is_file(path: Path) -> None:
    if path.is_dir():
        raise FormatError("expected a file, got a directory; name a file inside it")
    if not path.exists():
        raise FormatError(f"no such file in {path.parent}; check the path")
    if path.stat().st_size == 0:
        raise FormatError("expected predictions, got an empty file; write it again")


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Start every refusal with the name of the file, and turn a parser's failure into one sentence."""
    try:
        yield
    except (InputError, FormatError) as error:
        raise type(error)(f"{path.name}: {error}") from None
    except Exception as error:
        # Parsers of damaged files raise nearly anything; the cause stays attached for those who look.
        detail = " ".join(str(error).split())[:160] or type(error).__name__
        raise FormatError(
            f"{path.name}: expected a {path.suffix} file, got one that cannot be read as such ({detail}); "
            "it may be truncated or something else by that name"
        ) from error
