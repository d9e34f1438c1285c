"""Predictions of a classifier, their files, and predictions that come with the package."""

from calibrant.data.bundled import load_bundled
from calibrant.data.files import load_predictions, save_predictions
from calibrant.data.predictions import Predictions

__all__ = ["Predictions", "load_bundled", "load_predictions", "save_predictions"]
