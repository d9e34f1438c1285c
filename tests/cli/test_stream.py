"""``calibrant evaluate`` and ``apply`` on streams: folders, patterns and large files."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from calibrant import Predictions, evaluate, load_predictions, save_predictions
from calibrant.evaluation.calibrated import _warn_without_groups
from calibrant.outputs import INCOMPLETE
from calibrant.posthoc import TemperatureScaling
from calibrant.posthoc.by_group import ByGroup
from calibrant.posthoc.confidence import ConfidenceCalibrator
from tests.rounding import assert_equal_up_to_rounding

RANKED = {"ece_equal_mass", "aurc", "auroc_correct"}


@pytest.fixture
def folder(tmp_path, overconfident):
    """Two files of logits with versions, in a folder."""
    logits, labels = overconfident
    source = tmp_path / "predictions"
    source.mkdir()
    for number, rows in enumerate((slice(0, 1500), slice(1500, 4000))):
        part = np.ascontiguousarray(logits[rows])
        columns = {
            "logits": pa.FixedSizeListArray.from_arrays(pa.array(part.ravel()), 5),
            "labels": labels[rows],
            "version": pa.array(np.where(labels[rows] < 2, "old", "new[er]")),
        }
        pq.write_table(pa.table(columns), source / f"{number}.parquet", row_group_size=600)
    return source


@pytest.fixture
def calibrator(tmp_path):
    path = tmp_path / "calibrator.safetensors"
    TemperatureScaling(3.0).save(path)
    return path


def test_json_of_a_folder_is_that_of_all_rows_with_bounds_and_speed(run, folder, overconfident):
    code, out, err = run("evaluate", folder, "--json")
    assert (code, err) == (0, "")
    result = json.loads(out)
    expected = dict(evaluate(Predictions(logits=overconfident[0], labels=overconfident[1])).metrics)
    assert (result["n"], result["k"]) == (4000, 5)
    assert set(result["metrics"]) == set(expected)
    assert set(result["bounds"]) == RANKED
    for name, value in expected.items():
        low, high = result["bounds"].get(name, (value, value))
        assert low - 1e-12 <= value <= high + 1e-12
        assert result["metrics"][name] == pytest.approx(value, abs=1e-12 + (high - low))
    assert result["rows_per_second"] == pytest.approx(4000 / result["seconds"])
    assert (result["left_out"], result["groups"]) == ([], {})


def test_the_table_of_a_pattern_has_bounds_and_speed(run, folder):
    code, out, _ = run("evaluate", f"{folder}/*.parquet")
    assert code == 0
    assert "4,000 predictions, 5 classes" in out.replace("\n", "")
    assert "Overconfident: mean confidence " in out
    assert "exact value within" in out
    assert "█ accuracy" in out
    assert "rows/s" in out


def test_groups_are_shown_and_are_those_of_the_rows(run, folder, overconfident):
    logits, labels = overconfident
    result = json.loads(run("evaluate", folder, "--by", "version", "--json")[1])
    assert set(result["groups"]) == {"old", "new[er]"}
    old = evaluate(Predictions(logits=logits[labels < 2], labels=labels[labels < 2])).metrics
    for name in set(old) - RANKED:
        assert result["groups"]["old"]["metrics"][name] == pytest.approx(old[name], abs=1e-12)
    out = run("evaluate", folder, "--by", "version")[1]
    (row,) = [line for line in out.splitlines() if line.startswith("new[er]")]
    assert f"{int((labels >= 2).sum()):,}" in row


def test_a_file_is_a_stream_if_it_is_large(run, folder, monkeypatch):
    file = folder / "0.parquet"
    assert "bounds" not in json.loads(run("evaluate", file, "--json")[1])
    monkeypatch.setattr("calibrant.streams.files._LARGE", 1000)
    result = json.loads(run("evaluate", file, "--json")[1])
    assert set(result["bounds"]) == RANKED


def test_a_large_file_is_loaded_where_a_stream_cannot_serve(run, folder, monkeypatch):
    monkeypatch.setattr("calibrant.streams.files._LARGE", 1000)
    result = json.loads(run("evaluate", folder / "0.parquet", "--measures", "ks", "--json")[1])
    assert set(result["metrics"]) == {"ks"}


@pytest.mark.parametrize(
    "options",
    [
        ("--intervals",),
        ("--per-class",),
        ("--per-margin", "3"),
        ("--compare", "other.npz"),
        ("--ood", "other.npz"),
        ("--measures", "ks"),
    ],
)
def test_what_needs_all_samples_of_large_files_is_refused_in_one_sentence(run, folder, options, monkeypatch):
    monkeypatch.setattr("calibrant.streams.files._LARGE", 1000)
    code, out, err = run("evaluate", folder, *options)
    assert (code, out) == (2, "")
    assert err.startswith(f"calibrant: {options[0]}")
    assert "got a stream" in err
    assert err.count("\n") == 1


def test_all_measures_of_a_stream_are_those_it_can_give(run, folder):
    result = json.loads(run("evaluate", folder, "--measures", "all", "--json")[1])
    assert {"accuracy", "rmsce", "augrc", "overconfidence"} <= set(result["metrics"])
    assert "smece" not in result["metrics"]
    named = json.loads(run("evaluate", folder, "--measures", "augrc,brier", "--json")[1])
    assert set(named["metrics"]) == {"augrc", "brier"}


def test_groups_need_their_column_in_any_format(run, tmp_path, overconfident):
    save_predictions(Predictions(logits=overconfident[0], labels=overconfident[1]), tmp_path / "a.npz")
    code, _, err = run("evaluate", tmp_path / "a.npz", "--by", "version")
    assert code == 2
    assert "expected a column 'version', got logits, labels" in err


def test_bad_files_are_one_sentence_or_left_out(run, folder):
    (folder / "9.parquet").write_bytes((folder / "0.parquet").read_bytes()[:-200])
    code, out, err = run("evaluate", folder)
    assert (code, out) == (2, "")
    assert err.startswith("calibrant: 9.parquet: expected a Parquet file")
    code, out, _ = run("evaluate", folder, "--skip-bad")
    assert code == 0
    assert "left out: 9.parquet" in out
    assert "1 bad files or row groups left out" in out.replace("\n", " ")
    result = json.loads(run("evaluate", folder, "--skip-bad", "--json")[1])
    assert (result["n"], result["left_out"][0]["file"]) == (4000, "9.parquet")


def test_apply_on_a_folder_equals_apply_on_each_file(run, folder, calibrator, tmp_path):
    code, out, _ = run("apply", calibrator, folder, "--out", tmp_path / "honest")
    assert code == 0
    assert "4,000 predictions in 2 files calibrated by TemperatureScaling" in out
    for name in ("0.parquet", "1.parquet"):
        run("apply", calibrator, folder / name, "--out", tmp_path / name)
        streamed, single = (load_predictions(path) for path in (tmp_path / "honest" / name, tmp_path / name))
        assert_equal_up_to_rounding(streamed.logits, single.logits)
        np.testing.assert_array_equal(streamed.labels, single.labels)
        assert streamed.logits.dtype == single.logits.dtype
        source = pq.read_table(folder / name)
        assert pq.read_table(tmp_path / "honest" / name)["version"] == source["version"]


def test_apply_streams_a_large_file_to_a_file(run, folder, calibrator, tmp_path, monkeypatch):
    monkeypatch.setattr("calibrant.streams.files._LARGE", 1000)
    assert run("apply", calibrator, folder / "0.parquet", "--out", tmp_path / "x.parquet")[0] == 0
    assert load_predictions(tmp_path / "x.parquet").n == 1500


def test_apply_leaves_nothing_half_written(run, folder, calibrator, tmp_path):
    table = pq.read_table(folder / "1.parquet")
    logits = table["logits"].combine_chunks().flatten().to_numpy().copy()
    logits[5 * 2000] = np.nan
    bad = table.set_column(0, "logits", pa.FixedSizeListArray.from_arrays(pa.array(logits), 5))
    pq.write_table(bad, folder / "1.parquet", row_group_size=600)
    code, _, err = run("apply", calibrator, folder, "--out", tmp_path / "honest")
    assert code == 2
    assert err.startswith("calibrant: 1.parquet, row group 3: logits: expected finite numbers")
    assert "row 2000" in err
    assert sorted(path.name for path in (tmp_path / "honest").iterdir()) == [INCOMPLETE, "0.parquet"]
    code, out, err = run("evaluate", tmp_path / "honest")
    assert (code, out, "expected a complete folder" in err) == (2, "", True)


def test_small_files_of_a_folder_are_loaded_where_a_stream_cannot_serve(run, folder, calibrator, tmp_path):
    result = json.loads(run("evaluate", folder, "--measures", "ks", "--json")[1])
    assert result["n"] == sum(len(load_predictions(file)) for file in folder.glob("*.parquet"))
    assert run("apply", calibrator, folder, "--out", tmp_path / "x.npz")[0] == 0
    assert len(load_predictions(tmp_path / "x.npz")) == result["n"]


def test_each_table_of_a_folder_is_calibrated(run, calibrator, tmp_path):
    days = tmp_path / "days"
    days.mkdir()
    rng = np.random.default_rng(0)
    for day in ("monday", "tuesday"):
        part = Predictions(logits=rng.normal(size=(5, 4)), labels=[0, 1, 2, 3, 0], weights=[1, 2, 3, 4, 0])
        save_predictions(part, days / f"{day}.csv")
    assert run("apply", calibrator, days, "--out", tmp_path / "honest")[0] == 0
    for day in ("monday", "tuesday"):
        before, after = (load_predictions(place / f"{day}.csv") for place in (days, tmp_path / "honest"))
        torch.testing.assert_close(after.logits, torch.log_softmax(before.logits / 3, dim=1))
        assert after.weights.tolist() == before.weights.tolist()
    code, _, err = run("apply", calibrator, days, "--out", days)
    assert (code, "monday.csv, which lies below it" in err) == (2, True)


def test_apply_to_another_format_or_in_place_is_refused(run, folder, calibrator, tmp_path, monkeypatch):
    monkeypatch.setattr("calibrant.streams.files._LARGE", 1000)
    code, _, err = run("apply", calibrator, folder, "--out", tmp_path / "x.npz")
    assert (code, "got a stream" in err) == (2, True)
    code, _, err = run("apply", calibrator, folder, "--out", folder)
    assert (code, "which lies below it" in err) == (2, True)


@pytest.fixture
def answers(tmp_path):
    """Two files of stated confidences with hits, a subject and a question."""
    rng = np.random.default_rng(0)
    source = tmp_path / "answers"
    source.mkdir()
    for number, n in enumerate((700, 500)):
        columns = {
            "question": [f"{number}.{row}" for row in range(n)],
            "confidence": rng.choice([0.0, 0.5, 0.8, 0.95, 1.0], n).astype(np.float32),
            "subject": rng.choice(["law", "art", "new"], n),
            "correct": rng.random(n) < 0.6,
        }
        pq.write_table(pa.table(columns), source / f"{number}.parquet", row_group_size=300)
    return source


@pytest.fixture
def repair(tmp_path):
    """A map of log-odds with a correction for two subjects, and its file."""
    corrected = ByGroup(
        TemperatureScaling(2.0), ["art", "law"], torch.tensor([0.5, -1.0]), torch.tensor([0.0, 0.3])
    )
    calibrator = ConfidenceCalibrator(corrected, torch.tensor([-4.0, 4.0]))
    calibrator.save(tmp_path / "repair.safetensors")
    return calibrator, tmp_path / "repair.safetensors"


@pytest.mark.filterwarnings("default:groups. expected them")
def test_apply_repairs_confidences_by_group_and_keeps_all_other_columns(run, answers, repair, tmp_path):
    calibrator, path = repair
    code, out, err = run("apply", path, answers, "--by", "subject", "--out", tmp_path / "honest")
    assert (code, err) == (0, "")
    assert "1,200 predictions in 2 files calibrated by ConfidenceCalibrator" in out
    for name in ("0.parquet", "1.parquet"):
        before, after = pq.read_table(answers / name), pq.read_table(tmp_path / "honest" / name)
        assert after.column_names == ["question", "confidence", "stated_confidence", "subject", "correct"]
        assert after["stated_confidence"] == before["confidence"]
        stated, groups = (before[column].to_pylist() for column in ("confidence", "subject"))
        # The definition: log-odds within the ends, over the temperature, then the group's line.
        slopes, shifts = {"law": 1.3}, {"art": 0.5, "law": -1.0}
        odds = np.clip(np.log(np.clip(stated, 1e-6, 1 - 1e-6) / (1 - np.clip(stated, 1e-6, 1 - 1e-6))), -4, 4)
        expected = [
            1 / (1 + np.exp(-(slopes.get(group, 1) * s / 2 + shifts.get(group, 0))))
            for s, group in zip(odds, groups, strict=True)
        ]
        np.testing.assert_allclose(after["confidence"].to_pylist(), expected, atol=1e-6)
        for column in ("question", "subject", "correct"):
            assert after[column] == before[column]
    _warn_without_groups.cache_clear()
    code, _, err = run("apply", path, answers, "--out", tmp_path / "common")
    assert (code, err.count("all samples get the common map: name the column of the groups")) == (0, 1)
    common = pq.read_table(tmp_path / "common" / "0.parquet")["confidence"].to_numpy()
    stated = pq.read_table(answers / "0.parquet")["confidence"].to_numpy()
    np.testing.assert_allclose(common, calibrator.predict_confidence(stated), atol=1e-6)


def test_apply_repairs_confidences_of_which_nobody_knows_whether_they_were_right(
    run, answers, repair, tmp_path, monkeypatch
):
    table = pq.read_table(answers / "0.parquet").drop(["correct"])
    pq.write_table(table, tmp_path / "new.parquet")
    given = ("apply", repair[1], tmp_path / "new.parquet", "--by", "subject")
    assert run(*given, "--out", tmp_path / "whole.parquet")[0] == 0
    monkeypatch.setattr("calibrant.streams.files._LARGE", 1000)
    assert run(*given, "--out", tmp_path / "streamed.parquet")[0] == 0
    streamed, whole = (pq.read_table(tmp_path / f"{name}.parquet") for name in ("streamed", "whole"))
    assert (
        streamed.column_names
        == whole.column_names
        == ["question", "confidence", "stated_confidence", "subject"]
    )
    np.testing.assert_allclose(streamed["confidence"].to_numpy(), whole["confidence"].to_numpy(), atol=1e-12)


def test_apply_refuses_the_other_form_before_anything_is_written(
    run, answers, folder, repair, calibrator, tmp_path
):
    for path, source, expected in ((repair[1], folder, "confidences"), (calibrator, answers, "class scores")):
        code, _, err = run("apply", path, source, "--out", tmp_path / "out")
        assert (code, (tmp_path / "out").exists()) == (2, False)
        assert f"predictions: expected {expected}" in err
        assert err.count("\n") == 1


def test_groups_without_a_map_for_each_are_refused(run, answers, calibrator, tmp_path):
    code, _, err = run("apply", calibrator, answers, "--by", "subject", "--out", tmp_path / "out")
    assert code == 2
    assert "--by: expected none for calibrator.safetensors, which has one map for all groups" in err


def test_a_stream_of_confidences_has_proper_scores(run, answers):
    result = json.loads(run("evaluate", answers, "--json")[1])
    both = [pq.read_table(answers / f"{number}.parquet") for number in (0, 1)]
    confidence, correct = (
        np.concatenate([table[name].to_numpy() for table in both]).astype(float)
        for name in ("confidence", "correct")
    )
    assert result["metrics"]["brier"] == pytest.approx(((confidence - correct) ** 2).mean(), abs=1e-12)
    right = np.clip(np.where(correct == 1, confidence, 1 - confidence), 1e-6, 1)
    assert result["metrics"]["nll"] == pytest.approx(-np.log(right).mean(), abs=1e-5)


def with_questions(folder):
    """Give every row of a folder one of 500 questions, which have rows in all files."""
    for number, file in enumerate(sorted(folder.glob("*.parquet"))):
        table = pq.read_table(file)
        names = [f"q{(number + 7 * row) % 500}" for row in range(table.num_rows)]
        pq.write_table(table.append_column("question", pa.array(names)), file)
    return folder


def test_a_large_stream_has_intervals_by_unit(run, folder, monkeypatch):
    with_questions(folder)
    small = json.loads(run("evaluate", folder, "--unit", "question", "--intervals", "--json")[1])
    assert "bounds" not in small  # it was loaded
    monkeypatch.setattr("calibrant.streams.files._LARGE", 1000)
    large = json.loads(run("evaluate", folder, "--unit", "question", "--intervals", "--json")[1])
    assert (large["n"], large["n_units"]) == (4000, 500)
    assert set(large["metrics"]) - set(large["intervals"]) == {"classwise_ece"}
    for name, (low, high) in large["intervals"].items():
        assert [low, high] == pytest.approx(small["intervals"][name], abs=0.25 * (high - low))
    out = run("evaluate", folder, "--unit", "question", "--intervals", columns=140)[1]
    assert "4,000 predictions of 500 units, 5 classes" in out
    assert "95 % interval" in out
    assert "no interval: classwise_ece" in out


def test_a_stream_without_units_says_how_to_name_them(run, folder, monkeypatch):
    monkeypatch.setattr("calibrant.streams.files._LARGE", 1000)
    assert "or name the units of its rows with --unit" in run("evaluate", folder, "--intervals")[2]
