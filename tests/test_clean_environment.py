"""A user without the development tools can import and use everything that is not behind an extra."""

import subprocess
import sys
from importlib.metadata import distribution, packages_distributions

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

pytestmark = pytest.mark.slow

BLOCK = """
import sys

sys.modules.update(dict.fromkeys({undeclared!r}))  # None: as if they were not installed
import pkgutil, importlib, calibrant
for module in pkgutil.walk_packages(calibrant.__path__, "calibrant."):
    if not module.name.startswith("calibrant.integrations."):
        try:
            importlib.import_module(module.name)
        except calibrant.errors.MissingPackageError as error:
            assert "training" in module.name, module.name
            assert "pip install -c constraints.txt '.[train]'" in str(error), module.name
from calibrant.cli import main
sys.argv = ["calibrant", "train"]
try:
    main()
except SystemExit as stopped:
    assert stopped.code == 2
sys.argv = ["calibrant", "demo"]
main()
"""


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
        [sys.executable, "-c", BLOCK.format(undeclared=sorted(undeclared))],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert result.returncode == 0, result.stderr
    assert "temperature" in result.stdout
    assert "calibrant: training: expected the package lightning-fabric, got none; install it" in result.stderr
