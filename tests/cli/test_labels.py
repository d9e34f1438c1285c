"""Files with several labels at once in the commands."""

import json

import numpy as np
import pandas as pd
import pytest

from calibrant import LabelPredictions, evaluate, load_predictions, save_predictions


@pytest.fixture
def files(tmp_path):
    for name, seed in (("val", 1), ("test", 2)):
        rng = np.random.default_rng(seed)
        s = np.array([0.0, -2.0]) + 2 * rng.normal(size=(300, 2))
        y = rng.random((300, 2)) < 1 / (1 + np.exp(-(0.5 * s + [0.8, -0.8])))
        save_predictions(
            LabelPredictions(probs=1 / (1 + np.exp(-s)), labels=y, label_names=["news", "arts"]),
            tmp_path / f"{name}.csv",
        )
    return tmp_path


@pytest.mark.parametrize("columns", [80, 100])
def test_evaluate_shows_each_label_and_their_mean(run, files, columns):
    code, out, _ = run("evaluate", files / "val.csv", columns=columns)
    assert code == 0
    assert out.startswith("val.csv: 300 rows, 2 labels\nProbabilities are too ")
    assert "entries that have their label" in out
    assert "2 of 2 labels are miscalibrated" in out
    assert "over all entries" in out
    assert "mean over labels" in out
    assert max(map(len, out.splitlines())) <= columns
    answer = json.loads(run("evaluate", files / "val.csv", "--json")[1])
    assert (answer["n"], answer["labels"], set(answer["groups"])) == (600, 2, {"news", "arts"})


@pytest.mark.slow
def test_calibrate_and_apply_and_report_take_such_files(run, files):
    folder = files / "out"
    options = ("--methods", "platt,temperature", "--out", folder)
    code, out, _ = run("calibrate", files / "val.csv", "--test", files / "test.csv", *options)
    assert code == 0
    assert "mean ECE of a label" in out
    saved = load_predictions(folder / "repaired.csv")
    table = pd.read_csv(files / "test.csv")
    table[["probs_news", "probs_arts"]].to_csv(files / "unlabelled.csv", index=False)
    calibrator = folder / "calibrator.safetensors"
    for name in ("test", "unlabelled"):
        code, out, _ = run("apply", calibrator, files / f"{name}.csv", "--out", files / f"{name}.parquet")
        assert (code, "300 predictions calibrated by LabelCalibrator" in out) == (0, True)
    applied = load_predictions(files / "test.parquet")
    assert isinstance(applied, LabelPredictions)
    assert isinstance(saved, LabelPredictions)
    np.testing.assert_allclose(applied.matrix, saved.matrix)
    given = load_predictions(files / "test.csv")
    assert evaluate(applied).metrics["nll"] < 0.9 * evaluate(given).metrics["nll"]
    run("report", files / "test.csv", "--out", files / "page.html")
    assert "300 rows, 2 labels" in (files / "page.html").read_text()
    code, out, _ = run("monitor", files / "val.csv", files / "test.csv", "--json")
    found = json.loads(out)
    assert (code, found["n"], found["n_units"]) == (0, 600, 300)  # a sample is a unit


@pytest.mark.parametrize("command", ["decide", "sets"])
def test_what_decides_about_one_label_names_the_columns_that_it_takes(run, files, command):
    options = ("--risk", "0.3") if command == "decide" else ("--alpha", "0.2")
    code, _, complaint = run(command, files / "val.csv", *options)
    advice = complaint.split("by its columns: ")[1].strip()
    assert (code, advice) == (2, "--column probs=probs_news, --column labels=labels_news")
    assert run(command, files / "val.csv", *options, *advice.replace(",", "").split())[0] == 0
