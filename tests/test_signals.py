"""Confidences from repeated answers, token log-probabilities and option scores, against plain loops."""

import math

import numpy as np
import pytest
import torch

from calibrant.errors import InputError
from calibrant.signals import option_scores, token_confidence, vote_share


def ragged(*, n=200, least=1, most=9, seed=0):
    """Rows of log-probabilities, each of its own length."""
    rng = np.random.default_rng(seed)
    return [np.log(rng.uniform(size=rng.integers(least, most + 1))).tolist() for _ in range(n)]


@pytest.mark.parametrize(("prior", "a", "b"), [((1, 1), 1, 1), ((0.5, 2), 0.5, 2), ((0, 0), 0, 0)])
def test_votes_are_counted_and_shrunk(prior, a, b):
    rng = np.random.default_rng(1)
    answers = [[str(each) for each in rng.integers(4, size=rng.integers(1, 8))] for _ in range(100)]
    votes = vote_share(answers, prior=prior)
    for given, answer, confidence in zip(answers, votes.answer, votes.confidence, strict=True):
        most = max(given.count(each) for each in given)
        assert answer == next(each for each in given if given.count(each) == most)
        assert confidence == pytest.approx((most + a) / (len(given) + a + b))


def test_votes_may_be_numbers_in_an_array():
    votes = vote_share(np.array([[3, 7, 7], [1, 2, 3]]))
    assert votes.answer == [7, 1]
    assert isinstance(votes.confidence, np.ndarray)
    assert votes.confidence.tolist() == pytest.approx([3 / 5, 2 / 5])


@pytest.mark.parametrize(
    ("how", "summary"),
    [
        ("mean", lambda p: math.prod(p) ** (1 / len(p))),
        ("min", min),
        ("sum", math.prod),
    ],
)
def test_token_probabilities_are_summarised(how, summary):
    rows = ragged()
    expected = [summary([math.exp(each) for each in row]) for row in rows]
    assert token_confidence(rows, how=how) == pytest.approx(expected, rel=1e-12)


def test_an_impossible_token_makes_an_impossible_answer():
    assert token_confidence([[-math.inf, -1.0]]) == [0.0]


@pytest.mark.parametrize("kind", ["log_probs", "masses"])
def test_the_best_option_has_its_share_and_its_lead(kind):
    rows = ragged(least=2)
    masses = [[math.exp(each) for each in row] for row in rows]
    best = option_scores(rows if kind == "log_probs" else masses, kind=kind)
    for place, row in enumerate(masses):
        first, second = sorted(row, reverse=True)[:2]
        assert best.option[place] == row.index(first)
        assert best.confidence[place] == pytest.approx(first / sum(row))
        assert best.margin[place] == pytest.approx(math.log(first / second))


def test_an_option_without_mass_leaves_a_finite_margin():
    best = option_scores([[0.5, 0.0]], kind="masses")
    assert (best.option, best.confidence, best.margin) == ([0], [1.0], [745.0])


@pytest.mark.parametrize("kind", [np.float32, np.float64, torch.float32])
def test_arrays_come_back_as_they_were_given(kind):
    table = np.log(np.random.default_rng(2).uniform(size=(5, 4)))
    given = torch.tensor(table, dtype=kind) if kind is torch.float32 else table.astype(kind)
    best = option_scores(given)
    assert type(best.confidence) is type(best.option) is type(token_confidence(given)) is type(given)
    assert best.confidence.dtype == best.margin.dtype == token_confidence(given).dtype == kind
    assert best.option.tolist() == table.argmax(axis=1).tolist()


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: vote_share([]), "answers: expected at least one row, got none"),
        (
            lambda: vote_share([["A"], []]),
            "answers: expected at least one answer in each row, got none in row 1",
        ),
        (
            lambda: vote_share([["A"], "B"]),
            "answers: expected a list of answers in each row, got 'B' in row 1",
        ),
        (
            lambda: vote_share([["A", None]]),
            "answers: expected texts or numbers, got None in row 0; leave out",
        ),
        (
            lambda: vote_share([[{}]]),
            "answers: expected texts or numbers, got {} in row 0; turn them into texts",
        ),
        (lambda: vote_share([["A"]], prior=(-1, 1)), "prior: expected a number of at least 0, got -1"),
        (lambda: vote_share([["A"]], prior=(1,)), "prior: expected two numbers, got (1,)"),
        (lambda: token_confidence([]), "log_probs: expected at least one row, got none"),
        (
            lambda: token_confidence([[-1.0], []]),
            "log_probs: expected at least 1 token in each row, got 0 in row 1",
        ),
        (
            lambda: token_confidence([[-1.0], [-1.0, 0.5]]),
            "log_probs: expected log-probabilities of at most 0, got 0.5 in row 1; take the logarithm",
        ),
        (
            lambda: token_confidence([[-1.0], None]),
            "log_probs: expected a list of numbers in each row, got None in row 1",
        ),
        (lambda: token_confidence([[-1.0], ["a"]]), "log_probs in row 1: expected numbers, got strings"),
        (
            lambda: token_confidence([-1.0]),
            "log_probs: expected a list of numbers in each row, got -1.0 in row 0",
        ),
        (
            lambda: token_confidence([[-1.0, math.nan]]),
            "log_probs: expected finite numbers, got nan in row 0",
        ),
        (lambda: token_confidence([[-1.0]], how="max"), "how: expected one of mean, min, sum, got 'max'"),
        (
            lambda: option_scores([[-1.0, -2.0], [-1.0]]),
            "scores: expected at least 2 options in each row, got 1",
        ),
        (
            lambda: option_scores([[-1.0, 2.0]]),
            "scores: expected log-probabilities of at most 0, got 2 in row 0",
        ),
        (
            lambda: option_scores([[-1.0, 2.0]], kind="masses"),
            "scores: expected masses of at least 0, got -1 in",
        ),
        (
            lambda: option_scores([[1, 0], [0, 0]], kind="masses"),
            "scores: expected an option with some mass in each row, got none in row 1",
        ),
    ],
)
def test_bad_input_gets_one_sentence_with_its_row(call, sentence):
    with pytest.raises(InputError) as refused:
        call()
    assert str(refused.value).startswith(sentence)
    assert "\n" not in str(refused.value)
