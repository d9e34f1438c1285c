"""Thresholds with a guarantee: brute force on small cases, ties, and the guarantee on drawn samples."""

import itertools
import math
import pickle

import numpy as np
import pytest
import torch
from scipy.stats import binom, binomtest, norm

from calibrant import Predictions
from calibrant.decisions import ThresholdRule, guaranteed_risks, threshold_for_coverage, threshold_for_risk
from calibrant.decisions.thresholds import (
    RankedAnswers,
    Thresholds,
    fewest_samples,
    log_odds_of_answers,
    upper_bound,
)
from calibrant.errors import InputError
from calibrant.outcomes import Outcomes
from calibrant.posthoc import TemperatureScaling


def drawn(n, seed=0, *, digits=None):
    """Confidences, more or less rounded, and answers that are right as often as they say."""
    rng = np.random.default_rng(seed)
    confidence = 1 - rng.random(n) ** 3
    correct = rng.random(n) < confidence
    return (confidence if digits is None else confidence.round(digits)), correct


def pairs(n, seed=0, *, digits=None):
    confidence, correct = drawn(n, seed, digits=digits)
    return Predictions(confidence=confidence, correct=correct)


def steps_by_hand(confidence, correct):
    """How many are answered, and how many of them wrong, from each confidence that occurs, highest first."""
    for threshold in sorted(set(confidence.tolist()), reverse=True):
        chosen = confidence >= threshold
        yield int(chosen.sum()), int((~correct[chosen]).sum())


def several_sequences_by_hand(confidence, correct, risk, error, n_starts, first):
    best, passed_on = 0, 0.0
    starts = [first * 2**i for i in range(n_starts)] + [math.inf]
    steps = list(steps_by_hand(confidence, correct))
    for start, end in itertools.pairwise(starts):
        passed_on += error / n_starts
        for answered, wrong in steps:
            if not start <= answered < end:
                continue
            if binom.cdf(wrong, answered, risk) > passed_on:
                passed_on = 0.0
                break
            best = answered
    return best


@pytest.mark.parametrize("digits", [None, 2, 1])
@pytest.mark.parametrize("seed", range(4))
def test_several_starts_are_those_of_a_plain_loop(seed, digits):
    confidence, correct = drawn(300, seed, digits=digits)
    given = Predictions(confidence=confidence, correct=correct)
    for risk, n_starts in ((0.1, 3), (0.2, 4), (0.4, 5)):
        first = fewest_samples(risk, level=1 - 0.2 / n_starts)
        more = fewest_samples(risk, level=1 - 0.2 / (n_starts + 1))
        assert first * 2 ** (n_starts - 1) <= 150 < more * 2**n_starts
        found = threshold_for_risk(given, risk, level=0.8)
        expected = several_sequences_by_hand(confidence, correct, risk, 0.2, n_starts, first)
        assert found.answered == expected


def test_the_rule_answers_what_was_counted_and_its_threshold_is_a_short_number():
    given = pairs(500, digits=2)
    found = threshold_for_risk(given, 0.05)
    assert found.rule is not None
    answers = torch.tensor(found.rule.decide(given).columns["answer"])
    assert int(answers.sum()) == found.answered
    assert int((answers & ~given.correct).sum()) == found.wrong
    assert (answers == (given.confidence >= found.threshold)).all()
    assert len(str(found.threshold)) <= 5
    assert found.rule.confidence == pytest.approx(found.threshold)


def test_equal_confidences_are_one_decision_also_in_single_precision_and_in_other_orders():
    logits = torch.tensor([[3.0, 1.0, 0.2], [0.2, 3.0, 1.0], [2.0, 1.9, 0.1]]).repeat(200, 1)
    labels = logits.argmax(dim=1)
    labels[2::3] = torch.tensor([0, 1] * 100)
    found = threshold_for_risk(Predictions(logits=logits, labels=labels), 0.05)
    assert (found.answered, found.wrong) == (400, 0)
    for z in (logits, logits.double(), logits + 20):
        shuffled = z[:, torch.randperm(3, generator=torch.Generator().manual_seed(0))]
        answers = found.rule.decide(Predictions(logits=shuffled)).columns["answer"]
        assert answers == [True, True, False] * 200


def test_everything_is_answered_if_all_of_it_is_good_enough():
    found = threshold_for_risk(Predictions(confidence=[0.3] * 300, correct=[True] * 300), 0.02)
    assert (found.coverage, found.threshold) == (1.0, 0.0)
    assert found.sentence.startswith("Answer always: 100 % of new cases, at most 2 % of them wrong")
    assert found.rule.decide(Predictions(confidence=[0.0, 1.0])).columns["answer"] == [True, True]


def test_no_threshold_is_a_result_with_a_sentence():
    found = threshold_for_risk(Predictions(confidence=[0.9] * 200, correct=[True, False] * 100), 0.05)
    assert found.rule is None
    assert found.threshold is None
    assert found.observed is None
    assert found.sentence.startswith("No threshold answers with at most 5 % wrong with 95 % probability")
    assert found.to_dict()["threshold"] is None


def test_a_sentence_says_what_is_answered_guaranteed_and_observed():
    correct = [True] * 295 + [False] + [True] * 54 + [False] * 50
    found = threshold_for_risk(Predictions(confidence=[0.99] * 300 + [0.6] * 100, correct=correct), 0.02)
    assert found.sentence == (
        "Answer when the confidence is at least 0.92: 75 % of new cases, at most 2 % of them wrong with 95 % "
        "probability (observed 0.333 % of 300)"
    )


def test_a_result_can_be_written_as_json_and_pickled():
    found = threshold_for_risk(pairs(400), 0.1)
    assert "rule" not in found.to_dict()
    assert pickle.loads(pickle.dumps(found)).rule.confidence == found.rule.confidence


@pytest.mark.parametrize("coverage", [0.3, 0.9, 1.0])
def test_a_coverage_has_the_exact_bound_of_its_risk_and_of_new_coverage(coverage):
    found = threshold_for_coverage(pairs(400), coverage, level=0.9)
    assert found.answered == math.ceil(coverage * 400)
    exact = binomtest(found.wrong, found.answered).proportion_ci(0.8, method="exact")
    assert found.risk == pytest.approx(exact.high)
    share = binomtest(found.answered, 400).proportion_ci(0.8, method="exact")
    assert found.coverage_low == pytest.approx(share.low)


def test_ties_answer_more_than_the_coverage_that_was_asked_for():
    given = Predictions(confidence=[0.9] * 50 + [0.5] * 50, correct=[True] * 90 + [False] * 10)
    assert threshold_for_coverage(given, 0.2).coverage == 0.5
    assert threshold_for_coverage(given, 0.51).coverage == 1.0


def test_the_bound_is_that_of_clopper_and_pearson():
    wrong, answered = np.array([0, 3, 7]), np.array([50, 10, 7])
    expected = [
        binomtest(k, n).proportion_ci(0.9, method="exact").high for k, n in zip(wrong, answered, strict=True)
    ]
    assert upper_bound(wrong, answered, 0.95) == pytest.approx(expected)


def test_the_fewest_samples_are_those_that_show_a_risk_without_a_mistake():
    n = fewest_samples(0.02)
    assert 0.98**n <= 0.05 < 0.98 ** (n - 1)
    good = Predictions(confidence=[0.9] * n, correct=[True] * n)
    assert threshold_for_risk(good, 0.02).coverage == 1
    with pytest.raises(
        InputError, match=f"expected at least {n} samples to guarantee a risk of 2 % with 95 %"
    ):
        threshold_for_risk(good.take(range(n - 1)), 0.02)


def test_the_guaranteed_risk_at_a_coverage_is_the_smallest_whose_threshold_answers_as_much():
    given = pairs(600, digits=2)
    found = guaranteed_risks(given.outcomes())
    assert list(found.coverage) == sorted(set(found.coverage))
    for risk, coverage in list(zip(found.risk, found.coverage, strict=True))[::7]:
        assert threshold_for_risk(given, risk).coverage == coverage
        assert found.at([coverage]) == (risk,)
    assert math.isnan(guaranteed_risks(Outcomes(torch.rand(20), torch.zeros(20).bool())).at([0.5])[0])


def test_log_odds_tell_very_sure_answers_apart_in_single_precision():
    z = torch.tensor([[30.0, 0, 0], [29.0, 0, 0], [0.0, 30.0, 0], [5.0, -torch.inf, -torch.inf]])
    s = log_odds_of_answers(torch.log_softmax(z, dim=1), of_pairs=False)
    expected = torch.tensor([30.0, 29.0, 30.0]) - math.log(2)
    assert s[:3].tolist() == pytest.approx(expected.tolist(), abs=1e-5)
    assert s[3] == 100


def test_a_calibrator_that_keeps_the_order_changes_the_number_of_the_threshold_only(overconfident):
    logits, labels = overconfident
    given = Predictions(logits=logits, labels=labels)
    plain = threshold_for_risk(given, 0.1)
    calibrated = threshold_for_risk(given, 0.1, calibrator=TemperatureScaling(1.0))
    assert (plain.answered, plain.wrong) == (calibrated.answered, calibrated.wrong)


def test_many_samples_are_tested_at_ranks_that_are_fixed_in_advance():
    confidence, correct = drawn(900, 1)
    ranking = RankedAnswers.of(confidence, ~correct)
    exact, coarse = (
        ranking.step(ranking.certified(0.1, 0.95, ranking.tests(most))).answered for most in (900, 90)
    )
    assert coarse in set(np.linspace(1, 900, 90).round().astype(int))
    assert coarse == pytest.approx(exact, abs=45)


@pytest.mark.slow
@pytest.mark.parametrize("digits", [None, 1])
def test_the_risk_on_the_population_is_above_the_limit_as_rarely_as_guaranteed(digits):
    # Answers are wrong with the probability 1 - c: calibrated, so the risk above a threshold is known.
    rng = np.random.default_rng(1)
    population = (
        (1 - rng.random(100_000) ** 3) if digits is None else (1 - rng.random(100_000) ** 3).round(digits)
    )
    falling = np.sort(population)[::-1]
    mean_risk = np.cumsum(1 - falling) / np.arange(1, len(falling) + 1)
    above = 0
    for _ in range(400):
        confidence = rng.choice(population, 500)
        wrong = rng.random(500) >= confidence
        ranking = RankedAnswers.of(confidence, wrong, tie=0.0)
        step = ranking.step(ranking.certified(0.1, 0.9))
        if step.answered:
            place = int(np.searchsorted(-falling, -step.middle, side="right"))
            above += mean_risk[place - 1] > 0.1
    # Of 400 guarantees with 90 %, more than 57 fail with a probability of 1 in 300.
    assert 0 < above <= 57


def test_where_the_surest_are_worse_the_level_holds_and_little_is_answered():
    # The surest fifth is wrong in 11 %, the next two fifths in 2 %, the others in half of the cases.
    rng, above, coverage = np.random.default_rng(0), 0, 0.0
    for _ in range(200):
        c = rng.random(500)
        rate = np.where(c > 0.8, 0.11, np.where(c > 0.4, 0.02, 0.5))
        ranking = RankedAnswers.of(c, rng.random(500) < rate, tie=0.0)
        step = ranking.step(ranking.certified(0.1, 0.9))
        share = 1 - step.middle if step.answered else 0.0
        parts = np.clip([share, share - 0.2, share - 0.6], 0, [0.2, 0.4, 0.4])
        above += bool(share and parts @ [0.11, 0.02, 0.5] / share > 0.1)
        coverage += share / 200
    # Of 200 guarantees with 90 %, more than 32 fail with a probability of 1 in 300.
    assert above <= 32
    assert coverage < 0.2


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda p: threshold_for_risk(p, 0.0), "risk: expected a number between 0 and 1, got 0.0"),
        (lambda p: threshold_for_risk(p, 1), "risk: expected a number between 0 and 1, got 1"),
        (lambda p: threshold_for_risk(p, 0.1, level=95), "level: expected a number between 0 and 1, got 95"),
        (
            lambda p: threshold_for_coverage(p, 90),
            "coverage: expected a number above 0 and at most 1, got 90",
        ),
        (lambda p: threshold_for_coverage(p, math.nan), "coverage: expected"),
        (lambda _: threshold_for_risk(Predictions(confidence=[0.9]), 0.1), "correct: expected"),
        (
            lambda _: ThresholdRule(1.0, risk=0.1, level=0.9),
            "threshold: expected a confidence from 0 to below 1",
        ),
        (
            lambda p: threshold_for_risk(
                Predictions(confidence=p.confidence, correct=p.correct, weights=torch.ones(p.n)), 0.1
            ),
            "weights: expected none for a threshold with a guarantee, whose binomial bounds need counts",
        ),
    ],
)
def test_bad_input_gets_one_sentence(call, message):
    with pytest.raises(InputError) as caught:
        call(pairs(100))
    assert str(caught.value).startswith(message)


def test_risks_without_enough_samples_have_no_threshold_in_a_table():
    few, enough = Thresholds.of(pairs(100)).table([0.001, 0.3])
    assert few.rule is None
    assert enough.rule is not None


def drawn_units(n_units, size, agreement, seed):
    """Calibrated confidences in units; those of a unit, and whether it is right, agree more or less."""
    rng = np.random.default_rng(seed)
    units = np.repeat(np.arange(n_units), size)

    def uniform():
        common, own = rng.normal(size=n_units)[units], rng.normal(size=len(units))
        return norm.cdf(math.sqrt(agreement) * common + math.sqrt(1 - agreement) * own)

    confidence = 1 - uniform() ** 3
    return Predictions(confidence=confidence, correct=uniform() < confidence, units=units)


def test_units_of_one_row_change_no_threshold():
    plain = pairs(500)
    alone = plain.replaced(units=np.arange(500)[::-1].copy())
    for risk in (0.05, 0.1, 0.3):
        assert threshold_for_risk(alone, risk).to_dict() == threshold_for_risk(plain, risk).to_dict()
    assert threshold_for_coverage(alone, 0.5).to_dict() == threshold_for_coverage(plain, 0.5).to_dict()
    by_unit, by_row = (
        guaranteed_risks(plain.replaced(units=each).outcomes()) for each in (np.arange(500), None)
    )
    assert (by_unit.coverage, by_unit.risk) == (by_row.coverage, by_row.risk)


@pytest.mark.parametrize("seed", range(3))
def test_copies_of_answers_with_their_unit_make_no_threshold_bolder(seed):
    plain = pairs(600, seed)
    rows = np.repeat(np.arange(600), 5)
    copies = plain.take(rows)
    by_unit, blind = copies.replaced(units=rows), threshold_for_risk(copies, 0.1)
    found, alone = threshold_for_risk(by_unit, 0.1), threshold_for_risk(plain, 0.1)
    assert found.coverage <= alone.coverage + 0.02 < blind.coverage
    bound, exact = threshold_for_coverage(by_unit, 0.5), threshold_for_coverage(plain, 0.5)
    assert bound.risk == pytest.approx(exact.risk, rel=0.005)
    assert bound.coverage_low == pytest.approx(exact.coverage_low, rel=0.005)
    assert threshold_for_coverage(copies, 0.5).risk < 0.95 * exact.risk


def test_a_threshold_says_for_which_units_it_is_guaranteed():
    found = threshold_for_risk(drawn_units(200, 3, 0.5, 0), 0.1)
    assert (found.n, found.n_units) == (600, 200)
    assert found.sentence.endswith(", counted over the rows of new units like these 200 (600 rows)")
    assert found.to_dict()["n_units"] == 200
    wrong = Predictions(confidence=[0.9] * 400, correct=[True, False] * 200, units=np.arange(400) // 4)
    assert "none that was tested on 400 rows of 100 units shows it" in threshold_for_risk(wrong, 0.1).sentence


def test_too_few_units_are_refused_and_unequal_ones_count_by_the_largest():
    given = Predictions(confidence=[0.9] * 100, correct=[True] * 100, units=np.arange(100) // 5)
    with pytest.raises(InputError, match=r"expected at least 29 units .*, got 20; accept a larger risk"):
        threshold_for_risk(given, 0.1)
    sizes = np.append(np.full(50, 1), 50)
    unequal = given.replaced(units=np.repeat(np.arange(51), sizes))
    with pytest.raises(InputError, match="got 51 that count as 2, as the largest has 50 of 100 rows"):
        threshold_for_risk(unequal, 0.1)


@pytest.mark.slow
def test_with_units_the_risk_is_above_the_limit_as_rarely_as_guaranteed():
    above, rows_above, coverage = 0, 0, 0.0
    for seed in range(60):
        given = drawn_units(200, 5, 0.95, seed)
        for units in (True, False):
            found = threshold_for_risk(given if units else given.replaced(units=None), 0.1, level=0.9)
            # The mean of the doubt u ** 3 of all samples up to the threshold.
            risk = (1 - found.threshold) / 4 if found.rule else 0.0
            above += units and risk > 0.1
            rows_above += not units and risk > 0.1
            coverage += units * found.coverage / 60
    # Of 60 guarantees with 90 %, more than 12 fail with a probability of 1 in 100.
    assert above <= 12 < rows_above
    assert coverage > 0.5
