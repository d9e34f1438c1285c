"""Binary questions: one per class, or one about the predicted class; rates from few samples."""

import math

import numpy as np
import pytest
import torch

from calibrant.posthoc.fitting.binary import (
    class_answers,
    class_log_odds,
    join_top,
    normalised,
    split_top,
)
from calibrant.posthoc.fitting.sorted_scores import smoothed_log_odds
from tests.conftest import draw, softmax


def test_log_odds_are_those_of_each_probability():
    logits, _ = draw(100, 5)
    p = softmax(logits)
    found = class_log_odds(torch.from_numpy(logits)).numpy()
    assert found == pytest.approx(np.log(p) - np.log1p(-p), abs=1e-9)


def test_two_classes_are_one_question():
    z = torch.tensor([[1.0, 3.0], [2.0, 0.0]])
    assert class_log_odds(z).tolist() == [[2.0], [-2.0]]
    assert class_answers(torch.tensor([1, 0]), 2).tolist() == [[True], [False]]
    assert torch.allclose(normalised(class_log_odds(z)), torch.log_softmax(z, dim=1))


def test_answers_are_one_hot():
    assert class_answers(torch.tensor([2, 0]), 3).int().tolist() == [[0, 0, 1], [1, 0, 0]]


def test_probabilities_are_divided_by_their_sum():
    q = torch.tensor([[0.9, 0.5, 0.2]], dtype=torch.float64)
    assert normalised(torch.logit(q)).exp().tolist()[0] == pytest.approx((q[0] / 1.6).tolist())


def test_unchanged_log_odds_give_the_softmax():
    z = torch.from_numpy(draw(100, 5)[0])
    assert torch.allclose(normalised(class_log_odds(z)), torch.log_softmax(z, dim=1), atol=1e-12)


def test_logits_of_any_size_give_finite_results_and_gradients():
    z = torch.tensor([[1e4, 0.0, -1e4], [0.0, 0.0, 0.0], [50.0, 50.0, 0.0]], requires_grad=True)
    out = normalised(class_log_odds(z))
    out.sum().backward()
    assert torch.isfinite(out).all()
    assert torch.isfinite(z.grad).all()


def log_odds(q):
    return torch.logit(torch.as_tensor(q, dtype=torch.float64))


def test_log_odds_are_those_of_the_largest_probability():
    logits, _ = draw(200, 6)
    p = softmax(logits).max(axis=1)
    found = split_top(torch.from_numpy(logits)).log_odds
    assert found.numpy() == pytest.approx(np.log(p) - np.log1p(-p), abs=1e-9)


def test_confidences_that_float32_rounds_to_one_stay_apart():
    logits = torch.tensor([[30.0, 0.0, 0.0], [40.0, 0.0, 0.0]])
    assert split_top(logits).log_odds.tolist() == pytest.approx([30 - np.log(2), 40 - np.log(2)], rel=1e-6)


def test_putting_back_what_was_taken_out_changes_nothing():
    z = torch.from_numpy(draw(200, 6)[0])
    top = split_top(z)
    assert torch.allclose(join_top(top, top.log_odds), torch.log_softmax(z, dim=1), atol=2e-5)


def test_the_others_share_the_rest_as_before():
    z = torch.tensor([[0.6, 0.3, 0.1]], dtype=torch.float64).log()
    assert join_top(split_top(z), log_odds([0.8])).exp().tolist()[0] == pytest.approx([0.8, 0.15, 0.05])


def test_a_confidence_that_is_too_small_is_raised_until_the_class_leads():
    z = torch.tensor([[0.3, 0.6, 0.1]], dtype=torch.float64).log()
    # With q for class 1, class 0 has (1 - q) * 3/4, which equals q at 3/7.
    probs = join_top(split_top(z), log_odds([0.01])).exp()
    assert probs.tolist()[0] == pytest.approx([3 / 7, 3 / 7, 1 / 7], abs=1e-5)
    assert probs.argmax() == 1


def test_the_rule_is_continuous_where_it_begins_to_bind():
    z = torch.tensor([[0.3, 0.6, 0.1]], dtype=torch.float64).log().expand(2, 3)
    below, above = join_top(split_top(z), log_odds([3 / 7 - 1e-6, 3 / 7 + 1e-6])).exp()
    assert below.tolist() == pytest.approx(above.tolist(), abs=5e-6)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("k", [2, 3, 1000])
def test_the_predicted_class_never_changes_ties_included(k, dtype):
    generator = torch.Generator().manual_seed(k)
    # Few distinct logits make ties for the first place frequent.
    z = torch.randint(0, 3, (500, k), generator=generator).to(dtype)
    z = torch.cat([z, z * 1e4, z * 1e-6, torch.randn(500, k, generator=generator).to(dtype)])
    for confidence in (1e-30, 1e-3, 0.2, 0.5, 0.999):
        out = join_top(split_top(z), log_odds(confidence).to(dtype).expand(len(z)))
        assert torch.equal(out.argmax(dim=1), z.argmax(dim=1))
        assert torch.equal(out.exp().argmax(dim=1), z.argmax(dim=1))
        assert torch.allclose(out.exp().sum(dim=1), torch.ones(len(z), dtype=dtype), atol=1e-5)


def test_a_top_label_put_back_has_finite_results_and_gradients():
    z = torch.tensor([[1e4, 0.0, -1e4], [0.0, 0.0, 0.0]], requires_grad=True)
    out = join_top(split_top(z), split_top(z).log_odds)
    out.sum().backward()
    assert torch.isfinite(out).all()
    assert torch.isfinite(z.grad).all()


@pytest.mark.parametrize(("smoothing", "rate"), [(0, 3 / 4), (1, 3.5 / 5), (2, 4 / 6)])
def test_half_of_the_added_samples_are_hits(smoothing, rate):
    found = smoothed_log_odds(torch.tensor([3.0]), torch.tensor([4.0]), smoothing)
    assert found.item() == pytest.approx(math.log(rate / (1 - rate)), rel=1e-6)


def test_certain_rates_have_finite_log_odds():
    found = smoothed_log_odds(torch.tensor([0.0, 4.0]).double(), torch.tensor([4.0, 4.0]).double(), 0)
    assert found.tolist() == pytest.approx([-87.3365, 87.3365], abs=1e-3)


def test_no_samples_have_even_odds():
    assert smoothed_log_odds(torch.zeros(1), torch.zeros(1), 0).item() == 0
