"""Rates from few samples."""

import math

import pytest
import torch

from calibrant.posthoc.fitting.smoothing import smoothed_log_odds


@pytest.mark.parametrize(("smoothing", "rate"), [(0, 3 / 4), (1, 3.5 / 5), (2, 4 / 6)])
def test_half_of_the_added_samples_are_hits(smoothing, rate):
    found = smoothed_log_odds(torch.tensor([3.0]), torch.tensor([4.0]), smoothing)
    assert found.item() == pytest.approx(math.log(rate / (1 - rate)), rel=1e-6)


def test_certain_rates_have_finite_log_odds():
    found = smoothed_log_odds(torch.tensor([0.0, 4.0]).double(), torch.tensor([4.0, 4.0]).double(), 0)
    assert found.tolist() == pytest.approx([-87.3365, 87.3365], abs=1e-3)


def test_no_samples_have_even_odds():
    assert smoothed_log_odds(torch.zeros(1), torch.zeros(1), 0).item() == 0
