"""Files of a stream in the order of time: Parquet files in pieces, others as a whole."""

import os
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import numpy as np

from calibrant.data.files import FORMATS, load_predictions
from calibrant.data.predictions import Predictions
from calibrant.errors import CalibrantError, FormatError, InputError
from calibrant.streams.prediction_stream import PredictionStream, open_stream
from calibrant.streams.sources import Source

_PARQUET = ".parquet"
# About so many numbers are read at a time, and at most so many rows.
_ENTRIES = 1 << 21
_ROWS = 1 << 16


@dataclass(frozen=True, eq=False)
class Piece:
    """Some rows of a file.

    Attributes:
        source: The file.
        first_row: Number of the first row in the file, from 0.
        total: Number of rows of the file.
        predictions: The rows; none of a file without rows.
    """

    source: Source
    first_row: int
    total: int
    predictions: Predictions | None

    @property
    def end(self) -> int:
        """Number of the row after the last."""
        return self.first_row + (0 if self.predictions is None else len(self.predictions))


def find_files(source: str | os.PathLike[str]) -> tuple[Source, ...]:
    """List the files of a stream in the order of their names.

    Those of a folder are all Parquet files below it; if there are other files of predictions in it, all files
    of predictions in it but none below.
    """
    path = Path(source)
    if not path.is_dir():
        return open_stream(source).sources
    inside = [file for file in path.iterdir() if _is_ours(file)]
    if any(file.suffix.lower() != _PARQUET for file in inside):
        return tuple(Source(file.name, str(file)) for file in sorted(inside))
    try:
        return open_stream(source).sources
    except FormatError:
        known = ", ".join(FORMATS)
        raise FormatError(
            f"{path.name}: expected a folder with files of predictions ({known}), got none"
        ) from None


def read_pieces(sources: Sequence[Source], least: Mapping[Source, int]) -> Generator[Piece, None, None]:
    """Yield the rows of files in their order; what is bad is refused when its turn comes.

    Args:
        sources: The files.
        least: How many rows a file must have, of those that must have some; fewer are refused.
    """
    for is_parquet, some in groupby(sources, lambda source: source.path.lower().endswith(_PARQUET)):
        yield from (_in_pieces if is_parquet else _as_a_whole)(tuple(some), least)


def gather(source: str | os.PathLike[str]) -> Predictions:
    """Return confidences and hits of all rows of a stream, and nothing else, so that they fit into memory.

    Args:
        source: What :func:`~calibrant.streams.open_stream` takes, or a folder of other files.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> from calibrant import save_predictions
        >>> with TemporaryDirectory() as folder:
        ...     for day in ("monday", "tuesday"):
        ...         save_predictions(
        ...             Predictions(logits=[[2.0, 0.0]], labels=[0]), f"{folder}/{day}.parquet"
        ...         )
        ...     len(gather(folder))
        2
    """
    confidence, correct = [], []
    for piece in read_pieces(find_files(source), {}):
        if piece.predictions is not None:
            outcomes = piece.predictions.outcomes()
            confidence.append(outcomes.confidence.cpu().numpy().astype(np.float64))
            correct.append(outcomes.correct.cpu().numpy().astype(bool))
    if not confidence:
        raise FormatError(f"{source}: expected predictions, got files without rows; name others")
    return Predictions(confidence=np.concatenate(confidence), correct=np.concatenate(correct))


def _in_pieces(sources: tuple[Source, ...], least: Mapping[Source, int]) -> Generator[Piece, None, None]:
    stream = PredictionStream(sources)
    found = stream.layouts(skip_bad=True)
    reasons = {left_out.file: left_out.reason for left_out in stream.left_out}
    ready: list[Source] = []
    refusal: CalibrantError | None = None
    for source in sources:
        if source not in found:
            refusal = FormatError(reasons[source.name])
        elif (rows := sum(found[source].rows)) < least.get(source, 0):
            refusal = _shrunk(source, rows, least[source])
        if refusal is not None:
            break
        ready.append(source)
        if rows == 0:
            yield Piece(source, 0, 0, None)
    named = {source.name: source for source in ready}
    layouts = {source: found[source] for source in ready}
    width = max((layout.width for layout in layouts.values()), default=1)
    with closing(stream.read(layouts, min(_ROWS, max(1024, _ENTRIES // width)))) as batches:
        for batch in batches:
            source = named[batch.file]
            yield Piece(source, batch.first_row, sum(layouts[source].rows), batch.predictions)
    if refusal is not None:
        raise refusal


def _as_a_whole(sources: tuple[Source, ...], least: Mapping[Source, int]) -> Generator[Piece, None, None]:
    for source in sources:
        predictions = load_predictions(source.path)
        if len(predictions) < least.get(source, 0):
            raise _shrunk(source, len(predictions), least[source])
        yield Piece(source, 0, len(predictions), predictions)


def _shrunk(source: Source, rows: int, seen: int) -> InputError:
    return InputError(
        f"{source.name}: expected the {seen:,} rows that were read of it before, got a file with only "
        f"{rows:,}; put the old one back, or give the new one a name of its own"
    )


def _is_ours(file: Path) -> bool:
    return file.suffix.lower() in FORMATS and file.is_file() and not file.name.startswith((".", "_"))
