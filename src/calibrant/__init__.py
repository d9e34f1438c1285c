"""Honest confidence for classifiers: measure calibration, repair it after training, train for it."""

import importlib as _importlib
import typing as _typing

from calibrant._version import __version__
from calibrant.errors import CalibrantError, FitError, FormatError, InputError
from calibrant.errors import MissingPackageError as _MissingPackageError

if _typing.TYPE_CHECKING:
    from calibrant import data as data
    from calibrant import decisions as decisions
    from calibrant import evaluation as evaluation
    from calibrant import inference as inference
    from calibrant import integrations as integrations
    from calibrant import losses as losses
    from calibrant import metrics as metrics
    from calibrant import monitoring as monitoring
    from calibrant import plots as plots
    from calibrant import posthoc as posthoc
    from calibrant import report as report
    from calibrant import streams as streams
    from calibrant import training as training
    from calibrant.data import LabelPredictions, Predictions, load_predictions, save_predictions
    from calibrant.evaluation import choose, compare, evaluate
    from calibrant.posthoc import CalibratedModel, load_calibrator

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

# Imported when they are first used: most of them import PyTorch, which `calibrant --help` does not need.
_PACKAGES = (
    *("data", "decisions", "evaluation", "inference", "integrations", "losses", "metrics"),
    *("monitoring", "plots", "posthoc", "report", "streams", "training"),
)
# The packages that define the names above.
_HOMES = ("data", "evaluation", "posthoc")

if not _typing.TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name in _PACKAGES:
            try:
                return _importlib.import_module(f"calibrant.{name}")
            except _MissingPackageError as error:  # so that help() and hasattr() work without the extra
                raise AttributeError(str(error)) from error
        if name in __all__:
            packages = (_importlib.import_module(f"calibrant.{package}") for package in _HOMES)
            globals()[name] = next(getattr(each, name) for each in packages if hasattr(each, name))
            return globals()[name]
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*__all__, *_PACKAGES, *(name for name in globals() if name.startswith("__"))})
