"""Soft bins: shares of samples, gaps with gradients, and what chance alone would show."""

import numpy as np
import pytest
import torch

from calibrant.errors import InputError
from calibrant.metrics import expected_calibration_error
from calibrant.surrogates import soft_bins, soft_ece, soft_membership


@pytest.fixture(scope="module")
def outcomes():
    rng = np.random.default_rng(0)
    confidence = rng.beta(4, 1, size=2000)
    return torch.tensor(confidence), torch.tensor(rng.random(2000) < confidence**2)


def loop_shares(confidence, n_bins, lam):
    """The definition, one sample and one bin at a time."""
    shares = np.zeros((len(confidence), n_bins))
    for i, p in enumerate(confidence):
        for b in range(n_bins):
            shares[i, b] = np.exp(-lam * (p - (b + 0.5) / n_bins) ** 2)
        shares[i] /= shares[i].sum()
    return shares


@pytest.mark.parametrize(("n_bins", "lam"), [(15, 200.0), (1, 5.0), (7, 30.0)])
def test_shares_are_those_of_the_definition(outcomes, n_bins, lam):
    confidence = outcomes[0][:50]
    shares = soft_membership(confidence, n_bins=n_bins, lam=lam)
    np.testing.assert_allclose(shares, loop_shares(confidence.tolist(), n_bins, lam), atol=1e-12)


def test_the_error_is_that_of_the_definition(outcomes):
    confidence, correct = outcomes
    shares = loop_shares(confidence.tolist(), 15, 200.0)
    residual = (confidence - correct.double()).numpy()
    expected = sum(abs(shares[:, b] @ residual) for b in range(15)) / len(residual)
    assert float(soft_ece(confidence, correct)) == pytest.approx(expected, abs=1e-12)


def test_sharp_bins_are_hard_bins(outcomes):
    confidence, correct = outcomes
    hard = expected_calibration_error(confidence=confidence, correct=correct, n_bins=10)
    assert float(soft_ece(confidence, correct, n_bins=10, lam=1e6)) == pytest.approx(hard, abs=1e-6)


def test_weights_sum_to_one(outcomes):
    assert float(soft_bins(*outcomes).weight.sum()) == pytest.approx(1.0, abs=1e-12)


def test_gradients_are_those_of_finite_differences(outcomes):
    confidence, correct = outcomes[0][:30].clone().requires_grad_(), outcomes[1][:30]
    assert torch.autograd.gradcheck(lambda p: soft_ece(p, correct), confidence)


@pytest.mark.parametrize("confidence", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_bins_that_no_sample_reaches_do_no_harm(confidence, dtype):
    p = torch.full((20,), confidence, dtype=dtype, requires_grad=True)
    error = soft_ece(p, torch.arange(20) % 2, lam=1e4)
    error.backward()
    assert float(error.detach()) == pytest.approx(abs(confidence - 0.5), abs=1e-3)
    assert torch.isfinite(p.grad).all()


@pytest.mark.parametrize("n", [50, 5000])
def test_what_chance_shows_is_what_calibrated_models_show(n):
    rng = np.random.default_rng(1)
    confidence = torch.tensor(rng.beta(5, 1, size=n))
    draws = torch.tensor(rng.random((400, n))) < confidence
    observed = np.mean([float(soft_ece(confidence, draw)) for draw in draws])
    predicted = float(soft_bins(confidence, draws[0]).expected_by_chance())
    assert predicted == pytest.approx(observed, rel=0.1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_bins": 0}, "^n_bins: expected a whole number of at least 1, got 0"),
        ({"lam": -1.0}, "^lam: expected a positive number, got -1.0"),
    ],
)
def test_options_are_checked(options, message):
    with pytest.raises(InputError, match=message):
        soft_membership(torch.tensor([0.5]), **options)
