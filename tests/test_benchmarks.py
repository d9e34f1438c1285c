"""A small version of each benchmark runs, and no measure of ours fails in it."""

import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.mark.parametrize("name", ["measures"])
def test_a_benchmark_runs_in_small(name):
    result = subprocess.run(
        [sys.executable, BENCHMARKS / f"{name}.py", "--quick"],
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    rows = [line.split("|")[2].strip() for line in result.stdout.splitlines()[2:]]
    assert rows.count("calibrant") >= 8
    assert "calibrant | fails" not in result.stdout
