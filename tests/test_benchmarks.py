"""A small version of each benchmark runs, and nothing of ours fails in it."""

import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


def rows_of(name):
    """Run a benchmark in small and return the rows of its tables, headings and rules left out."""
    result = subprocess.run(
        [sys.executable, BENCHMARKS / f"{name}.py", "--quick"],
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    lines = [line for line in result.stdout.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[1:]]


@pytest.mark.parametrize(
    ("name", "library", "least"), [("measures", 1, 8), ("posthoc", 1, 8), ("losses", 0, 25)]
)
def test_a_benchmark_beside_peers_runs_in_small(name, library, least):
    ours = [row for row in rows_of(name) if row[library].startswith("calibrant")]
    assert len(ours) >= least
    assert not any("fails" in cell for row in ours for cell in row)


@pytest.mark.parametrize(
    ("name", "least"),
    [
        ("au_default", 4),
        ("posthoc_quality", 10),
        ("loss_training", 25),
        ("smart_stopping", 8),
        ("monitor", 20),
        ("training_overhead", 1),
        ("stream", 6),
        ("scaling", 50),
    ],
)
def test_a_benchmark_of_quality_runs_in_small(name, least):
    rows = rows_of(name)
    assert len(rows) >= least
    assert not any(cell in ("nan", "fails") for row in rows for cell in row)
