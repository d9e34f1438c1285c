"""Streams: predictions larger than memory, read, measured and rewritten batch by batch."""

from calibrant.streams.accumulators import (
    ClasswiseAccumulator,
    OutcomeAccumulator,
    ProperScoreAccumulator,
    ProperScores,
    TopKErrorAccumulator,
)
from calibrant.streams.evaluate import evaluate_stream, stream_group_tests
from calibrant.streams.files import is_many, is_url
from calibrant.streams.measures import StreamEvaluation, StreamMeasures
from calibrant.streams.prediction_stream import PredictionStream, open_stream
from calibrant.streams.rewriting import Rewritten, rewrite_stream
from calibrant.streams.row_groups import LeftOut, StreamBatch
from calibrant.streams.sketch import RankEstimates, RankSketch
from calibrant.streams.sketch_bounds import Bounded

__all__ = [
    "Bounded",
    "ClasswiseAccumulator",
    "LeftOut",
    "OutcomeAccumulator",
    "PredictionStream",
    "ProperScoreAccumulator",
    "ProperScores",
    "RankEstimates",
    "RankSketch",
    "Rewritten",
    "StreamBatch",
    "StreamEvaluation",
    "StreamMeasures",
    "TopKErrorAccumulator",
    "evaluate_stream",
    "is_many",
    "is_url",
    "open_stream",
    "rewrite_stream",
    "stream_group_tests",
]
