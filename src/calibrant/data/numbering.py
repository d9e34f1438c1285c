"""Numbers for names: the unit or the identity of a row, as an integer that is the same in every file.

A whole number stays as it is, and so does text that writes one; any other text becomes 63 bits of its hash.
So rows of one unit are matched across files, batches and machines without a table of names. That two of a
million names share a number has a probability of about one in ten million.
"""

import re
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from calibrant.errors import InputError
from calibrant.inputs import ArrayLike, to_array

_WHOLE = re.compile(r"-?(0|[1-9][0-9]{0,18})")

T = TypeVar("T")


def numbered(values: ArrayLike, name: str, *, n: int) -> Tensor:
    """Return a number for each row, equal where the names are: int64 of shape ``(n,)``.

    Args:
        values: A name or a whole number for each row.
        name: What the values are called in error messages.
        n: Number of rows.

    Example:
        >>> numbered(["7", "7", "q8"], "units", n=3).unique(return_inverse=True)[1]
        tensor([0, 0, 1])
        >>> numbered([7, 7, 8], "units", n=3)
        tensor([7, 7, 8])
    """
    array = values.numpy(force=True) if isinstance(values, Tensor) else to_array(values, name)
    if array.ndim != 1 or array.dtype.kind not in "USOTiubf":
        raise InputError(
            f"{name}: expected a name or a whole number for each row, got shape {array.shape} of type "
            f"{array.dtype}"
        )
    if len(array) != n:
        raise InputError(f"{name}: expected {n} entries, one per prediction, got {len(array)}")
    if array.dtype.kind in "iu" and array.dtype != np.uint64:
        return torch.from_numpy(array.astype(np.int64))
    numbers = _Memory(lambda value: _number(as_name(value)))
    found = [numbers[value] for value in array.tolist()]
    if None in found:
        row = found.index(None)
        raise InputError(
            f"{name}: expected a name in every row, got none in row {row}; drop or fill such rows"
        )
    return torch.tensor(found, dtype=torch.int64)


def joined(columns: Sequence[Sequence[Any] | npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """Return one name for each row from several columns; a single column stays as it is.

    Example:
        >>> joined([[2024, 2024], ["Ohio", "Utah"]]).tolist()
        ['2024, Ohio', '2024, Utah']
    """
    if len(columns) == 1:
        return np.asarray(columns[0], dtype=None if isinstance(columns[0], np.ndarray) else np.object_)
    names = [[as_name(value) for value in column] for column in columns]
    # A row without any of the names has none.
    rows = [", ".join(row) if any(row) else None for row in zip(*names, strict=True)]
    return np.asarray(rows, dtype=np.object_)


def as_name(value: object) -> str:
    """Return a value of a column as text, the same for equal values of any format; empty if it is missing.

    Example:
        >>> [as_name(value) for value in (7.0, "7", None, float("nan"), True)]
        ['7', '7', '', '', 'true']
    """
    if value is None or value != value:
        return ""
    if isinstance(value, (bool, np.bool_)):
        return str(value).lower()
    whole = isinstance(value, (float, np.floating)) and float(value).is_integer()
    return str(int(value)) if whole else str(value)  # type: ignore[call-overload]  # a float


def _number(text: str) -> int | None:
    if not text:
        return None
    if _WHOLE.fullmatch(text) and abs(int(text)) < 1 << 63:
        return int(text)
    return int.from_bytes(blake2b(text.encode(errors="surrogatepass"), digest_size=8).digest(), "big") >> 1


class _Memory(dict[Any, T]):
    """Values of a function that are computed once for each argument."""

    def __init__(self, function: Callable[[Any], T]) -> None:
        super().__init__()
        self.function = function

    def __missing__(self, key: object) -> T:
        self[key] = self.function(key)
        return self[key]
