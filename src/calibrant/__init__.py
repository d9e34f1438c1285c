"""Honest confidence for classifiers: measure calibration, repair it after training, train for it."""

import importlib
import typing

from calibrant._version import __version__
from calibrant.errors import CalibrantError, FitError, FormatError, InputError

if typing.TYPE_CHECKING:
    from calibrant.data import Predictions, load_predictions, save_predictions
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

# Imported when they are first used: these packages import PyTorch, which `calibrant --help` does not need.
_PACKAGES = ("data", "evaluation", "metrics", "posthoc")

if not typing.TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name in _PACKAGES:
            return importlib.import_module(f"calibrant.{name}")
        if name in __all__:
            packages = (importlib.import_module(f"calibrant.{package}") for package in _PACKAGES)
            globals()[name] = next(getattr(each, name) for each in packages if hasattr(each, name))
            return globals()[name]
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
