"""Large sets are calibrated on a part: which samples are drawn, and what is measured on all of them."""

import json

import pytest
import torch
from typer.testing import CliRunner

from calibrant import Predictions, choose, compare, evaluate, save_predictions
from calibrant.cli import app
from calibrant.evaluation import large_sets
from calibrant.evaluation.large_sets import most_rows, parts_of
from calibrant.posthoc import TemperatureScaling
from calibrant.posthoc.fitting import affine
from calibrant.posthoc.structured import StructuredMatrixScaling
from tests.conftest import draw


@pytest.fixture(autouse=True)
def as_if_large(monkeypatch):
    """Sets of some hundred samples are large here."""
    monkeypatch.setattr(large_sets, "MOST_ROWS", 300)  # twice as many with four classes
    monkeypatch.setattr(large_sets, "MOST_FOR_CHOICE", 75)  # four times as many


def predictions(n=1000, seed=0, **others):
    logits, labels = draw(n, 4, seed=seed, sharpen=2.0)
    return Predictions(logits=logits, labels=labels, **others)


METHODS = ["uncalibrated", "temperature", "structured_vector", "pool"]


def test_sets_with_many_numbers_have_fewer_samples_but_some(monkeypatch):
    monkeypatch.setattr(large_sets, "MOST_ROWS", 100_000)
    assert [most_rows(width) for width in (2, 10, 800, 10**9)] == [500_000, 100_000, 10_000, 2000]


def test_each_class_is_drawn_in_proportion_and_the_choice_is_a_part_of_the_fit():
    given = predictions()
    parts = parts_of(given, seed=0)
    assert (parts.n, len(parts.fitting), len(parts.choice)) == (1000, 600, 300)
    for rows, share in ((parts.fitting, 0.6), (parts.choice, 0.3)):
        assert rows.equal(rows.unique())  # in their order, each once
        drawn = given.labels[rows].bincount(minlength=4)
        assert (drawn - share * given.labels.bincount(minlength=4)).abs().max() <= 1.5
    assert torch.isin(parts.choice, parts.fitting).all()


def test_the_part_is_that_of_the_seed():
    first, same, other = (parts_of(predictions(), seed=seed).choice for seed in (0, 0, 1))
    assert first.equal(same)
    assert not first.equal(other)


def test_units_are_drawn_whole():
    units = torch.arange(1000) // 2
    parts = parts_of(predictions(units=units), seed=0)
    assert 590 < len(parts.fitting) <= 600
    assert parts.choice.equal(parts.fitting)
    assert torch.isin(units, units[parts.fitting]).sum() == len(parts.fitting)


def test_small_sets_few_units_and_groups_are_used_whole():
    assert parts_of(predictions(300), seed=0) is None
    assert parts_of(predictions(units=torch.arange(1000) // 20), seed=0) is None
    assert parts_of(predictions(groups=["a", "b"] * 500), seed=0) is None


def test_methods_are_fitted_on_the_part_and_measured_on_the_whole_test_set():
    given, test = predictions(), predictions(seed=1)
    found = compare(given, test=test, methods=METHODS, n_resamples=20)
    rows = parts_of(given, seed=0).fitting
    fitted = TemperatureScaling.fit(given.logits[rows], given.labels[rows])
    assert torch.equal(found["temperature"].calibrator.temperature, fitted.temperature)
    after = evaluate(Predictions(logits=fitted.predict_log_proba(test.logits), labels=test.labels))
    assert found["temperature"].test_metrics["nll"] == pytest.approx(after.metrics["nll"], abs=1e-12)
    assert found["temperature"].held_out.n == 300
    assert choose(found).test.n == 1000
    members = found.pool.members
    assert members
    for name, member in members.items():
        of_method = found[name].calibrator.state_dict()
        assert all(torch.equal(each, of_method[key]) for key, each in member.state_dict().items())


@pytest.mark.parametrize("weighed", [False, True])
def test_without_a_test_set_all_samples_are_measured_by_fits_that_have_not_seen_them(weighed):
    weights = torch.ones(1000, dtype=torch.float64)
    if weighed:
        weights[::10] = 0
    given = predictions(weights=weights)
    found = compare(given, methods=METHODS, n_resamples=20)
    assert found.n_validation == (900 if weighed else 1000)
    used = weights.nonzero().squeeze(1)
    rows = used[parts_of(given.counted(), seed=0).choice]
    of_choice = TemperatureScaling.fit(given.logits[rows], given.labels[rows])
    others = torch.ones(1000, dtype=torch.bool)
    others[rows] = False
    others &= weights > 0
    held_out = found["temperature"].held_out
    assert held_out.n == 1000
    expected = of_choice.predict_log_proba(given.logits)
    torch.testing.assert_close(held_out.logits[others], expected[others])
    assert (held_out.logits[rows] != expected[rows]).any(dim=1).all()  # by fits without their folds
    assert found["temperature"].metrics["nll"] == pytest.approx(
        evaluate(held_out, measures="nll").metrics["nll"], abs=1e-12
    )


def test_confidences_and_scores_are_measured_whole_too():
    given = predictions()
    outcomes = given.outcomes()
    for name, values in (("confidence", outcomes.confidence), ("score", outcomes.confidence.logit())):
        pairs = Predictions(**{name: values, "correct": outcomes.correct})
        part, whole = (
            compare(pairs, methods=["platt"], all_samples=every, n_resamples=20)["platt"]
            for every in (False, True)
        )
        assert part.held_out.n == 1000
        assert part.metrics["nll"] == pytest.approx(whole.metrics["nll"], abs=0.02)


def test_all_samples_are_used_if_they_are_wanted():
    given = predictions()
    found = compare(given, methods=["temperature"], all_samples=True, n_resamples=20)
    fitted = TemperatureScaling.fit(given.logits, given.labels)
    assert torch.equal(found["temperature"].calibrator.temperature, fitted.temperature)
    assert found.parts is None


def test_the_command_says_what_was_used_and_agrees_with_compare(tmp_path):
    given = predictions()
    save_predictions(given, tmp_path / "val.npz")
    words = ["calibrate", str(tmp_path / "val.npz"), "--methods", "temperature"]
    line = "Methods were fitted on 600 of 1,000 validation samples and chosen on 300 of these"
    assert line in " ".join(CliRunner().invoke(app, words).output.split())
    assert "chosen on" not in CliRunner().invoke(app, [*words, "--all-samples"]).output
    found = json.loads(CliRunner().invoke(app, [*words, "--json"]).output)
    assert (found["n_validation"], found["n_fitted"], found["n_chosen"]) == (1000, 600, 300)
    alone = compare(given, methods="temperature", n_resamples=20)["temperature"]
    assert found["methods"]["temperature"]["validation"]["nll"] == alone.metrics["nll"]


def test_methods_that_learn_numbers_of_each_of_many_classes_need_as_many_samples():
    logits, labels = draw(60, 400, sharpen=2.0)
    given = Predictions(logits=logits, labels=labels)
    found = compare(given, n_resamples=20)
    reason = "it learns numbers of each of 400 classes, of which 60 samples show few"
    assert found.skipped["structured_vector"] == found.skipped["structured_vector_smart"] == reason
    assert "structured_vector is left out" in str(found)
    named = compare(given, methods=["temperature", "structured_vector"], n_resamples=20)
    assert named["structured_vector"].calibrator.n_classes == 400


def test_the_layout_of_scores_does_not_change_a_fit(monkeypatch):
    logits, labels = (torch.tensor(each) for each in draw(2000, 5, sharpen=2.0))
    rows = StructuredMatrixScaling.fit(logits.double(), labels)
    monkeypatch.setattr(affine, "_MANY_ROWS", 100)
    columns = StructuredMatrixScaling.fit(logits.double(), labels)
    torch.testing.assert_close(columns(logits), rows(logits), atol=1e-4, rtol=0)
