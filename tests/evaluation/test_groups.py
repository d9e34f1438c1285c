"""Groups: each row is the evaluation of its samples, and the correction counts all groups."""

import math

import numpy as np
import pytest
from scipy.stats import binomtest, false_discovery_control

from calibrant import Predictions
from calibrant.errors import InputError
from calibrant.evaluation import by_group, evaluate
from calibrant.inference import calibration_test
from calibrant.inference.corrections import corrected

STATED = np.array([0.5, 0.8, 0.9, 0.95, 1.0])


def answers(sizes, powers, *, seed=0):
    """Stated confidences in words, right as often as a power of the confidence, which differs by group."""
    rng = np.random.default_rng(seed)
    groups = np.repeat(np.arange(len(sizes)), sizes)
    confidence = rng.choice(STATED, len(groups), p=[0.1, 0.1, 0.2, 0.5, 0.1])
    correct = rng.random(len(groups)) < confidence ** np.repeat(powers, sizes)
    order = rng.permutation(len(groups))
    names = np.array(["g0", "g1", "g2", "g3"])[groups]
    return confidence[order], correct[order], names[order]


def test_rows_are_evaluations_of_their_samples_and_the_worst_is_first():
    confidence, correct, names = answers([400, 300, 300, 6], [1.0, 2.0, 5.0, 9.0])
    table = by_group(Predictions(confidence=confidence, correct=correct, groups=names))
    assert [row.name for row in table.rows] == ["g2", "g1", "g0", "g3"]
    assert table.sentence.startswith("2 of 3 groups are miscalibrated (Kuiper test, Holm's correction,")
    for row in table.rows:
        pairs = {"confidence": confidence[names == row.name], "correct": correct[names == row.name]}
        expected = evaluate(Predictions(**pairs), measures=["ece", "smece"]).metrics
        assert dict(row.metrics) == pytest.approx(dict(expected), abs=1e-12)
        assert row.gap == pytest.approx(np.mean(pairs["confidence"]) - np.mean(pairs["correct"]), abs=1e-12)
        wilson = binomtest(int(pairs["correct"].sum()), row.n).proportion_ci(method="wilson")
        assert (row.mean_confidence - row.gap_high, row.mean_confidence - row.gap_low) == pytest.approx(
            (wilson.low, wilson.high), abs=1e-9
        )
        if row.n >= 10:
            test = calibration_test(**pairs, statistic="kuiper")
            assert row.statistic == pytest.approx(test.statistic)
            assert row.p_value == pytest.approx(test.p_value, rel=0.3, abs=0.05)
        else:
            assert math.isnan(row.p_value)
            assert math.isnan(row.p_corrected)
    shares = {row.name: row.n for row in table.rows}
    mean = sum(shares[row.name] * row.metrics["ece"] for row in table.rows) / len(names)
    assert table.within["ece"] == pytest.approx(mean)
    assert table.overall["ece"] == pytest.approx(
        evaluate(Predictions(confidence=confidence, correct=correct)).metrics["ece"]
    )


def test_class_scores_are_measured_by_their_predicted_class():
    rng = np.random.default_rng(1)
    probs = rng.dirichlet([1, 1, 1], size=200)
    labels, names = rng.integers(3, size=200), np.where(rng.random(200) < 0.5, "a", "b")
    classes = by_group(Predictions(probs=probs, labels=labels, groups=names), measures=["ece", "nll"])
    pairs = by_group(
        Predictions(confidence=probs.max(1), correct=probs.argmax(1) == labels, groups=names), measures="ece"
    )
    for ours, theirs in zip(classes.rows, pairs.rows, strict=True):
        assert (ours.name, ours.gap, ours.p_value) == (theirs.name, pytest.approx(theirs.gap), theirs.p_value)
        assert ours.metrics["ece"] == pytest.approx(theirs.metrics["ece"])
        assert ours.metrics["nll"] > 0


def test_the_order_of_rows_changes_nothing():
    confidence, correct, names = answers([50, 80, 11, 1], [1.0, 1.5, 3.0, 1.0])
    order = np.argsort(correct)
    one, two = (
        by_group(Predictions(confidence=confidence[i], correct=correct[i], groups=names[i]))
        for i in (np.arange(len(order)), order)
    )
    for left, right in zip(one.rows, two.rows, strict=True):
        assert (left.name, left.p_value) == (right.name, pytest.approx(right.p_value, nan_ok=True))
        assert dict(left.metrics) == pytest.approx(dict(right.metrics), abs=1e-12)


def test_intervals_of_measures_are_bootstrapped_if_asked_for():
    confidence, correct, names = answers([60, 60, 60, 60], [1.0, 2.0, 3.0, 4.0])
    table = by_group(
        Predictions(confidence=confidence, correct=correct, groups=names),
        measures="ece",
        intervals=True,
        n_resamples=50,
    )
    assert all(row.intervals["ece"].low <= row.intervals["ece"].high for row in table.rows)
    assert all(row.intervals["ece"].value == row.metrics["ece"] for row in table.rows)


def holm_by_hand(p):
    """Step down: the i-th smallest of m is multiplied by m - i + 1, and never falls below those before it."""
    ranks = sorted(range(len(p)), key=lambda i: p[i])
    found, highest = [0.0] * len(p), 0.0
    for i, place in enumerate(ranks):
        highest = max(highest, min(1.0, (len(p) - i) * p[place]))
        found[place] = highest
    return found


def test_corrections_are_those_of_the_textbook_and_of_scipy():
    p = np.random.default_rng(2).random(30) ** 3
    with_gaps = np.insert(p, [0, 7, 30], np.nan)
    kept = ~np.isnan(with_gaps)
    assert corrected(with_gaps, "holm")[kept] == pytest.approx(holm_by_hand(p.tolist()))
    assert corrected(with_gaps, "benjamini_hochberg")[kept] == pytest.approx(false_discovery_control(p))
    assert np.isnan(corrected(with_gaps, "holm")[~kept]).all()


def test_a_test_of_many_small_groups_can_be_significant_after_the_correction():
    wrong = np.arange(100 * 12) % 12 < 6  # half of the answers are wrong at 95 %, in each of 100 groups
    table = by_group(
        Predictions(confidence=np.full(1200, 0.95), correct=~wrong, groups=np.repeat(np.arange(100), 12)),
        measures="ece",
    )
    assert table.n_significant == 100


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"groups": None}, "^predictions: expected groups, got none; pass groups="),
        ({"correction": "sidak"}, "^correction: expected 'holm' or 'benjamini_hochberg', got 'sidak'"),
        ({"level": 95}, "^level: expected"),
        ({"measures": "eceee"}, "^measures: expected core, all, or names"),
    ],
)
def test_what_cannot_be_grouped_is_refused(change, message):
    groups = change.pop("groups", ["a", "a", "b"])
    predictions = Predictions(confidence=[0.5, 0.6, 0.7], correct=[1, 0, 1], groups=groups)
    with pytest.raises(InputError, match=message):
        by_group(predictions, **change)


def test_groups_of_two_columns_are_tested_with_those_of_both_together_and_one_correction():
    rng = np.random.default_rng(3)
    race, sex = rng.choice(["A", "B"], size=800), rng.choice(["f", "m"], size=800)
    race[:5], sex[:5] = "C", "f"
    stated = rng.uniform(0.5, 1, size=800)
    wrong = (race == "A") & (sex == "m")
    right = rng.random(800) < stated - 0.3 * wrong
    given = {"confidence": stated, "correct": right}
    found = by_group(Predictions(**given, groups={"race": race, "sex": sex}))
    names = {"race=A", "race=B", "race=C", "sex=f", "sex=m"}
    names |= {f"race={r}, sex={s}" for r in "AB" for s in "fm"} | {"race=C, sex=f"}
    assert {row.name for row in found.rows} == names
    assert found.rows[0].name == "race=A, sex=m"
    by_name = {row.name: row for row in found.rows}
    alone = {row.name: row for row in by_group(Predictions(**given, groups=race)).rows}
    assert by_name["race=A"].gap == alone["A"].gap
    assert by_name["race=A"].n == int((race == "A").sum())
    tested = [row for row in found.rows if not math.isnan(row.p_value)]
    assert len(tested) == 8
    assert math.isnan(by_name["race=C"].p_value)
    # Holm: the smallest p-value is multiplied by the number of all tests, of columns and of both together.
    least = min(tested, key=lambda row: row.p_value)
    assert least.p_corrected == pytest.approx(min(1.0, 8 * least.p_value))
    assert "of 8 groups are miscalibrated" in found.sentence
    within = [row for row in found.rows if ", " in row.name and row.metrics]
    expected = sum(row.n * row.metrics["ece"] for row in within) / sum(row.n for row in within)
    assert found.within["ece"] == pytest.approx(expected)
