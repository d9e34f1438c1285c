"""The log-sum-exp of scaled logits: the table says what the definition says."""

import numpy as np
import pytest
import torch

from calibrant.posthoc.fitting.tempered import (
    ExactLogSumExp,
    TabulatedLogSumExp,
    TemperedSamples,
    log_sum_exp,
)
from calibrant.posthoc.fitting_set import FittingSet
from calibrant.surrogates import soft_bins

GENERATOR = torch.Generator().manual_seed(0)


def normal(*shape):
    return torch.randn(*shape, generator=GENERATOR, dtype=torch.float64)


LOGITS = {
    "many classes": 2 * normal(60, 1000),
    "few classes": 3 * normal(60, 3),
    "one class far ahead of a crowd": torch.cat([torch.full((60, 1), 7.0), 0.01 * normal(60, 999)], dim=1),
    "heavy tails": 3 * normal(60, 100) ** 3,
    "huge": 1e4 * normal(60, 200),
    "tiny": 1e-4 * normal(60, 200),
    "constant": torch.full((60, 40), 3.0),
}


def at(log_sum_exp, log_beta, rows=None):
    """Value and slope."""
    x = log_beta.clone().requires_grad_()
    value = log_sum_exp(x, rows)
    (slope,) = torch.autograd.grad(value.sum(), x)
    return value.detach(), slope


def test_the_exact_one_is_the_definition():
    z = LOGITS["few classes"]
    beta = np.linspace(0.1, 10, 60)
    expected = [
        np.log(sum(np.exp(b * (x - max(row))) for x in row)) for b, row in zip(beta, z.tolist(), strict=True)
    ]
    value, _ = at(ExactLogSumExp(z), torch.tensor(beta).log())
    np.testing.assert_allclose(value, expected, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", LOGITS)
def test_the_table_is_as_good_as_exact(name, dtype):
    z = LOGITS[name].to(dtype)
    exact, table = ExactLogSumExp(z), TabulatedLogSumExp(z)
    for low in np.linspace(-4, 2, 13):
        log_beta = low + torch.linspace(0, 0.5, 60, dtype=torch.float64)
        (value, slope), (expected, expected_slope) = at(table, log_beta), at(exact, log_beta)
        torch.testing.assert_close(value, expected, atol=3e-6, rtol=1e-6)
        torch.testing.assert_close(slope, expected_slope, atol=1e-4, rtol=1e-4)


def test_only_the_rows_asked_for_are_looked_up():
    z = LOGITS["many classes"]
    rows = torch.tensor([5, 3, 59, 3])
    log_beta = torch.tensor([0.1, -0.5, 0.0, 1.0], dtype=torch.float64)
    value, slope = at(TabulatedLogSumExp(z), log_beta, rows)
    expected, expected_slope = at(ExactLogSumExp(z), log_beta, rows)
    torch.testing.assert_close(value, expected, atol=3e-6, rtol=0)
    torch.testing.assert_close(slope, expected_slope, atol=1e-4, rtol=1e-4)


def test_beyond_the_table_the_function_is_flat_and_finite():
    value, slope = at(
        TabulatedLogSumExp(LOGITS["many classes"]), torch.full((60,), 50.0, dtype=torch.float64)
    )
    assert torch.isfinite(value).all()
    assert torch.equal(slope, torch.zeros_like(slope))


def test_a_step_within_reach_costs_no_new_pass(monkeypatch):
    table = TabulatedLogSumExp(LOGITS["many classes"])
    log_beta = torch.full((60,), 0.03, dtype=torch.float64)
    table(log_beta)
    monkeypatch.setattr(table, "_node", lambda *_: pytest.fail("the classes were visited again"))
    table(log_beta + 0.01)


def test_few_classes_need_no_table():
    assert isinstance(log_sum_exp(LOGITS["few classes"]), ExactLogSumExp)
    assert isinstance(log_sum_exp(LOGITS["many classes"]), TabulatedLogSumExp)


@pytest.mark.parametrize(("n", "weighted"), [(40, False), (5000, True), (9000, False)])
def test_soft_bins_and_their_gradient_are_those_of_the_definition(n, weighted):
    weights = torch.rand(n, generator=GENERATOR, dtype=torch.float64) if weighted else None
    samples = TemperedSamples(FittingSet(3 * normal(n, 5), torch.arange(n) % 5, weights=weights))
    temperature = (0.5 + torch.rand(n, generator=GENERATOR, dtype=torch.float64)).requires_grad_()
    forecasts = samples.at(temperature)
    expected = soft_bins(forecasts.confidence, forecasts.correct, weights=weights)
    for name in ("weight", "gap", "noise"):
        torch.testing.assert_close(
            getattr(forecasts.bins, name), getattr(expected, name), atol=1e-12, rtol=1e-9
        )
    slopes = [
        torch.autograd.grad(bins.charbonnier_gap(), temperature, retain_graph=True)[0]
        for bins in (forecasts.bins, expected)
    ]
    torch.testing.assert_close(*slopes, atol=1e-12, rtol=1e-8)
