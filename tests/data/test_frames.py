"""Frames are read where files are, and every reader takes addresses and compressed text."""

import gzip
import json

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from calibrant import (
    InputError,
    Predictions,
    compare,
    evaluate,
    load_calibrator,
    load_predictions,
    save_predictions,
)
from calibrant.data import Columns
from calibrant.decisions import check_requirements
from calibrant.posthoc import TemperatureScaling

STATED = [0.95, 0.9, 0.8, 0.7, 0.6, 0.55]
RIGHT = [True, True, False, True, False, True]
ROWS = {"stated": STATED, "is_right": RIGHT, "subject": list("aabbcc")}
FRAMES = {"pandas": pd.DataFrame, "polars": pl.DataFrame, "arrow": pa.table}


@pytest.fixture(params=FRAMES)
def frame(request):
    return FRAMES[request.param]


def test_a_frame_has_the_measures_of_its_columns(frame):
    found = evaluate(frame(ROWS), confidence="stated", correct="is_right", measures=["ece", "brier"])
    expected = evaluate(Predictions(confidence=STATED, correct=RIGHT), measures=["ece", "brier"])
    assert found.metrics == pytest.approx(expected.metrics)


def test_a_frame_holds_classes_groups_and_names_as_a_file_does(frame, tmp_path):
    columns = {
        "probs_cat": [0.9, 0.2],
        "probs_dog": [0.1, 0.8],
        "labels": ["cat", "dog"],
        "groups": ["x", "y"],
    }
    pd.DataFrame(columns).to_csv(tmp_path / "file.csv", index=False)
    for loaded in (load_predictions(frame(columns)), load_predictions(tmp_path / "file.csv")):
        assert loaded.class_names == ("cat", "dog")
        assert loaded.labels.tolist() == [0, 1]
        assert loaded.groups.values == ["x", "y"]
        np.testing.assert_allclose(loaded.probs, [[0.9, 0.1], [0.2, 0.8]])


def test_what_takes_a_file_takes_a_frame(frame):
    rng = np.random.default_rng(0)
    confidence = rng.uniform(0.5, 1, 200)
    table = frame({"confidence": confidence, "correct": rng.random(200) < confidence})
    assert check_requirements(table, ["ece < 0.9"]).outcome == "passed"
    assert compare(table, methods=["platt"], n_folds=2)["platt"].name == "platt"


def test_lists_in_a_frame_are_matrices():
    table = pl.DataFrame({"logits": [[1.0, 2.0], [3.0, 1.0]], "labels": [1, 0]})
    assert load_predictions(table).logits.tolist() == [[1, 2], [3, 1]]


def test_a_frame_beside_labels_holds_probabilities():
    probs = pd.DataFrame({"cat": [0.9, 0.4], "dog": [0.1, 0.6]})
    assert evaluate(probs, ["cat", "dog"], measures=["accuracy"]).metrics["accuracy"] == 1


@pytest.mark.parametrize(
    ("given", "named", "message"),
    [
        (pd.DataFrame({"p": [0.5]}), {}, "frame: expected logits, probs, or confidence with correct, got p"),
        (
            pd.DataFrame({"p": [0.5, "x"]}),
            {"confidence": "p"},
            "frame: expected values of one kind in each column",
        ),
        (pd.DataFrame(ROWS), {"confidence": "sure"}, "frame: .*'?sure'?"),
        (
            Predictions(confidence=[0.5, 0.6], correct=[1, 0]),
            {"confidence": "p"},
            "confidence: expected none, because",
        ),
    ],
)
def test_a_frame_that_cannot_be_read_is_refused_in_one_sentence(given, named, message):
    with pytest.raises(ValueError, match=f"^{message}") as caught:
        evaluate(given, **named)
    assert "\n" not in str(caught.value)


def test_columns_are_named_in_one_way_at_a_time():
    with pytest.raises(
        InputError, match="confidence: expected none beside columns, got 'stated'; put it there"
    ):
        load_predictions(pd.DataFrame(ROWS), columns=Columns(correct="is_right"), confidence="stated")


@pytest.fixture
def store():
    memory = pytest.importorskip("fsspec", reason="fsspec is in the extra scale").filesystem("memory")
    yield memory
    memory.rm("/calibrant-frames", recursive=True)


PREDICTIONS = Predictions(probs=[[0.9, 0.1], [0.2, 0.8]], labels=[0, 1])


@pytest.mark.parametrize(
    "name", ["a.npz", "a.parquet", "a.csv", "a.tsv.gz", "a.csv.gz", "a.safetensors", "a.jsonl", "a.jsonl.gz"]
)
def test_every_format_is_read_from_an_address(store, name):
    address = f"memory://calibrant-frames/{name}"
    save_predictions(PREDICTIONS, address)
    np.testing.assert_allclose(load_predictions(address).probs, PREDICTIONS.probs)
    assert evaluate(address, measures=["accuracy"]).metrics["accuracy"] == 1
    assert (store.cat_file(f"/calibrant-frames/{name}")[:2] == b"\x1f\x8b") is name.endswith(".gz")


def test_a_calibrator_is_read_from_an_address(store):
    TemperatureScaling(2.0).save("memory://calibrant-frames/calibrator.safetensors")
    assert float(load_calibrator("memory://calibrant-frames/calibrator.safetensors").temperature) == 2
    assert store.exists("/calibrant-frames/calibrator.safetensors")


def test_a_log_is_read_from_an_address(store):
    log = {"eval": {}, "samples": [{"id": 1, "scores": {"match": {"value": "C"}}, "metadata": {"sure": 0.9}}]}
    store.pipe("/calibrant-frames/log.json", json.dumps(log).encode())
    loaded = load_predictions("memory://calibrant-frames/log.json", confidence="metadata.sure")
    assert loaded.confidence.tolist() == [0.9]


def test_an_address_where_nothing_is_names_itself(store):
    store.pipe("/calibrant-frames/other.csv", b"x")
    with pytest.raises(
        InputError, match="memory://calibrant-frames/absent.csv: expected an address that can be read"
    ):
        load_predictions("memory://calibrant-frames/absent.csv")


def test_the_command_line_reads_one_file_of_an_address(store, capsys, monkeypatch):
    from calibrant.cli import main

    rows = "".join(f"{p},{int(right)}\n" for p, right in zip(STATED, RIGHT, strict=True))
    store.pipe("/calibrant-frames/answers.csv.gz", gzip.compress(f"confidence,correct\n{rows}".encode()))
    monkeypatch.setattr(
        "sys.argv", ["calibrant", "evaluate", "memory://calibrant-frames/answers.csv.gz", "--json"]
    )
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    assert json.loads(capsys.readouterr().out)["n"] == 6
