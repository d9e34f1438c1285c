"""The choice of the ridge: complex only when the data say so."""

import math

import pytest
import torch

from calibrant.posthoc.fitting.affine import Ridge
from calibrant.posthoc.fitting.ridge_choice import STRENGTHS, fit_chosen
from tests.conftest import draw


def path(k):
    return [Ridge(k, k * (k - 1), k).times(s) for s in STRENGTHS]


def is_identity(affine):
    return not (affine.change.any() or affine.intercept.any())


@pytest.mark.parametrize("seed", range(3))
def test_calibrated_scores_are_left_alone(seed):
    x, y = (torch.as_tensor(a) for a in draw(400, 6, seed=seed))
    assert is_identity(fit_chosen(x, y, path(6), seed=0))


def test_biased_scores_are_repaired():
    x, y = (torch.as_tensor(a) for a in draw(2000, 4, seed=1))
    bias = torch.tensor([1.0, 0.0, 0.0, -1.0])
    fitted = fit_chosen(x + bias, y, path(4), seed=0)
    expected = -(bias - bias.mean())
    found = fitted.intercept - fitted.intercept.mean()
    assert torch.allclose(found, expected.double(), atol=0.3)


def test_too_few_samples_to_part_are_left_alone():
    x, y = (torch.as_tensor(a) for a in draw(9, 3))
    assert is_identity(fit_chosen(x, y, path(3), seed=0))


def test_one_fold_speaks_for_all_when_there_are_very_many(monkeypatch):
    x, y = (torch.as_tensor(a) for a in draw(2000, 4, seed=1))
    x = x + torch.tensor([1.5, 0.0, 0.0, -1.5])
    monkeypatch.setattr("calibrant.posthoc.fitting.ridge_choice._WORTH_ALL_FOLDS", 1)
    assert not is_identity(fit_chosen(x, y, path(4), seed=0))
    assert fit_chosen(x, y, [Ridge(4, math.inf, 4)], seed=0).weight.shape == (4,)
