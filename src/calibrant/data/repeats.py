"""Do rows repeat? A column that looks like an id but has fewer values than rows, or rows that are copies."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from calibrant.data.columns import ColumnName
from calibrant.data.numbering import numbered
from calibrant.data.predictions import Predictions
from calibrant.errors import CalibrantError

# A name ends in "id", or says what rows often belong to; a model, a class or a run is no such thing.
_LOOKS_LIKE_AN_ID = re.compile(
    r"(?!model|class|label|run|batch)(.*[_.\s-])?(id|uid|uuid|guid)|question|prompt|image|user|patient|session"
    r"|document|conversation",
    re.IGNORECASE,
)
# With fewer values a column is one of groups; with almost as many as there are rows, each row has its own.
_FEWEST, _MOST = 20, 0.95
# Copies are looked for among this many numbers, and named if this share of the rows are copies of others.
_NUMBERS, _COPIES = 1 << 20, 0.1
# Masked classes count as this far away.
_FAR = 1e9


@dataclass(frozen=True)
class Repeats:
    """What suggests that rows depend on each other.

    Attributes:
        column: The column whose values repeat; None if whole rows do.
        n: Number of rows that were compared.
        n_different: Number of different values, or of different rows.
    """

    column: str | None
    n: int
    n_different: int


def find_repeats(
    predictions: Predictions, names: Sequence[str], read: Callable[[str], ColumnName]
) -> Repeats | None:
    """Return the column that repeats most, or how many rows are copies; None if nothing suggests units.

    Args:
        predictions: What was read; if it has units already, nothing is looked for.
        names: The names of the columns of the file.
        read: Returns a column.
    """
    if predictions.units is not None:
        return None
    return repeating_column(names, read) or _copies(predictions)


def repeating_column(names: Sequence[str], read: Callable[[str], ColumnName]) -> Repeats | None:
    """Return the column whose name looks like that of an id and that repeats most; None if there is none."""
    found = [
        each
        for name in names
        if _LOOKS_LIKE_AN_ID.fullmatch(name) and (each := _repeats_in(name, read)) is not None
    ]
    return min(found, key=lambda each: each.n_different, default=None)


def _repeats_in(name: str, read: Callable[[str], ColumnName]) -> Repeats | None:
    try:
        column = read(name)
        numbers = numbered(np.asarray(column), name, n=len(column))
    except (CalibrantError, ValueError):  # empty cells, lists: no ids
        return None
    n, different = len(numbers), len(numbers.unique())
    return Repeats(name, n, different) if _FEWEST <= different <= _MOST * n else None


def _copies(predictions: Predictions) -> Repeats | None:
    """Return how many rows are copies of others; rounded numbers may be equal without being copies."""
    scores = predictions.logits if predictions.probs is None else predictions.probs
    if scores is None:
        column = predictions.score if predictions.confidence is None else predictions.confidence
        assert column is not None
        scores = column[:, None]
    part = scores[: max(1, _NUMBERS // scores.shape[1])].double().cpu().numpy().clip(-_FAR, _FAR)
    truth = predictions.truth
    outcomes = np.zeros(len(part)) if truth is None else truth[: len(part)].double().cpu().numpy()
    thousandths = 1000 * part.max(axis=1)
    exact = np.abs(thousandths - thousandths.round()) > 1e-6 * np.abs(thousandths)
    # One number for each row, equal for equal rows.
    signature = part[exact] @ np.sqrt(2.0 + np.arange(part.shape[1])) + outcomes[exact] / 3
    n, different = len(signature), len(np.unique(signature))
    return Repeats(None, n, different) if n >= _FEWEST and different <= (1 - _COPIES) * n else None
