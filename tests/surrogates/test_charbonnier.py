"""Charbonnier-SoftECE: the soft calibration error without its kink."""

import numpy as np
import pytest
import torch

from calibrant.errors import InputError
from calibrant.surrogates import charbonnier_soft_ece, soft_ece


@pytest.fixture(scope="module")
def outcomes():
    rng = np.random.default_rng(0)
    confidence = rng.beta(4, 1, size=300)
    return torch.tensor(confidence), torch.tensor(rng.random(300) < confidence**2)


def test_the_value_is_that_of_the_definition(outcomes):
    confidence, correct = (array.double().tolist() for array in outcomes)
    total = 0.0
    kernels = [[np.exp(-200 * (p - (b + 0.5) / 15) ** 2) for b in range(15)] for p in confidence]
    samples = list(zip(kernels, confidence, correct, strict=True))
    for b in range(15):
        held = sum(kernel[b] / sum(kernel) for kernel in kernels)
        residual = sum(kernel[b] / sum(kernel) * (p - a) for kernel, p, a in samples)
        total += held / 300 * np.sqrt((residual / held) ** 2 + 1e-6)
    assert float(charbonnier_soft_ece(*outcomes)) == pytest.approx(total, abs=1e-12)


def test_it_lies_above_the_soft_error_by_at_most_delta(outcomes):
    for delta in (1e-3, 0.1):
        excess = float(charbonnier_soft_ece(*outcomes, delta=delta) - soft_ece(*outcomes))
        assert 0 < excess <= delta


def test_the_floor_is_delta_not_zero():
    confidence = torch.full((10,), 0.7, dtype=torch.float64, requires_grad=True)
    correct = torch.tensor([1.0] * 7 + [0.0] * 3)
    value = charbonnier_soft_ece(confidence, correct, delta=0.02)
    value.backward()
    assert float(value.detach()) == pytest.approx(0.02, abs=1e-12)
    assert torch.isfinite(confidence.grad).all()


def test_certainty_does_not_pay():
    correct = torch.tensor([1.0] * 7 + [0.0] * 3)
    honest = charbonnier_soft_ece(torch.full((10,), 0.7), correct)
    certain = charbonnier_soft_ece(torch.full((10,), 1.0), correct)
    assert honest < 0.01 < 0.29 < certain


def test_gradients_are_those_of_finite_differences(outcomes):
    confidence, correct = outcomes[0][:30].clone().requires_grad_(), outcomes[1][:30]
    assert torch.autograd.gradcheck(lambda p: charbonnier_soft_ece(p, correct), confidence)


def test_delta_is_checked():
    with pytest.raises(InputError, match="^delta: expected a positive number, got 0"):
        charbonnier_soft_ece(torch.tensor([0.5]), torch.tensor([1.0]), delta=0)
