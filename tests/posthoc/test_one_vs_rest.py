"""One binary question per class."""

import numpy as np
import pytest
import torch

from calibrant.posthoc.fitting.one_vs_rest import class_answers, class_log_odds, normalised
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
