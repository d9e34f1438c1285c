"""Streams of predictions: Parquet files, folders and addresses larger than memory, read batch by batch."""

from calibrant.data.stream.batch import StreamBatch
from calibrant.data.stream.prediction_stream import PredictionStream, open_stream
from calibrant.data.stream.rewriting import Rewritten, rewrite_stream
from calibrant.data.stream.row_group import LeftOut
from calibrant.data.stream.sources import is_many, is_url

__all__ = [
    "LeftOut",
    "PredictionStream",
    "Rewritten",
    "StreamBatch",
    "is_many",
    "is_url",
    "open_stream",
    "rewrite_stream",
]
