"""What an installation consists of: the files of the wheel, and the versions of what it needs."""

import re
import tomllib
from pathlib import Path, PurePosixPath

from hatchling.builders.wheel import WheelBuilder
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from scripts.versions import lowest

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
MEGABYTE = 1 << 20


def pins_of(path):
    """The version of each package in a file of constraints, which must have plain lines name==version."""
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    pairs = [re.fullmatch(r"([a-z0-9-]+)==([0-9a-z.]+)", line).groups() for line in lines]
    assert len(dict(pairs)) == len(pairs)
    return dict(pairs)


def test_the_wheel_has_the_package_and_its_data_without_tests_and_is_small():
    sizes = {
        PurePosixPath(file.distribution_path): Path(file.path).stat().st_size
        for file in WheelBuilder(str(ROOT)).recurse_included_files()
    }
    assert {path.parts[0] for path in sizes} == {"calibrant"}
    assert not [path for path in sizes if {"tests", "conftest.py"} & {*path.parts} or path.match("test_*.py")]
    kinds = {".py", ".typed", ".j2", ".css", ".js", ".md", ".toml", ".csv", ".npz", ".safetensors"}
    assert {path.suffix for path in sizes} <= kinds
    assert max(sizes.values()) < 1.5 * MEGABYTE
    assert sum(sizes.values()) < 8 * MEGABYTE


def test_locks_pin_all_that_is_declared_to_versions_within_the_ranges():
    locks = {path.stem: pins_of(path) for path in (ROOT / "locks").iterdir()}
    assert "python-3.11" in locks
    constraints = pins_of(ROOT / "constraints.txt")
    lines = [*PROJECT["dependencies"], *(line for extra in EXTRAS.values() for line in extra)]
    for pins in locks.values():
        assert not pins.keys() & constraints.keys()
        for wanted in map(Requirement, lines):
            if wanted.name != PROJECT["name"]:
                assert wanted.specifier.contains((pins | constraints)[canonicalize_name(wanted.name)]), wanted


def test_the_lowest_versions_are_the_lower_bounds_of_everything_for_users():
    lines = [
        *PROJECT["dependencies"],
        *(line for name in EXTRAS if name not in ("dev", "docs", "all") for line in EXTRAS[name]),
    ]
    bounds = {
        re.sub(r"\[.*\]", "", line).replace(">=", "==")
        for line in lines
        if not line.startswith(("torch>", "calibrant["))
    }
    assert set(lowest(PROJECT)) == bounds
