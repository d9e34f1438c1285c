"""What the package shows to the world: exactly what ``__all__`` says, and nothing heavy on import."""

import importlib
import pkgutil
import subprocess
import sys
import types

import pytest

import calibrant

PACKAGES = [
    "calibrant",
    "calibrant.data",
    "calibrant.evaluation",
    "calibrant.losses",
    "calibrant.metrics",
    "calibrant.plots",
    "calibrant.posthoc",
    "calibrant.report",
    "calibrant.training.datasets",
    "calibrant.training.models",
]


@pytest.mark.parametrize("name", PACKAGES)
def test_all_is_exactly_what_is_public(name):
    module = importlib.import_module(name)
    public = {
        key
        for key, value in vars(module).items()
        if not key.startswith("_") and not isinstance(value, types.ModuleType)
    }
    assert sorted(module.__all__) == sorted(public)


def test_every_module_says_what_it_is_for():
    for info in pkgutil.walk_packages(calibrant.__path__, "calibrant."):
        assert (importlib.import_module(info.name).__doc__ or "").strip(), info.name


def test_import_is_light():
    heavy = "matplotlib altair lightning lightning_fabric transformers ray pyarrow sklearn pandas polars onnx"
    code = f"import sys, calibrant; print([m for m in {heavy.split()!r} if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_errors_are_also_the_errors_that_python_users_catch():
    assert issubclass(calibrant.InputError, ValueError)
    assert issubclass(calibrant.FormatError, ValueError)
    assert issubclass(calibrant.FitError, RuntimeError)
    for error in (calibrant.InputError, calibrant.FormatError, calibrant.FitError):
        assert issubclass(error, calibrant.CalibrantError)
