"""``calibrant decide``: thresholds and actions from the command line, saved, applied and exported."""

import csv
import json

import numpy as np
import pytest

from calibrant import Predictions, save_predictions
from calibrant.decisions import load_rule, threshold_for_coverage, threshold_for_risk
from calibrant.posthoc import TemperatureScaling


@pytest.fixture
def val(tmp_path, overconfident):
    path = tmp_path / "val.npz"
    logits, labels = overconfident
    save_predictions(Predictions(logits=logits[:2000], labels=labels[:2000]), path)
    return path


@pytest.fixture
def given(overconfident):
    logits, labels = overconfident
    return Predictions(logits=logits[:2000], labels=labels[:2000])


@pytest.fixture
def costs(tmp_path):
    path = tmp_path / "costs.csv"
    rows = [f"{y},{','.join('0' if a == y else '10' for a in range(5))},2" for y in range(5)]
    path.write_text("\n".join(["true,0,1,2,3,4,ask a person", *rows, ""]))
    return path


def test_the_answer_comes_first_and_a_table_of_risks_follows(run, val, given):
    code, out, err = run("decide", val, "--risk", 0.1, "--level", 0.9, columns=300)
    found = threshold_for_risk(given, 0.1, level=0.9)
    assert (code, err) == (0, "")
    assert out.startswith(f"{found.sentence}.\nAt least ")
    assert [line.split(" %")[0] for line in out.splitlines()[4:9]] == ["0.5", "1", "2", "5", "10"]


def test_json_has_the_threshold_and_the_table(run, val, given):
    answer = json.loads(run("decide", val, "--risk", 0.08, "--json")[1])
    found = threshold_for_risk(given, 0.08)
    assert (answer["threshold"], answer["answered"], answer["level"]) == (
        found.threshold,
        found.answered,
        0.95,
    )
    assert [row["risk"] for row in answer["risks"]] == [0.005, 0.01, 0.02, 0.05, 0.08, 0.1]


def test_a_coverage_has_the_bound_of_its_risk(run, val, given):
    answer = json.loads(run("decide", val, "--coverage", 0.9, "--level", 0.9, "--json")[1])
    found = threshold_for_coverage(given, 0.9, level=0.9)
    assert (answer["risk"], answer["coverage"]) == (found.risk, 0.9)
    assert "90 % of new cases, at most" in run("decide", val, "--coverage", 0.9, columns=300)[1]


def test_the_column_of_a_black_box_is_named_beside_the_level(run, tmp_path):
    path = tmp_path / "answers.csv"
    rng = np.random.default_rng(0)
    stated = rng.choice([0.6, 0.9, 1.0], 400)
    right = rng.random(400) < stated
    rows = [f"{c},{int(y)}" for c, y in zip(stated, right, strict=True)]
    path.write_text("\n".join(["stated,0.9", *rows]).replace("stated,0.9", "stated,ok") + "\n")
    given = Predictions(confidence=stated, correct=right)
    wanted = threshold_for_risk(given, 0.2, level=0.8).to_dict()
    options = ("decide", path, "--risk", 0.2, "--correct", "ok", "--json")
    answer = json.loads(run(*options, "--confidence", "stated", "--level", "0.8")[1])
    assert {name: answer[name] for name in wanted} == wanted


def test_confidence_names_a_column_also_if_the_name_is_a_number(run, tmp_path):
    path = tmp_path / "answers.csv"
    path.write_text("0.9,correct\n" + "0.7,1\n" * 100)
    code, out, _ = run("decide", path, "--risk", 0.2, "--confidence", "0.9", "--level", "0.8", "--json")
    assert (code, json.loads(out)["coverage"]) == (0, 1.0)
    assert run("decide", path, "--risk", 0.2, "--confidence", "0.8")[0] == 2


def test_a_saved_rule_is_applied_and_says_whether_to_answer(run, tmp_path, val, given):
    rule, out = tmp_path / "rule.safetensors", tmp_path / "decided.csv"
    code, text, _ = run("decide", val, "--risk", 0.1, "--out", rule)
    assert (code, "ThresholdRule saved" in text) == (0, True)
    assert run("apply", rule, val, "--out", out)[0] == 0
    with out.open() as file:
        rows = list(csv.DictReader(file))
    assert [row["answer"] == "true" for row in rows] == load_rule(rule).decide(given).columns["answer"]
    assert sum(row["answer"] == "true" for row in rows) == threshold_for_risk(given, 0.1).answered


def test_a_calibrator_is_part_of_the_rule_and_must_not_have_seen_the_samples(run, tmp_path, val, given):
    calibrator, rule = tmp_path / "hot.safetensors", tmp_path / "rule.safetensors"
    TemperatureScaling(2.0).save(calibrator)
    code, out, _ = run("decide", val, "--risk", 0.1, "--calibrator", calibrator, "--out", rule)
    assert code == 0
    assert "hot.safetensors must have been fitted on other samples than val.npz" in out
    loaded = load_rule(rule)
    assert float(loaded.calibrator.temperature) == 2
    found = threshold_for_risk(given, 0.1, calibrator=TemperatureScaling(2.0))
    assert sum(loaded.decide(given).columns["answer"]) == found.answered


def test_calibrate_fits_on_a_share_and_finds_the_threshold_on_the_others(run, val):
    options = ("decide", val, "--risk", 0.1, "--calibrate", "temperature", "--json")
    assert json.loads(run(*options)[1])["n"] == 1000


def test_no_threshold_is_said_and_not_saved(run, tmp_path):
    path, rule = tmp_path / "coin.npz", tmp_path / "rule.safetensors"
    save_predictions(Predictions(confidence=[0.9] * 400, correct=[True, False] * 200), path)
    code, out, _ = run("decide", path, "--risk", 0.1, columns=300)
    assert code == 0
    assert out.startswith("No threshold answers with at most 10 % wrong with 95 % probability")
    code, _, err = run("decide", path, "--risk", 0.1, "--out", rule)
    assert code == 2
    assert err == (
        "calibrant: --out: expected a threshold that has the guarantee, got none; nothing was saved\n"
    )
    assert not rule.exists()


def test_costs_are_shown_before_and_after_calibration(run, tmp_path, val, costs):
    rule = tmp_path / "rule.safetensors"
    options = ("decide", val, "--costs", costs, "--calibrate", "temperature", "--out", rule)
    code, out, _ = run(*options, columns=300)
    assert code == 0
    assert out.startswith("Acting on probabilities calibrated by temperature costs ")
    assert "Calibration changes the cost by -" in out
    assert "Asking a person pays for every sample at a cost of up to " in out
    assert run("apply", rule, val, "--out", tmp_path / "actions.jsonl")[0] == 0
    with (tmp_path / "actions.jsonl").open() as file:
        actions = {json.loads(row)["action"] for row in file}
    assert actions == {"0", "1", "2", "3", "4", "ask a person"}


def test_costs_without_calibration_and_with_one_more_action(run, tmp_path, val):
    path = tmp_path / "two.csv"
    rows = [f"{y},{','.join('0' if a == y else '10' for a in range(5))}" for y in range(5)]
    path.write_text("\n".join(["true,0,1,2,3,4", *rows]))
    answer = json.loads(run("decide", val, "--costs", path, "--calibrate", "none", "--ask", 1, "--json")[1])
    assert answer["after"] is None
    assert answer["actions"][-1] == "ask a person"
    assert answer["break_even"]["asked"] == answer["before"]["shares"]["ask a person"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "--risk: expected exactly one of --risk, --coverage, --costs, got none"),
        (
            ("--risk", 0.1, "--coverage", 0.5),
            "--risk: expected exactly one of --risk, --coverage, --costs, got",
        ),
        (("--risk", 2), "--risk: expected a number between 0 and 1, got 2.0; 2 % is 0.02"),
        (("--risk", 0.1, "--level", 95), "--level: expected a number between 0 and 1, got 95.0"),
        (("--risk", 0.0001), "predictions: expected at least 29,956 samples to guarantee a risk of 0.01 %"),
        (("--coverage", 0), "--coverage: expected a number above 0 and at most 1, got 0.0"),
        (("--risk", 0.1, "--ask", 2), "--ask: expected together with --costs"),
        (("--costs", "no.csv"), "no.csv: expected a CSV file of costs, got no such file"),
    ],
)
def test_a_bad_question_gets_one_sentence(run, val, options, message):
    code, _, err = run("decide", val, *options)
    assert code == 2
    assert err.startswith(f"calibrant: {message}")
    assert err.count("\n") == 1


def test_costs_of_the_wrong_shape_get_one_sentence(run, tmp_path, val):
    (tmp_path / "costs.csv").write_text("true,a,b\n0,0,1\n1,1,0\n")
    code, _, err = run("decide", val, "--costs", tmp_path / "costs.csv")
    assert (code, err) == (2, "calibrant: --costs: expected a row for each of 5 classes, got 2\n")


def test_weights_are_refused(run, tmp_path, given):
    path = tmp_path / "weighed.npz"
    save_predictions(
        Predictions(logits=given.logits, labels=given.labels, weights=np.arange(1.0, 2001.0)), path
    )
    code, _, err = run("decide", path, "--risk", 0.1)
    assert code == 2
    assert err.startswith("calibrant: weights: expected none for a threshold with a guarantee")


def test_the_unit_of_rows_is_a_column_and_the_sentence_names_new_units(run, tmp_path):
    path = tmp_path / "answers.csv"
    rows = [f"{0.99 if unit % 3 else 0.6},{unit % 3 > 0 or unit % 2 == 0},q{unit}" for unit in range(300)]
    path.write_text("stated,right,question\n" + "\n".join(rows * 3))
    asked = ("decide", path, "--risk", "0.05", "--confidence", "stated", "--correct", "right")
    code, out, _ = run(*asked, "--unit", "question", columns=300)
    assert code == 0
    assert "counted over the rows of new units like these 300 (900 rows)." in out
    assert "if they are drawn like these 900 rows of 300 units." in out
    by_unit, by_row = (json.loads(run(*asked, "--json", *more)[1]) for more in (["--unit", "question"], []))
    assert (by_unit["n_units"], by_row["n_units"]) == (300, None)
    assert by_unit["coverage_low"] < by_row["coverage_low"]


def test_groups_beside_costs_that_no_calibrator_reads_are_refused(run, tmp_path):
    path = tmp_path / "answers.csv"
    path.write_text("confidence,correct,subject\n" + "0.7,1,law\n0.8,0,art\n" * 50)
    costs = tmp_path / "costs.csv"
    costs.write_text("truth,trust,check\nwrong,5,1\nright,0,1\n")
    code, out, err = run("decide", path, "--costs", costs, "--calibrate", "none", "--by", "subject")
    assert (code, out) == (2, "")
    assert (
        "--by: expected a calibrator with a map for each group, as calibrate --by makes one, got none" in err
    )
    assert "run decide on the rows of that group" in err


def test_each_group_has_a_threshold_which_apply_uses(run, tmp_path):
    path, rule, decided = (tmp_path / name for name in ("answers.csv", "rule.safetensors", "decided.csv"))
    rows = [f"0.{6 + i % 3},{int(i % 20 > 0)},law,{'fm'[i % 2]}\n0.9,0,art,f\n" for i in range(300)]
    path.write_text("confidence,correct,subject,sex\n" + "".join(rows))
    asked = ("decide", path, "--risk", 0.3, "--by", "subject,sex")
    code, out, err = run(*asked, "--out", rule, columns=200)
    assert code == 0, err
    assert "with 95 % probability for all 3 groups at once" in out
    assert "subject=art, sex=f is never answered" in out
    found = json.loads(run(*asked, "--json")[1])
    assert found["groups"]["subject=art, sex=f"]["threshold"] is None
    assert run("apply", rule, path, "--by", "sex,subject", "--out", decided)[0] == 0
    kept = [line.split(",") for line in decided.read_text().splitlines()[1:]]
    assert {(row[2], row[-1]) for row in kept} == {("law", "true"), ("art", "false")}
    code, _, err = run("apply", rule, path, "--by", "subject", "--out", tmp_path / "x.csv")
    assert code == 2
    assert "groups: expected the columns subject and sex, got one column" in err
    code, _, err = run("decide", path, "--risk", 0.3, "--by", "subject,gender")
    assert code == 2
    assert "expected a column 'gender'" in err
