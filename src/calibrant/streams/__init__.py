"""Streams: predictions larger than memory, read, measured and rewritten batch by batch."""

import typing as _typing

from calibrant.lazy import import_when_used as _import_when_used

if _typing.TYPE_CHECKING:
    from calibrant.streams.accumulators import OutcomeAccumulator
    from calibrant.streams.evaluate import evaluate_stream
    from calibrant.streams.measures import StreamMeasures
    from calibrant.streams.prediction_stream import open_stream
    from calibrant.streams.rewriting import rewrite_stream
    from calibrant.streams.sketch import RankSketch

__all__ = [
    "OutcomeAccumulator",
    "RankSketch",
    "StreamMeasures",
    "evaluate_stream",
    "open_stream",
    "rewrite_stream",
]

_import_when_used(__name__)
