"""The command ``cascade``: it finds, saves and applies a cascade, and refuses bad input in one sentence."""

import csv
import json

import numpy as np
import pytest

from calibrant.data.columns import Columns
from calibrant.data.files import load_answers
from calibrant.decisions import cascade_for_risk


@pytest.fixture
def here(tmp_path, monkeypatch):
    """Answers of two models in two files, the second without some questions, and in one file."""
    rng = np.random.default_rng(0)
    ease, lines = rng.normal(size=400), {}
    for name, skill in (("cheap", 0.5), ("dear", 4.0)):
        right = 1 / (1 + np.exp(-2 * ease - skill))
        lines[name] = [
            f"q{row},{sure:.3f},{int(rng.random() < sure)}" for row, sure in enumerate(right.tolist())
        ]
    lines["dear"] = lines["dear"][:390]
    for name, rows in lines.items():
        (tmp_path / f"{name}.csv").write_text("\n".join(["question,confidence,correct", *rows, ""]))
    both = [f"{name},{row}" for name, rows in lines.items() for row in rows]
    (tmp_path / "all.csv").write_text("\n".join(["model,question,confidence,correct", *both, ""]))
    monkeypatch.chdir(tmp_path)
    return tmp_path


FOUND = ("cascade", "cheap.csv", "dear.csv", "--id", "question", "--cost", "1,20", "--risk", "0.15")


def rows_of(path):
    with path.open() as file:
        return list(csv.DictReader(file))


def test_a_cascade_is_found_drawn_saved_and_applied(run, here):
    code, out, err = run(*FOUND, "--out", "rule.safetensors", "--plot", "frontier.svg")
    assert (code, err) == (0, "")
    text = " ".join(out.split())
    assert "at most 15 % of all answers wrong with 95 % probability" in text
    assert "Left out, because another model does not have them: 10 of cheap." in text
    assert (here / "frontier.svg").stat().st_size > 1000
    line = ("cascade", "cheap.csv", "dear.csv", "--id", "question", "--apply", "rule.safetensors")
    assert run(*line, "--out", "decided.csv")[0] == 0
    rows = rows_of(here / "decided.csv")
    asked = {row["question"] for row in rows if row["model"] == "dear"}
    missing = {f"q{row}" for row in range(390, 400)} & asked
    assert len(rows) == 400
    assert {row["question"] for row in rows if row["answer"] == "false"} == missing
    # The first model alone already names what to pass on.
    assert run("apply", "rule.safetensors", "cheap.csv", "--out", "first.csv")[0] == 0
    assert {row["question"] for row in rows_of(here / "first.csv") if row["answer"] == "false"} == asked


@pytest.mark.usefixtures("here")
def test_json_is_that_of_the_result_from_two_files_or_one(run):
    code, out, _ = run(*FOUND, "--json")
    one = run(
        "cascade",
        "all.csv",
        "--models",
        "model",
        *FOUND[3:5],
        "--cost",
        "cheap=1,dear=20",
        *FOUND[7:],
        "--json",
    )
    assert code == one[0] == 0
    assert json.loads(out) == json.loads(one[1])
    models = {
        name: load_answers(f"{name}.csv", need_labels=True, columns=Columns(ids=["question"])).predictions
        for name in ("cheap", "dear")
    }
    assert json.loads(out) == json.loads(cascade_for_risk(models, [1, 20], 0.15).to_json())


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("TWO --id question --cost 1,20,3 --risk 0.1", "--cost: expected one number for each of 2"),
        ("TWO --id question --cost 1,x --risk 0.1", "--cost: expected numbers separated by commas"),
        ("TWO --id question --cost 1,20", "--risk: expected a share of wrong answers, got none"),
        ("TWO --id question --risk 0.1", "--cost: expected the cost of each model, got none"),
        ("TWO --cost 1,20 --risk 0.1", "400 and 390; name questions with --id COLUMN"),
        ("TWO --id correct --cost 1,20 --risk 0.1", "--id: expected a different one in each row"),
        ("TWO --id name --cost 1,20 --risk 0.1", "cheap.csv: expected a column 'name'"),
        ("TWO --confidence p --cost 1,20 --risk 0.1", "cheap.csv: expected a column 'p'"),
        ("ALL --id question --cost 1,20 --risk 0.1", "--cost: expected the names of the models"),
        ("ALL --id question --cost chep=1,dear=20 --risk 0.1", "did you mean 'cheap'?"),
        ("ALL --cost cheap=1,dear=20 --risk 0.1", "--models: expected together with --id"),
        ("cheap.csv --cost 1 --risk 0.1", "expected at least two, or one and a person, got 1"),
        ("cheap.csv cheap.csv --cost 1,2 --risk 0.1", "FILE: expected a different file for each model"),
        ("cheap.csv --apply rule.safetensors --risk 0.1 --out x.csv", "--risk: expected none with --apply"),
        ("cheap.csv --apply rule.safetensors", "--out: expected a file for the decisions"),
    ],
)  # fmt: skip
def test_bad_input_is_one_sentence(run, words, sentence):
    files = words.replace("TWO", "cheap.csv dear.csv").replace("ALL", "all.csv --models model")
    code, out, err = run("cascade", *files.split())
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert sentence in err


@pytest.mark.usefixtures("here")
def test_a_risk_that_cannot_be_reached_is_told_and_nothing_is_saved(run, here):
    code, out, err = run(*FOUND[:-1], "0.01", "--out", "rule.safetensors")
    assert code == 2
    assert "No cascade of cheap and dear gives at most 1 % of all answers wrong" in out
    assert err.startswith("calibrant: --out: expected thresholds that keep the guarantee")
    assert not (here / "rule.safetensors").exists()
