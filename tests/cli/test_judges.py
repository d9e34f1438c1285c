"""``calibrant estimate`` with a judge's scores."""

import json

import numpy as np
import pytest

from calibrant.decisions import estimate_outcomes

OPTIONS = ("--score", "judge", "--outcome", "human", "--policy", "model", "--unit", "prompt")


@pytest.fixture
def rows(tmp_path, monkeypatch):
    """Grades of two models for the same prompts, with some marks of both; returns what the file says."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    prompt, model = (each.ravel() for each in np.indices((200, 2)))
    quality = rng.normal(size=200)[prompt] + 0.5 * model
    grade = np.round(5 + 2 * quality).clip(1, 10)
    good = rng.random(400) < 1 / (1 + np.exp(-quality))
    cells = zip(model, prompt, grade, good, strict=True)
    lines = [f"m{m},q{q},{g:g},{('no', 'yes')[int(y)] if q < 60 else ''}" for m, q, g, y in cells]
    (tmp_path / "judged.csv").write_text("\n".join(["model,prompt,judge,human", *lines]))
    return grade, np.where(prompt < 60, good, np.nan), [f"m{each}" for each in model], prompt


def test_json_is_that_of_the_function(run, rows):
    grade, good, model, prompt = rows
    code, out, err = run("estimate", "judged.csv", *OPTIONS, "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found == json.loads(estimate_outcomes(grade, good, policies=model, units=prompt).to_json())
    assert [each["n_labelled"] for each in found["policies"]] == [60, 60]
    assert found["differences"][0].keys() == {"first", "second", "value", "low", "high", "more_labels"}


@pytest.mark.usefixtures("rows")
def test_a_warning_is_printed_and_the_code_is_3_with_too_few_labels_of_a_policy(run, tmp_path):
    path = tmp_path / "judged.csv"
    path.write_text(path.read_text().replace("m1,q9", "m2,q9"))
    code, out, _ = run("estimate", "judged.csv", *OPTIONS)
    assert code == 3
    assert "judged.csv: 400 scored rows of 200 units, 120 with an outcome" in out
    assert "m0 - m2" in out
    assert "Warning: m2 has only 1 label, so its mean relies on a score meaning the same" in out


@pytest.mark.usefixtures("rows")
def test_prompts_that_repeat_are_named_if_there_are_no_units(run, tmp_path):
    path = tmp_path / "judged.csv"
    path.write_text(path.read_text().replace("model,prompt", "model,prompt_id", 1))
    _, _, err = run("estimate", "judged.csv", *OPTIONS[:6])
    assert "400 rows have 200 different prompt_id" in err
    assert "add --unit prompt_id" in err


@pytest.mark.usefixtures("rows")
@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            "judged.csv",
            "UNLABELLED: expected a file of predictions without labels, got none; name it, or name",
        ),
        ("judged.csv judged.csv --score judge", "UNLABELLED: expected no second file with --score, got one"),
        ("judged.csv --score judg", "judged.csv: expected a column 'judg'"),
        ("judged.csv --score judge", "judged.csv: expected a column 'outcome'"),
        (
            "judged.csv --score model --outcome human",
            "judged.csv: model: expected a number, got 'm0' in row 0",
        ),
        (
            "judged.csv --score human --outcome judge",
            "judged.csv: human: expected a score in every row, got none",
        ),
        ("judged.csv --score judge --outcome judge", "outcome: expected numbers between 0 and 1, got "),
        ("none.csv --score judge", "none.csv: no such file"),
        (
            "judged.csv --score judge --calibrator c.safetensors",
            "--calibrator: expected either this or --score",
        ),
    ],
)
def test_what_is_wrong_is_refused_in_one_sentence(run, words, sentence):
    code, out, err = run("estimate", *words.split())
    assert (code, out) == (2, "")
    assert err.startswith(f"calibrant: {sentence}"), err
    assert err.count("\n") == 1
