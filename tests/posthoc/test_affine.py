"""Affine maps: the penalised likelihood is minimised, and the ridge is chosen by cross-validation."""

import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from calibrant.errors import InputError
from calibrant.inputs import check_number
from calibrant.posthoc.fitting.affine import AffineMap, Ridge, fit_affine, fit_strength
from calibrant.posthoc.fitting_set import FittingSet
from tests.conftest import draw, softmax


def objective(weight, bias, x, y, ridge):
    """The definition as loops."""
    n, k = x.shape
    total = -sum(np.log(softmax((x[i] @ weight.T + bias)[None])[0, y[i]]) for i in range(n)) / n
    for j in range(k):
        total += ridge.intercept * bias[j] ** 2 / n
        for c in range(k):
            price = ridge.diagonal if j == c else ridge.off_diagonal
            total += price * (weight[j, c] - (j == c)) ** 2 / n if weight[j, c] != (j == c) else 0.0
    return total


@pytest.mark.parametrize("ridge", [Ridge(2.0, 9.0, 0.5), Ridge(1.0, math.inf, 3.0)])
def test_the_fit_is_the_minimum_that_scipy_finds(ridge):
    x, y = draw(40, 3, seed=2, sharpen=1.8)

    def unpack(theta):
        full = np.diag(theta[:3]) if math.isinf(ridge.off_diagonal) else theta[:9].reshape(3, 3)
        return full, theta[-3:]

    def risk(theta):
        weight, bias = unpack(theta)
        return objective(weight, bias, x, y, ridge)

    begin = np.ones(3) if math.isinf(ridge.off_diagonal) else np.eye(3).ravel()
    found = minimize(risk, np.append(begin, np.zeros(3)), tol=1e-9)
    fitted = fit_affine(FittingSet(torch.as_tensor(x), torch.as_tensor(y)), ridge, tolerance=1e-14)
    weight = torch.diag(fitted.weight) if fitted.weight.ndim == 1 else fitted.weight
    expected = unpack(found.x)
    assert weight.numpy() == pytest.approx(expected[0], abs=1e-4)
    assert fitted.intercept.numpy() == pytest.approx(expected[1], abs=1e-4)


def test_blocks_of_rows_change_nothing(monkeypatch):
    x, y = (torch.as_tensor(a) for a in draw(500, 4, sharpen=2.0))
    whole = fit_affine(FittingSet(x, y), Ridge(1.0, 1.0, 1.0))
    monkeypatch.setattr("calibrant.posthoc.fitting.affine._BLOCK_ENTRIES", 100)
    parts = fit_affine(FittingSet(x, y), Ridge(1.0, 1.0, 1.0))
    assert torch.allclose(whole.weight, parts.weight, atol=1e-5)
    assert torch.allclose(whole.nll(x, y), parts.nll(x, y), atol=1e-5)


def test_a_start_does_not_decide_where_the_search_ends():
    x, y = (torch.as_tensor(a) for a in draw(300, 3, sharpen=2.0))
    away = AffineMap(torch.full((3, 3), 0.5, dtype=torch.float64), torch.ones(3, dtype=torch.float64))
    ridge = Ridge(1.0, 2.0, 1.0)
    near, far = (fit_affine(FittingSet(x, y), ridge, start=start, tolerance=1e-13) for start in (None, away))
    assert torch.allclose(near.weight, far.weight, atol=1e-4)


@pytest.mark.parametrize("price", [0, -1.0, math.inf, math.nan, True, "1"])
def test_a_price_is_positive_and_finite(price):
    with pytest.raises(InputError, match="^strength: expected a positive number, got"):
        check_number(price, "strength")


def chosen_map(x, y, k):
    return fit_strength(FittingSet(x, y), Ridge(k, k * (k - 1), k).times, None)[0]


def is_identity(affine):
    return not (affine.change.any() or affine.intercept.any())


@pytest.mark.parametrize("seed", range(3))
def test_calibrated_scores_are_left_alone(seed):
    x, y = (torch.as_tensor(a) for a in draw(400, 6, seed=seed))
    assert is_identity(chosen_map(x, y, 6))


def test_biased_scores_are_repaired():
    x, y = (torch.as_tensor(a) for a in draw(2000, 4, seed=1))
    bias = torch.tensor([1.0, 0.0, 0.0, -1.0])
    fitted = chosen_map(x + bias, y, 4)
    expected = -(bias - bias.mean())
    found = fitted.intercept - fitted.intercept.mean()
    assert torch.allclose(found, expected.double(), atol=0.3)


def test_too_few_samples_to_part_are_left_alone():
    x, y = (torch.as_tensor(a) for a in draw(9, 3))
    assert is_identity(chosen_map(x, y, 3))


def test_one_fold_speaks_for_all_when_there_are_very_many(monkeypatch):
    x, y = (torch.as_tensor(a) for a in draw(2000, 4, seed=1))
    x = x + torch.tensor([1.5, 0.0, 0.0, -1.5])
    monkeypatch.setattr("calibrant.posthoc.fitting.affine._FEWER_FOLDS", ((1, 1),))
    assert not is_identity(chosen_map(x, y, 4))
    assert fit_strength(FittingSet(x, y), Ridge(4, math.inf, 4).times, None)[0].weight.shape == (4,)
