"""Predictions of a classifier: the value that flows through Calibrant, and the files it lives in."""

from calibrant.data.bundled import load_bundled
from calibrant.data.files import load_predictions, save_predictions
from calibrant.data.predictions import Predictions

__all__ = ["Predictions", "load_bundled", "load_predictions", "save_predictions"]
