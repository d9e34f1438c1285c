"""Honest confidence for classifiers: measure calibration, repair it after training, train for it."""

from calibrant.data import Predictions, load_predictions, save_predictions
from calibrant.errors import CalibrantError, FitError, FormatError, InputError
from calibrant.evaluation import Evaluation, evaluate
from calibrant.posthoc import CalibratedModel, load_calibrator
from calibrant.selection import choose, compare

__version__ = "0.1.0.dev0"

__all__ = [
    "CalibrantError",
    "CalibratedModel",
    "Evaluation",
    "FitError",
    "FormatError",
    "InputError",
    "Predictions",
    "choose",
    "compare",
    "evaluate",
    "load_calibrator",
    "load_predictions",
    "save_predictions",
]
