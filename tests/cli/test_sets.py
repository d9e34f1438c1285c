"""``calibrant sets``, and the sets of new files by ``calibrant apply``."""

import csv
import json

import numpy as np
import pytest

from calibrant import Predictions, save_predictions
from calibrant.decisions import PredictionSets, load_rule
from calibrant.posthoc import TemperatureScaling
from tests.conftest import draw, softmax

NAMES = ["cat", "dog", "fox", "[red]owl"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Predictions with classes and groups, confidences, and a calibrator."""
    made = tmp_path_factory.mktemp("sets")
    for name, n, seed in (("val", 600, 0), ("test", 1000, 1)):
        logits, labels = draw(n, 4, seed=seed, sharpen=2.0)
        groups = np.where(np.arange(n) % 3, "a", "b")
        both = {"labels": labels, "class_names": NAMES, "groups": groups}
        save_predictions(Predictions(logits=logits, **both), made / f"{name}.npz")
        save_predictions(Predictions(probs=softmax(logits), **both), made / f"{name}.csv")
    TemperatureScaling(2.0).save(made / "c.safetensors")
    pairs = Predictions(confidence=[0.9, 0.6] * 20, correct=[True, False] * 20)
    save_predictions(pairs, made / "pairs.csv")
    return made


def test_a_sentence_comes_first_then_all_methods_then_the_worst_classes(run, folder):
    code, out, err = run("sets", folder / "val.npz", "--test", folder / "test.npz", columns=200)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == (
        "The set of a new sample holds its true class with a probability of at least 90 %, if new samples "
        "are drawn like the 600 of the fit."
    )
    rule = PredictionSets.fit(folder / "val.npz")
    found, law = rule.measure(folder / "test.npz"), rule.law(1000)
    assert lines[1].startswith(
        f"On test.npz {100 * found.coverage:.1f} % of 1,000 sets (lac, raw scores) hold it, with "
        f"{found.mean_size:.2f} classes on average. Of fits on 600 samples, 99 % have a coverage of "
        f"{100 * law.low:.1f} to {100 * law.high:.1f} %."
    )
    table = [line.removeprefix("→").split(maxsplit=2)[:2] for line in lines if " raw  " in line]
    assert table == [["raw", name] for name in ("lac", "aps", "aps,", "raps", "raps,")]
    assert "[red]owl" in out


def test_sizes_before_and_after_calibration_stand_beside_each_other(run, folder):
    arguments = ("sets", folder / "val.npz", "--test", folder / "test.npz", "--method", "aps", "--randomised")
    code, out, _ = run(*arguments, "--calibrator", folder / "c.safetensors", "--json")
    answer = json.loads(out)
    assert code == 0
    assert [each["scores"] for each in answer["results"]] == ["raw"] * 5 + ["c"] * 5
    assert answer["chosen"] == {"scores": "c", "method": "aps", "randomised": True}
    assert answer["law"]["n_test"] == 1000
    sizes = [each["measures"]["mean_size"] for each in answer["results"] if each["randomised"]]
    code, out, _ = run(*arguments, "--calibrator", folder / "c.safetensors", columns=200)
    assert f"After c aps, randomised sets are wider: {sizes[2]:.2f} classes, {sizes[0]:.2f} before." in out
    code, out, _ = run(*arguments, "--calibrate", "temperature,vector", "--json")
    answer = json.loads(out)
    assert {each["scores"] for each in answer["results"]} == {"raw", "temperature", "vector"}
    assert {each["n"] for each in answer["results"] if each["method"] == "lac"} == {300}


def test_saved_sets_are_applied_to_files_of_every_kind(run, folder, tmp_path):
    saved = tmp_path / "sets.safetensors"
    options = ("--alpha", "0.05", "--method", "raps", "--out", saved)
    code, out, _ = run("sets", folder / "val.csv", *options)
    assert code == 0
    assert "sets.safetensors: raps sets of raw scores" in " ".join(out.split())
    assert "Randomised sets have" in out
    rule = load_rule(saved)
    assert (rule.alpha, rule.method, rule.class_names) == (0.05, "raps", tuple(NAMES))
    expected = rule.decide(Predictions(**npz(folder / "test.npz"))).columns
    code, out, _ = run("apply", saved, folder / "test.npz", "--out", tmp_path / "sets.jsonl")
    assert (code, out.endswith("1,000 decisions by the rule of sets.safetensors\n")) == (0, True)
    rows = [json.loads(line) for line in (tmp_path / "sets.jsonl").read_text().splitlines()]
    assert [row["set"] for row in rows] == expected["set"]
    assert [row["set_size"] for row in rows] == expected["set_size"]
    assert run("apply", saved, folder / "test.csv", "--out", tmp_path / "sets.csv")[0] == 0
    with (tmp_path / "sets.csv").open(newline="") as file:
        table = list(csv.DictReader(file))
    assert [json.loads(row["set"]) for row in table] == expected["set"]
    assert "labels" in table[0]


def npz(path):
    with np.load(path) as file:
        return {"logits": file["logits"], "class_names": NAMES}


def test_each_class_or_group_has_its_guarantee(run, folder, tmp_path):
    code, out, _ = run("sets", folder / "val.npz", "--by-class", columns=200)
    assert code == 0
    assert out.startswith("The set of a new sample of each class holds its true class")
    assert "The coverage is that of the samples of the fit, about right by construction" in out
    saved = tmp_path / "sets.safetensors"
    options = ("--test", folder / "test.csv", "--by", "groups", "--out", saved)
    code, out, _ = run("sets", folder / "val.csv", *options, columns=200)
    assert code == 0
    assert out.startswith("The set of a new sample in each group holds its true class")
    assert load_rule(saved).group_names == ("a", "b")
    save_predictions(Predictions(**npz(folder / "test.npz")), tmp_path / "plain.npz")
    code, _, err = run("apply", saved, tmp_path / "plain.npz", "--out", tmp_path / "x.csv")
    assert (code, err.count("\n")) == (2, 1)
    assert "groups: expected the group of each sample" in err
    code, _, err = run("apply", saved, folder / "test.csv", "--by", "groups", "--out", tmp_path / "x.csv")
    assert (code, err) == (0, "")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("val.npz", "--alpha", "1.5"), "alpha: expected a number between 0 and 1"),
        (
            ("val.npz", "--alpha", "0.001"),
            "expected at least 999 samples for alpha 0.001, got 600; take more",
        ),
        (("val.npz", "--alpha", "0.005", "--by-class"), "expected at least 199 samples of each class"),
        (("val.npz", "--method", "lca"), "--method: expected one of lac, aps, raps, ordered, got 'lca'"),
        (("val.npz", "--randomised"), "--randomised: expected none for lac"),
        (("val.csv", "--by", "groups", "--by-class"), "--by-class: expected either this or --by, got both"),
        (("val.npz", "--calibrate", "smart", "--calibrator", "c.safetensors"), "either this or --calibrator"),
        (("val.npz", "--calibrate", "temprature"), "did you mean 'temperature'?"),
        (("pairs.csv",), "got confidences of a black box, which have no classes"),
        (("val.npz", "--out", "val.npz"), "val.npz"),
    ],
)
def test_what_cannot_be_is_one_sentence(run, folder, monkeypatch, arguments, sentence):
    monkeypatch.chdir(folder)
    code, out, err = run("sets", *arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert sentence in err


def test_small_classes_can_be_included(run, folder):
    code, out, _ = run(
        "sets", folder / "val.npz", "--alpha", "0.005", "--by-class", "--include-small", "--json"
    )
    assert code == 0
    assert json.loads(out)["results"][0]["measures"]["mean_size"] == 4.0
