"""What the package shows to the world: exactly what ``__all__`` says, and nothing heavy on import."""

import ast
import importlib
import pkgutil
import subprocess
import sys
import types
from pathlib import Path

import pytest

import calibrant

PACKAGES = [
    "calibrant",
    "calibrant.data",
    "calibrant.evaluation",
    "calibrant.losses",
    "calibrant.metrics",
    "calibrant.monitoring",
    "calibrant.plots",
    "calibrant.posthoc",
    "calibrant.report",
    "calibrant.streams",
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


def test_the_package_imports_what_it_offers_when_it_is_used():
    code = "import calibrant; calibrant.posthoc.SMART; from calibrant import *; Predictions, evaluate"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert calibrant.evaluate is importlib.import_module("calibrant.evaluation").evaluate
    with pytest.raises(AttributeError, match="module 'calibrant' has no attribute 'evalute'"):
        getattr(calibrant, "evalute")  # noqa: B009  # mypy knows that there is none


def test_every_module_says_what_it_is_for():
    for info in pkgutil.walk_packages(calibrant.__path__, "calibrant."):
        assert (importlib.import_module(info.name).__doc__ or "").strip(), info.name


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
