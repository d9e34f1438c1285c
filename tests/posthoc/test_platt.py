"""Platt scaling: logistic regressions of the classes on their log-odds."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss

from calibrant.errors import FitError, InputError
from calibrant.posthoc.platt import PlattScaling
from tests.conftest import draw, softmax


def binary(n=5000, *, slope=0.5, shift=-1.0, seed=0):
    """Log-odds of class 1 and labels whose true log-odds are ``slope * s + shift``."""
    rng = np.random.default_rng(seed)
    s = rng.normal(size=n) * 3
    return s, (rng.random(n) < 1 / (1 + np.exp(-slope * s - shift))).astype(int)


def test_the_stretch_and_shift_that_made_the_labels_are_found():
    fitted = PlattScaling.fit(*binary(20_000))
    assert fitted.slope.tolist() == pytest.approx([0.5], abs=0.02)
    assert fitted.intercept.tolist() == pytest.approx([-1.0], abs=0.05)


def test_two_classes_without_shrinkage_are_a_logistic_regression():
    s, y = binary(500)
    expected = LogisticRegression(C=np.inf, tol=1e-10).fit(s[:, None], y)
    fitted = PlattScaling.fit(s, y, shrinkage=0)
    assert fitted.slope.item() == pytest.approx(expected.coef_.item(), rel=1e-5)
    assert fitted.intercept.item() == pytest.approx(expected.intercept_.item(), rel=1e-5)


def test_both_ways_to_write_a_binary_problem_are_one():
    s, y = binary(300)
    one, two = PlattScaling.fit(s, y), PlattScaling.fit(np.stack([0 * s, s], axis=1), y)
    assert one.slope.item() == two.slope.item()
    swapped = PlattScaling.fit(np.stack([s, 0 * s], axis=1), 1 - y).predict_proba(
        np.stack([s, 0 * s], axis=1)
    )
    assert swapped[:, ::-1] == pytest.approx(one.predict_proba(s), abs=1e-6)


def test_each_class_without_shrinkage_is_a_logistic_regression_of_its_own():
    logits, labels = draw(1000, 3, sharpen=2.0)
    p = softmax(logits)
    fitted = PlattScaling.fit(logits, labels, shrinkage=0)
    answers = []
    for c in range(3):
        s = np.log(p[:, c]) - np.log1p(-p[:, c])
        model = LogisticRegression(C=np.inf, tol=1e-10).fit(s[:, None], labels == c)
        answers.append(model.predict_proba(s[:, None])[:, 1])
    expected = np.stack(answers, axis=1)
    assert fitted.predict_proba(logits) == pytest.approx(
        expected / expected.sum(axis=1, keepdims=True), abs=1e-5
    )


def test_smooth_targets_are_those_of_platt():
    s, y = binary(40)
    targets = np.where(y == 1, (y.sum() + 1) / (y.sum() + 2), 1 / ((1 - y).sum() + 2))
    expected = minimize(
        lambda t: np.sum(np.logaddexp(0, t[0] * s + t[1]) - targets * (t[0] * s + t[1])), [1, 0]
    )
    fitted = PlattScaling.fit(s, y, smooth_targets=True, shrinkage=0)
    assert [fitted.slope.item(), fitted.intercept.item()] == pytest.approx(expected.x, abs=1e-4)


def test_separable_data_need_shrinkage_or_smooth_targets():
    s, y = np.array([-3.0, -1.0, 2.0, 4.0]), [0, 0, 1, 1]
    with pytest.raises(
        FitError, match="^Platt scaling: no optimum, a threshold separates class 1 from the rest"
    ):
        PlattScaling.fit(s, y, shrinkage=0)
    for options in ({}, {"shrinkage": 0, "smooth_targets": True}):
        assert torch.isfinite(PlattScaling.fit(s, y, **options).slope).all()


def test_much_shrinkage_gives_every_class_the_same_map():
    logits, labels = draw(500, 4, sharpen=2.0)
    free, bound = (PlattScaling.fit(logits, labels, shrinkage=s).slope for s in (0.0, 1e9))
    assert bound.max() - bound.min() < 1e-5
    assert free.max() - free.min() > 0.01
    assert free.min() < bound.mean() < free.max()


def test_a_missing_class_has_the_map_that_all_share():
    logits, labels = draw(400, 4, sharpen=2.0)
    seen = labels != 2
    shared = PlattScaling.fit(logits[seen], labels[seen], shrinkage=1e9)
    fitted = PlattScaling.fit(logits[seen], labels[seen])
    assert fitted.slope[2].item() == pytest.approx(shared.slope[0].item(), abs=1e-5)


@pytest.mark.parametrize("factor", [1e-4, 1e-2, 1e2, 1e4])
def test_the_scale_of_binary_logits_does_not_matter(factor):
    s, y = binary(2000)
    expected = PlattScaling.fit(s, y).predict_proba(s)
    assert PlattScaling.fit(s * factor, y).predict_proba(s * factor) == pytest.approx(expected, abs=2e-3)


@pytest.mark.parametrize("n", [50, 500])
def test_the_likelihood_of_new_data_rises_even_with_few_samples(n):
    new, truth = draw(4000, 8, seed=77, sharpen=2.5)
    before = log_loss(truth, softmax(new))
    for seed in range(5):
        fitted = PlattScaling.fit(*draw(n, 8, seed=seed, sharpen=2.5))
        assert log_loss(truth, fitted.predict_proba(new)) < before


@pytest.mark.parametrize("shrinkage", [-1, np.nan, np.inf, "much", True])
def test_shrinkage_is_a_number_of_samples(shrinkage):
    with pytest.raises(InputError, match="^shrinkage: expected a number of at least 0, got"):
        PlattScaling.fit([1.0, -1.0], [1, 0], shrinkage=shrinkage)
