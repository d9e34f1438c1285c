"""Answer when at least: against a plain loop over samples, and against scipy's interval."""

import pytest
import torch
from scipy.stats import binomtest

from calibrant import InputError
from calibrant.evaluation import answer_when
from calibrant.outcomes import Outcomes


@pytest.fixture(params=[torch.float32, torch.float64])
def outcomes(request):
    """Stated confidences with many ties, the highest of which are often wrong."""
    generator = torch.Generator().manual_seed(0)
    stated = torch.tensor([0.0, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 1.0], dtype=request.param)
    confidence = stated[torch.randint(8, (500,), generator=generator)]
    return Outcomes(confidence, torch.rand(500, generator=generator) < 0.95 * confidence)


def answered(outcomes, threshold):
    """The definition: how many are answered, and how many of them are wrong."""
    pairs = zip(outcomes.confidence.tolist(), outcomes.correct.tolist(), strict=True)
    hits = [hit for confidence, hit in pairs if confidence >= threshold - 1e-7]
    return len(hits), hits.count(False)


def test_each_threshold_answers_what_reaches_it_also_in_float32(outcomes):
    for row in answer_when(outcomes, at_most_wrong=()):
        n, wrong = answered(outcomes, row.threshold)
        assert (row.n, row.answered, row.at_most_wrong) == (n, n / 500, None)
        assert row.wrong == wrong / n
        expected = binomtest(wrong, n).proportion_ci(method="wilson")
        assert (row.low, row.high) == pytest.approx((expected.low, expected.high), abs=1e-12)


def test_the_lowest_threshold_that_leaves_few_enough_wrong_is_found(outcomes):
    for row in answer_when(outcomes, at_least=(), at_most_wrong=(0.01, 0.1, 0.15, 0.2, 1.0)):
        rates = {c: answered(outcomes, c) for c in sorted(set(outcomes.confidence.tolist()))}
        fits = [c for c, (n, wrong) in rates.items() if wrong / n <= row.at_most_wrong]
        if not fits:
            assert row.threshold is None
            assert (row.n, row.answered) == (0, 0.0)
            assert row.wrong is None
        else:
            assert row.threshold == min(fits)
            assert row.n == rates[min(fits)][0]
            assert row.wrong <= row.at_most_wrong


def test_a_threshold_that_nothing_reaches_answers_nothing():
    (row,) = answer_when(
        Outcomes(torch.tensor([0.2, 0.4]), torch.tensor([True, False])), at_least=[0.5], at_most_wrong=()
    )
    assert (row.n, row.answered) == (0, 0.0)
    assert row.high is None


def test_percent_is_refused(outcomes):
    with pytest.raises(InputError, match="at_least: expected numbers from 0 to 1, got 80; 80 % is 0.8"):
        answer_when(outcomes, at_least=[80])
