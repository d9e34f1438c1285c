"""Venn-Abers: two isotonic fits for every sample, without fitting them one by one."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.isotonic import isotonic_regression
from sklearn.metrics import log_loss

from calibrant.posthoc.fitting.binary import class_log_odds
from calibrant.posthoc.isotonic import IsotonicCalibration
from calibrant.posthoc.venn_abers import VennAbers, with_a_hit
from tests.conftest import draw


def refitted(scores, answers, new, label):
    """The definition: add the new sample with a supposed label, fit again, read the value at its score."""
    inverse = np.unique(np.append(scores, new), return_inverse=True)[1]
    count = np.bincount(inverse)
    hits = np.bincount(inverse, np.append(answers, label))
    return isotonic_regression(hits / count, sample_weight=count)[inverse[-1]]


@settings(max_examples=200)
@given(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 4)), min_size=1, max_size=14))
def test_a_hit_added_anywhere_gives_the_value_of_a_new_fit(groups):
    count = np.array([c for c, _ in groups], dtype=float)
    hits = np.array([min(c, h) for c, h in groups], dtype=float)
    scores = np.repeat(np.arange(len(count)), count.astype(int))
    answers = np.concatenate([[1] * int(h) + [0] * int(c - h) for c, h in zip(count, hits, strict=True)])
    expected = [refitted(scores, answers, place, 1) for place in range(len(count))]
    assert with_a_hit(count, hits) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("decimals", [0, 1, 9])
def test_both_bounds_are_those_of_new_fits_between_and_beyond_the_scores(decimals):
    rng = np.random.default_rng(decimals)
    scores = (rng.normal(size=60) * 2).round(decimals)
    answers = (rng.random(60) < 1 / (1 + np.exp(-scores / 2))).astype(int)
    fitted = VennAbers.fit(scores, answers, mode="one_vs_rest")
    new = np.concatenate([scores, scores + 0.0313, [-99.0, 99.0]])
    log_p1, log_not_p0 = fitted.log_bounds(torch.from_numpy(new)[:, None])
    assert log_p1[:, 0].exp().numpy() == pytest.approx([refitted(scores, answers, s, 1) for s in new])
    assert 1 - log_not_p0[:, 0].exp().numpy() == pytest.approx([refitted(scores, answers, s, 0) for s in new])


def test_the_bounds_are_merged_as_the_paper_does():
    logits, labels = draw(300, 2, sharpen=2.0)
    fitted = VennAbers.fit(logits, labels, mode="one_vs_rest")
    log_p1, log_not_p0 = fitted.log_bounds(class_log_odds(torch.from_numpy(logits)))
    p1, p0 = log_p1[:, 0].exp().numpy(), 1 - log_not_p0[:, 0].exp().numpy()
    assert np.all(p0 < p1)
    assert fitted.predict_proba(logits)[:, 1] == pytest.approx(p1 / (1 - p0 + p1))


def test_no_answer_is_certain():
    scores, labels = np.linspace(-3, 3, 50), (np.linspace(-3, 3, 50) > 0).astype(int)
    labels[[20, 30]] = 1, 0
    probs = VennAbers.fit(scores, labels, mode="one_vs_rest").predict_proba(np.array([-99.0, 99.0]))
    assert probs.min() > 0.01


def test_one_vs_rest_is_one_map_per_class_divided_by_the_sum():
    logits, labels = draw(300, 3, sharpen=2.0)
    odds = class_log_odds(torch.from_numpy(logits)).numpy()
    alone = [
        VennAbers.fit(odds[:, c], (labels == c).astype(int), mode="one_vs_rest").predict_proba(odds[:, c])[
            :, 1
        ]
        for c in range(3)
    ]
    expected = np.stack(alone, axis=1) / np.sum(alone, axis=0)[:, None]
    found = VennAbers.fit(logits, labels, mode="one_vs_rest").predict_proba(logits)
    assert found == pytest.approx(expected, abs=1e-9)


def test_few_samples_cost_less_likelihood_than_plain_isotonic_regression():
    new, truth = draw(3000, 4, seed=50, sharpen=2.0)
    gains = []
    for seed in range(10):
        few = draw(60, 4, seed=seed, sharpen=2.0)
        plain = IsotonicCalibration.fit(*few, smoothing=0).predict_proba(new)
        gains.append(log_loss(truth, plain) - log_loss(truth, VennAbers.fit(*few).predict_proba(new)))
    assert min(gains) > 0
