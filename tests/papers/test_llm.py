"""Language models: a file of answers becomes jobs, jobs become a page and a figure."""

import math

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scripts.llm_page import honesty_figure, honesty_page, read_honesty
from typer.testing import CliRunner

from calibrant.cli import app
from calibrant.errors import InputError
from calibrant.papers.experiment import parse_experiment
from calibrant.papers.llm import draw_answers, expand_models, read_model, run_llm
from calibrant.papers.rows import Record, Row, finished_rows
from calibrant.papers.runner import run_experiment

pytestmark = pytest.mark.slow

TEXT = """
title = "My models"
worker = "llm"
[table]
rows = ["confidence", "method"]
measures = ["ece", "brier"]
[quick]
seeds = 1
[quick.grid]
samples = [100, 600]
[quick.settings]
methods = ["platt", "combination", "pool"]
"""


def answers(n, rng, *, tokens=True, subjects=3):
    """Answers that are right by a hidden ability, which two confidences show with noise, one far too high."""
    subject = rng.integers(subjects, size=n)
    ability = rng.normal(size=n) + subject - 1
    correct = rng.random(n) < 1 / (1 + np.exp(-ability))
    stated = np.round(1 / (1 + np.exp(-(ability + rng.normal(size=n)) / 2 - 2)), 1)
    token = 1 / (1 + np.exp(-(ability + rng.normal(size=n))))
    return {
        "category": [f"subject {each}" for each in subject],
        "correct": correct,
        "stated": np.where(rng.random(n) < 0.1, np.nan, stated),
        "token": token if tokens else np.full(n, np.nan),
    }


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("answers")
    rng = np.random.default_rng(0)
    models = {"large": answers(1100, rng), "small": answers(700, rng, tokens=False)}
    models["large"]["stated"][:2] = [362880.0, -1.0]
    columns = {
        name: np.concatenate([each[name] for each in models.values()])
        for name in ("category", "correct", "stated", "token")
    }
    names = np.repeat(list(models), [len(each["correct"]) for each in models.values()])
    table = pa.table({"model": pa.array(names).dictionary_encode(), **columns})
    pq.write_table(table, folder / "answers.parquet")
    return folder


@pytest.fixture(scope="module")
def finished(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("rows")
    list(run_experiment(parse_experiment("mine", TEXT), folder, data=data))
    return folder


def jobs():
    return list(parse_experiment("mine", TEXT).jobs("quick"))


# ---- answers


def test_impossible_and_missing_confidences_are_dropped_and_counted(data):
    found = read_model(data / "answers.parquet", "large")
    assert found.impossible == {"stated": 2, "token": 0}
    assert found.missing["stated"] == np.isnan(found.confidences["stated"]).sum() - 2
    assert 50 < found.missing["stated"] < 200
    assert np.isnan(found.confidences["stated"][:2]).all()


def test_jobs_are_models_with_the_confidences_that_they_have(data):
    expanded, left_out = expand_models(jobs(), data)
    assert [tuple(job.key.values()) for job in expanded] == [
        ("large", "stated", 100), ("large", "token", 100), ("large", "combined", 100),
        ("small", "stated", 100), ("large", "stated", 600), ("large", "token", 600),
        ("large", "combined", 600),
    ]  # fmt: skip
    assert left_out == {"small, token": "expected at least 400 answers, 100 of them to fit, got 0"}


def test_all_confidences_of_a_model_are_tested_on_the_same_answers(data):
    found = read_model(data / "answers.parquet", "large")
    draws = {name: draw_answers(found, name, 100, seed=1) for name in ("stated", "token", "combined")}
    stated, token, both = draws.values()
    assert [each.fitting.n for each in draws.values()] == [100, 100, 100]
    assert token.complete.sum() == stated.complete.sum() == stated.test.n == both.test.n
    assert token.test.n > stated.test.n
    # Confidences of tokens are unique, so they tell answers apart.
    tested = set(token.test.confidence.tolist())
    assert not tested & set(token.fitting.confidence.tolist())
    assert set(both.test.signals["token"].tolist()) <= tested
    assert not tested & set(both.fitting.signals["token"].tolist())
    again = draw_answers(found, "stated", 100, seed=1)
    assert again.test.confidence.equal(stated.test.confidence)


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        (
            {"model": ["a"], "category": ["b"], "stated": [0.5]},
            "answers.parquet: expected .*got no 'correct'",
        ),
        ({"model": ["a"], "category": ["b"], "correct": [True]}, "expected columns of confidences.*got none"),
        (
            {"model": ["a"], "category": ["b"], "correct": [True], "combined": [0.5]},
            "with names of their own, got one called 'combined'",
        ),
        (
            {"model": ["a"], "category": ["b"], "correct": [None], "stated": [0.5]},
            "expected correct for every answer, got none for some of a",
        ),
        (
            {"model": ["a"], "category": ["b"], "correct": [True], "stated": [0.5]},
            "expected a model with at least 400 answers and their confidence, got none",
        ),
    ],
)
def test_a_file_of_something_else_is_refused(columns, told, tmp_path):
    pq.write_table(pa.table(columns), tmp_path / "answers.parquet")
    with pytest.raises(InputError, match=told):
        expand_models(jobs(), tmp_path)


def test_a_folder_without_answers_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"data: expected a folder that holds answers.parquet, got none"):
        expand_models(jobs(), None)
    with pytest.raises(InputError, match=r"data: expected a folder that holds answers.parquet, got .*"):
        expand_models(jobs(), tmp_path)


# ---- a job


def plain_ece(confidence, correct, n_bins=15):
    total = 0.0
    for b in range(n_bins):
        inside = [i for i, c in enumerate(confidence) if b / n_bins < c <= (b + 1) / n_bins or b == c == 0]
        total += abs(sum(confidence[i] - correct[i] for i in inside))
    return total / len(confidence)


def test_a_job_measures_each_method_on_the_other_answers(data):
    key = {"model": "large", "confidence": "stated", "samples": 600}
    found = {each.labels["method"]: each for each in run_llm(key, {"methods": ["platt", "pool"]}, 3, data)}
    assert set(found) == {"uncalibrated", "platt", "calibrant", "calibrant by group"}
    test = draw_answers(read_model(data / "answers.parquet", "large"), "stated", 600, seed=3).test
    confidence, correct = test.confidence.tolist(), test.correct.double().tolist()
    values = found["uncalibrated"].values
    assert values["n_test"] == test.n
    assert values["mean_confidence"] == pytest.approx(np.mean(confidence), rel=1e-4)
    assert values["ece"] == pytest.approx(plain_ece(confidence, correct), rel=1e-4)
    within = 0.0
    for name in set(test.groups.values):
        rows = [i for i, each in enumerate(test.groups.values) if each == name]
        error = plain_ece([confidence[i] for i in rows], [correct[i] for i in rows])
        within += len(rows) / test.n * error
    assert values["group_ece"] == pytest.approx(within, rel=1e-4)
    repaired, by_group = found["calibrant"].values, found["calibrant by group"].values
    assert repaired["ece"] < values["ece"] / 2
    assert by_group["nll"] < repaired["nll"]  # subjects differ
    assert 0 < by_group["group_ece_of_perfect"] < by_group["group_ece"] + 0.1


def test_combining_beats_the_single_confidences_where_each_shows_something_else(finished):
    results = read_honesty(finished_rows(finished))
    both = results.of("large", "combined", 600, "calibrant")
    assert both["complete_brier"] < results.best_single("complete_brier", "large", 600)
    assert both["complete_auroc_correct"] > results.best_single(
        "complete_auroc_correct", "large", 600, highest=True
    )


def test_a_method_that_cannot_be_fitted_counts_as_uncalibrated_with_the_reason(data):
    key = {"model": "small", "confidence": "stated", "samples": 100}
    found = {
        each.labels["method"]: each for each in run_llm(key, {"methods": ["platt", "combination"]}, 0, data)
    }
    assert "got none" in found["combination"].labels["reason"]
    assert found["combination"].values["nll"] == found["uncalibrated"].values["nll"]


# ---- the page


def row(model, confidence, samples, seed, **methods):
    records = tuple(Record({"method": name.replace("_", " ")}, each) for name, each in methods.items())
    key = {"model": model, "confidence": confidence, "samples": samples}
    return Row("llm", "quick", key, seed, records, 1.0, {})


def test_results_are_means_over_seeds_and_over_models():
    rows = [
        row("a", "stated", 100, 0, calibrant={"nll": 0.2}, platt={"nll": 0.3}),
        row("a", "stated", 100, 1, calibrant={"nll": 0.4}, platt={"nll": 0.3}),
        row("b", "stated", 100, 0, calibrant={"nll": 0.5}, platt={"nll": 0.6}),
        row("c", "stated", 100, 0, calibrant={"nll": 0.7}, platt={"nll": 0.6}),
    ]
    results = read_honesty(rows)
    assert results.of("a", "stated", 100, "calibrant")["nll"] == pytest.approx(0.3)
    assert results.mean("nll", "stated", 100, "calibrant") == pytest.approx(0.5)
    assert results.share_better("nll", "stated", 100, "calibrant", "platt") == pytest.approx(1.5 / 3)


def test_the_best_single_confidence_is_that_of_each_model():
    rows = [
        row("a", "stated", 100, 0, calibrant={"complete_brier": 0.2}),
        row("a", "token", 100, 0, calibrant={"complete_brier": 0.1}),
        row("a", "combined", 100, 0, calibrant={"complete_brier": 0.05}),
    ]
    assert read_honesty(rows).best_single("complete_brier", "a", 100) == 0.1
    assert read_honesty(rows).best_single("complete_brier", "a", 100, highest=True) == 0.2


def test_rows_are_required():
    with pytest.raises(InputError, match="llm: expected finished rows, got none"):
        honesty_page([])


def test_the_page_has_every_part_and_every_model(finished):
    page = honesty_page(finished_rows(finished), left_out={"small, token": "none"})
    for title in (
        "How honest the models are",
        "What repairs them",
        "What subjects add",
        "What combining adds",
    ):
        assert f"## {title}" in page
    assert "| large |" in page.split("## Each model: stated")[1]
    assert "`small, token`: none" in page
    assert "nan" not in page


def test_the_figure_shows_what_models_state_and_what_is_right(finished):
    figure = honesty_figure(finished_rows(finished))
    by_name = {each.name: each for each in figure.models}
    assert set(by_name) == {"large"}  # the other one has too few answers for 600
    before = read_honesty(finished_rows(finished)).of("large", "stated", 600, "uncalibrated")
    assert by_name["large"].before == before["mean_confidence"]
    assert abs(by_name["large"].after - by_name["large"].accuracy) < 0.08 < by_name["large"].error_before
    assert all(math.isfinite(each.error_after) for each in figure.models)


@pytest.mark.usefixtures("jobs_in_this_process")
def test_the_command_takes_some_models_and_writes_their_table(data, tmp_path):
    (tmp_path / "mine.toml").write_text(TEXT.replace("[100, 600]", "[100]"))
    words = ["bench", "run", str(tmp_path / "mine.toml"), "--data", str(data), "--out", str(tmp_path / "out")]
    result = CliRunner().invoke(app, [*words, "--only", "model=sm*"])
    assert result.exit_code == 0, result.output
    assert {row.key["model"] for row in finished_rows(tmp_path / "out")} == {"small"}
    page = honesty_page(finished_rows(tmp_path / "out"))
    assert page.startswith("1 model, 1 seed")
    assert "## Each model: stated" in page
    assert "| stated | uncalibrated |" in (tmp_path / "out" / "table.md").read_text()
