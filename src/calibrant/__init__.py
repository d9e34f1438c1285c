"""Honest confidence for classifiers: measure calibration, repair it after training, train for it."""

from calibrant._version import __version__
from calibrant.data import Predictions, load_predictions, save_predictions
from calibrant.errors import CalibrantError, FitError, FormatError, InputError
from calibrant.evaluation import Evaluation, choose, compare, evaluate
from calibrant.posthoc import CalibratedModel, load_calibrator

__all__ = [
    "CalibrantError",
    "CalibratedModel",
    "Evaluation",
    "FitError",
    "FormatError",
    "InputError",
    "Predictions",
    "__version__",
    "choose",
    "compare",
    "evaluate",
    "load_calibrator",
    "load_predictions",
    "save_predictions",
]
