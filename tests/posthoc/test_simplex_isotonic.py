"""Isotonic regression on the simplex: the surface, its differences, and the mixture with a temperature."""

import itertools

import numpy as np
import pytest
import torch

from calibrant.metrics import negative_log_likelihood
from calibrant.posthoc import SimplexIsotonicCalibration, TemperatureScaling
from calibrant.posthoc import simplex_isotonic as module
from calibrant.posthoc.simplex_isotonic import isotonic_surface


def samples(n=600, k=5, *, seed=0):
    """Overconfident logits, right more often the larger the gap at the top."""
    rng = np.random.default_rng(seed)
    true = rng.normal(size=(n, k)) * 1.5
    labels = (np.exp(true).cumsum(1) > rng.random((n, 1)) * np.exp(true).sum(1, keepdims=True)).argmax(1)
    return np.sign(true) * np.abs(true) ** 1.7 * 2, labels


def upper_sets(rows, columns):
    """Every set of cells that contains, with a cell, all cells of later columns and rows."""
    for cuts in itertools.product(range(columns + 1), repeat=rows):
        if all(b <= a for a, b in itertools.pairwise(cuts)):
            yield np.arange(columns) >= np.array(cuts)[:, None]


def min_max(hits, count):
    """The isotonic regression by its formula: the largest smallest mean over upper and lower sets."""
    rows, columns = hits.shape
    sets = list(upper_sets(rows, columns))
    result = np.full(hits.shape, np.nan)
    for r, c in itertools.product(range(rows), range(columns)):
        best = -np.inf
        for upper in (each for each in sets if each[r, c]):
            means = []
            for lower in (~each for each in sets if not each[r, c]):
                both = upper & lower
                if count[both].sum():
                    means.append(hits[both].sum() / count[both].sum())
            best = max(best, min(means, default=-np.inf))
        result[r, c] = best
    return result


@pytest.mark.parametrize("seed", range(6))
def test_the_surface_is_the_isotonic_regression_in_both_directions(seed):
    rng = np.random.default_rng(seed)
    count = rng.integers(1, 4, size=(3, 3)).astype(float) * rng.choice([1.0, 0.5], size=(3, 3))
    hits = count * rng.random((3, 3)).round(1)
    np.testing.assert_allclose(isotonic_surface(hits, count), min_max(hits, count), atol=1e-12)


def test_cells_without_samples_take_a_value_that_keeps_the_order():
    rng = np.random.default_rng(0)
    count = (rng.random((4, 60)) < 0.3).astype(float)
    surface = isotonic_surface(count * (rng.random((4, 60)) < 0.5), count)
    assert bool((np.diff(surface, axis=0) >= 0).all() and (np.diff(surface, axis=1) >= 0).all())


def test_one_rank_is_the_isotonic_regression_of_the_top_label():
    from sklearn.isotonic import IsotonicRegression

    rng = np.random.default_rng(0)
    hits, count = (
        (rng.random(80) < np.linspace(0.2, 0.9, 80)).astype(float),
        rng.integers(1, 5, 80).astype(float),
    )
    expected = IsotonicRegression().fit_transform(np.arange(80), hits, sample_weight=count)
    np.testing.assert_allclose(isotonic_surface((hits * count)[None], count[None])[0], expected, atol=1e-12)


def plain(z, fitted):
    """The definition for one row: rank, sum up, read the surface, take differences, mix."""
    z = np.asarray(z) / float(fitted.temperature)
    p = np.exp(z - z.max()) / np.exp(z - z.max()).sum()
    order, top, share = np.argsort(-p, kind="stable"), len(fitted.surface), float(fitted.share)
    reached = [0.0]
    for r in range(top):
        inside = p[order[: r + 1]].sum()
        place = np.log(inside) - np.log(p[order[r + 1 :]].sum())
        reached.append(float(np.interp(place, fitted.knots, fitted.surface[r])))
    of_surface = np.zeros(len(z))
    for r, c in enumerate(order):
        if r < top:
            of_surface[c] = reached[r + 1] - reached[r]
        else:
            of_surface[c] = (1 - reached[top]) * p[c] / p[order[top:]].sum()
    return (1 - share) * of_surface + share * p


@pytest.mark.parametrize("top", [1, 3, 10])
def test_probabilities_are_differences_of_the_surface_mixed_with_temperature_scaling(top):
    logits, labels = samples()
    fitted = SimplexIsotonicCalibration.fit(logits, labels, top=top)
    assert fitted.surface.shape[0] == min(top, 4)
    expected = [plain(z, fitted) for z in logits[:60]]
    np.testing.assert_allclose(fitted.predict_proba(logits[:60]), expected, rtol=1e-7, atol=1e-12)


def test_the_surface_is_that_of_the_samples():
    """Each answer once: whether the truth of a sample is among its first classes."""
    logits, labels = samples(40, 3)
    fitted = SimplexIsotonicCalibration.fit(logits, labels)
    z = logits / float(fitted.temperature)
    p = np.exp(z) / np.exp(z).sum(1, keepdims=True)
    order = np.argsort(-p, axis=1, kind="stable")
    inside = np.take_along_axis(p, order, 1).cumsum(1)[:, :2]
    within = (order == labels[:, None]).argmax(1)[:, None] <= np.arange(2)
    values = np.unique(inside)
    count, hits = np.zeros((2, len(values))), np.zeros((2, len(values)))
    for i, r in itertools.product(range(40), range(2)):
        at = r, np.searchsorted(values, inside[i, r])
        count[at], hits[at] = count[at] + 1, hits[at] + within[i, r]
    best = isotonic_surface(hits, count)
    for r in range(2):
        used = count[r] > 0
        there = np.interp(np.log(values / (1 - values)), fitted.knots, fitted.surface[r])
        np.testing.assert_allclose(there[used], best[r, used], atol=1e-6)


def test_it_is_likelier_on_new_samples_than_a_temperature_where_that_does_not_fit():
    new = samples(4000, seed=1)
    fits = [each.fit(*samples(2000)) for each in (TemperatureScaling, SimplexIsotonicCalibration)]
    plainly, ours = (negative_log_likelihood(each.predict_proba(new[0]), new[1]) for each in fits)
    assert ours < plainly - 0.01


def test_no_probability_is_zero_and_the_share_of_the_temperature_is_positive():
    logits, labels = samples(200)
    fitted = SimplexIsotonicCalibration.fit(logits, labels)
    assert 0 < float(fitted.share) <= 1
    assert bool(torch.isfinite(fitted.predict_log_proba(logits * 50)).all())


def test_merged_columns_change_little(monkeypatch):
    logits, labels = samples()
    exact = SimplexIsotonicCalibration.fit(logits, labels).predict_proba(logits)
    monkeypatch.setattr(module, "_MOST_COLUMNS", 200)
    merged = SimplexIsotonicCalibration.fit(logits, labels)
    assert len(merged.knots) <= 200
    assert np.abs(np.asarray(merged.predict_proba(logits)) - exact).mean() < 0.02
