"""``calibrant monitor --unit``: the monitoring of Python, on files."""

import json

import numpy as np
import pandas as pd
import pytest

from calibrant import Predictions
from calibrant.monitoring import Monitoring
from tests.monitoring.dependent import answers, joined


@pytest.fixture(scope="module")
def reference():
    return answers(600, seed=1)


@pytest.fixture(scope="module")
def stream():
    """300 good questions, then 500 with higher confidences."""
    return joined(answers(300, seed=2), answers(500, seed=3, root=10))


def table(predictions, path):
    frame = pd.DataFrame(
        {
            "confidence": predictions.confidence.numpy(),
            "correct": predictions.correct.numpy(),
            "question": [f"q{unit}" for unit in predictions.units.tolist()],
        }
    )
    if path.suffix == ".csv":
        frame.to_csv(path, index=False)
    else:
        frame.to_parquet(path, row_group_size=97)


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_units_are_read_from_files_of_which_one_continues_another(run, reference, stream, tmp_path, suffix):
    (tmp_path / "days").mkdir()
    table(reference, tmp_path / "before.csv")
    middle = int(np.flatnonzero(np.diff(stream.units.numpy()) == 0)[500]) + 1  # within a unit
    table(stream.take(range(middle)), tmp_path / "days" / f"1{suffix}")
    common = [tmp_path / "before.csv", tmp_path / "days", "--unit", "question", "--window", "400"]
    state = ["--state", tmp_path / "state.json", "--json"]
    run("monitor", *common, *state)
    table(stream.take(range(middle, stream.n)), tmp_path / "days" / f"2{suffix}")
    code, out, _ = run("monitor", *common, *state)
    found, monitoring = json.loads(out), Monitoring(reference, window=400)
    windows = monitoring.update(stream)
    assert code == 3
    assert (found["n"], found["n_units"]) == (stream.n, 800)
    assert found["alarm_at"] == monitoring.alarm.row
    assert found["log_e_value"] == pytest.approx(monitoring.monitor.log_e_value, rel=1e-9)
    last = found["windows"][-1]
    assert last["n_units"] == windows[-1].n_units
    assert last["intervals"]["ece"] == pytest.approx([windows[-1].ece.low, windows[-1].ece.high])
    _, shown, _ = run("monitor", *common)
    assert shown.splitlines()[1].split()[:3] == ["rows", "n", "units"]
    assert shown.splitlines()[2].split()[3:5] == ["400", str(windows[0].n_units)]


def test_a_unit_that_returns_is_named_with_its_file_and_row(run, reference, tmp_path):
    (tmp_path / "days").mkdir()
    table(reference, tmp_path / "before.parquet")
    rows = Predictions(confidence=[0.9] * 4, correct=[True] * 4, units=[1, 1, 2, 1])
    table(rows, tmp_path / "days" / "1.parquet")
    code, _, told = run("monitor", tmp_path / "before.parquet", tmp_path / "days", "--unit", "question")
    assert code == 2
    assert "1.parquet: units: expected the rows of a unit to follow each other" in told
    assert "in row 3; sort the rows of each file by unit" in told
