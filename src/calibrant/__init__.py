"""Honest confidence for classifiers: measure calibration, repair it after training, train for it."""

from calibrant.data import Predictions, load_predictions, save_predictions
from calibrant.errors import CalibrantError, FitError, FormatError, InputError
from calibrant.evaluation import Evaluation, evaluate

__version__ = "0.1.0.dev0"

__all__ = [
    "CalibrantError",
    "Evaluation",
    "FitError",
    "FormatError",
    "InputError",
    "Predictions",
    "evaluate",
    "load_predictions",
    "save_predictions",
]
