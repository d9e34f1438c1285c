"""Confidence score functions against their formulas, row by row."""

import math

import numpy as np
import pytest
import torch

from calibrant.errors import InputError
from calibrant.metrics.scores import SCORES, confidence_score, energy
from tests.conftest import softmax
from tests.rounding import assert_equal_up_to_rounding

FROM_PROBS = {
    "msp": max,
    "softmax_margin": lambda p: sorted(p)[-1] - sorted(p)[-2],
    "negative_entropy": lambda p: sum(x * math.log(x) for x in p if x > 0),
}
FROM_LOGITS = {
    "max_logit": max,
    "logit_margin": lambda z: sorted(z)[-1] - sorted(z)[-2],
    "energy": lambda z: math.log(sum(math.exp(x) for x in z)),
}


def test_the_tests_know_every_score():
    assert set(SCORES) == set(FROM_PROBS) | set(FROM_LOGITS)
    assert {name for name, score in SCORES.items() if score.reads == "logits"} == set(FROM_LOGITS)


@pytest.mark.parametrize("name", FROM_PROBS)
def test_scores_of_probabilities_are_their_formulas(name, sample):
    probs, _ = sample
    ours = confidence_score(name, probs=probs)
    assert ours.tolist() == pytest.approx([FROM_PROBS[name](row) for row in probs.tolist()], abs=1e-12)
    assert confidence_score(name, probs=probs.astype(np.float32)).dtype == torch.float64


@pytest.mark.parametrize("name", FROM_LOGITS)
def test_scores_of_logits_are_their_formulas(name, overconfident):
    logits, _ = overconfident
    ours = confidence_score(name, logits=torch.tensor(logits, dtype=torch.float32))
    rows = logits.astype(np.float32).tolist()
    assert ours.dtype == torch.float64
    assert ours.tolist() == pytest.approx([FROM_LOGITS[name](row) for row in rows], abs=1e-12)


@pytest.mark.parametrize("name", FROM_PROBS)
def test_scores_of_probabilities_read_logits_too(name, overconfident):
    logits, _ = overconfident
    expected = confidence_score(name, probs=softmax(logits))
    assert confidence_score(name, logits=logits).tolist() == pytest.approx(expected.tolist(), abs=1e-12)


@pytest.mark.parametrize("name", SCORES)
def test_a_more_confident_prediction_scores_higher_and_rows_are_independent(name):
    logits = torch.tensor([[0.0, 0.5, 0.0], [0.0, 4.0, 0.0]]).repeat(10_000, 1)
    scores = confidence_score(name, logits=logits)
    assert scores.shape == (20_000,)
    assert scores[1] > scores[0]
    assert_equal_up_to_rounding(scores[::2], scores[:1].expand(10_000))
    assert_equal_up_to_rounding(scores[1::2], scores[1:2].expand(10_000))


@pytest.mark.parametrize("name", SCORES)
def test_float32_logits_keep_apart_what_a_float32_softmax_rounds_to_one(name):
    logits = torch.tensor([[20.0, 0.0], [21.0, 0.0]])
    assert float(logits.softmax(dim=1)[0, 0]) == 1
    first, second = confidence_score(name, logits=logits).tolist()
    assert first < second


def test_log_odds_are_the_binary_form():
    assert confidence_score("logit_margin", logits=[-2.0, 3.0]).tolist() == [2.0, 3.0]
    assert confidence_score("msp", probs=[0.25, 0.75]).tolist() == [0.75, 0.75]


def test_certain_and_uniform_distributions_bound_the_entropy():
    assert confidence_score("negative_entropy", probs=[[1.0, 0.0, 0.0]]).tolist() == [0.0]
    assert confidence_score("negative_entropy", probs=[[0.25] * 4]).tolist() == pytest.approx([-math.log(4)])


def test_rounding_below_zero_and_above_one_does_no_harm():
    probs = torch.tensor([[1.0000004, -4e-7]])
    for name in FROM_PROBS:
        assert confidence_score(name, probs=probs).tolist() == pytest.approx(
            [float(name != "negative_entropy")], abs=1e-5
        )
    assert float(confidence_score("msp", probs=probs)) == 1


def test_energy_softens_with_its_temperature():
    z = torch.tensor([[2.0, 1.0, -3.0]], dtype=torch.float64)
    assert energy(z).item() == pytest.approx(FROM_LOGITS["energy"](z[0].tolist()))
    assert energy(z, temperature=1e-3).item() == pytest.approx(2.0)
    assert energy(z, temperature=5.0).item() == pytest.approx(
        5 * math.log(sum(math.exp(v / 5) for v in z[0].tolist()))
    )
    for wrong in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(InputError, match="^temperature: expected a positive number"):
            energy(z, temperature=wrong)


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("energy", {"probs": [[0.5, 0.5]]}, "^energy: expected logits, got probs"),
        ("max_logit", {"probs": [[0.5, 0.5]]}, "^max_logit: expected logits, got probs"),
        ("entropy", {"probs": [[0.5, 0.5]]}, "^name: expected one of msp, .*, energy, got 'entropy'"),
        ("msp", {}, "^arguments: expected either probs or logits, got neither"),
        ("msp", {"probs": [[1, 0]], "logits": [[1, 0]]}, "^arguments: .* got both"),
        ("msp", {"probs": [[2.0, -1.0]]}, "pass them as logits"),
        ("energy", {"logits": [[math.nan, 1.0]]}, "^logits: expected finite numbers"),
    ],
)
def test_refuses_in_one_sentence(name, arguments, message):
    with pytest.raises(InputError, match=message) as caught:
        confidence_score(name, **arguments)
    assert "\n" not in str(caught.value)
