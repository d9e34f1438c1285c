"""``--unit``, ``--id`` and ``--models`` on the command line, and the line about rows that repeat."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

NOTICE = "answers.csv: 540 rows have 60 different question_id"


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    """Three models, 60 questions, three tries each; a model that knows an answer knows it in all tries."""
    rng = np.random.default_rng(0)
    path = tmp_path_factory.mktemp("units") / "answers.csv"
    rows = ["model,question_id,subject,confidence,correct"]
    for model in ("alpha", "beta", "gamma"):
        for question, ease in enumerate(1 + rng.normal(size=60)):
            right = rng.random() < 1 / (1 + np.exp(-ease))
            for _ in range(3):
                stated = 1 / (1 + np.exp(-1 - ease - 0.3 * rng.normal()))
                rows.append(f"{model},q{question},s{question % 4},{stated:.4f},{int(right)}")
    path.write_text("\n".join(rows))
    return path


@pytest.fixture(scope="module")
def classes(tmp_path_factory):
    """Scores of three classes, four rows of each of 100 units."""
    rng = np.random.default_rng(1)
    labels = rng.integers(3, size=100).repeat(4)
    logits = rng.normal(size=(400, 3)) + 2 * np.eye(3)[labels]
    path = tmp_path_factory.mktemp("units") / "scores.npz"
    np.savez(path, logits=logits, labels=labels, patient=np.arange(100).repeat(4))
    return path


@pytest.fixture
def call(run):
    """Run a command that must end with one of some codes."""

    def ended(*line, code=(0,)):
        found, out, err = run(*line)
        assert found in code, out + err
        return SimpleNamespace(stdout=out, stderr=err)

    return ended


@pytest.fixture
def result(call):
    """Return the JSON of a command."""
    return lambda *line, code=(0,): json.loads(call(*line, "--json", code=code).stdout)


def width(answer):
    low, high = answer["intervals"]["accuracy"]
    return high - low


def test_intervals_are_longer_by_unit_and_the_heading_states_both(log, call, result):
    rows, units = (result("evaluate", log, "--intervals", *more) for more in ((), ("--unit", "question_id")))
    assert units["n_units"] == 60
    assert width(units) > 1.3 * width(rows)
    assert "540 predictions of 60 units" in call("evaluate", log, "--unit", "question_id").stdout
    both = result("evaluate", log, "--intervals", "--unit", "model,question_id")
    assert both["n_units"] == 180


def test_a_column_that_repeats_is_named_in_one_line_unless_it_is_the_unit(log, call):
    said = call("evaluate", log).stderr
    assert said.startswith(NOTICE)
    assert said.rstrip().endswith("add --unit question_id")
    assert said.count("\n") == 1
    assert call("evaluate", log, "--unit", "question_id").stderr == ""
    assert NOTICE not in call("evaluate", log).stdout


def test_all_models_of_a_file_are_compared_pairwise(log, call, result):
    line = ("evaluate", log, "--models", "model", "--id", "question_id", "--measures", "accuracy,brier")
    refused = call(*line, code=(2,))
    assert "ids: expected a different one in each row" in refused.stderr
    assert "with --unit COLUMN" in refused.stderr
    answer = result(*line, "--unit", "question_id")
    assert [pair["models"] for pair in answer["pairs"]] == [
        ["alpha", "beta"],
        ["alpha", "gamma"],
        ["beta", "gamma"],
    ]
    for pair in answer["pairs"]:
        assert (pair["n"], pair["n_units"]) == (180, 60)
        found = pair["differences"]["accuracy"]
        assert found["p_corrected"] >= found["p_value"]
    shown = call(*line, "--unit", "question_id").stdout
    assert "alpha - beta: on the same 180 rows of 60 units" in shown
    assert "--models: expected together with --id" in call(*line[:4], code=(2,)).stderr
    assert "--compare: expected without --models" in call(*line, "--compare", log, code=(2,)).stderr


def test_shuffled_rows_are_matched_by_id(log, tmp_path, call, result):
    header, *rows = log.read_text().split("\n")
    first = [row for row in rows if row.startswith("alpha")][::3]
    other = [row for row in rows if row.startswith("beta")][::3]
    files = {"a": first, "b": other, "shuffled": other[::-1], "gaps": other[:50]}
    for name, lines in files.items():
        (tmp_path / f"{name}.csv").write_text("\n".join([header, *lines]))
    line = ("evaluate", tmp_path / "a.csv", "--measures", "accuracy", "--id", "question_id", "--compare")
    expected, shuffled, gaps = (
        result(*line, tmp_path / f"{name}.csv")["comparison"] for name in ("b", "shuffled", "gaps")
    )
    assert shuffled == expected
    assert gaps != expected
    assert "left out, because only one model has them: 10 of this, 0 of the other" in (
        call(*line, tmp_path / "gaps.csv").stdout.replace("\n", " ")
    )
    gate = ("gate", tmp_path / "a.csv", "--id", "question_id", "--no-worse-than")
    expected, shuffled = (
        result(*gate, tmp_path / f"{name}.csv", code=(0, 3, 4)) for name in ("b", "shuffled")
    )
    assert shuffled == expected


def test_every_command_that_judges_chance_or_makes_folds_takes_units(log, classes, tmp_path, call, result):
    unit = ("--unit", "question_id")
    gate = result("gate", log, *unit, "--require", "accuracy > 0.5", code=(0, 3, 4))
    assert gate["n_units"] == 60
    fitted = result("calibrate", log, *unit, "--methods", "platt")
    assert fitted["n_units"] == 60
    decided = result("decide", log, *unit, "--coverage", "0.5")
    assert decided["n_units"] == 60
    assert "new units like these 60" in decided["sentence"]
    sets = call("sets", classes, "--unit", "patient", "--alpha", "0.2").stdout
    assert "units" in sets
    rows, units = (
        result("estimate", classes, classes, *more, "--methods", "temperature", code=(0, 3))
        for more in ((), ("--unit", "patient"))
    )
    assert rows != units
    call("plot", "reliability", log, *unit, "--out", tmp_path / "figure.svg")
    call("report", log, *unit, "--out", tmp_path / "report.html")
    assert "540 predictions of 60 units" in (tmp_path / "report.html").read_text(encoding="utf-8")
    assert (
        "expected a column 'question'"
        in call("gate", log, "--require", "accuracy > 0.5", "--unit", "question", code=(2,)).stderr
    )
