"""``calibrant monitor``: exit code 3 and one event for an alarm, and a state that survives anything."""

import json
import os
from datetime import datetime

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from calibrant import Predictions, save_predictions
from calibrant.monitoring import DriftMonitor, DriftReference
from calibrant.monitoring.alarm import where
from tests.conftest import draw


def write(path, n, *, seed, sharpen=1.0, upper_only=False):
    logits, labels = draw(n, 5, seed=seed)
    sharpened = logits * sharpen
    if upper_only:
        probs = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        sharpened = np.where(probs.max(axis=1, keepdims=True) > 0.75, sharpened, logits)
    np.savez(path, logits=sharpened, labels=labels)
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("files")


@pytest.fixture(scope="module")
def reference(folder):
    return write(folder / "reference.npz", 4000, seed=200)


@pytest.fixture(scope="module")
def good(folder):
    return write(folder / "good.npz", 1700, seed=201)


@pytest.fixture(scope="module")
def drifted(folder):
    return write(folder / "drifted.npz", 1500, seed=202, sharpen=2.0)


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_calibrated_stream_ends_with_code_0_and_plain_words(run, reference, good, tmp_path):
    code, out, err = run("monitor", reference, good, "--window", 500, "--events", tmp_path / "alarms.jsonl")
    assert (code, err) == (0, "")
    assert "1,001 to 1,500" in out
    assert "200 rows do not fill a window; they are tested but not measured" in out
    assert "Still as calibrated as on the reference, as far as 1,700 rows can tell" in out
    assert "an alarm needs 40" in out
    assert not (tmp_path / "alarms.jsonl").exists()


def test_logits_twice_as_large_end_with_code_3_and_an_event_that_names_the_direction(
    run, reference, good, drifted, tmp_path
):
    code, out, err = run("monitor", reference, good, drifted, "--events", tmp_path / "alarms.jsonl")
    assert (code, err) == (3, "")
    assert "alarm" in out
    (event,) = lines(tmp_path / "alarms.jsonl")
    assert event["event"] == "calibration-drift"
    assert event["direction"] == "overconfident"
    assert event["file"] == str(drifted)
    assert 1700 < event["row"] <= 2200
    assert event["since"] <= event["row"]
    assert event["changes"][0]["change"] == "more overconfident"
    assert event["threshold"] == pytest.approx(40)
    assert datetime.fromisoformat(event["time"]).tzinfo is not None
    assert " ".join(event["conclusion"].split()) in " ".join(out.split())


def test_a_change_of_the_surer_half_is_located_there(run, reference, good, folder):
    upper = write(folder / "upper.npz", 4000, seed=203, sharpen=3.0, upper_only=True)
    code, out, _ = run("monitor", reference, good, upper, "--json")
    (event,) = json.loads(out)["events"]
    assert code == 3
    assert all(change["low"] > 0.5 for change in event["changes"])
    assert all(change["where"] != "over all confidences" for change in event["changes"])


def test_json_is_one_object_with_windows_that_add_up(run, reference, good):
    code, out, err = run("monitor", reference, good, "--window", 500, "--json")
    assert (code, err) == (0, "")
    answer = json.loads(out)
    assert answer["n"] == sum(window["n"] for window in answer["windows"]) + answer["waiting"] == 1700
    assert [window["first"] for window in answer["windows"]] == [1, 501, 1001]
    assert (answer["alarm"], answer["alarm_at"], answer["events"]) == (False, None, [])
    for window in answer["windows"]:
        assert set(window["intervals"]) == {"accuracy", "mean_confidence", "ece", "brier", "nll"}
        for name, (low, high) in window["intervals"].items():
            assert low <= window["metrics"][name] <= high


def test_several_runs_with_a_state_equal_one_run(run, reference, good, drifted, tmp_path):
    options = ("--window", 400, "--json")
    whole = json.loads(run("monitor", reference, good, drifted, *options)[1])
    state, alarms = tmp_path / "state.json", tmp_path / "alarms.jsonl"
    keep = ("--state", state, "--events", alarms)
    code, first, _ = run("monitor", reference, good, *options, *keep)
    assert code == 0
    code, second, _ = run("monitor", reference, drifted, "--json", *keep)
    assert code == 3
    first, second = json.loads(first), json.loads(second)
    assert first["windows"] + second["windows"] == whole["windows"]
    for name in ("n", "log_e_value", "alarm_at", "since", "conclusion"):
        assert second[name] == whole[name]
    assert lines(alarms) == second["events"]


def test_an_alarm_stays_until_it_is_reset_and_is_told_once(run, reference, good, drifted, tmp_path):
    keep = ("--state", tmp_path / "state.json", "--events", tmp_path / "alarms.jsonl")
    assert run("monitor", reference, drifted, *keep)[0] == 3
    code, out, _ = run("monitor", reference, good, *keep)
    assert code == 3
    assert "Alarm at row" in out
    assert len(lines(tmp_path / "alarms.jsonl")) == 1
    assert run("monitor", reference, good, *keep, "--reset")[0] == 0
    assert run("monitor", reference, drifted, *keep)[0] == 3
    first, second = lines(tmp_path / "alarms.jsonl")
    assert first["row"] < 1500 < 1500 + 2 * 1700 < second["row"]


def test_a_folder_is_read_in_the_order_of_names_and_other_files_in_it_are_left_alone(
    run, reference, tmp_path
):
    stream = tmp_path / "stream"
    stream.mkdir()
    paths = [write(stream / f"day-{day}.npz", 300, seed=300 + day) for day in (3, 1, 2)]
    (stream / "notes.txt").write_text("not a prediction")
    (stream / ".day-0.npz").write_text("half written")
    options = ("--window", 300, "--json")
    by_folder = json.loads(run("monitor", reference, stream, *options)[1])
    by_name = json.loads(run("monitor", reference, *sorted(paths), *options)[1])
    assert by_folder["windows"] == by_name["windows"]
    assert len(by_folder["windows"]) == 3


def test_a_pattern_of_tables_is_followed_like_parquet(run, folder, tmp_path):
    with np.load(folder / "reference.npz") as arrays:
        reference = Predictions(logits=arrays["logits"], labels=arrays["labels"])
    save_predictions(reference, tmp_path / "reference.csv")
    state, counts = tmp_path / "state.json", []
    for day in range(2):
        save_predictions(reference.take(range(300 * day, 300 * day + 300)), tmp_path / f"day{day}.csv")
        options = ("--window", 100, "--state", state, "--json")
        code, out, _ = run("monitor", tmp_path / "reference.csv", tmp_path / "day*.csv", *options)
        counts.append((code, json.loads(out)["n"]))
    assert counts == [(0, 300), (0, 600)]  # the first day is not read again


def test_a_file_that_is_refused_leaves_state_and_events_as_they_were(run, reference, good, drifted, tmp_path):
    state, alarms = tmp_path / "state.json", tmp_path / "alarms.jsonl"
    keep = ("--state", state, "--events", alarms)
    run("monitor", reference, good, *keep)
    before = state.read_bytes()
    np.savez(tmp_path / "unlabelled.npz", logits=np.zeros((3, 5)))
    code, out, err = run("monitor", reference, drifted, tmp_path / "unlabelled.npz", *keep)
    assert (code, out) == (2, "")
    assert err.startswith("calibrant: unlabelled.npz: expected labels")
    assert err.count("\n") == 1
    assert state.read_bytes() == before
    assert not alarms.exists()


def test_a_state_that_cannot_be_written_is_the_old_one_and_the_event_is_not_lost(
    run, reference, good, drifted, tmp_path, monkeypatch
):
    state, alarms = tmp_path / "state.json", tmp_path / "alarms.jsonl"
    keep = ("--state", state, "--events", alarms)
    run("monitor", reference, good, *keep)
    before = state.read_bytes()

    def fail(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as killed:
        killed.setattr("pathlib.Path.replace", fail)
        assert run("monitor", reference, drifted, *keep)[0] != 0
    assert state.read_bytes() == before
    assert run("monitor", reference, drifted, *keep)[0] == 3
    first, again = lines(alarms)
    assert first | {"time": ""} == again | {"time": ""}
    assert sorted(file.name for file in tmp_path.iterdir()) == ["alarms.jsonl", "state.json"]


def test_an_event_after_a_torn_line_is_a_line_of_its_own(run, reference, drifted, tmp_path):
    alarms = tmp_path / "alarms.jsonl"
    alarms.write_text('{"event": "calib')
    run("monitor", reference, drifted, "--events", alarms)
    torn, whole = alarms.read_text().splitlines()
    assert torn == '{"event": "calib'
    assert json.loads(whole)["direction"] == "overconfident"


def test_an_event_is_whole_before_it_is_synced_to_the_disk(run, reference, drifted, tmp_path, monkeypatch):
    alarms = tmp_path / "alarms.jsonl"
    seen = []
    monkeypatch.setattr(os, "fsync", lambda _: seen.append(alarms.read_bytes()))
    run("monitor", reference, drifted, "--events", alarms)
    assert len(seen) == 1
    assert seen[0].endswith(b"}\n")


def test_another_reference_is_refused_in_one_sentence(run, reference, good, folder, tmp_path):
    other = write(folder / "other.npz", 4000, seed=204)
    run("monitor", reference, good, "--state", tmp_path / "state.json")
    code, _, err = run("monitor", other, good, "--state", tmp_path / "state.json")
    assert code == 2
    assert err.startswith("calibrant: state.json: expected the reference that this state was begun with")
    assert err.count("\n") == 1


@pytest.mark.parametrize(("option", "value"), [("window", 250), ("alpha", 0.01), ("tolerance", 0.1)])
def test_an_option_that_differs_from_the_state_is_refused(run, reference, good, tmp_path, option, value):
    state = ("--state", tmp_path / "state.json")
    run("monitor", reference, good, *state)
    code, _, err = run("monitor", reference, good, *state, f"--{option}", value)
    assert code == 2
    assert err.startswith(f"calibrant: --{option}: expected")
    assert "the value stored in state.json" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--alpha", "2"], "--alpha: expected a number between 0 and 1"),
        (["--window", "0"], "--window: expected a whole number"),
        (["--reset"], "--reset: expected --state"),
        (["--state", "nowhere/state.json"], "nowhere/state.json: expected a file in a folder that exists"),
        (
            ["--events", "nowhere/alarms.jsonl"],
            "nowhere/alarms.jsonl: expected a file in a folder that exists",
        ),
    ],
)
def test_what_cannot_be_meant_ends_with_code_2_and_one_sentence(run, reference, good, arguments, message):
    code, out, err = run("monitor", reference, good, *arguments)
    assert (code, out) == (2, "")
    assert err.startswith(f"calibrant: {message}")
    assert err.count("\n") == 1


def test_an_empty_folder_and_a_missing_file_are_refused(run, reference, tmp_path):
    for path, message in ((tmp_path, "expected a folder with files"), (tmp_path / "no.npz", "no such file")):
        code, _, err = run("monitor", reference, path)
        assert code == 2
        assert message in err


def test_groups_of_very_sure_predictions_are_told_apart_from_certainty(run, folder):
    files = [folder / f"sure-{sharpen}.npz" for sharpen in (4, 8)]
    for file, sharpen in zip(files, (4.0, 8.0), strict=True):
        write(file, 4000, seed=205, sharpen=sharpen)
    code, out, _ = run("monitor", *files, "--json")
    (change, *_) = json.loads(out)["events"][0]["changes"]
    assert code == 3
    assert 0.99 < change["low"] < 1
    assert "1.0" not in change["where"]
    assert " 0.99" in change["where"]


def test_the_table_fits_a_terminal_of_eighty_columns(run, reference, good, drifted):
    _, out, _ = run("monitor", reference, *[good] * 6, drifted)
    table = [line for line in out.splitlines() if " to " in line and "row " not in line]
    assert len(table) == 11
    assert max(len(line.rstrip()) for line in table) <= 80


def test_groups_are_named_by_what_they_are():
    confidence = np.linspace(0.2, 1, 401)[1:]
    reference = DriftReference.from_outcomes(confidence, confidence > 0.5, n_bins=4)
    names = [where(group, reference) for group in DriftMonitor(reference).diagnosis()][::2]
    assert names == [
        "over all confidences",
        "in the lower half (confidences up to 0.60)",
        "in the upper half (confidences above 0.60)",
        "for confidences from 0 to 0.40",
        "for confidences from 0.40 to 0.60",
        "for confidences from 0.60 to 0.80",
        "for confidences from 0.80 to 1",
    ]


def answers(path, n, *, seed, right):
    """Answers with a stated confidence, of which a share is right that depends on it."""
    rng = np.random.default_rng(seed)
    stated = rng.choice([70, 80, 95, 100], n)
    hits = rng.random(n) < right(stated / 100)
    rows = [{"says": f"{c} %", "right": bool(hit)} for c, hit in zip(stated, hits, strict=True)]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


OF_ANSWERS = ("--confidence", "says", "--correct", "right", "--read", "percent", "--window", 500)


@pytest.fixture(scope="module")
def before(folder):
    """The reference of an overconfident black box."""
    return answers(folder / "before.jsonl", 3000, seed=1, right=lambda c: c / 2 + 0.3)


def test_a_black_box_that_stays_overconfident_raises_no_alarm_and_one_that_gets_worse_does(
    run, before, tmp_path
):
    same = answers(tmp_path / "same.jsonl", 2000, seed=2, right=lambda c: c / 2 + 0.3)
    worse = answers(tmp_path / "worse.jsonl", 2000, seed=3, right=lambda c: c / 2 + 0.1)
    state = ("--state", tmp_path / "state.json", "--json")
    code, out, _ = run("monitor", before, same, *OF_ANSWERS, *state)
    result = json.loads(out)
    assert (code, result["alarm"], result["n"]) == (0, False, 2000)
    assert set(result["windows"][0]["intervals"]) == {"accuracy", "mean_confidence", "ece", "brier", "nll"}
    code, out, _ = run("monitor", before, worse, *OF_ANSWERS, *state)
    result = json.loads(out)
    assert (code, result["alarm"]) == (3, True)
    assert 2000 < result["alarm_at"] < 3000
    assert result["events"][0]["changes"][0]["change"] == "more overconfident"


def test_a_folder_of_answers_is_followed_and_each_file_is_read_once(run, before, tmp_path):
    (tmp_path / "days").mkdir()
    for day in (1, 2):
        answers(tmp_path / "days" / f"{day}.jsonl", 600, seed=day, right=lambda c: c / 2 + 0.3)
        given = (before, tmp_path / "days", *OF_ANSWERS, "--state", tmp_path / "state.json", "--json")
        code, out, _ = run("monitor", *given)
        assert (code, json.loads(out)["n"]) == (0, 600 * day)


def metrics(path):
    families = text_string_to_metric_families(path.read_text())
    return {each.name: each.value for family in families for each in family.samples if len(each.labels) == 1}


def test_metrics_for_prometheus_follow_the_state_from_run_to_run(run, reference, good, drifted, tmp_path):
    target = tmp_path / "my model.prom"
    keep = ("--state", tmp_path / "state.json", "--prometheus", target)
    assert run("monitor", reference, good, "--window", 1000, *keep)[0] == 0
    first = metrics(target)
    assert (first["calibrant_rows_total"], first["calibrant_waiting_rows"]) == (1700, 700)
    assert first["calibrant_alarm"] == 0
    few = write(tmp_path / "few.npz", 10, seed=204)
    code, out, _ = run("monitor", reference, few, *keep, "--json")
    assert (code, json.loads(out)["windows"]) == (0, [])
    second = metrics(target)
    assert second["calibrant_rows_total"] == 1710
    # A run without a complete window shows that of the run before.
    assert second["calibrant_accuracy"] == first["calibrant_accuracy"]
    code, out, _ = run("monitor", reference, drifted, *keep, "--json")
    answer, third = json.loads(out), metrics(target)
    assert (code, third["calibrant_alarm"]) == (3, 1)
    assert third["calibrant_alarm_row"] == answer["alarm_at"]
    assert third["calibrant_log_e_value"] == answer["log_e_value"]
    assert third["calibrant_ece"] == answer["windows"][-1]["metrics"]["ece"]


def test_metrics_are_written_without_a_state_and_for_folders(run, reference, good, tmp_path):
    days = tmp_path / "days"
    days.mkdir()
    (days / "1.npz").write_bytes(good.read_bytes())
    for source in (good, days):
        target = tmp_path / f"{source.stem}.prom"
        assert run("monitor", reference, source, "--prometheus", target)[0] == 0
        assert metrics(target)["calibrant_rows_total"] == 1700


def test_a_file_that_the_textfile_collector_would_ignore_is_refused(run, reference, good, tmp_path):
    for name, words in {
        "model.txt": "expected a file that ends in .prom",
        "none/model.prom": "expected a file in a folder that exists",
        "folder.prom": "expected the name of a file, got the folder",
    }.items():
        (tmp_path / "folder.prom").mkdir(exist_ok=True)
        code, out, err = run("monitor", reference, good, "--prometheus", tmp_path / name)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert words in " ".join(err.split())
    both = tmp_path / "model.prom"
    code, _, err = run("monitor", reference, good, "--state", both, "--prometheus", both)
    assert code == 2
    assert "--prometheus: expected a file of its own" in " ".join(err.split())
    assert not both.exists()


def test_groups_are_tested_and_shown(run, tmp_path):
    rng = np.random.default_rng(0)
    for name, bad in (("before", ()), ("since", ("eu",))):
        groups = rng.choice(["eu", "us"], 4000)
        honest = rng.uniform(0.4, 0.8, 4000)
        stated = honest + 0.2 * np.isin(groups, bad)
        rows = zip(groups, stated, rng.random(4000) < honest, strict=True)
        text = "".join(f"{group},{confidence},{hit}\n" for group, confidence, hit in rows)
        (tmp_path / f"{name}.csv").write_text(f"region,confidence,correct\n{text}mars,0.5,True\n")
    given = ("monitor", tmp_path / "before.csv", tmp_path / "since.csv", "--by", "region")
    code, out, _ = run(*given, "--json")
    found = json.loads(out)
    assert (code, found["by"]) == (3, "region")
    assert {each["group"]: each["alarm"] for each in found["groups"]} == {"eu": True, "us": False}
    code, out, _ = run(*given, "--state", tmp_path / "state.json")
    assert "1 rows are of groups that the reference does not have" in out
    assert out.index("\neu ") < out.index("\nus ")  # the one with the most evidence first
    code, _, err = run(*given[:3], "--state", tmp_path / "state.json")
    assert (code, "--by: expected region, as in state.json, got none; begin a new state" in err) == (2, True)
