"""The command ``gate``: exit codes, what is printed, JUnit XML, and refusals in a line."""

import json
from xml.etree import ElementTree

import numpy as np
import pytest

from tests.conftest import draw


@pytest.fixture(scope="session")
def files(tmp_path_factory):
    """Predictions of a calibrated model, of an overconfident one for the same samples, and answers."""
    folder = tmp_path_factory.mktemp("gate")
    for name, sharpen in (("good", 1.0), ("bad", 3.0)):
        logits, labels = draw(1500, 4, seed=8, sharpen=sharpen)
        np.savez(folder / f"{name}.npz", logits=logits, labels=labels)
    logits, labels = draw(700, 4, seed=9)
    np.savez(folder / "other.npz", logits=logits, labels=labels)
    confidence = np.random.default_rng(0).uniform(0.5, 1, 300)
    np.savez(folder / "answers.npz", confidence=confidence, correct=confidence > 0.7)
    return folder


@pytest.mark.parametrize(
    ("file", "bounds", "code", "words"),
    [
        ("good", ["ece < 0.1", "nll <= 5"], 0, "Gate: passed (exit code 0)."),
        ("bad", ["ece < 5 %", "nll <= 5"], 3, "Gate: failed (exit code 3)."),
        ("good", ["ece < 0.02", "nll <= 5"], 4, "Gate: cannot tell (exit code 4)."),
        ("answers", ["classwise_ece < 0.9"], 4, "cannot tell: needs class probabilities"),
    ],
)
def test_the_exit_code_says_whether_the_requirements_hold(run, files, file, bounds, code, words):
    requirements = [part for bound in bounds for part in ("--require", bound)]
    ended, out, err = run("gate", files / f"{file}.npz", *requirements)
    assert (ended, err) == (code, "")
    assert out.startswith("Gate of ")
    assert words in " ".join(out.split())


def test_what_cannot_be_told_names_the_samples_that_are_needed(run, files):
    arguments = ("gate", files / "good.npz", "--require", "ece < 0.02")
    ended, out, _ = run(*arguments, "--json")
    gate = json.loads(out)
    assert ended == gate["exit_code"] == 4
    needed = gate["verdicts"][0]["needed"]
    assert needed > 1500
    out = run(*arguments, columns=80)[1]
    row = next(line for line in out.splitlines() if line.startswith("ece < 0.02"))
    assert f"about {needed:,}" in row
    assert max(map(len, out.splitlines())) <= 80


def test_a_model_is_compared_with_a_baseline_and_both_verdicts_become_tests(run, files, tmp_path):
    against = ("--no-worse-than", files / "good.npz", "--junit", tmp_path / "gate.xml")
    assert run("gate", files / "bad.npz", *against)[0] == 3
    suite = ElementTree.parse(tmp_path / "gate.xml").getroot()
    assert suite.get("failures") == "2"
    assert [case.get("name") for case in suite] == ["nll <= baseline + 0.02", "ece <= baseline + 0.01"]
    assert run("gate", files / "good.npz", *against)[0] == 0
    assert ElementTree.parse(tmp_path / "gate.xml").getroot().get("failures") == "0"
    ended, out, _ = run("gate", files / "bad.npz", *against[:2], "--margin", "nll=9,ece=0.9", "--json")
    assert ended == 0
    assert [each["bound"] for each in json.loads(out)["verdicts"]] == [9, 0.9]


def test_a_baseline_of_other_samples_must_be_said_to_be_one(run, files):
    against = ("gate", files / "good.npz", "--no-worse-than", files / "other.npz")
    code, out, err = run(*against)
    assert (code, out) == (2, "")
    assert "got 1500 and 700 samples" in err
    assert "--unpaired" in err
    assert run(*against, "--unpaired", "--margin", 0.9)[0] == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--require", "ecce < 0.05"], "got 'ecce'; did you mean 'ece'?"),
        (["--require", "ece"], "write 'ece < 0.05'"),
        (["--require", "ece < 5"], "write 0.05 or '5 %'"),
        (["--require", "ece < 1", "--margin", "0.1"], "--margin: expected together with --no-worse-than"),
        (["--require", "ece < 1", "--unpaired"], "--unpaired: expected together with --no-worse-than"),
        (["--junit", "gate.xml"], "--require: expected a bound such as 'ece < 0.05', or a baseline after"),
        (["--no-worse-than", "GOOD", "--margin", "much"], "expected a number or 'nll=0.02,ece=0.01'"),
        (["--no-worse-than", "GOOD", "--margin", "0.1,0.2"], "expected a number or 'nll=0.02,ece=0.01'"),
        (["--no-worse-than", "missing.npz"], "missing.npz"),
    ],
)
def test_a_bad_option_is_refused_in_a_line(run, files, arguments, message):
    arguments = [str(files / "good.npz") if each == "GOOD" else each for each in arguments]
    code, out, err = run("gate", files / "good.npz", *arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert message in err


@pytest.mark.parametrize("columns", [80, 100])
def test_calibration_errors_are_shown_beside_chance(run, files, columns):
    out = run("evaluate", files / "good.npz", "--intervals", columns=columns)[1]
    lines = out.splitlines()
    assert max(map(len, lines)) <= columns
    heading = next(line for line in lines if line.startswith("measure"))
    assert heading.split()[-3:] == ["by", "chance", "p"]
    ece = next(line for line in lines if "ECE, equal width" in line)
    mean, high, unit, p = ece.split()[-4:]
    assert (unit, float(mean.rstrip(",")) < float(high), 0 < float(p) <= 1) == ("%", True, True)
    accuracy = next(line for line in lines if "↑ accuracy" in line)
    assert accuracy.rstrip().endswith("%")
    assert "95th percentile of a perfectly calibrated model" in " ".join(out.split())


def test_json_has_chance_for_every_calibration_error_and_nothing_else(run, files):
    found = json.loads(run("evaluate", files / "answers.npz", "--json")[1])
    assert set(found["by_chance"]) == {"ece", "ece_equal_mass", "mce"}
    shown = found["by_chance"]["ece"]
    assert shown["mean"] < shown["high"] < found["metrics"]["ece"]
    assert shown["p_value"] == pytest.approx(1 / (1 + shown["n_draws"]))


def test_the_summary_has_the_verdicts_of_the_table_and_changes_of_the_same_samples_only(run, files, tmp_path):
    bounds = ("--require", "ece < 0.02", "--no-worse-than", files / "good.npz")
    _, out, _ = run("gate", files / "bad.npz", *bounds, "--summary", tmp_path / "a.md", columns=200)
    text = (tmp_path / "a.md").read_text(encoding="utf-8")
    row = next(line for line in text.splitlines() if line.startswith("| ece &lt; 0.02"))
    assert [cell.strip() for cell in row.split("|")[2:4]] == out.split("ece < 0.02")[1].split()[:2]
    assert "Changes against the baseline" in text
    others = ("--no-worse-than", files / "other.npz", "--unpaired", "--summary", tmp_path / "b.md")
    run("gate", files / "bad.npz", *others)
    assert "Changes" not in (tmp_path / "b.md").read_text(encoding="utf-8")
