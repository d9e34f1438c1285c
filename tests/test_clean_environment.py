"""A user without the development tools can import and use everything that is not behind an extra."""

import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import distribution, packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import calibrant

pytestmark = pytest.mark.slow

BLOCK = """
import sys

sys.modules.update(dict.fromkeys({undeclared!r}))  # None: as if they were not installed
import importlib.metadata
present = importlib.metadata.version


def version(name):
    if name in {absent!r}:
        raise importlib.metadata.PackageNotFoundError(name)
    return present(name)


importlib.metadata.version = version
import pkgutil, importlib, calibrant
from tests.offline import no_network
# Modules that do nothing without an extra; every other one must import.
NEED = dict(training="train", tables="tables", parquet="tables", runner="bench", frames="tables")
for module in pkgutil.walk_packages(calibrant.__path__, "calibrant."):
    if not module.name.startswith("calibrant.integrations."):
        try:
            importlib.import_module(module.name)
        except calibrant.errors.MissingPackageError as error:
            extra = next(extra for part, extra in NEED.items() if part in module.name)
            assert f"pip install 'calibrant[{{extra}}]'" in str(error), module.name
from calibrant.cli import main
for number, (statement, package, extra) in enumerate({features!r}):
    try:
        exec(statement)
    except calibrant.errors.MissingPackageError as error:
        assert f"expected the package {{package}}" in str(error), statement
        assert f"pip install 'calibrant[{{extra}}]'" in str(error), statement
    else:
        raise AssertionError(f"without {{package}}: {{statement}}")
for words in {commands!r}:
    sys.argv = ["calibrant", *words.split()]
    with no_network() as attempts:
        try:
            main()
        except SystemExit as stopped:
            print(f"[{{words}}: {{stopped.code}}]")
    assert attempts == []
"""

# What works without any extra, and what is refused in one line.
COMMANDS = [
    "demo",
    "evaluate answers.csv --confidence stated --json",
    "calibrate answers.csv --confidence stated --methods platt,isotonic --out honest",
    "apply honest/calibrator.safetensors answers.csv --confidence stated --out repaired.csv",
    "gate answers.csv --confidence stated --require ece<=0.9",
    "report answers.csv --confidence stated",
    "plot reliability answers.csv --confidence stated --out figure.png",
    "evaluate answers.parquet",
    "train",
]

# Each feature that needs an extra: a statement, the package that it misses, the extra that has it.
FEATURES = [
    ("from calibrant import load_predictions; load_predictions('answers.parquet')", "pyarrow", "tables"),
    ("from calibrant.streams import open_stream; next(open_stream('.').batches())", "pyarrow", "tables"),
    (
        "from calibrant.plots import LossShapeDisplay, ReliabilityDisplay\n"
        "from calibrant import evaluate\n"
        "ReliabilityDisplay(evaluate([[0.9, 0.1], [0.4, 0.6]], [0, 1]).bins).plot()",
        "matplotlib",
        "plots",
    ),
    ("from calibrant.report import render; render(None)", "vl-convert-python", "report"),
    ("import calibrant.integrations.sklearn", "scikit-learn", "sklearn"),
    ("import calibrant.integrations.mlflow", "mlflow-skinny", "mlflow"),
    ("import calibrant.training", "lightning-fabric", "train"),
    ("import calibrant.integrations.lightning", "lightning", "train"),
    ("import calibrant.integrations.torchmetrics", "torchmetrics", "train"),
    ("import calibrant.integrations.transformers", "transformers", "train"),
    (
        "from calibrant.integrations.onnx import export_onnx\n"
        "from calibrant.posthoc import TemperatureScaling\n"
        "export_onnx(TemperatureScaling(2.0), 'out.onnx', n_classes=3)",
        "onnx and onnxruntime and onnxscript",
        "export",
    ),
    (
        "from pathlib import Path\nfrom calibrant.papers.calarena import read_tasks\n"
        "next(read_tasks(Path('arena.h5')))",
        "h5py",
        "bench",
    ),
    ("from calibrant.streams.ray_cluster import import_ray; import_ray()", "ray with Ray Data", "scale"),
    # PyTorch needs fsspec too, so that it is missing only where someone removed it.
    (
        "sys.modules['fsspec.core'] = None\n"
        "from calibrant.streams import open_stream; open_stream('memory://predictions')",
        "fsspec",
        "scale",
    ),
]


ANSWERS = [(0.95, 1), (0.9, 0), (0.8, 1), (0.7, 0), (0.6, 1), (0.55, 0)] * 20


def core_distributions():
    """Calibrant's own dependencies, and theirs, without extras."""
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))
    found, queue = {"calibrant"}, [Requirement(line).name for line in project["project"]["dependencies"]]
    while queue:
        name = canonicalize_name(queue.pop())
        if name in found:
            continue
        found.add(name)
        for line in distribution(name).requires or []:
            requirement = Requirement(line)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                queue.append(requirement.name)
    return found


def test_the_core_alone_imports_runs_the_demo_and_names_the_extra_of_what_it_lacks(tmp_path):
    core = core_distributions()
    undeclared = {
        module
        for module, owners in packages_distributions().items()
        if not any(canonicalize_name(owner) in core for owner in owners)
    }
    assert {"pandas", "pyarrow", "sklearn", "vl_convert", "matplotlib", "hypothesis"} <= undeclared
    rows = "".join(f"{confidence},{correct}\n" for confidence, correct in ANSWERS)
    (tmp_path / "answers.csv").write_text(f"stated,correct\n{rows}", encoding="utf-8")
    (tmp_path / "answers.parquet").write_bytes(b"PAR1")
    absent = sorted({owner for module in undeclared for owner in packages_distributions()[module]})
    code = BLOCK.format(absent=absent, undeclared=sorted(undeclared), features=FEATURES, commands=COMMANDS)
    result = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=os.environ
        | {"PYTHONPATH": f"{Path(__file__).parents[1]}{os.pathsep}{Path(calibrant.__file__).parents[1]}"},
    )
    assert result.returncode == 0, result.stderr
    ended = re.findall(r"^\[(.*): (.*)\]$", result.stdout, re.MULTILINE)
    refused = {"report", "plot", "train", "evaluate answers.parquet"}
    assert [(words, code) for words, code in ended if code not in ("0", "None")] == [
        (words, "2") for words in COMMANDS if words.startswith(tuple(refused))
    ]
    lines = result.stderr.splitlines()
    for purpose, package, extra in [
        ("report.html is not written in calibrant-demo; report", "vl-convert-python", "report"),
        ("report.html is not written in honest; report", "vl-convert-python", "report"),
        ("report", "vl-convert-python", "report"),
        ("plot", "matplotlib", "plots"),
        ("parquet", "pyarrow", "tables"),
        ("training", "lightning-fabric", "train"),
    ]:
        command = f"pip install 'calibrant[{extra}]'"
        end = f"{purpose}: expected the package {package}, got none; install it with: {command}"
        assert any(line.endswith(end) for line in lines), (end, lines)
    assert {path.name for path in (tmp_path / "honest").iterdir()} >= {
        "calibrator.safetensors",
        "results.json",
    }
    assert not (tmp_path / "honest" / "report.html").exists()
    assert (tmp_path / "repaired.csv").read_text(encoding="utf-8").startswith("stated,correct")
