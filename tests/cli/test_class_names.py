"""Class names travel with calibrators; the same names in another order mean the same classes."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from calibrant import Predictions, compare, load_calibrator, load_predictions, save_predictions
from calibrant.errors import FormatError, InputError
from calibrant.evaluation import calibrated
from calibrant.evaluation.calibrated import fit_named
from calibrant.streams import open_stream
from tests.rounding import assert_equal_up_to_rounding

NAMES = ("ant", "bee", "cat")
OTHER = ("cat", "ant", "bee")


def predictions(n, *, seed, names=NAMES):
    """The same model whatever the order of its classes, better at some classes than at others."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 3, n)
    logits = rng.normal(size=(n, 3)) + np.array([3.0, 1.0, 0.3]) * np.eye(3)[labels] + np.array([0, 0.5, 1])
    order = [NAMES.index(name) for name in names] if set(names) == set(NAMES) else [0, 1, 2]
    return Predictions(logits=logits[:, order], labels=np.argsort(order)[labels], class_names=names)


def test_a_calibrator_keeps_the_names_and_serves_them_in_any_order(tmp_path):
    fitted = fit_named("vector", predictions(400, seed=0))
    fitted.save(tmp_path / "c.safetensors")
    loaded = load_calibrator(tmp_path / "c.safetensors")
    assert loaded.class_names == NAMES
    expected = calibrated(loaded, predictions(50, seed=1))
    found = calibrated(loaded, predictions(50, seed=1, names=OTHER))
    assert found.class_names == OTHER
    for place, name in enumerate(OTHER):
        assert_equal_up_to_rounding(found.logits[:, place], expected.logits[:, NAMES.index(name)])
    with pytest.raises(InputError, match="expected the classes ant, bee, cat, got ant, bee, cow; give"):
        calibrated(loaded, predictions(50, seed=1, names=("ant", "bee", "cow")))


def test_a_comparison_reads_the_test_set_in_the_order_of_the_validation_set():
    validation = predictions(300, seed=0)
    results = [
        compare(validation, test=predictions(200, seed=1, names=names), methods=["vector"], n_resamples=20)
        for names in (NAMES, OTHER)
    ]
    measured = [result["vector"].test_metrics for result in results]
    assert measured[0] == measured[1]
    with pytest.raises(InputError, match="^test: expected the classes ant, bee, cat, got x, y, z"):
        compare(validation, test=predictions(20, seed=1, names=("x", "y", "z")), methods=["vector"])


@pytest.mark.parametrize("stream", [False, True])
def test_commands_compare_names(stream, run, tmp_path, monkeypatch):
    files = {"val": NAMES, "same": NAMES, "moved": OTHER, "foreign": ("x", "y", "z")}
    for name, names in files.items():
        seed = 0 if name == "val" else 1
        save_predictions(predictions(200, seed=seed, names=names), tmp_path / f"{name}.parquet")
    moved, folder = tmp_path / "moved.parquet", tmp_path / "out"
    chosen = run(
        "calibrate", tmp_path / "val.parquet", "--test", moved, "--methods", "vector", "--out", folder
    )
    assert chosen[0] == 0, chosen
    calibrator = folder / "calibrator.safetensors"
    if stream:
        monkeypatch.setattr("calibrant.streams.files._LARGE", 1000)
    for name in ("same", "moved"):
        source, out = tmp_path / f"{name}.parquet", tmp_path / f"{name}-applied.parquet"
        assert run("apply", calibrator, source, "--out", out)[0] == 0
    same, other = (load_predictions(tmp_path / f"{name}-applied.parquet") for name in ("same", "moved"))
    assert_equal_up_to_rounding(other.in_order(NAMES).logits, same.logits)
    assert torch.equal(other.in_order(NAMES).labels, same.labels)
    foreign = tmp_path / "foreign.parquet"
    for command in (
        ("apply", calibrator, foreign, "--out", tmp_path / "no.parquet"),
        ("report", folder, "--shift", foreign, "--out", tmp_path / "page.html"),
        ("calibrate", tmp_path / "val.parquet", "--test", foreign, "--out", tmp_path / "no"),
    ):
        code, _, err = run(*command)
        assert code == 2
        assert "expected the classes ant, bee, cat, got x, y, z" in " ".join(err.split())
    assert not (tmp_path / "no.parquet").exists()


ROWS = np.array([[0.1, 0.2, 0.7], [0.3, 0.4, 0.3], [0.5, 0.3, 0.2]])


def write_table(path, headers, labels):
    columns = {f"probs_{header}": ROWS[:, place] for place, header in enumerate(headers)}
    table = pa.table({**columns, "labels": labels})
    if path.suffix == ".parquet":
        pq.write_table(table, path)
    elif path.suffix == ".csv":
        import pyarrow.csv

        pyarrow.csv.write_csv(table, path)
    else:
        path.write_text("\n".join(json.dumps(row) for row in table.to_pylist()))


@pytest.mark.parametrize("suffix", [".parquet", ".csv", ".jsonl"])
def test_numbers_in_headers_name_classes(suffix, tmp_path):
    path = tmp_path / f"p{suffix}"
    write_table(path, ["5", "0", "2"], [2, 0, 5])  # with gaps: labels are names
    p = load_predictions(path)
    assert p.class_names == ("0", "2", "5")
    assert torch.equal(p.probs, torch.from_numpy(ROWS[:, [1, 2, 0]]))
    assert p.labels.tolist() == [1, 0, 2]
    write_table(path, ["02", "01", "00"], [0, 1, 2])  # without gaps: numbers with leading zeros
    p = load_predictions(path)
    assert p.class_names is None
    assert torch.equal(p.probs, torch.from_numpy(ROWS[:, ::-1].copy()))
    assert p.labels.tolist() == [0, 1, 2]
    write_table(path, ["0", "2", "5"], [0, 1, 2])
    with pytest.raises(
        InputError, match="labels: expected one of the classes 0, 2, 5, which the columns name"
    ):
        load_predictions(path)
    write_table(path, ["0", "1", "01"], [0, 1, 1])
    with pytest.raises(FormatError, match="probs: expected each number once, got 'probs_1' and 'probs_01'"):
        load_predictions(path)


def test_a_stream_reads_numbers_in_headers_as_a_file_does(tmp_path):
    write_table(tmp_path / "p.parquet", ["5", "0", "2"], [2, 0, 5])
    (batch,) = open_stream(tmp_path).batches()
    assert batch.predictions.labels.tolist() == [1, 0, 2]
    assert batch.predictions.class_names == ("0", "2", "5")


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet", ".npz", ".safetensors"])
def test_classes_named_by_numbers_come_back(suffix, tmp_path):
    p = Predictions(probs=ROWS, labels=[0, 1, 2], class_names=["2", "5", "11"])
    save_predictions(p, tmp_path / f"p{suffix}")
    again = load_predictions(tmp_path / f"p{suffix}")
    assert again.class_names == p.class_names
    assert torch.equal(again.labels, p.labels)
