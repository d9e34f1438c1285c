"""What the package shows to the world: exactly what ``__all__`` says, and nothing heavy on import."""

import ast
import importlib
import inspect
import pkgutil
import subprocess
import sys
import types
from pathlib import Path

import numpy as np
import pytest

import calibrant

PACKAGES = [
    "calibrant",
    "calibrant.boxes",
    "calibrant.data",
    "calibrant.decisions",
    "calibrant.evaluation",
    "calibrant.inference",
    "calibrant.losses",
    "calibrant.metrics",
    "calibrant.monitoring",
    "calibrant.pixels",
    "calibrant.plots",
    "calibrant.posthoc",
    "calibrant.report",
    "calibrant.streams",
    "calibrant.training",
    "calibrant.training.config",
    "calibrant.training.datasets",
    "calibrant.training.models",
]


@pytest.mark.parametrize("name", PACKAGES)
def test_all_is_exactly_what_is_public(name):
    module = importlib.import_module(name)
    public = [
        key
        for key in dir(module)
        if not key.startswith("_") and not isinstance(getattr(module, key), types.ModuleType)
    ]
    assert sorted(set(module.__all__) - {"__version__"}) == public


def test_the_public_names_are_few_enough_to_know():
    assert sum(len(importlib.import_module(name).__all__) for name in PACKAGES) <= 332


def test_the_package_imports_what_it_offers_when_it_is_used():
    assert calibrant.evaluate is importlib.import_module("calibrant.evaluation").evaluate
    with pytest.raises(AttributeError, match="module 'calibrant' has no attribute 'evalute'"):
        getattr(calibrant, "evalute")  # noqa: B009  # mypy knows that there is none


AT_ONCE = ("calibrant.losses", "calibrant.plots", "calibrant.training")
LAZY = [name for name in PACKAGES if not name.startswith(AT_ONCE)]


@pytest.mark.parametrize("name", LAZY)
def test_a_module_does_not_hide_the_function_that_it_is_named_after(name):
    """In a fresh process in which every module of the package was imported before."""
    code = f"""
import importlib, pkgutil, types, {name} as package
for info in pkgutil.iter_modules(package.__path__):
    if package is not importlib.import_module("calibrant"):
        importlib.import_module(f"{name}.{{info.name}}")
print([each for each in package.__all__ if isinstance(getattr(package, each), types.ModuleType)])
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_the_names_of_a_package_are_imported_one_by_one():
    code = """
import sys
from calibrant import Predictions
from calibrant.posthoc import TemperatureScaling
loaded = {name for name in sys.modules if name.startswith("calibrant.")}
print(*sorted(loaded & {"calibrant.posthoc.smart", "calibrant.evaluation", "calibrant.data.files"}))
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == ""


def test_a_saved_calibrator_is_known_where_nothing_else_was_imported(tmp_path):
    path = tmp_path / "calibrator.safetensors"
    rng = np.random.default_rng(0)
    logits, labels = rng.normal(size=(200, 3)), rng.integers(3, size=200)
    calibrant.posthoc.TemperatureScaling.then(calibrant.posthoc.SMART).fit(logits, labels).save(path)
    code = f"from calibrant import load_calibrator; print(type(load_calibrator({str(path)!r})).__mro__)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "calibrant.posthoc.chain.Chain" in result.stdout


def test_public_packages_are_found_by_tab_completion_and_internal_modules_are_not():
    """In a fresh process that has imported the internal modules too; nothing heavy is imported by looking."""
    code = """
import sys, calibrant
names = {name for name in dir(calibrant) if not name.startswith("__")}
heavy = "torch" in sys.modules
import calibrant.inputs, calibrant.outcomes
print(heavy, names == {name for name in dir(calibrant) if not name.startswith("__")}, *sorted(names))
calibrant.posthoc.SMART, calibrant.losses.FocalLoss, calibrant.integrations.sklearn.CalibratedClassifier
from calibrant import *
Predictions, evaluate
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    heavy, same, *names = result.stdout.split()
    assert (heavy, same) == ("False", "True")
    packages = {info.name for info in pkgutil.iter_modules(calibrant.__path__) if info.ispkg}
    assert set(names) - set(calibrant.__all__) == packages - {"cli", "papers", "show"}


def test_a_package_whose_extra_is_missing_is_no_attribute_and_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "lightning_fabric", None)
    for name in [name for name in sys.modules if name.startswith("calibrant.training")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr(calibrant, "training", raising=False)
    assert not hasattr(calibrant, "training")
    with pytest.raises(
        AttributeError, match="training: expected the package lightning-fabric, got none; install"
    ):
        getattr(calibrant, "training")  # noqa: B009  # mypy would not know that it may be missing


def test_help_shows_the_name_of_an_array_type_instead_of_all_that_it_stands_for():
    for function in (calibrant.metrics.expected_calibration_error, calibrant.posthoc.SMART.fit):
        shown = str(inspect.signature(function))
        assert "labels: " in shown
        assert shown.count("ArrayLike") >= 2
        assert "Sequence" not in shown


def test_every_module_says_what_it_is_for():
    for info in pkgutil.walk_packages(calibrant.__path__, "calibrant."):
        source = Path(info.module_finder.find_spec(info.name, None).origin).read_text(encoding="utf-8")
        assert (ast.get_docstring(ast.parse(source)) or "").strip(), info.name


def test_the_package_and_the_help_of_commands_import_nothing_heavy():
    heavy = "torch numpy scipy matplotlib altair lightning lightning_fabric transformers ray pyarrow sklearn"
    code = f"""
import sys
from typer.testing import CliRunner
from calibrant.cli import app

commands = [command.name or command.callback.__name__ for command in app.registered_commands]
for command in ("--version", "--help", "bench --help", *(name + " --help" for name in commands)):
    assert CliRunner().invoke(app, command).exit_code == 0, command
print([name for name in {[*heavy.split(), "pandas", "polars", "onnx"]!r} if name in sys.modules])
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def imported(file):
    """Yield the full names that a file of Python code imports, wherever in the file it does."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_no_test_file_imports_another():
    """Tests share what is in a conftest.py or in a module with a plain name."""
    folder = Path(__file__).parent
    importing = [
        f"{file.relative_to(folder)} imports {name}"
        for file in sorted(folder.rglob("*.py"))
        for name in imported(file)
        if name.startswith("tests.") and any(part.startswith("test_") for part in name.split("."))
    ]
    assert importing == []


def test_errors_are_also_the_errors_that_python_users_catch():
    assert issubclass(calibrant.InputError, ValueError)
    assert issubclass(calibrant.FormatError, ValueError)
    assert issubclass(calibrant.FitError, RuntimeError)
    for error in (calibrant.InputError, calibrant.FormatError, calibrant.FitError):
        assert issubclass(error, calibrant.CalibrantError)
