"""``calibrant apply`` with other class frequencies, and ``calibrant estimate``."""

import json

import numpy as np
import pytest
import torch

from calibrant import Predictions, load_predictions, save_predictions
from calibrant.evaluation import calibrated, fit_method
from calibrant.posthoc import (
    ConfidenceCalibrator,
    FrequencyCorrection,
    TemperatureScaling,
    load_calibrator,
)
from calibrant.posthoc.names import method_named

NAMES = ["ant", "bee", "cow"]
NEW = {"ant": 0.7, "bee": 0.2, "cow": 0.1}


def world(frequencies, n, seed, *, class_names=NAMES):
    rng = np.random.default_rng(seed)
    labels = rng.choice(3, size=n, p=frequencies)
    logits = 2 * np.eye(3)[labels] + rng.normal(size=(n, 3))
    return Predictions(logits=logits, labels=labels, class_names=class_names)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Two worlds of the same classes, calibrators of the first, and a file of frequencies."""
    monkeypatch.chdir(tmp_path)
    before = world([0.3, 0.3, 0.4], 800, 0)
    save_predictions(before, "val.npz")
    save_predictions(world(list(NEW.values()), 600, 1), "new.npz")
    save_predictions(world([0.3, 0.3, 0.4], 600, 2), "same.npz")
    for name in ("temperature", "vector"):
        fit_method(method_named(name), before).save(f"{name}.safetensors")
    older = TemperatureScaling(0.6)
    older.class_names = tuple(NAMES)
    older.save("older.safetensors")
    (tmp_path / "new.csv").write_text("class,frequency\ncow,0.1\nant,0.7\nbee,0.2\n")
    return tmp_path


def written(name="out.npz"):
    return load_predictions(name).to_probs()


@pytest.mark.usefixtures("folder")
def test_known_frequencies_correct_the_probabilities(run):
    for given, frequencies in (("new.csv", NEW), ("balanced", "balanced")):
        code, out, err = run("apply", "vector.safetensors", "new.npz", "--prior", given, "--out", "out.npz")
        assert (code, err) == (0, "")
        assert out.startswith("out.npz: 600 predictions calibrated by FrequencyCorrection")
        expected = FrequencyCorrection.of(load_calibrator("vector.safetensors"), frequencies)
        torch.testing.assert_close(written(), calibrated(expected, load_predictions("new.npz")).to_probs())


def test_a_stream_of_files_is_corrected_alike(run, folder):
    rows = load_predictions("new.npz")
    (folder / "many").mkdir()
    for part in range(2):
        save_predictions(rows.take(np.arange(600) % 2 == part), f"many/{part}.parquet")
    code, _, err = run("apply", "vector.safetensors", "many", "--prior", "new.csv", "--out", "parts")
    assert code == 0, err
    run("apply", "vector.safetensors", "new.npz", "--prior", "new.csv", "--out", "out.npz")
    torch.testing.assert_close(
        load_predictions("parts/0.parquet").to_probs(), written()[::2], rtol=1e-5, atol=1e-6
    )


def test_an_older_calibrator_names_the_option_to_give_instead(run, folder):
    words = ("apply", "older.safetensors", "new.npz", "--prior", "new.csv", "--out", "out.npz")
    code, _, err = run(*words)
    assert code == 2
    assert err.startswith("calibrant: --old-prior: expected the class frequencies of the set that")
    assert "give them, or that set as --labelled" in err
    assert run(*words, "--labelled", "val.npz")[0] == 0
    by_file = written()
    shares = np.bincount(load_predictions("val.npz").labels, minlength=3) / 800
    (folder / "old.csv").write_text("".join(f"{n},{s}\n" for n, s in zip(NAMES, shares, strict=True)))
    assert run(*words, "--old-prior", "old.csv")[0] == 0
    torch.testing.assert_close(written(), by_file)


@pytest.mark.usefixtures("folder")
def test_resampling_is_undone_where_the_calibrator_treats_classes_alike(run):
    words = (
        "apply",
        "temperature.safetensors",
        "new.npz",
        "--undo-resampling",
        "balanced",
        "--out",
        "out.npz",
    )
    assert run(*words)[0] == 0
    fitted = load_calibrator("temperature.safetensors")
    rows = load_predictions("new.npz")
    expected = FrequencyCorrection.of(fitted, fitted.class_frequencies, old="balanced")
    torch.testing.assert_close(written(), calibrated(expected, rows).to_probs())
    assert run(*words, "--prior", "new.csv")[0] == 0
    expected = FrequencyCorrection.of(fitted, NEW, old="balanced")
    torch.testing.assert_close(written(), calibrated(expected, rows).to_probs())
    code, _, err = run(*(word.replace("temperature", "vector") for word in words))
    assert code == 2
    assert "got VectorScaling, which has learned the class frequencies of its fitting set" in err


@pytest.mark.usefixtures("folder")
def test_new_frequencies_are_estimated_shown_and_applied(run):
    words = ("--adapt", "frequencies", "--labelled", "val.npz", "--out", "out.npz")
    code, out, err = run("apply", "temperature.safetensors", "new.npz", *words)
    assert (code, err) == (0, "")
    assert out.startswith("Class frequencies of ")
    assert "The class frequencies have changed" in out
    assert "Warning" not in out
    for name, frequency in NEW.items():
        row = next(line for line in out.splitlines() if line.startswith(name)).split()
        assert float(row[2]) == pytest.approx(100 * frequency, abs=5)
        assert float(row[3]) < 100 * frequency < float(row[5])
    rows = load_predictions("new.npz")
    plain = calibrated(load_calibrator("temperature.safetensors"), rows).to_probs()
    losses = [-float(p[torch.arange(600), rows.labels].log().mean()) for p in (written(), plain)]
    assert losses[0] < losses[1] - 0.03
    code, out, _ = run("apply", "vector.safetensors", "same.npz", *words)
    assert code == 0
    assert "There is no evidence that class frequencies have changed" in out


@pytest.mark.usefixtures("folder")
def test_rows_that_look_different_are_warned_of(run):
    rows = load_predictions("same.npz")
    save_predictions(Predictions(logits=0.3 * rows.logits, class_names=NAMES), "blurred.npz")
    code, out, _ = run(
        "apply", "vector.safetensors", "blurred.npz", "--adapt", "frequencies", "--labelled", "val.npz",
        "--out", "out.npz",
    )  # fmt: skip
    assert code == 0
    assert "Warning: other frequencies do not explain the new confidences" in out


def test_many_classes_show_those_that_changed_most(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    for name, shares in (("val", np.full(30, 1 / 30)), ("new", np.append(np.full(29, 0.01), 0.71))):
        labels = rng.choice(30, size=900, p=shares)
        save_predictions(
            Predictions(logits=4 * np.eye(30)[labels] + rng.normal(size=(900, 30)), labels=labels),
            f"{name}.npz",
        )
    fit_method(method_named("temperature"), load_predictions("val.npz")).save("c.safetensors")
    words = ("--adapt", "frequencies", "--labelled", "val.npz", "--out", "out.npz")
    code, out, _ = run("apply", "c.safetensors", "new.npz", *words)
    assert code == 0
    assert "... and 10 more" in out
    assert "\n29 " in out


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("--prior sum.csv", "--prior: expected frequencies that sum to one, got the sum 0.9; divide each"),
        ("--prior missing.csv", "--prior: expected a frequency of every class, got none of cow"),
        (
            "--prior unknown.csv",
            "--prior: expected the classes ant, bee, cow, got 'cwo'; did you mean 'cow'?",
        ),
        ("--prior none.csv", "none.csv: no such file in .; check the path, or say 'balanced'"),
        ("--old-prior balanced", "--old-prior: expected beside --prior, --undo-resampling or --adapt, got"),
        ("--labelled val.npz", "--labelled: expected beside --prior, --undo-resampling or --adapt, got none"),
        ("--adapt frequencies", "--labelled: expected labelled predictions of the same model beside --adapt"),
        ("--adapt new.npz", "--adapt: expected 'shift' or 'frequencies', got 'new.npz'"),
        ("--adapt shift --prior balanced", "--adapt: expected alone with --labelled, got --prior too"),
        ("--adapt frequencies --labelled bare.npz", "bare.npz: expected labels, got logits"),
        ("--adapt shift --labelled bare.npz", "bare.npz: expected labels, got logits"),
        ("--prior balanced --labelled val.npz --old-prior balanced", "--old-prior: expected either this or"),
        ("--prior balanced --labelled four.npz", "--labelled: expected the classes of the calibrator, got 4"),
        (
            "--prior balanced --labelled pairs.csv",
            "--labelled: expected the classes of the calibrator, with labels, got conf",
        ),
        (
            "--adapt frequencies --labelled confused.npz",
            "--labelled: expected classes that the model can tell apart",
        ),
        ("--adapt frequencies --labelled out.npz", "--out: expected a place apart from out.npz"),
    ],
)
def test_wrong_options_are_refused_in_one_sentence(run, folder, words, sentence):
    for name, text in {
        "sum": "ant,0.5\nbee,0.2\ncow,0.2",
        "missing": "ant,0.5\nbee,0.5",
        "unknown": "ant,0.5\nbee,0.4\ncwo,0.1",
        "pairs": "confidence,correct\n0.5,1\n0.6,0",
    }.items():
        (folder / f"{name}.csv").write_text(text)
    rows = load_predictions("new.npz")
    save_predictions(Predictions(logits=rows.logits, class_names=NAMES), "bare.npz")
    save_predictions(
        Predictions(logits=np.random.default_rng(0).normal(size=(9, 4)), labels=[0] * 9), "four.npz"
    )
    labels = np.random.default_rng(0).integers(3, size=600)
    save_predictions(Predictions(logits=rows.logits, labels=labels, class_names=NAMES), "confused.npz")
    code, out, err = run("apply", "vector.safetensors", "new.npz", *words.split(), "--out", "out.npz")
    assert (code, out) == (2, "")
    assert err.startswith(f"calibrant: {sentence}"), err
    assert err.count("\n") == 1


@pytest.mark.usefixtures("folder")
def test_a_calibrator_without_classes_is_refused(run):
    ConfidenceCalibrator.fit_pairs([0.9, 0.8] * 20, [True, False] * 20, method="platt").save("p.safetensors")
    code, _, err = run("apply", "p.safetensors", "new.npz", "--prior", "balanced", "--out", "out.npz")
    assert code == 2
    assert "--prior: expected a calibrator of classes to correct, got a ConfidenceCalibrator" in err


@pytest.mark.usefixtures("folder")
def test_estimate_prints_what_to_expect_and_exits_with_3_after_a_change(run):
    words = ("estimate", "val.npz", "same.npz", "--methods", "temperature")
    code, out, err = run(*words, columns=80)
    assert code == 0, err
    assert max(map(len, out.splitlines())) <= 80
    assert "accuracy" in out
    assert "nothing speaks against the estimate" in " ".join(out.split())
    rows = load_predictions("same.npz")
    found = json.loads(run(*words, "--json")[1])
    truth = float(rows.outcomes().correct.double().mean())
    assert found["accuracy"]["low"] < truth < found["accuracy"]["high"]
    assert found["trusted"] is True
    assert found["method"] == "temperature"
    assert len(found["risk"]["coverage"]) == 100
    code, out, _ = run("estimate", "val.npz", "new.npz", "--calibrator", "vector.safetensors")
    assert code == 3
    assert "predicted classes have changed" in out
    assert "more ant" in out
    assert (
        json.loads(run("estimate", "val.npz", "new.npz", "--methods", "fast", "--json")[1])["trusted"]
        is False
    )


def test_estimate_reads_answers_of_a_black_box(run, folder):
    rng = np.random.default_rng(0)
    for name, sure in (("known", 0.0), ("new", 0.0), ("surer", 1.5)):
        s = rng.normal(size=500) + 1
        right = rng.random(500) < 1 / (1 + np.exp(-s))
        stated = np.round(100 / (1 + np.exp(-s - sure)))
        lines = [
            json.dumps({"stated": c} | ({"is_right": bool(r)} if name == "known" else {}))
            for c, r in zip(stated.tolist(), right.tolist(), strict=True)
        ]
        (folder / f"{name}.jsonl").write_text("\n".join(lines))
    options = ("--confidence", "stated", "--correct", "is_right", "--read", "percent", "--methods", "platt")
    code, out, err = run("estimate", "known.jsonl", "new.jsonl", *options)
    assert code == 0, err
    assert "500 predictions without labels" in out
    code, out, _ = run("estimate", "known.jsonl", "surer.jsonl", *options)
    assert code == 3
    assert "confidences have changed" in out
    assert "predicted classes" not in out


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("val.npz none.npz", "none.npz: no such file"),
        ("bare.npz new.npz", "bare.npz: expected labels, got logits"),
        ("val.npz others.npz", "unlabelled: expected the classes ant, bee, cow, got a, b, c"),
        ("val.npz few.npz", "unlabelled: expected at least 20 samples, got 5"),
        ("val.npz new.npz --calibrator none.safetensors", "none.safetensors: expected a saved calibrator"),
    ],
)
def test_estimate_refuses_what_is_wrong_in_one_sentence(run, words, sentence):
    rows = load_predictions("new.npz")
    save_predictions(Predictions(logits=rows.logits, class_names=NAMES), "bare.npz")
    save_predictions(rows.take(np.arange(5)), "few.npz")
    save_predictions(world([0.3, 0.3, 0.4], 100, 3, class_names=["a", "b", "c"]), "others.npz")
    code, out, err = run("estimate", *words.split(), "--methods", "temperature")
    assert (code, out) == (2, "")
    assert err.startswith(f"calibrant: {sentence}"), err
    assert err.count("\n") == 1
