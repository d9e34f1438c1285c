"""Matrices spread over the columns of a table: ``logits_0, logits_1, ...`` or ``logits_<class name>``."""

from collections.abc import Sequence

from calibrant.data.keys import MATRICES, VECTORS
from calibrant.errors import FormatError


def find_columns(names: Sequence[str]) -> dict[str, list[str]]:
    """Return which columns hold each of our keys, in the order of the classes; other columns are ignored."""
    found = {key: [key] for key in (*MATRICES, *VECTORS) if key in names}
    for key in MATRICES:
        spread = [f"{key}_{suffix}" for suffix in suffixes(names, key)]
        if spread and key in found:
            raise FormatError(
                f"{key}: expected one column or one per class, got both {key!r} and {spread[0]!r}; drop one"
            )
        if spread:
            found[key] = spread
    for column in (column for columns in found.values() for column in columns):
        if names.count(column) > 1:
            raise FormatError(f"expected each column once, got {column!r} twice; drop or rename one")
    return found


def suffixes(names: Sequence[str], key: str) -> list[str]:
    """Return what follows ``key_``: numbers in numeric order, names in the order of the table."""
    found = [name.removeprefix(f"{key}_") for name in names if name.startswith(f"{key}_")]
    numbers = {int(suffix) for suffix in found if _is_number(suffix)}
    if all(_is_number(suffix) for suffix in found):
        return sorted(found, key=int)
    if len(numbers) > 1 and numbers == set(range(len(numbers))):
        # Taking 'logits_max' next to 'logits_0' and 'logits_1' for a third class would be a silent error.
        stray = next(suffix for suffix in found if not _is_number(suffix))
        raise FormatError(
            f"{key}: expected columns with numbers or with names, "
            f"got both '{key}_0' and '{key}_{stray}'; rename one kind"
        )
    return found


def class_names(columns: dict[str, list[str]]) -> list[str] | None:
    """Return the names in the headers of the predictions, unless these only count from zero."""
    for key in ("logits", "probs"):
        spread = columns.get(key, [key])
        if spread != [key]:
            named = [column.removeprefix(f"{key}_") for column in spread]
            return None if named == [str(i) for i in range(len(named))] else named
    return None


def _is_number(suffix: str) -> bool:
    return suffix.isascii() and suffix.isdigit() and str(int(suffix)) == suffix
