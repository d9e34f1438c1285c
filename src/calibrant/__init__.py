"""Honest confidence for classifiers: measure calibration, repair it after training, train for it."""

import typing as _typing

from calibrant._version import __version__
from calibrant.errors import CalibrantError, FitError, FormatError, InputError
from calibrant.lazy import import_when_used as _import_when_used

if _typing.TYPE_CHECKING:
    from calibrant import boxes as boxes
    from calibrant import data as data
    from calibrant import decisions as decisions
    from calibrant import evaluation as evaluation
    from calibrant import inference as inference
    from calibrant import integrations as integrations
    from calibrant import losses as losses
    from calibrant import metrics as metrics
    from calibrant import monitoring as monitoring
    from calibrant import pixels as pixels
    from calibrant import plots as plots
    from calibrant import posthoc as posthoc
    from calibrant import report as report
    from calibrant import streams as streams
    from calibrant import training as training
    from calibrant.data.files import load_predictions, save_predictions
    from calibrant.data.labels import LabelPredictions
    from calibrant.data.predictions import Predictions
    from calibrant.evaluation.choose import choose
    from calibrant.evaluation.compare import compare
    from calibrant.evaluation.evaluate import evaluate
    from calibrant.posthoc.files import load_calibrator
    from calibrant.posthoc.model import CalibratedModel

__all__ = [
    "CalibrantError",
    "CalibratedModel",
    "FitError",
    "FormatError",
    "InputError",
    "LabelPredictions",
    "Predictions",
    "__version__",
    "choose",
    "compare",
    "evaluate",
    "load_calibrator",
    "load_predictions",
    "save_predictions",
]

# Most of these import PyTorch, which `calibrant --help` does not need.
_import_when_used(__name__)
