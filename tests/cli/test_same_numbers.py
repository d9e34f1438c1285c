"""Every number of chance that two places print is the same: table, JSON, report, gate and Python."""

import json

import numpy as np
import pytest

from calibrant import evaluate, load_predictions
from calibrant.evaluation import by_group, paired_comparison
from calibrant.inference import paired_difference, with_interval
from calibrant.metrics import MEASURES
from tests.conftest import draw

SHARED = ("accuracy", "nll", "brier", "ece", "classwise_ece", "aurc", "auroc_correct")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Predictions of two models for the same samples, the second one nearly as good; and groups."""
    folder = tmp_path_factory.mktemp("same")
    logits, labels = draw(400, 4, seed=8, sharpen=1.5)
    rng = np.random.default_rng(0)
    groups = rng.choice(["art", "law", "law and order"], size=400)
    for name, scores in {"a": logits, "b": logits + 0.6 * rng.normal(size=logits.shape)}.items():
        np.savez(folder / f"{name}.npz", logits=scores, labels=labels, groups=groups)
    return folder


@pytest.fixture
def page(run, files, tmp_path, monkeypatch):
    """The page that ``calibrant report`` writes about both files."""
    written = []
    monkeypatch.setattr("calibrant.report.write.write_report", lambda page, _: written.append(page))
    both = files / "a.npz", files / "b.npz"
    code, _, err = run("report", *both, "--by", "groups", "--out", tmp_path / "report.html")
    assert (code, err) == (0, "")
    return written[0]


def answer(run, *arguments):
    """Return the JSON that a command prints."""
    return json.loads(run(*arguments, "--json")[1])


def digits(measure, value):
    """Return a number as tables print it."""
    return f"{100 * value:.2f}" if MEASURES[measure].percent else f"{value:.4f}"


def test_an_interval_is_the_same_everywhere(run, files, page):
    predictions = load_predictions(files / "a.npz")
    result = evaluate(predictions, intervals=True)
    shown = answer(run, "evaluate", files / "a.npz", "--intervals")["intervals"]
    printed = run("evaluate", files / "a.npz", "--intervals", columns=200)[1]
    candidate = page.candidates[0]
    probs, labels = predictions.to_probs(), predictions.labels
    for name in SHARED:
        measure, found = MEASURES[name], result.intervals[name]
        assert shown[name] == [found.low, found.high]
        assert candidate.intervals[name] == (found.low, found.high)
        wanted = {"logits": predictions.logits, "labels": labels} if name == "nll" else None
        given = wanted or {"probs": probs, "labels": labels}
        alone = with_interval(measure.function, **given, **measure.arguments(15))
        assert (alone.low, alone.high) == pytest.approx((found.low, found.high), abs=1e-12)
        assert f"{digits(name, found.low)} to {digits(name, found.high)}" in printed
        if name in ("accuracy", "nll"):
            verdict = answer(run, "gate", files / "a.npz", "--require", f"{name} < 0.99")["verdicts"][0]
            assert (verdict["low"], verdict["high"]) == (found.low, found.high)
    verdict = answer(run, "gate", files / "a.npz", "--require", "ece < 0.9")["verdicts"][0]
    assert [verdict["low"], verdict["high"]] == shown["ece"]


def test_a_difference_is_the_same_everywhere(run, files, page):
    a, b = (load_predictions(files / f"{name}.npz") for name in "ab")
    result = paired_comparison(a, b)
    shown = answer(run, "evaluate", files / "a.npz", "--compare", files / "b.npz")["comparison"]
    in_page = {each.name: each for each in page.pairs[0].differences}
    marks = {column.name: column.p_values for column in page.columns}
    gate = answer(run, "gate", files / "a.npz", "--no-worse-than", files / "b.npz")["verdicts"]
    for name, found in result.differences.items():
        fields = ("difference", "low", "high", "p_value")
        numbers = tuple(getattr(found, field) for field in fields)
        assert tuple(shown[name][field] for field in fields) == numbers
        assert tuple(getattr(in_page[name], field) for field in fields) == numbers
        if marks[name]:  # the difference of the worse one from the better one has the same p-value
            assert marks[name] == {
                "ab"[found.difference * _sign(name) < 0] + ".npz": pytest.approx(found.p_value)
            }
        for verdict in gate:
            if verdict["measure"] == name:
                assert (verdict["value"], verdict["low"], verdict["high"]) == numbers[:3]
    alone = paired_difference(MEASURES["brier"].function, a.to_probs(), b.to_probs(), a.labels)
    assert alone == result.differences["brier"]
    assert sum(bool(each) for each in marks.values()) >= 4


def _sign(name):
    return 1 if MEASURES[name].better == "lower" else -1


def test_what_chance_shows_is_the_same_everywhere(run, files, page):
    found = evaluate(load_predictions(files / "a.npz"), chance=True).by_chance["ece"]
    shown = answer(run, "evaluate", files / "a.npz")["by_chance"]["ece"]
    assert (shown["mean"], shown["high"], shown["p_value"]) == (found.mean, found.high, found.p_value)
    titles = {"a.npz", MEASURES["ece"].title}
    (line,) = (each for each in page.chance if {each.candidate, each.title} == titles)
    assert (line.mean, line.high, line.p_value) == (found.mean, found.high, found.p_value)
    assert 0 < found.p_value < 1


def test_the_test_of_a_group_is_the_same_everywhere(run, files, page):
    predictions = load_predictions(files / "a.npz")
    shown = answer(run, "evaluate", files / "a.npz", "--by", "groups")["groups"]
    in_page = {line.name: line.before for line in page.groups.lines}
    for found in by_group(predictions).rows:
        row, line = shown[found.name], in_page[found.name]
        assert (row["p_value"], row["p_corrected"]) == (found.p_value, found.p_corrected)
        assert (line.low, line.high, line.p_value) == (found.gap_low, found.gap_high, found.p_corrected)
