"""How Calibrant compares with other libraries: the facts, the table, and checks of the facts.

    python scripts/peers.py            # check each fact whose library is installed, and say which were not
    python scripts/peers.py --table    # the table of README.md and docs/comparison.md

The facts are those of the versions below, each tried in an environment of its own in November 2026. A check
tries the fact again with the library that is installed here. What has no check was tried or read then.
"""

import argparse
import inspect
import re
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, partial
from importlib import import_module
from importlib.metadata import PackageNotFoundError, distribution, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import torch

Answer: TypeAlias = Literal["yes", "partly", "no"]
Check: TypeAlias = Callable[[], Answer]

#: The libraries, by distribution and module, with the version that was tried.
LIBRARIES = {
    "Calibrant": ("calibrant", "calibrant", ""),
    "netcal": ("netcal", "netcal", "1.4.0"),
    "torch-uncertainty": ("torch-uncertainty", "torch_uncertainty", "0.13.0"),
    "probmetrics": ("probmetrics", "probmetrics", "1.3.0"),
    "torchmetrics": ("torchmetrics", "torchmetrics", "1.9.0"),
    "scikit-learn": ("scikit-learn", "sklearn", "1.9.1"),
}


@dataclass(frozen=True)
class Fact:
    """A row of the table: what is asked, the answer of each library in order, and checks by library."""

    question: str
    answers: tuple[Answer, ...]
    checks: dict[str, Check] = field(default_factory=dict)

    def __post_init__(self) -> None:
        assert len(self.answers) == len(LIBRARIES)

    def answer(self, library: str) -> Answer:
        """Return the answer of one library."""
        return self.answers[list(LIBRARIES).index(library)]


def main() -> None:
    """Print the table, or check what can be checked here."""
    parser = argparse.ArgumentParser(description="Compare Calibrant with other libraries.")
    parser.add_argument("--table", action="store_true", help="print the table")
    if parser.parse_args().table:
        print(table())
        return
    wrong = [print_check(fact, library) for fact in FACTS for library in LIBRARIES]
    there = ", ".join(f"{name} {installed(name)}" for name in LIBRARIES if installed(name))
    missing = ", ".join(name for name in LIBRARIES if not installed(name))
    counts = {state: wrong.count(state) for state in ("checked", "read", "missing", "wrong")}
    print(f"\n{counts['checked']} facts checked, with {there}; {counts['read']} of these have no check;")
    print(f"{counts['missing']} not checked (not installed: {missing or 'none'}); {counts['wrong']} wrong.")
    sys.exit(counts["wrong"] > 0)


def print_check(fact: Fact, library: str) -> str:
    """Check one fact, print the outcome, and return it."""
    state = outcome(fact, library)
    if state in ("checked", "wrong"):
        print(f"{state:8} {library:13} {fact.question}: {fact.answer(library)}")
    return state


def outcome(fact: Fact, library: str) -> str:
    """Return whether a fact was checked, is only read, is wrong, or is of a library that is not installed."""
    if not installed(library):
        return "missing"
    if library not in fact.checks:
        return "read"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return "checked" if fact.checks[library]() == fact.answer(library) else "wrong"


@cache
def installed(library: str) -> str:
    """Return the version of a library; empty if it is not installed."""
    try:
        return version(LIBRARIES[library][0])
    except PackageNotFoundError:
        return ""


def table() -> str:
    """Return the comparison as Markdown."""
    marks = {"yes": "yes", "partly": "partly", "no": "-"}
    lines = [
        "| | "
        + " | ".join(name if not tried else f"{name} {tried}" for name, (_, _, tried) in LIBRARIES.items())
        + " |",
        "|---" * (1 + len(LIBRARIES)) + "|",
    ]
    lines += [
        f"| {fact.question} | " + " | ".join(marks[each] for each in fact.answers) + " |" for fact in FACTS
    ]
    return "\n".join(lines)


def _exists(*paths: str) -> Answer:
    """Whether each ``module:name`` can be imported."""
    for path in paths:
        module, _, name = path.partition(":")
        if not hasattr(import_module(module), name):
            return "no"
    return "yes"


@cache
def _source(package: str) -> str:
    """Return all code of a package or of one below it, without importing it."""
    top, *below = package.split(".")
    spec = find_spec(top)
    assert spec is not None
    assert spec.submodule_search_locations is not None
    folder = Path(spec.submodule_search_locations[0], *below)
    files = (file for file in sorted(folder.rglob("*.py")) if "tests" not in file.relative_to(folder).parts)
    return "\n".join(file.read_text(encoding="utf-8", errors="replace") for file in files)


def _mentions(module: str, pattern: str) -> Answer:
    """Whether the code of a package mentions something; what it never mentions, it cannot do."""
    return "yes" if re.search(pattern, _source(module), re.IGNORECASE) else "no"


def _only(module: str, there: str, absent: str) -> Answer:
    """Return "partly" if a package mentions one thing and not another."""
    return "partly" if (_mentions(module, there), _mentions(module, absent)) == ("yes", "no") else "no"


def _has_command(name: str) -> Answer:
    points = distribution(name).entry_points
    return "yes" if any(point.group == "console_scripts" for point in points) else "no"


def _rows() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    rng = np.random.default_rng(0)
    probs = rng.dirichlet(np.ones(3), size=200)
    return probs, rng.integers(0, 3, size=200)


def _spoil(kind: Literal["nan", "half"]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    probs, labels = _rows()
    if kind == "half":
        return probs / 2, labels
    probs[0] = np.nan
    return probs, labels


def _refuses(measure: Callable[[Any, Any], object], kind: Literal["nan", "half"]) -> Answer:
    """Whether a calibration error raises an error for spoiled probabilities."""
    try:
        measure(*_spoil(kind))
    except Exception:
        return "yes"
    return "no"


def _netcal_refuses_nan() -> Answer:
    """It looks for none itself, but from version 1.18 on SciPy does, which fills its bins."""
    newer = tuple(map(int, version("scipy").split(".")[:2])) >= (1, 18)
    return "partly" if _refuses(_netcal_ece, "nan") == ("yes" if newer else "no") else "no"


def _own_ece(probs: Any, labels: Any) -> object:  # noqa: ANN401  # arrays
    return import_module("calibrant.metrics").expected_calibration_error(probs, labels)


def _netcal_ece(probs: Any, labels: Any) -> object:  # noqa: ANN401  # arrays
    return import_module("netcal.metrics").ECE(15).measure(probs, labels)


def _torchmetrics_ece(probs: Any, labels: Any) -> object:  # noqa: ANN401  # arrays
    function = import_module("torchmetrics.functional.classification").multiclass_calibration_error
    return function(torch.tensor(probs), torch.tensor(labels), num_classes=3, n_bins=15)


def _torchmetrics_bounds_memory() -> Answer:
    """Whether the state of the metric stays as large as it was after more samples."""
    metric = import_module("torchmetrics.classification").MulticlassCalibrationError(num_classes=3)
    sizes = []
    for _ in range(2):
        metric.update(*map(torch.tensor, _rows()))
        sizes.append(sum(part.numel() for part in metric.confidences))
    return "yes" if sizes[0] == sizes[1] else "no"


def _netcal_temperature() -> Answer:
    """Fit logits that are three times too large, in both precisions; "partly" if one of them does nothing."""
    scaling = import_module("netcal.scaling").TemperatureScaling
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(500, 3)) * 2
    probs = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    labels = (probs.cumsum(axis=1) > rng.random((500, 1))).argmax(axis=1)
    sharp = np.exp(3 * logits) / np.exp(3 * logits).sum(axis=1, keepdims=True)
    moved = []
    for kind in (np.float64, np.float32):
        method = scaling()
        method.fit(sharp.astype(kind), labels)
        moved.append(float(np.abs(method.transform(sharp.astype(kind)) - sharp).max()) > 0.1)
    return "yes" if all(moved) else "partly" if any(moved) else "no"


def _netcal_penalties() -> Answer:
    """Whether the penalties follow their weight; "partly" if only one of them does."""
    found = import_module("netcal.regularization")
    logits, labels = torch.tensor([[2.0, 0.0, 1.0], [0.0, 1.0, 0.5]]), torch.tensor([0, 2])
    follows = [
        not torch.equal(penalty(weight=5.0)(logits, labels), penalty(weight=1.0)(logits, labels))
        for penalty in (found.MMCEPenalty, found.DCAPenalty)
    ]
    return "yes" if all(follows) else "partly" if any(follows) else "no"


def _is_module(path: str) -> Answer:
    module, _, name = path.partition(":")
    return "yes" if issubclass(getattr(import_module(module), name), torch.nn.Module) else "no"


def _quantile_curve() -> Answer:
    """Scikit-learn has bins of equal count for its curve, and no error from them."""
    curve = import_module("sklearn.calibration").calibration_curve
    return "partly" if "strategy" in inspect.signature(curve).parameters else "no"


FACTS = (
    Fact(
        "ECE with bins of equal width",
        ("yes", "yes", "yes", "yes", "yes", "no"),
        {
            "Calibrant": partial(_exists, "calibrant.metrics:expected_calibration_error"),
            "netcal": partial(_exists, "netcal.metrics:ECE"),
            "torchmetrics": partial(_exists, "torchmetrics.classification:CalibrationError"),
            "scikit-learn": partial(_mentions, "sklearn", r"def \w*calibration_error"),
            "torch-uncertainty": partial(_mentions, "torch_uncertainty.metrics", r"class CalibrationError"),
            "probmetrics": partial(_mentions, "probmetrics", r"class CalibrationError"),
        },
    ),
    Fact(
        "ECE with bins of equal count",
        ("yes", "yes", "yes", "no", "no", "partly"),
        {
            "Calibrant": lambda: "yes" if "binning" in inspect.signature(_ece()).parameters else "no",
            "netcal": lambda: "yes" if "equal_intervals" in inspect.signature(_netcal()).parameters else "no",
            "torchmetrics": partial(
                _mentions, "torchmetrics.functional.classification", r"equal.?mass|adaptive_bin"
            ),
            "scikit-learn": _quantile_curve,
            "torch-uncertainty": partial(
                _mentions, "torch_uncertainty.metrics", r"class AdaptiveCalibrationError"
            ),
            "probmetrics": partial(_mentions, "probmetrics", r"equal.?mass|adaptive.?calibration"),
        },
    ),
    Fact(
        "a calibration error refuses NaN",
        ("yes", "partly", "no", "no", "no", "no"),
        {
            "Calibrant": partial(_refuses, _own_ece, "nan"),
            "netcal": _netcal_refuses_nan,
            "torchmetrics": partial(_refuses, _torchmetrics_ece, "nan"),
        },
    ),
    Fact(
        "a calibration error refuses rows that do not sum to one",
        ("yes", "no", "no", "partly", "no", "no"),
        {
            "Calibrant": partial(_refuses, _own_ece, "half"),
            "netcal": partial(_refuses, _netcal_ece, "half"),
            "torchmetrics": partial(_refuses, _torchmetrics_ece, "half"),
        },
    ),
    Fact(
        "intervals for every measure",
        ("yes", "no", "no", "no", "partly", "no"),
        {
            "Calibrant": partial(_exists, "calibrant.inference:with_interval"),
            "netcal": partial(_mentions, "netcal.metrics", r"bootstrap"),
            "torchmetrics": lambda: (
                "partly" if _exists("torchmetrics.wrappers:BootStrapper") == "yes" else "no"
            ),
            "scikit-learn": partial(_mentions, "sklearn.metrics", r"def bootstrap|confidence_interval"),
            "torch-uncertainty": partial(_mentions, "torch_uncertainty.metrics", r"bootstrap"),
            "probmetrics": partial(_mentions, "probmetrics", r"bootstrap"),
        },
    ),
    Fact(
        "temperature scaling",
        ("yes", "partly", "yes", "yes", "no", "yes"),
        {
            "Calibrant": partial(_exists, "calibrant.posthoc:TemperatureScaling"),
            "netcal": _netcal_temperature,
            "torchmetrics": partial(_mentions, "torchmetrics.classification", r"temperature.?scaling"),
            "scikit-learn": partial(_mentions, "sklearn", r"class _TemperatureScaling"),
            "torch-uncertainty": partial(_mentions, "torch_uncertainty", r"class TemperatureScaler"),
            "probmetrics": partial(_mentions, "probmetrics", r"class TemperatureScalingCalibrator"),
        },
    ),
    Fact(
        "a temperature for each sample, by its margin",
        ("yes", "no", "no", "no", "no", "no"),
        {
            "Calibrant": partial(_exists, "calibrant.posthoc:SMART"),
            "torchmetrics": partial(_mentions, "torchmetrics.classification", r"margin.{0,40}temperature"),
        },
    ),
    Fact(
        "losses that train for calibration",
        ("yes", "partly", "partly", "no", "no", "no"),
        {
            "Calibrant": partial(_exists, "calibrant.losses:AdaFocalLoss", "calibrant.losses:MMCELoss"),
            "netcal": _netcal_penalties,
            "torchmetrics": partial(_mentions, "torchmetrics.classification", r"focal"),
            "torch-uncertainty": partial(
                _only, "torch_uncertainty.losses", r"class FocalLoss", r"adafocal|mdca"
            ),
            "probmetrics": partial(_mentions, "probmetrics", r"focal|class \w*penalty"),
        },
    ),
    Fact(
        "the calibrator is an `nn.Module`",
        ("yes", "no", "yes", "partly", "no", "no"),
        {
            "Calibrant": partial(_is_module, "calibrant.posthoc:TemperatureScaling"),
            "netcal": partial(_is_module, "netcal.scaling:TemperatureScaling"),
        },
    ),
    Fact(
        "files of calibrators without pickle",
        ("yes", "no", "partly", "no", "no", "no"),
        {
            "Calibrant": partial(_mentions, "calibrant.posthoc", r"safetensors"),
            "netcal": partial(_mentions, "netcal", r"safetensors"),
            "scikit-learn": partial(_mentions, "sklearn", r"safetensors"),
            "probmetrics": partial(_mentions, "probmetrics", r"safetensors|json\.dump"),
        },
    ),
    Fact(
        "ONNX export of the calibrator",
        ("yes", "no", "no", "no", "no", "no"),
        {
            "Calibrant": partial(_mentions, "calibrant.integrations", r"onnx"),
            "netcal": partial(_mentions, "netcal", r"\bonnx\b"),
            "torch-uncertainty": partial(_mentions, "torch_uncertainty", r"\bonnx\b"),
            "probmetrics": partial(_mentions, "probmetrics", r"\bonnx\b"),
        },
    ),
    Fact(
        "ECE of a stream in constant memory",
        ("yes", "no", "no", "no", "no", "no"),
        {
            "Calibrant": partial(_exists, "calibrant.streams:OutcomeAccumulator"),
            "netcal": lambda: "yes" if hasattr(_netcal(), "update") else "no",
            "torchmetrics": _torchmetrics_bounds_memory,
        },
    ),
    Fact(
        "a command line and an HTML report",
        ("yes", "no", "partly", "no", "no", "no"),
        {
            "Calibrant": partial(_has_command, "calibrant"),
            "netcal": partial(_has_command, "netcal"),
            "torchmetrics": partial(_has_command, "torchmetrics"),
            "scikit-learn": partial(_has_command, "scikit-learn"),
            "torch-uncertainty": partial(_only, "torch_uncertainty", r"LightningCLI", r"<html"),
            "probmetrics": partial(_has_command, "probmetrics"),
        },
    ),
)


def _ece() -> Callable[..., Any]:
    found: Callable[..., Any] = import_module("calibrant.metrics").expected_calibration_error
    return found


def _netcal() -> Callable[..., Any]:
    found: Callable[..., Any] = import_module("netcal.metrics").ECE
    return found


if __name__ == "__main__":
    main()
