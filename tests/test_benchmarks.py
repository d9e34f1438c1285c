"""A small version of each benchmark runs, prints its table, and nothing of ours fails in it."""

import importlib
import sys
from pathlib import Path

import pytest
import torch

from calibrant import evaluate, load_predictions
from calibrant.data.labels import LabelPredictions
from tests.conftest import at_length

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"

# What the benchmarks ignore while they run, and their peers cause when they are imported.
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.slow]

# Column of the library, and the least number of rows of ours, of benchmarks beside other libraries.
BESIDE_PEERS = {"measures": (1, 8), "posthoc": (1, 8), "losses": (0, 25)}
# The least number of rows of the other benchmarks.
ROWS = {
    "au_default": 4,
    "posthoc_quality": 10,
    "loss_training": 25,
    "smart_stopping": 8,
    "early_stopping": 8,
    "calibration_errors": 6,
    "monitor": 20,
    "training_overhead": 1,
    "stream": 6,
    "scaling": 50,
    "commands": 5,
    "intervals": 9,
    "judges": 40,
    "gate": 14,
    "decisions": 6,
    "cascades": 3,
    "frequencies": 12,
    "hardening": 8,
    "zeros": 6,
    "sets": 24,
    "pool_rules": 9,
    "units": 20,
    "unit_guarantees": 21,
    "sklearn_default": 1,
    "segments": 2,
    "boxes": 10,
    "large_sets": 2,
    "versions": 1,
    "per_request": 4,
    "scores": 2,
    "pixels": 10,
    "shift": 8,
}
# They take seconds even in small; tests/docs/test_commands.py checks always that they read their options.
LONG = {
    "commands",
    "hardening",
    "scaling",
    "posthoc",
    "posthoc_quality",
    "measures",
    "sets",
    "stream",
    "units",
    "unit_guarantees",
    "sklearn_default",
    "frequencies",
    "judges",
    "large_sets",
    "versions",
    "per_request",
    "pixels",
    "scores",
    "loss_training",
    "intervals",
    "boxes",
}
# Parts that start many processes, or keep a core busy, are left out here; a version is compared with itself.
ONLY = {
    "commands": ["--only", "help,growth"],
    "versions": ["--earlier", str(BENCHMARKS.parent / "src")],
}


@pytest.fixture
def rows_of(monkeypatch, capsys):
    """Run a benchmark in small and return the rows of its tables, without headings and rules."""
    threads = torch.get_num_threads()
    monkeypatch.syspath_prepend(BENCHMARKS)
    names = {path.stem for path in BENCHMARKS.glob("*.py")}

    def call(name):
        importlib.import_module(name).main(["--quick", *ONLY.get(name, [])])
        lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
        return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[1:]]

    yield call
    torch.set_num_threads(threads)
    for name in names & set(sys.modules):
        del sys.modules[name]


@pytest.mark.parametrize("name", at_length(BESIDE_PEERS, BESIDE_PEERS.keys() - LONG))
def test_a_benchmark_beside_peers_runs_in_small(name, rows_of):
    library, least = BESIDE_PEERS[name]
    ours = [row for row in rows_of(name) if row[library].startswith("calibrant")]
    assert len(ours) >= least
    assert not any("fails" in cell for row in ours for cell in row)


@pytest.mark.parametrize("name", at_length(ROWS, ROWS.keys() - LONG))
def test_a_benchmark_of_quality_runs_in_small(name, rows_of):
    rows = rows_of(name)
    assert len(rows) >= ROWS[name]
    assert not any(cell == "nan" or cell.startswith("fails") for row in rows for cell in row)


def test_every_benchmark_is_run():
    assert {path.stem for path in BENCHMARKS.glob("*.py")} == {
        *BESIDE_PEERS,
        *ROWS,
        "arena_sets",
        "install",  # installs packages; it ran for docs/results/install.md
        "shapes",
        "shift_networks",  # trains networks on CIFAR-10, for an hour
        "shift_texts",  # trains heads on CLINC150, and encodes its sentences
        "timing",
    }


def test_the_sets_of_the_arena_are_predictions(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    importlib.import_module("arena_sets").main([str(tmp_path), "--quick"])
    made = sorted(tmp_path.glob("*.npz"))
    assert len(made) == 17
    several = [each for each in map(load_predictions, made) if isinstance(each, LabelPredictions)]
    assert [(each.n_rows, each.n_labels) for each in several] == 3 * [(1497, 10)]
    for path in (path for path in made if not path.stem.startswith("labels_")):
        predictions = load_predictions(path)
        assert predictions.n == 1497
        assert predictions.k == (2 if "bin" in path.stem else 10)
        assert evaluate(predictions, measures=["accuracy"]).metrics["accuracy"] > 0.8
