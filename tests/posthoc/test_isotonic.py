"""Isotonic calibration: the nearest rising curve."""

import numpy as np
import pytest
from sklearn.isotonic import IsotonicRegression

from calibrant.errors import InputError
from calibrant.posthoc.isotonic import IsotonicCalibration
from tests.conftest import draw, softmax


def regression(scores, answers):
    return IsotonicRegression(out_of_bounds="clip").fit(scores, answers).predict(scores)


@pytest.mark.parametrize("decimals", [None, 1])
def test_plain_confidence_is_scikit_learns_regression_at_every_fitted_sample(decimals):
    logits, labels = draw(700, 4, sharpen=2.5)
    if decimals is not None:
        logits = logits.round(decimals)  # ties
    p = softmax(logits)
    confidence, right = p.max(axis=1), p.argmax(axis=1) == labels
    fitted = IsotonicCalibration.fit(logits, labels, smoothing=0)
    # Where the curve would depose the predicted class its confidence is raised.
    share = np.sort(p, axis=1)[:, -2] / (1 - confidence)
    expected = np.maximum(regression(confidence, right), share / (1 + share))
    assert fitted.predict_proba(logits).max(axis=1) == pytest.approx(expected, abs=1e-5)


def test_plain_one_vs_rest_is_scikit_learns_regression_of_each_class_divided_by_the_sum():
    logits, labels = draw(500, 4, sharpen=2.5)
    p = softmax(logits)
    q = np.stack([regression(p[:, c], labels == c) for c in range(4)], axis=1)
    fitted = IsotonicCalibration.fit(logits, labels, mode="one_vs_rest", smoothing=0)
    assert fitted.predict_proba(logits) == pytest.approx(q / q.sum(axis=1, keepdims=True), abs=1e-9)


def test_smoothing_adds_half_a_hit_and_half_a_miss_to_each_step():
    # Two steps: 4 samples with 1 hit, then 4 with 3.
    scores = np.array([-4.0, -3, -2, -1, 1, 2, 3, 4])
    labels = np.array([1, 0, 0, 0, 1, 1, 1, 0])
    probs = IsotonicCalibration.fit(scores, labels, mode="one_vs_rest").predict_proba(scores)[:, 1]
    assert probs == pytest.approx([1.5 / 5] * 4 + [3.5 / 5] * 4)


def test_smoothing_keeps_the_curve_rising():
    for seed in range(20):
        logits, labels = draw(60, 2, seed=seed, sharpen=3.0)
        fitted = IsotonicCalibration.fit(logits, labels, mode="one_vs_rest", smoothing=5.0)
        assert np.all(np.diff(fitted.predict_proba(np.linspace(-20, 20, 400))[:, 1]) >= -1e-12)


def test_scores_beyond_those_seen_get_the_outermost_values():
    scores, labels = np.array([-1.0, 0.0, 1.0, 2.0]), np.array([0, 1, 0, 1])
    fitted = IsotonicCalibration.fit(scores, labels, mode="one_vs_rest")
    far, near = (fitted.predict_proba(np.array([-x, x]))[:, 1] for x in (99.0, 2.0))
    assert far == pytest.approx(near)


def test_between_steps_the_curve_is_linear_in_log_odds():
    scores, labels = np.array([-3.0, -2, -1, 1, 2, 3]), np.array([0, 1, 0, 1, 1, 0])
    fitted = IsotonicCalibration.fit(scores, labels, mode="one_vs_rest")
    odds = [np.log(p / (1 - p)) for p in fitted.predict_proba(np.array([-1.0, 0.0, 1.0]))[:, 1]]
    assert odds[1] == pytest.approx((odds[0] + odds[2]) / 2, abs=1e-6)


def centred_points(scores, answers, smoothing):
    """The definition as loops: pool neighbours in the wrong order, then take one point for each pool."""
    pools = [[float(s), 1, int(a), float(s), float(s)] for s, a in sorted(zip(scores, answers, strict=True))]

    def rate(pool, added=smoothing):
        return (pool[2] + added / 2) / (pool[1] + added)

    # The plain rates first, then the smoothed ones, whose order can differ.
    for added in (0.0, smoothing):
        i = 0
        while i < len(pools) - 1:
            left, right = pools[i], pools[i + 1]
            if rate(left, added) >= rate(right, added):
                pools[i : i + 2] = [[*(left[j] + right[j] for j in range(3)), left[3], right[4]]]
                i = max(0, i - 1)
            else:
                i += 1
    points = [(pools[0][3], rate(pools[0]))]
    for pool in pools:
        total, count, _, low, high = pool
        value = rate(pool)
        points += [(low, value), (high, value)] if value in (0, 1) else [(total / count, value)]
    return np.array([*points, (pools[-1][4], rate(pools[-1]))]).T


@pytest.mark.parametrize("smoothing", [0.0, 1.0])
@pytest.mark.parametrize("seed", range(4))
def test_centred_steps_are_points_at_the_mean_of_their_scores(seed, smoothing):
    rng = np.random.default_rng(seed)
    # Distinct scores, because the loop does not join equal ones.
    s = rng.permutation(np.linspace(-4, 4, 150) + rng.uniform(0, 0.05, 150))
    y = (rng.random(150) < 1 / (1 + np.exp(-2 * s))).astype(int)
    fitted = IsotonicCalibration.fit(s, y, mode="one_vs_rest", smoothing=smoothing, centred=True)
    x, rates = centred_points(s, y, smoothing)
    at = np.linspace(-5, 5, 300) if smoothing else x
    with np.errstate(divide="ignore"):
        odds = np.clip(np.log(rates) - np.log1p(-rates), -87, 87)
    expected = 1 / (1 + np.exp(-np.interp(at, x, odds)))
    assert fitted.predict_proba(at)[:, 1] == pytest.approx(expected, abs=1e-6)
    assert (rates[0] == 0) == (smoothing == 0)


def test_a_centred_curve_keeps_the_order_that_flat_pieces_lose():
    s, y = draw(400, 2, sharpen=2.0)
    inner = np.linspace(-2, 2, 200)
    steps, centred = (
        IsotonicCalibration.fit(s, y, mode="one_vs_rest", centred=centred).predict_proba(inner)[:, 1]
        for centred in (False, True)
    )
    assert np.diff(steps).min() == pytest.approx(0, abs=1e-12)
    assert np.diff(centred).min() > 1e-6


def test_a_centred_curve_is_constant_beyond_the_scores_seen():
    s, y = draw(400, 2, sharpen=2.0)
    fitted = IsotonicCalibration.fit(s, y, mode="one_vs_rest", centred=True)
    odds = s[:, 1] - s[:, 0]
    far, near = (fitted.predict_proba(np.array(at)) for at in ([-99.0, 99.0], [odds.min(), odds.max()]))
    assert far == pytest.approx(near)


def test_centred_classes_do_not_mix():
    logits, labels = draw(500, 3, sharpen=2.5)
    fitted = IsotonicCalibration.fit(logits, labels, mode="one_vs_rest", centred=True)
    p = softmax(logits)
    q = np.stack(
        [
            np.asarray(
                IsotonicCalibration.fit(
                    np.log(p[:, c] / (1 - p[:, c])),
                    (labels == c).astype(int),
                    mode="one_vs_rest",
                    centred=True,
                ).predict_proba(np.log(p[:, c] / (1 - p[:, c])))
            )[:, 1]
            for c in range(3)
        ],
        axis=1,
    )
    assert fitted.predict_proba(logits) == pytest.approx(q / q.sum(axis=1, keepdims=True), abs=1e-6)


def test_smoothing_is_a_number_of_samples():
    with pytest.raises(InputError, match="^smoothing: expected a number of at least 0, got -1"):
        IsotonicCalibration.fit([1.0, -1.0], [1, 0], smoothing=-1)
