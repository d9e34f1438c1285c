"""Evaluate streams: measures of more predictions than fit into memory, by group if wanted."""

from calibrant.evaluation.stream.evaluated import evaluate_stream
from calibrant.evaluation.stream.measures import StreamEvaluation, StreamMeasures

__all__ = ["StreamEvaluation", "StreamMeasures", "evaluate_stream"]
