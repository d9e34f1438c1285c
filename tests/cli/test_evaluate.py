"""``calibrant evaluate``: a table for people, JSON for programs, one sentence for what is wrong."""

import json
import math
import re
import warnings

import numpy as np
import pytest

from calibrant import Predictions, evaluate, save_predictions
from calibrant.evaluation import by_group
from calibrant.inputs import _warn_of_probs
from calibrant.metrics.names import MEASURES

CORE = {
    "accuracy",
    "nll",
    "brier",
    "ece",
    "ece_equal_mass",
    "classwise_ece",
    "mce",
    "aurc",
    "auroc_correct",
    "mean_confidence",
}


@pytest.fixture
def logits_file(tmp_path, overconfident):
    logits, labels = overconfident
    path = tmp_path / "preds.npz"
    np.savez(path, logits=logits, labels=labels)
    return path


def test_labels_of_another_file_are_joined_by_id(run, tmp_path, overconfident):
    logits, labels = overconfident
    n = len(labels)
    order = np.random.default_rng(0).permutation(n)[: n - 3]  # three labels never come
    rows = Predictions(logits=logits, ids=np.arange(n))
    save_predictions(rows, tmp_path / "rows.parquet")
    text = "".join(f"{row},{labels[row]}\n" for row in (*order, order[0]))  # one comes twice
    (tmp_path / "labels.csv").write_text(f"ids,label\n{text}")
    joined = (
        "evaluate",
        tmp_path / "rows.parquet",
        "--labels",
        tmp_path / "labels.csv",
        "--id",
        "ids",
        "--json",
    )
    code, out, err = run(*joined)
    kept = np.sort(order)
    expected = evaluate(Predictions(logits=logits[kept], labels=labels[kept]))
    assert (code, json.loads(out)["metrics"]["nll"]) == (0, expected.metrics["nll"])
    assert f"left out 3 of {n:,} rows: their ids have no label in" in err
    (tmp_path / "labels.csv").write_text(f"ids,label\n{text}{order[1]},{(labels[order[1]] + 1) % 3}\n")
    code, _, err = run(*joined)
    assert (code, f"for the id {order[1]}; keep the one that is right" in err) == (2, True)


def test_json_is_one_object_with_every_core_measure(run, logits_file, overconfident):
    code, out, err = run("evaluate", logits_file, "--json")
    assert (code, err) == (0, "")
    result = json.loads(out)
    assert (result["n"], result["k"]) == (4000, 5)
    assert set(result["metrics"]) == CORE
    expected = evaluate(Predictions(logits=overconfident[0], labels=overconfident[1])).metrics
    assert result["metrics"] == pytest.approx(dict(expected))
    assert all(0 <= value <= 2 for name, value in result["metrics"].items() if name != "nll")


def test_the_table_says_what_is_wrong_in_plain_words(run, logits_file):
    code, out, _ = run("evaluate", logits_file)
    assert code == 0
    assert "preds.npz: 4,000 predictions, 5 classes" in out
    assert "Overconfident: mean confidence " in out
    assert "ECE, equal mass" in out
    assert "█ accuracy" in out


def test_the_number_of_bins_is_an_option(run, logits_file):
    few, many = (
        json.loads(run("evaluate", logits_file, "--json", "--bins", b)[1])["metrics"] for b in (1, 50)
    )
    assert few["ece"] < many["ece"]
    assert few["accuracy"] == many["accuracy"]


@pytest.mark.parametrize("suffix", [".npz", ".parquet", ".csv", ".safetensors"])
def test_every_format_gives_the_same_numbers(run, tmp_path, logits_file, overconfident, suffix):
    path = tmp_path / f"other{suffix}"
    save_predictions(Predictions(logits=overconfident[0], labels=overconfident[1]), path)
    expected = json.loads(run("evaluate", logits_file, "--json")[1])
    assert json.loads(run("evaluate", path, "--json")[1]) == expected


def test_folders_and_patterns_of_tables_are_read_as_one_file(run, tmp_path, overconfident):
    logits, labels = overconfident
    days = tmp_path / "days"
    days.mkdir()
    for day, rows in enumerate(np.array_split(np.arange(600), 3)):
        part = Predictions(logits=logits[rows], labels=labels[rows], weights=1.0 + rows % 2)
        save_predictions(part, days / f"{day}.csv")
    whole = Predictions(logits=logits[:600], labels=labels[:600], weights=1.0 + np.arange(600) % 2)
    expected = pytest.approx(dict(evaluate(whole).metrics))
    for source in (days, days / "*.csv"):
        code, out, _ = run("evaluate", source, "--json")
        assert (code, json.loads(out)["metrics"]) == (0, expected)
    (days / "1.csv").rename(days / "1.tsv")  # a comma is recognised all the same
    assert json.loads(run("evaluate", days, "--json")[1])["metrics"] == expected
    assert "expected files named *.npz, *.parquet" in run("evaluate", tmp_path / "*.csv")[2]


def test_columns_under_other_names_and_classes_are_named_on_the_command_line(run, tmp_path):
    (tmp_path / "p.csv").write_text("row;cat;dog;truth\n1;90 %;10 %;cat\n2;30 %;70 %;dog\n3;60 %;40 %;dog\n")
    named = ("--column", "probs=cat,dog", "--column", "labels=truth", "--read", "percent", "--json")
    assert json.loads(run("evaluate", tmp_path / "p.csv", *named)[1])["metrics"]["accuracy"] == 2 / 3
    (tmp_path / "z.csv").write_text("z_0,z_1,truth,w\n2,0,cat,1\n2,0,dog,0\n0,2,dog,1\n")
    (tmp_path / "classes.txt").write_text("cat\ndog\n")
    weighted = (
        *("--column", "logits=z", "--column", "labels=truth", "--column", "weights=w"),
        *("--read", f"classes={tmp_path / 'classes.txt'}", "--json"),
    )
    assert json.loads(run("evaluate", tmp_path / "z.csv", *weighted)[1])["metrics"]["accuracy"] == 1


def test_probabilities_stored_as_logits_get_one_note(run, tmp_path, overconfident):
    logits, labels = overconfident
    probs = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    np.savez(tmp_path / "p.npz", logits=probs, labels=labels)
    _warn_of_probs.cache_clear()
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        code, _, err = run("evaluate", tmp_path / "p.npz")
    _warn_of_probs.cache_clear()
    assert (code, err.count("\n")) == (0, 1)
    assert err.startswith(
        "calibrant: note: logits: expected logits, got rows of at least 0 that all sum to one"
    )


def test_confidences_alone_give_what_can_be_computed_from_them(run, tmp_path):
    path = tmp_path / "llm.csv"
    path.write_text("question,confidence,correct\na,0.9,1\nb,0.8,0\nc,0.6,1\n")
    code, out, _ = run("evaluate", path, "--json")
    result = json.loads(out)
    assert code == 0
    assert result["k"] is None
    assert set(result["metrics"]) == CORE - {"classwise_ece"}
    assert "3 predictions" in run("evaluate", path)[1]


def test_what_is_undefined_is_null(run, tmp_path):
    path = tmp_path / "sure.npz"
    np.savez(path, probs=[[1.0, 0.0], [1.0, 0.0]], labels=[1, 1])
    metrics = json.loads(run("evaluate", path, "--json")[1])["metrics"]
    assert metrics["nll"] == pytest.approx(math.log(1e12))
    assert metrics["auroc_correct"] is None
    assert "undefined" in run("evaluate", path)[1]


GOOD = np.array([[2.0, 1.0, 0.0], [0.0, 1.0, 2.0], [1.0, 0.0, 3.0]])
LABELS = np.array([0, 2, 1])
HALF = np.full((3, 2), 0.25)
BAD_FILES = {
    "NaN": (
        {"logits": np.where(GOOD == 3, np.nan, GOOD), "labels": LABELS},
        "expected finite numbers, got nan in row 2",
    ),
    "infinity": (
        {"logits": np.where(GOOD == 3, np.inf, GOOD), "labels": LABELS},
        "got inf in row 2, column 2",
    ),
    "empty": ({"logits": GOOD[:0], "labels": LABELS[:0]}, "expected at least one sample, got shape (0, 3)"),
    "wrong rank": ({"logits": GOOD[None], "labels": LABELS}, "expected shape (n, k)"),
    "mismatched lengths": (
        {"logits": GOOD, "labels": LABELS[:2]},
        "labels: expected 3 entries, one per prediction, got 2",
    ),
    "labels that are fractions": (
        {"logits": GOOD, "labels": LABELS * 0.3},
        "labels: expected integer classes, got 0.6",
    ),
    "string labels": ({"logits": GOOD, "labels": np.array(["a", "b", "c"])}, "got strings such as 'a'"),
    "one-hot labels": ({"logits": GOOD, "labels": np.eye(3, dtype=int)}, "which looks one-hot"),
    "labels out of range": (
        {"logits": GOOD, "labels": LABELS + 5},
        "expected classes from 0 to 2, got 7 in row 1",
    ),
    "negative labels": (
        {"logits": GOOD, "labels": LABELS - 1},
        "expected classes from 0 to 2, got -1 in row 0",
    ),
    "sums": ({"probs": HALF, "labels": [0, 0, 1]}, "expected rows that sum to one, got 0.5 in row 0"),
    "logits as probs": ({"probs": GOOD - 1, "labels": LABELS}, "if these are logits, pass them as logits"),
    "single class": (
        {"logits": GOOD[:, :1], "labels": LABELS * 0},
        "expected at least two classes, got shape (3, 1)",
    ),
    "single sample": ({"logits": GOOD[:1], "labels": LABELS[:1]}, "expected at least two samples, got 1"),
    "wrong key": ({"logit": GOOD, "labels": LABELS}, "logit"),
    "no labels": ({"logits": GOOD}, "labels"),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_bad_files_give_one_sentence_and_exit_code_2_and_leave_nothing_behind(run, tmp_path, case):
    arrays, message = BAD_FILES[case]
    np.savez(tmp_path / "bad.npz", **arrays)
    for arguments in ((), ("--json",)):
        code, out, err = run("evaluate", tmp_path / "bad.npz", *arguments)
        assert (code, out) == (2, "")
        assert message in err
        assert err.startswith("calibrant: ")
        assert err.count("\n") == 1
    assert [p.name for p in tmp_path.iterdir()] == ["bad.npz"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("absent.npz", None, "no such file"),
        ("notes.txt", "hello", ".npz, .parquet, .csv"),
        ("broken.npz", "hello", "broken.npz"),
        ("broken.parquet", "hello", "broken.parquet"),
        ("broken.safetensors", "hello", "broken.safetensors"),
        ("empty.csv", "", "empty.csv"),
    ],
)
def test_files_that_are_not_predictions_are_named(run, tmp_path, name, content, message):
    if content is not None:
        (tmp_path / name).write_text(content)
    code, out, err = run("evaluate", tmp_path / name)
    assert (code, out) == (2, "")
    assert message in err.lower()
    assert err.count("\n") == 1


def test_no_bins_is_a_bad_number_of_bins(run, logits_file):
    code, _, err = run("evaluate", logits_file, "--bins", "0")
    assert code == 2
    assert "expected a whole number of at least 1, got 0" in err


def test_help_shows_an_example(run):
    code, out, _ = run("evaluate", "--help")
    assert code == 0
    assert "Example: calibrant evaluate" in out


def test_all_measures_include_the_core_and_say_what_is_left_out(run, logits_file):
    code, out, _ = run("evaluate", logits_file, "--json", "--measures", "all")
    result = json.loads(out)
    assert code == 0
    assert set(result["metrics"]) > CORE
    assert result["skipped"] == {"top_5_error": "needs at least 6 classes"}


def test_measures_can_be_named(run, logits_file):
    assert set(
        json.loads(run("evaluate", logits_file, "--json", "--measures", "ece, smce")[1])["metrics"]
    ) == {
        "ece",
        "smce",
    }
    assert "smooth calibration error" in run("evaluate", logits_file, "--measures", "smce")[1]


def test_an_unknown_measure_lists_the_known_ones(run, logits_file):
    code, _, err = run("evaluate", logits_file, "--measures", "wizardry")
    assert code == 2
    assert "accuracy, mean_confidence, nll" in err
    assert "got 'wizardry'" in err


def test_intervals_contain_what_they_are_about(run, logits_file):
    arguments = (
        "evaluate",
        logits_file,
        "--intervals",
        "--measures",
        "accuracy,nll,ece,aurc",
    )
    result = json.loads(run(*arguments, "--json")[1])
    for name, (low, high) in result["intervals"].items():
        assert low < result["metrics"][name] < high
    assert "95 % interval" in run(*arguments)[1]


def test_classes_and_margins_are_shown_when_asked_for(run, logits_file):
    arguments = ("evaluate", logits_file, "--per-class", "--per-margin", 3)
    result = json.loads(run(*arguments, "--json")[1])
    assert [row["name"] for row in result["classes"]] == ["0", "1", "2", "3", "4"]
    assert sum(row["n"] for row in result["classes"]) == sum(part["n"] for part in result["margins"]) == 4000
    mean = sum(row["ece"] for row in result["classes"]) / 5
    assert mean == pytest.approx(result["metrics"]["classwise_ece"], abs=1e-12)
    table = run(*arguments)[1]
    assert re.search("probability +recall +the class", table)
    assert "logit margin" in table
    assert "mean_confidence" not in table


def test_two_models_are_compared_on_the_same_samples(run, tmp_path, logits_file, overconfident):
    better = tmp_path / "better.npz"
    np.savez(better, logits=overconfident[0] / 3, labels=overconfident[1])
    arguments = (
        "evaluate",
        logits_file,
        "--compare",
        better,
        "--measures",
        "nll,ece,accuracy",
    )
    result = json.loads(run(*arguments, "--json")[1])["comparison"]
    assert result["nll"]["difference"] > 0
    assert result["nll"]["p_value"] < 0.05
    assert result["accuracy"]["difference"] == 0
    assert "p-value" in run(*arguments)[1]


@pytest.mark.parametrize("columns", [80, pytest.param(100, marks=pytest.mark.long)])
def test_tables_fit_a_terminal_and_break_no_heading(run, tmp_path, overconfident, columns):
    """The columns of every table, also with negative numbers of five digits and the longest titles."""
    one, other = tmp_path / "one.npz", tmp_path / "other.npz"
    for path, scale in ((one, 1), (other, -3)):
        np.savez(path, logits=overconfident[0][:300] * scale, labels=overconfident[1][:300])
    arguments = ("--compare", other, "--ood", other, "--per-class", "--per-margin", 3)
    names = [name for name, each in MEASURES.items() if each.max_samples is None and not each.lacks(5)]
    code, out, _ = run("evaluate", one, "--measures", ",".join(names), *arguments, columns=columns)
    assert code == 0
    assert "\N{HORIZONTAL ELLIPSIS}" not in out
    assert max(map(len, out.splitlines())) <= columns
    assert re.search(r"^measure +this +other +difference +95 % interval +p-value", out, re.MULTILINE)
    assert re.search(r"^class +samples +frequency +probability +recall +the class", out, re.MULTILINE)
    assert len(re.findall(r"-?[\d.]+ to -?[\d.]+ +(<?0|1)\.\d+ *$", out, re.MULTILINE)) == len(names)


def test_models_of_other_samples_are_not_compared(run, tmp_path, logits_file, overconfident):
    other = tmp_path / "other.npz"
    np.savez(other, logits=overconfident[0], labels=overconfident[1][::-1].copy())
    code, _, err = run("evaluate", logits_file, "--compare", other)
    assert code == 2
    assert "expected the same samples in the same order" in err
    np.savez(other, logits=overconfident[0][:10], labels=overconfident[1][:10])
    assert "got 4000 and 10 samples" in run("evaluate", logits_file, "--compare", other)[2]


def test_foreign_samples_are_told_apart_without_labels(run, tmp_path, logits_file, overconfident):
    foreign = tmp_path / "foreign.npz"
    np.savez(foreign, logits=overconfident[0][:500] / 10)
    result = json.loads(run("evaluate", logits_file, "--ood", foreign, "--json")[1])["ood"]
    assert set(result) == {"msp", "softmax_margin", "negative_entropy", "max_logit", "logit_margin", "energy"}
    assert result["msp"]["auroc"] > 0.9
    assert "FPR at 95 % TPR" in run("evaluate", logits_file, "--ood", foreign)[1]


@pytest.fixture
def by_subject(tmp_path):
    """Answers to questions of three subjects, as files of several formats."""
    rng = np.random.default_rng(4)
    subjects = np.repeat(["art", "law", "odd[1]"], [400, 400, 5])
    confidence = rng.choice([0.5, 0.8, 0.95], 805)
    correct = rng.random(805) < np.where(subjects == "law", confidence**4, confidence)
    predictions = Predictions(confidence=confidence, correct=correct, groups=subjects)
    for suffix in ("npz", "parquet", "csv", "safetensors", "jsonl"):
        save_predictions(predictions, tmp_path / f"answers.{suffix}")
    return tmp_path, by_group(predictions)


@pytest.mark.parametrize("suffix", ["npz", "parquet", "csv", "safetensors", "jsonl"])
def test_groups_of_every_format_are_shown_worst_first_with_a_corrected_test(run, by_subject, suffix):
    folder, table = by_subject
    code, out, err = run("evaluate", folder / f"answers.{suffix}", "--by", "groups", "--json")
    assert (code, err) == (0, "")
    result = json.loads(out)
    assert list(result["groups"]) == ["law", "art", "odd[1]"]
    for row in table.rows[:2]:
        found = result["groups"][row.name]
        assert found["metrics"] == pytest.approx(dict(row.metrics), abs=1e-9)
        assert [found["gap"], *found["gap_interval"]] == pytest.approx([row.gap, row.gap_low, row.gap_high])
        assert (found["p_value"], found["p_corrected"]) == pytest.approx((row.p_value, row.p_corrected))
    assert result["groups"]["odd[1]"]["p_value"] is None
    assert result["group_test"]["correction"] == "holm"
    assert result["group_test"]["within"] == pytest.approx(dict(table.within), abs=1e-9)


def test_the_table_of_groups_names_its_test_and_its_correction(run, by_subject):
    folder, _ = by_subject
    shown = ("--by", "groups", "--measures", "ece", "--intervals")
    out = run("evaluate", folder / "answers.csv", *shown)[1]
    lines = out.splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("groups"))
    assert [line.split()[0] for line in lines[first + 1 : first + 4]] == ["law", "art", "odd[1]"]
    assert lines[first].split()[-2:] == ["sd", "Holm"]
    assert "* 1 of 2 groups are miscalibrated (Kuiper test, Holm's correction, level 0.05)" in out
    assert "within groups" in out
