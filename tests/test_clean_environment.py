"""A user without the development tools can import and use everything that is not behind an extra."""

import os
import subprocess
import sys
from importlib.metadata import distribution, packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

pytestmark = pytest.mark.slow

BLOCK = """
import sys

sys.modules.update(dict.fromkeys({undeclared!r}))  # None: as if they were not installed
import pkgutil, importlib, calibrant
from tests.offline import no_network
for module in pkgutil.walk_packages(calibrant.__path__, "calibrant."):
    if not module.name.startswith("calibrant.integrations."):
        try:
            importlib.import_module(module.name)
        except calibrant.errors.MissingPackageError as error:
            assert "training" in module.name, module.name
            assert "pip install 'calibrant[train]'" in str(error), module.name
from calibrant.cli import main
sys.argv = ["calibrant", "train"]
try:
    main()
except SystemExit as stopped:
    assert stopped.code == 2
for statement, package, extra in {features!r}:
    try:
        exec(statement)
    except calibrant.errors.MissingPackageError as error:
        assert f"expected the package {{package}}" in str(error), statement
        assert f"pip install 'calibrant[{{extra}}]'" in str(error), statement
    else:
        raise AssertionError(f"without {{package}}: {{statement}}")
sys.argv = ["calibrant", "demo"]
with no_network() as attempts:
    try:
        main()
    except SystemExit as stopped:
        assert not stopped.code
assert attempts == []
"""

# Each feature that needs an extra: a statement, the package that it misses, the extra that has it.
FEATURES = [
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


def declared_distributions():
    """Calibrant's own dependencies, and theirs, without extras."""
    found, queue = set(), ["calibrant"]
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


def test_everything_imports_and_the_demo_runs_with_declared_dependencies_only(tmp_path):
    declared = declared_distributions()
    undeclared = {
        module
        for module, owners in packages_distributions().items()
        if not any(canonicalize_name(owner) in declared for owner in owners)
    }
    assert {"pandas", "torchmetrics", "hypothesis"} <= undeclared
    result = subprocess.run(
        [sys.executable, "-c", BLOCK.format(undeclared=sorted(undeclared), features=FEATURES)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])},
    )
    assert result.returncode == 0, result.stderr
    assert "temperature" in result.stdout
    assert "calibrant: training: expected the package lightning-fabric, got none; install it" in result.stderr
