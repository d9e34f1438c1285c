"""Rows of a stream as numbers: all that the test and the windows need to know of each prediction."""

import hashlib
import zlib

import numpy as np

from calibrant.data.predictions import Predictions
from calibrant.inputs import Floats
from calibrant.metrics.proper import log_losses, squared_errors

COLUMNS = ("confidence", "correct", "nll", "brier")


def columns_of(predictions: Predictions) -> Floats:
    """Return confidence, hit, log loss and squared error of each row; what is not known is NaN."""
    outcomes = predictions.outcomes()
    columns = np.full((len(COLUMNS), len(outcomes)), np.nan)
    columns[0], columns[1] = outcomes.confidence.cpu().numpy(), outcomes.correct.cpu().numpy()
    if predictions.labels is not None:
        said = {"probs": predictions.probs} if predictions.logits is None else {"logits": predictions.logits}
        columns[2] = log_losses(predictions.labels, **said).cpu().numpy()
        columns[3] = squared_errors(predictions.to_probs(), predictions.labels).cpu().numpy()
    return columns


def digest(columns: Floats) -> str:
    """Return what tells references apart: a hash of confidences and hits."""
    return hashlib.sha256(np.ascontiguousarray(columns[:2], dtype="<f8").tobytes()).hexdigest()


def check_sum(columns: Floats, before: int = 0) -> int:
    """Return what tells rows apart from others, going on from those before; cuts make no difference."""
    return zlib.crc32(np.ascontiguousarray(columns[:2].T, dtype="<f8").tobytes(), before)
