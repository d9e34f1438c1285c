"""Fits on samples that depend on each other: no fold splits a unit, and copies are no further evidence."""

import numpy as np
import pytest
import torch

from calibrant import InputError, Predictions, compare
from calibrant.evaluation import make_choice
from calibrant.posthoc import ByGroup, Combination, FittingSet, StructuredSMART, TemperatureScaling
from calibrant.posthoc.fitting import affine, order_preserving, temperature_curve
from calibrant.posthoc.fitting.folds import each_fold
from calibrant.posthoc.fitting.weighing import design_effect, error_of_mean
from calibrant.posthoc.names import method_named
from calibrant.posthoc.pool import _trust
from tests.conftest import draw


@pytest.fixture(scope="module")
def sample():
    logits, labels = draw(240, 3, sharpen=2.0)
    return torch.tensor(logits), torch.tensor(labels)


def test_with_one_sample_per_unit_everything_is_as_without_units(sample):
    logits, labels = sample
    units = torch.arange(240).flip(0) * 5
    groups = np.where(np.arange(240) % 3 == 0, "a", "b")
    given = {"logits": logits, "labels": labels, "groups": groups}
    alone, named = (compare(Predictions(**given, units=each), seed=4) for each in (None, units))
    for ours, theirs in zip(alone.results, named.results, strict=True):
        assert ours.metrics == theirs.metrics
        assert torch.equal(ours.held_out.logits, theirs.held_out.logits)
        assert ours.improvement == theirs.improvement
        for (name, a), (_, b) in zip(
            ours.calibrator.state_dict().items(), theirs.calibrator.state_dict().items(), strict=True
        ):
            assert torch.equal(a, b), (ours.name, name)


@pytest.mark.parametrize(
    "name", ["structured_matrix", "smart", "logistic_spline", "intra_order", "dirichlet"]
)
def test_searches_within_a_fit_split_no_unit(name, sample, monkeypatch):
    logits, labels = (torch.cat([each] * 2) for each in sample)
    units = torch.arange(240).repeat(2)
    split, dealt = [], FittingSet.dealt

    def watched(folds):
        split.append(folds)
        yield from each_fold(folds)

    def watched_dealt(*given):
        split.append(dealt(*given))
        return split[-1]

    for module in (affine, order_preserving, temperature_curve):
        monkeypatch.setattr(module, "each_fold", watched)
    monkeypatch.setattr(FittingSet, "dealt", watched_dealt)
    method_named(name).fit(logits, labels, units=units)
    assert split
    for folds in split:
        halves = folds.view(2, -1)
        assert torch.equal(halves[0], halves[1])


def test_a_structured_fit_is_that_of_its_units(sample):
    logits, labels = (torch.cat([each] * 3) for each in sample)
    units = torch.arange(240).repeat(3)
    by_unit, by_row = (StructuredSMART.fit(logits, labels, units=each) for each in (units, None))
    # Copies of a sample in other folds make any fit look good, so ridges are weaker by row.
    assert by_unit.for_folds["strength"] >= by_row.for_folds["strength"]


def test_errors_and_design_effects_are_those_of_independent_units():
    rng = np.random.default_rng(0)
    once = torch.tensor(rng.normal(size=500))
    copies, units = once.repeat_interleave(4), torch.arange(500).repeat_interleave(4)
    single = error_of_mean(once, None, None)
    assert error_of_mean(copies, None, units) == pytest.approx(float(single))
    assert error_of_mean(copies, torch.full((2000,), 2.5), units) == pytest.approx(float(single))
    assert design_effect(copies, None, units) == pytest.approx(4.0)
    assert design_effect(once, None, torch.arange(500)) == pytest.approx(1.0)
    gains = 0.05 + copies
    assert _trust(gains, None, units) == pytest.approx(_trust(0.05 + once))
    assert _trust(gains) > _trust(gains, None, units)


def test_a_group_of_copies_is_corrected_no_further_than_one_of_them():
    rng = np.random.default_rng(1)
    s = rng.normal(size=120)
    y = (rng.random(120) < 1 / (1 + np.exp(-s))).astype(int)
    groups = np.array([f"g{i}" for i in range(12)]).repeat(10)
    tiled = {"logits": s.repeat(8), "labels": y.repeat(8)}
    units = np.arange(120).repeat(8)
    options = {"method": "uncalibrated"}
    one = ByGroup.fit(s, y, groups=groups, **options)
    copied = ByGroup.fit(**tiled, groups=groups.repeat(8), units=units, **options)
    rows = ByGroup.fit(**tiled, groups=groups.repeat(8), **options)
    spread = [float(each.spreads.abs().sum()) for each in (one, copied, rows)]
    assert spread[1] == pytest.approx(spread[0])
    assert spread[2] > spread[0]
    assert torch.allclose(one.intercepts, copied.intercepts, atol=0.02)


def test_copies_do_not_make_a_signal_of_noise_look_real():
    rng = np.random.default_rng(3)
    s, noise = rng.normal(size=150), rng.normal(size=150)
    y = (rng.random(150) < 1 / (1 + np.exp(-s))).astype(int)
    units = np.arange(150).repeat(8)
    copied = {"logits": s.repeat(8), "labels": y.repeat(8), "features": noise[:, None].repeat(8, axis=0)}
    once = Combination.fit(s, y, features=noise[:, None])
    by_unit, by_row = (Combination.fit(**copied, units=each) for each in (units, None))
    grid = np.linspace(-2, 2, 9)
    moved = [np.ptp(fit.predict_proba(np.zeros(9), grid[:, None])[:, 1]) for fit in (once, by_unit, by_row)]
    assert moved[1] == pytest.approx(moved[0], abs=0.02)
    assert moved[2] > moved[1] + 0.02


def test_units_are_whole_numbers_one_per_sample(sample):
    with pytest.raises(Exception, match="units: expected 240 integers, one per row, got float32 of shape"):
        TemperatureScaling.fit(*sample, units=torch.zeros(240))
    with pytest.raises(
        Exception, match=r"units: expected 240 integers, one per row, got int64 of shape \(3,\)"
    ):
        TemperatureScaling.fit(*sample, units=[1, 2, 3])


@pytest.mark.slow
def test_answers_to_the_same_question_do_not_prove_that_subjects_differ():
    chosen = []
    for seed in range(3):
        rng = np.random.default_rng(seed)
        ease = 1 + 1.5 * rng.normal(size=150)
        right = rng.random(150) < 1 / (1 + np.exp(-ease))
        question = np.repeat(np.arange(150), 5)
        confidence = 1 / (1 + np.exp(-(ease[question] + rng.normal(size=750))))
        answers = Predictions(
            confidence=confidence.clip(0.01, 0.99),
            correct=right[question] ^ (rng.random(750) < 0.03),
            groups=[f"subject {q % 30}" for q in question],
            units=question,
        )
        rows, units = (compare(each, fast=True) for each in (answers.replaced(units=None), answers))
        chosen.append(make_choice(rows).result.name)
        gain = units["by_group"].metrics["nll"] - units["pool"].metrics["nll"]
        assert gain > -0.01
        assert rows["by_group"].metrics["nll"] < rows["pool"].metrics["nll"] - 0.02
    assert chosen == ["by_group"] * 3


@pytest.mark.parametrize("name", ["pool", "structured_smart", "simplex_isotonic"])
def test_one_unit_of_which_nothing_can_be_held_out_is_refused(name, sample):
    logits, labels = sample
    with pytest.raises(InputError, match=r"^units: expected two, one to hold out, got one$"):
        method_named(name).fit(logits, labels, units=np.zeros(len(labels), dtype=int))
