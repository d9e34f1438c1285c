"""Weights from predictions to a chosen calibrator: three rows, no row, and only ratios."""

import dataclasses
import math

import numpy as np
import pytest
import torch

from calibrant import Predictions
from calibrant.errors import InputError
from calibrant.evaluation import (
    answer_when,
    by_class,
    by_group,
    by_margin,
    compare,
    effect_of,
    make_choice,
    paired_comparison,
    temperature_curve,
)
from calibrant.evaluation.calibrated import calibrated, fit_named
from calibrant.evaluation.margin_diagnosis import diagnose_margins
from calibrant.inference.calibration_test import cumulative_test
from calibrant.inference.intervals import mean_with_error
from calibrant.metrics.cumulative import CumulativeDifference
from calibrant.outcomes import Outcomes
from tests.conftest import draw

N = 400
RNG = np.random.default_rng(0)
COUNTS = RNG.integers(1, 4, size=N)
GROUPS = RNG.choice(["art", "law"], size=N)
LOGITS, LABELS = draw(N, 4, seed=1, sharpen=3.0)
# Rounding can part the equal confidences of isotonic regression, and move one to the next bin.
SMOOTH_METHODS = ["uncalibrated", "temperature", "vector", "pool"]
METHODS = ["uncalibrated", "temperature", "vector", "isotonic_top", "pool"]


def predictions(weights=None, rows=slice(None), **changes):
    parts = {"logits": LOGITS, "labels": LABELS, "groups": GROUPS, **changes}
    return Predictions(**{name: part[rows] for name, part in parts.items()}, weights=weights)


def pairs(weights=None, rows=slice(None)):
    right = (LOGITS.argmax(axis=1) == LABELS)[rows]
    stated = torch.softmax(torch.tensor(LOGITS), dim=1).amax(dim=1).numpy().round(2)[rows]
    return Predictions(confidence=stated, correct=right, groups=GROUPS[rows], weights=weights)


def numbers(value):
    """Return all numbers within a result except counts of samples, times and resampled ends."""
    if dataclasses.is_dataclass(value):
        fields = {each.name: getattr(value, each.name) for each in dataclasses.fields(value)}
        skipped = {
            "n",
            "n_units",
            "count",
            "low",
            "high",
            "gap_low",
            "gap_high",
            "statistic",
            "p_value",
            "p_corrected",
        }
        return numbers({name: each for name, each in fields.items() if name not in skipped})
    if isinstance(value, dict) or hasattr(value, "items"):
        return [number for name in value for number in numbers(value[name])]
    if isinstance(value, (tuple, list)):
        return [number for each in value for number in numbers(each)]
    if isinstance(value, torch.Tensor):
        return value.double().flatten().tolist()
    return [] if value is None or isinstance(value, str) else [float(value)]


SMOOTH = fit_named("smart", predictions())

MEASURED = {
    "classes": lambda given: by_class(given()),
    "margins": lambda given: by_margin(given()),
    "groups": lambda given: by_group(given()),
    "answers": lambda given: answer_when(given().outcomes()),
    "diagnosis": lambda given: diagnose_margins(given(), n_groups=1),
    "models": lambda given: [
        (each.value_a, each.value_b, each.difference)
        for each in paired_comparison(
            given(), given(logits=LOGITS / 2), measures=["nll", "ece", "accuracy"], n_resamples=2
        ).differences.values()
    ],
    "feasible temperatures": lambda given: temperature_curve(given(), calibrator=SMOOTH).feasible,
}


@pytest.mark.parametrize("name", MEASURED)
def test_a_sample_of_weight_three_is_three_samples(name):
    repeated = np.repeat(np.arange(N), COUNTS)
    weighted = numbers(MEASURED[name](lambda **changes: predictions(2.5 * COUNTS, **changes)))
    plain = numbers(MEASURED[name](lambda **changes: predictions(None, repeated, **changes)))
    assert weighted == pytest.approx(plain, rel=1e-6, abs=1e-9, nan_ok=True)
    assert len(weighted) > 2


@pytest.mark.parametrize("given", [predictions, pairs])
def test_samples_of_weight_zero_change_nothing(given):
    weights = COUNTS * (np.arange(N) % 3 > 0)
    methods = METHODS if given is predictions else ["uncalibrated", "platt", "isotonic", "pool"]
    options = {"methods": methods, "n_resamples": 20, "n_folds": 3}
    whole = compare(given(weights), test=given(weights), **options)
    part = compare(given(weights[weights > 0], weights > 0), test=given(weights), **options)
    assert whole.n_validation == part.n_validation == (weights > 0).sum()
    for one, other in zip(whole.results, part.results, strict=True):
        assert dict(one.metrics) == pytest.approx(dict(other.metrics), abs=1e-9)
        assert dataclasses.astuple(one.improvement) == pytest.approx(
            dataclasses.astuple(other.improvement), abs=1e-9
        )
        assert one.held_out.n == N
        kept = one.held_out.take(weights > 0)
        torch.testing.assert_close(
            kept.outcomes().confidence, other.held_out.outcomes().confidence, rtol=0, atol=1e-9
        )
    assert make_choice(whole).reason == make_choice(part).reason
    assert make_choice(whole, simple=True).result.name == make_choice(part, simple=True).result.name
    after = effect_of(whole, make_choice(whole), given(weights))
    assert after.after["ece"] == pytest.approx(make_choice(whole).result.test_metrics["ece"])


def test_only_ratios_of_weights_count():
    weights = RNG.gamma(1.0, size=N)
    one, other = (
        compare(predictions(scale * weights), methods=SMOOTH_METHODS, n_resamples=20, n_folds=3)
        for scale in (1.0, 1e-3)
    )
    for ours, theirs in zip(one.results, other.results, strict=True):
        assert dict(ours.metrics) == pytest.approx(dict(theirs.metrics), rel=1e-6)
    assert one.pool is not None
    assert other.pool is not None
    assert one.pool.weights == pytest.approx(other.pool.weights, abs=1e-5)
    options = {"methods": ["temperature"], "n_folds": 3, "n_resamples": 20}
    plain, equal = (compare(predictions(w), **options) for w in (None, np.full(N, 7.0)))
    assert [dict(each.metrics) for each in plain.results] == [dict(each.metrics) for each in equal.results]


def test_the_table_is_made_of_weighted_means():
    weights = RNG.gamma(1.0, size=N)
    result = compare(predictions(weights), methods=METHODS, n_resamples=20)["temperature"]
    assert result.metrics["nll"] == pytest.approx(np.average(result.losses["nll"], weights=weights))
    right = result.held_out.to_probs().argmax(dim=1).numpy() == LABELS
    assert result.metrics["accuracy"] == pytest.approx(np.average(right, weights=weights))
    fitted = fit_named("temperature", predictions(weights))
    assert float(fitted.temperature) == pytest.approx(float(result.calibrator.temperature), rel=1e-6)
    assert torch.equal(calibrated(fitted, predictions(weights)).weights, torch.tensor(weights))


def test_methods_that_cannot_take_weights_are_skipped_or_refused():
    weights = RNG.gamma(1.0, size=N)
    few = pairs(weights[:60], slice(60))
    skipped = compare(few, methods="all", n_resamples=20, n_folds=2).skipped
    assert skipped["venn_abers"] == "it cannot take weights"
    for methods in ("venn_abers", ["temperature", "venn_abers"]):
        with pytest.raises(InputError, match="^weights: expected none for venn_abers, got some"):
            compare(predictions(weights), methods=methods)
    with pytest.raises(InputError, match="^weights: expected a weight above 0"):
        compare(predictions(np.zeros(N)))


@pytest.mark.parametrize("weights", [np.ones(50), RNG.gamma(1.0, size=50)])
def test_the_standard_error_of_a_weighted_mean_is_that_of_its_influence(weights):
    terms, shares = RNG.normal(size=50), weights / weights.sum()
    centred = terms - shares @ terms
    effective = 1 / (shares**2).sum()
    variance = sum((w * t) ** 2 for w, t in zip(shares, centred, strict=True))
    error = math.sqrt(variance * effective / (effective - 1))
    assert mean_with_error(centred + 3, weights=weights) == pytest.approx((3, error))
    if np.ptp(weights) == 0:
        assert error == pytest.approx(centred.std(ddof=1) / math.sqrt(50))


def test_the_test_of_weighted_samples_has_its_size_and_its_definition():
    rejected = 0
    for seed in range(200):
        rng = np.random.default_rng(seed)
        confidence = rng.choice([0.5, 0.8, 0.9, 0.95], size=40) if seed % 2 else rng.uniform(0.4, 1, size=40)
        correct, weights = rng.random(40) < confidence, rng.lognormal(sigma=1.2, size=40)
        outcomes = Outcomes(torch.tensor(confidence), torch.tensor(correct)).weighed(torch.tensor(weights))
        found = cumulative_test(CumulativeDifference.from_outcomes(outcomes), n_resamples=99, rng=rng)
        rejected += found.p_value <= 0.1
        up_to = [(weights * (correct - confidence))[confidence <= c].sum() for c in np.unique(confidence)]
        variance = (weights**2 * confidence * (1 - confidence)).sum()
        largest = max([0.0, *up_to]) - min([0.0, *up_to])
        assert found.statistic == pytest.approx(largest / math.sqrt(variance))
    assert 8 <= rejected <= 36  # 20 of 200, give or take 3.8 standard errors


def test_groups_without_weight_are_left_out_and_intervals_know_the_effective_number():
    weights = np.where(GROUPS == "art", 0.0, COUNTS)
    (row,) = by_group(pairs(weights)).rows
    law = pairs().take(GROUPS == "law")
    w = weights[GROUPS == "law"]
    assert row.accuracy == pytest.approx(np.average(law.correct, weights=w))
    n, q, z = w.sum() ** 2 / (w**2).sum(), row.accuracy, 1.959964
    middle = (q + z * z / (2 * n)) / (1 + z * z / n)
    assert row.mean_confidence - (row.gap_low + row.gap_high) / 2 == pytest.approx(middle, rel=1e-6)


def test_pairs_with_other_weights_are_not_the_same_samples():
    with pytest.raises(InputError, match="^weights: expected the same samples .* got 1 and 2 in row 0"):
        paired_comparison(predictions(np.ones(N)), predictions(np.full(N, 2.0)))


def test_samples_that_do_not_count_are_found():
    part = predictions(np.arange(N) % 2).counted()
    assert (part.n, part.weights) == (N // 2, None)
    assert predictions(COUNTS).counted().weights is not None
