"""The ranking that all rank-based measures share, against plain counting."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from calibrant.errors import InputError
from calibrant.metrics import augrc, auroc_correctness, ranking
from calibrant.metrics.ranking import Ranking, check_ranking
from calibrant.outcomes import Outcomes

SCORES = st.floats(-1e6, 1e6, width=32) | st.sampled_from([-1.5, -0.0, 0.0, 2.0])
PAIRS = st.lists(st.tuples(SCORES, st.booleans()), min_size=1, max_size=40)


def loop_groups(pairs):
    """(score, hits, misses) for each distinct score, highest first."""
    return [
        (value, sum(a for s, a in pairs if s == value), sum(not a for s, a in pairs if s == value))
        for value in sorted({s for s, _ in pairs}, reverse=True)
    ]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@settings(max_examples=60)
@given(pairs=PAIRS)
def test_counts_hits_and_misses_at_each_score(dtype, pairs):
    score, correct = zip(*pairs, strict=True)
    ranking = check_ranking(score=np.array(score, dtype=dtype), correct=correct)
    assert list(zip(ranking.score, ranking.hits, ranking.misses, strict=True)) == loop_groups(pairs)
    assert ranking.n == len(pairs)
    assert ranking.n_wrong == correct.count(False)


@settings(max_examples=60)
@given(st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=40))
def test_confidences_and_scores_give_the_same_ranking(pairs):
    confidence, correct = (torch.tensor(column) for column in zip(*pairs, strict=True))
    fast = Ranking.from_outcomes(Outcomes(confidence, correct))
    general = Ranking.from_scores(confidence, correct)
    for name in ("score", "hits", "misses"):
        assert np.array_equal(getattr(fast, name), getattr(general, name))


@settings(max_examples=60)
@given(PAIRS)
def test_auroc_is_that_of_scikit_learn(pairs):
    score, correct = zip(*pairs, strict=True)
    ours = check_ranking(score=score, correct=correct).auroc()
    if len(set(correct)) < 2:
        assert math.isnan(ours)
    else:
        assert ours == pytest.approx(roc_auc_score(correct, score), abs=1e-12)


@pytest.mark.parametrize("block", [1, 3, 1 << 16])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@settings(max_examples=30)
@given(pairs=st.lists(st.tuples(st.integers(0, 6), st.booleans()), min_size=1, max_size=40))
def test_wins_are_counted_in_sorted_keys(dtype, block, pairs):
    confidence, correct = (np.array(column) for column in zip(*pairs, strict=True))
    outcomes = Outcomes(torch.from_numpy((confidence / 6).astype(dtype)), torch.from_numpy(correct))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranking, "_BLOCK", block)
        twice, hits = ranking.wins(outcomes.sorted_keys())
    right, wrong = confidence[correct][:, None], confidence[~correct]
    assert hits == len(right)
    assert twice == 2 * (right > wrong).sum() + (right == wrong).sum()


@pytest.mark.parametrize("measure", [auroc_correctness, augrc])
def test_confidences_and_the_same_numbers_as_scores_have_equal_areas(measure):
    rng = np.random.default_rng(0)
    confidence = np.round(rng.random(5000), 2)
    correct = rng.random(5000) < confidence
    found = measure(confidence=confidence, correct=correct)
    assert found == pytest.approx(measure(score=confidence, correct=correct), abs=1e-12)
    assert found == pytest.approx(
        measure(confidence=confidence, correct=correct, weights=np.ones(5000)), abs=1e-12
    )


def test_a_score_can_be_given_with_probabilities_and_labels():
    probs = torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.7, 0.3]])
    ranking = check_ranking(probs, [0, 1, 1], score=[-3, 5, -3])
    assert ranking.score.tolist() == [5, -3]
    assert ranking.hits.tolist() == [1, 1]
    assert ranking.misses.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"score": [1.0], "confidence": [0.5], "correct": [1]}, "got score with confidence, correct"),
        ({"score": [1.0]}, "either correct or probs and labels, got score alone"),
        ({"score": [1.0], "labels": [0]}, "got score with labels"),
        ({"score": [1.0, 2.0], "correct": [1]}, "^correct: expected 2 entries, one per prediction, got 1"),
        ({"score": [1.0, 2.0], "probs": [[1, 0]], "labels": [0]}, "^score: expected 1 entries"),
        ({"score": [[1.0]], "correct": [1]}, r"^score: expected shape \(n,\), got shape \(1, 1\)"),
        ({"score": 1.0, "correct": [1]}, r"^score: expected shape \(n,\), got shape \(\)"),
        ({"score": [], "correct": []}, "^score: expected at least one sample"),
        ({"score": [1.0, math.nan], "correct": [1, 0]}, "^score: expected finite numbers, got nan in row 1"),
        ({"score": [math.inf], "correct": [1]}, "^score: expected finite numbers, got inf in row 0"),
        ({"score": [1j], "correct": [1]}, "^score: expected numbers"),
    ],
)
def test_arguments_that_cannot_be_ranked_are_refused_in_one_sentence(arguments, message):
    with pytest.raises(InputError, match=message) as caught:
        check_ranking(**arguments)
    assert "\n" not in str(caught.value)
