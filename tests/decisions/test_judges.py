"""Mean outcomes of policies from a judge's scores: the estimator, its intervals and its warnings."""

import math

import numpy as np
import pytest
from sklearn.isotonic import IsotonicRegression

from calibrant.decisions import estimate_outcomes
from calibrant.errors import InputError

SHIFTS = np.array([0.0, -0.8])


def drawn(rng, n_units=300, n_labelled=60, labels="first", kind="yes/no", bias=0.0):
    """Two policies on the same units; the outcome depends on the score, and by ``bias`` on the policy."""
    unit, policy = (each.ravel() for each in np.indices((n_units, 2)))
    score = SHIFTS[policy] + np.sqrt(0.5) * (rng.normal(size=n_units)[unit] + rng.normal(size=2 * n_units))
    mean = 1 / (1 + np.exp(-1.5 * score + bias * policy))
    outcome = (rng.random(len(mean)) < mean) * 1.0 if kind == "yes/no" else rng.beta(6 * mean, 6 - 6 * mean)
    some = np.isin(unit, rng.choice(n_units, n_labelled, replace=False))
    return score, np.where(some & ((policy == 0) | (labels == "all")), outcome, np.nan), policy, unit, mean


def estimate(rows, **options):
    score, outcome, policy, unit, *_ = rows
    return estimate_outcomes(score, outcome, policies=policy, units=unit, **options)


def ends(each):
    return each.low, each.value, each.high


# --- the definition, as plain loops -----------------------------------------------------------------------


def curve(scores, outcomes):
    """Centred isotonic regression: flat pieces of scikit-learn's become points at their mean score."""
    fitted = IsotonicRegression().fit_transform(scores, outcomes)
    points = [
        (float(np.mean(scores[fitted == level])), float(level)) for level in sorted(set(fitted.tolist()))
    ]
    return lambda x: np.interp(x, *zip(*points, strict=True))


def bins_of(scores):
    """Ten labels or more in each bin; all scores here are different."""
    n = len(scores)
    n_bins = min(10, n // 10)
    ordered = sorted(scores)
    return [ordered[math.ceil(b * n / n_bins) - 1] for b in range(1, n_bins)]


def cross_fitted(score, outcome, unit, known, *, seed):
    """Return a function from a row to its score on curves that have not seen its unit."""
    order = np.random.default_rng(seed).permutation(sorted({int(unit[row]) for row in known}))
    fold = {int(each): place % 5 for place, each in enumerate(order)}
    curves = []
    for each in range(5):
        rows = [row for row in known if fold[int(unit[row])] != each]
        curves.append(curve(score[rows], outcome[rows]))

    def value(row):
        if int(unit[row]) in fold:
            return float(curves[fold[int(unit[row])]](score[row]))
        return sum(float(each(score[row])) for each in curves) / 5

    return value


def by_loops(score, outcome, policy, unit, *, of):
    """Return the estimate of a policy, what each unit adds to its error, and the degrees of freedom."""
    known = [row for row in range(len(score)) if not math.isnan(outcome[row])]
    uncorrected = cross_fitted(score, outcome, unit, known, seed=0)
    mine = [row for row in range(len(score)) if policy[row] == of]
    own = [row for row in mine if row in set(known)]
    used = own if len({int(unit[row]) for row in own}) >= 10 else known
    edges = bins_of([score[row] for row in used])
    slope = np.polyfit([uncorrected(row) for row in used], [outcome[row] for row in used], 1)[0]

    def calibrated(row):
        return min(max(slope, 0.0), 1.0) * uncorrected(row)

    def bin_of(row):
        return sum(score[row] > edge for edge in edges)

    terms, weights, mean_residual = dict.fromkeys(range(max(unit) + 1), 0.0), [], {}
    for b in range(len(edges) + 1):
        residuals = [outcome[row] - calibrated(row) for row in used if bin_of(row) == b]
        mean_residual[b] = sum(residuals) / len(residuals)
    values = {row: calibrated(row) + mean_residual[bin_of(row)] for row in mine}
    total = sum(values.values()) / len(mine)
    for row in mine:
        terms[int(unit[row])] += (values[row] - total) / len(mine)
    for row in used:
        b = bin_of(row)
        n = sum(bin_of(other) == b for other in used)
        weight = sum(bin_of(other) == b for other in mine) / len(mine) / n
        left = outcome[row] - calibrated(row) - mean_residual[b]
        terms[int(unit[row])] += weight * left * math.sqrt(n / (n - 1))
        weights.append(weight)
    degrees = 1 / sum(weight**2 for weight in weights) - len(edges) - 1
    return total, np.array(list(terms.values())), degrees


def test_estimates_and_intervals_are_those_of_the_definition():
    from scipy.stats import t

    rows = drawn(np.random.default_rng(3), n_units=60, n_labelled=30)
    found = estimate(rows)
    (first, terms, degrees), (second, others, other_degrees) = (by_loops(*rows[:4], of=of) for of in (0, 1))
    size = len(terms) / (len(terms) - 1)
    for policy, value, added, freedom in zip(
        found.policies, (first, second), (terms, others), (degrees, other_degrees), strict=True
    ):
        half = t.ppf(0.975, freedom) * math.sqrt(size * sum(added**2))
        assert ends(policy) == pytest.approx((max(0, value - half), value, value + half), abs=1e-9)
    half = t.ppf(0.975, min(degrees, other_degrees)) * math.sqrt(size * sum((terms - others) ** 2))
    assert ends(found.differences[0]) == pytest.approx(
        (first - second - half, first - second, first - second + half), abs=1e-9
    )
    assert [each.carried for each in found.policies] == [False, True]


@pytest.mark.parametrize("kind", ["yes/no", "continuous"])
def test_intervals_of_means_and_of_the_difference_contain_the_truth_as_often_as_they_say(kind):
    rng = np.random.default_rng(0)
    *_, policy, _, mean = drawn(np.random.default_rng(9), n_units=200_000)
    truth = np.array([mean[policy == each].mean() for each in (0, 1)])
    hits = []
    for run in range(240):
        found = estimate(drawn(rng, kind=kind, labels=("first", "all")[run % 2]))
        target = zip([*found.policies, *found.differences], [*truth, truth[0] - truth[1]], strict=True)
        hits.append([each.low <= value <= each.high for each, value in target])
    # Of 240 intervals at 95 %, fewer than 217 or more than 238 are very unlikely.
    assert all(217 <= n <= 238 for n in np.sum(hits, axis=0))


def test_the_interval_of_a_policy_without_labels_is_as_long_as_resamples_of_units_vary():
    score, outcome, policy, unit, _ = drawn(np.random.default_rng(1), n_units=400, n_labelled=200)
    rng, values = np.random.default_rng(2), []
    for _ in range(150):
        units = rng.integers(400, size=400)
        rows = (2 * units[:, None] + np.arange(2)).ravel()
        again = estimate_outcomes(
            score[rows], outcome[rows], policies=policy[rows], units=np.repeat(np.arange(400), 2)
        )
        values.append([again.policies[1].value, again.differences[0].value])
    found = estimate((score, outcome, policy, unit))
    lengths = [each.high - each.low for each in (found.policies[1], found.differences[0])]
    assert np.divide(lengths, 2 * 1.97 * np.std(values, axis=0)) == pytest.approx([1, 1], rel=0.2)


def test_labels_of_a_policy_correct_a_judge_that_is_wrong_about_it_and_none_of_others_do():
    truth = drawn(np.random.default_rng(9), n_units=100_000, bias=1.5)[-1][1::2].mean()
    own, carried = (
        estimate(drawn(np.random.default_rng(4), n_units=1000, n_labelled=150, labels=labels, bias=1.5))
        for labels in ("all", "first")
    )
    assert own.policies[1].low < truth < own.policies[1].high
    assert own.trusted
    assert carried.policies[1].low > truth + 0.05
    assert not carried.trusted


def test_a_policy_and_its_copy_do_not_differ_and_need_other_units():
    score, outcome, *_ = drawn(np.random.default_rng(5))
    twice = estimate_outcomes(
        np.tile(score, 2),
        np.tile(outcome, 2),
        policies=np.repeat(["a", "b"], len(score)),
        units=np.tile(np.arange(len(score)), 2),
    )
    (pair,) = twice.differences
    assert ends(pair) == pytest.approx((0, 0, 0), abs=1e-12)
    assert pair.more_labels is None


def test_a_scale_of_scores_and_its_direction_do_not_matter():
    score, *rest = drawn(np.random.default_rng(6))
    plain = estimate((score, *rest))
    for other in (1000 * score - 7, -score):
        assert estimate((other, *rest)).policies[1].value == pytest.approx(plain.policies[1].value, abs=1e-9)


def test_as_many_labels_as_are_asked_for_decide_most_differences():
    def pair(seed, n_labelled):
        score, outcome, policy, unit, _ = drawn(
            np.random.default_rng(seed), n_units=500, n_labelled=500, labels="all"
        )
        return estimate((score, np.where(unit < n_labelled, outcome, np.nan), policy, unit)).differences[0]

    before = {seed: pair(seed, 15) for seed in range(30)}
    assert all(each.more_labels == 0 for each in before.values() if each.decided)
    asked = {seed: each.more_labels for seed, each in before.items() if each.more_labels}
    assert len(asked) > 10
    assert np.mean([pair(seed, 15 + more).decided for seed, more in asked.items()]) > 0.6
    assert pair(0, 500).more_labels == 0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda s, y: (s, y), "b has no labels, so its mean relies on a score meaning the same"),
        (lambda s, y: (np.where(np.isnan(y) & (np.arange(len(s)) % 2 == 1), s - 9, s), y), "100.0 % of its"),
        (lambda s, y: (s, np.where(s > -0.3, y, np.nan)), "a: 42.3 % of its scores are outside the range"),
        (lambda s, y: (np.where(np.isnan(y), s - 0.7, s), y), "a: labelled rows have other scores"),
    ],
    ids=["none", "outside", "range", "chosen"],
)
def test_a_warning_says_where_labelled_rows_do_not_represent_the_others(change, words):
    score, outcome, policy, unit, _ = drawn(np.random.default_rng(8), n_labelled=150)
    score, outcome = change(score, outcome)
    found = estimate((score, outcome, np.array(["a", "b"])[policy], unit))
    assert not found.trusted
    assert words in " ".join(found.warnings)
    assert "Warning: " in str(found)


def test_random_labels_of_every_policy_cause_no_warning():
    found = [estimate(drawn(np.random.default_rng(seed), labels="all")) for seed in range(40)]
    assert sum(each.trusted for each in found) >= 36


def test_labels_that_are_all_right_leave_room_for_others():
    rng = np.random.default_rng(0)
    outcome = np.where(np.arange(500) < 40, 1.0, np.nan)
    found = estimate_outcomes(rng.normal(size=500), outcome).policies[0]
    assert found.value == pytest.approx(1)
    assert 0.85 < found.low < 0.96


def test_few_labels_of_a_policy_are_used_with_those_of_others():
    score, outcome, policy, unit, _ = drawn(np.random.default_rng(2), labels="all")
    known = np.flatnonzero(~np.isnan(outcome) & (policy == 1))
    outcome[known[4:]] = np.nan
    found = estimate((score, outcome, policy, unit))
    assert found.policies[1].carried
    assert "1 has only 4 labels" in found.warnings[0]


def test_no_units_no_policies_and_none_for_unknown_are_fine():
    rng = np.random.default_rng(0)
    score = rng.normal(size=100).tolist()
    outcome = [bool(rng.random() < 0.5) if row < 30 else None for row in range(100)]
    found = estimate_outcomes(score, outcome)
    assert [each.name for each in found.policies] == ["all rows"]
    assert found.differences == ()
    assert found.n_units is None


GOOD = np.linspace(0, 1, 40)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"score": np.full(40, 0.5)}, "score: expected different scores, got 0.5 in every row"),
        ({"score": np.where(GOOD > 0.9, np.inf, GOOD)}, "score: expected finite numbers, got inf in row 36"),
        ({"outcome": np.where(GOOD > 0.9, 1.2, GOOD)}, "outcome: expected numbers between 0 and 1, got 1.2"),
        ({"outcome": np.full(40, np.nan)}, "outcome: expected outcomes of some rows, got none; label"),
        (
            {"outcome": np.where(GOOD < 0.2, GOOD, np.nan)},
            "outcome: expected outcomes of at least 10 rows, got 8",
        ),
        ({"outcome": GOOD[:5]}, r"outcome: expected 40 entries, one for each score, got shape \(5,\)"),
        ({"policies": ["a"] * 39}, "policies: expected 40 names, one for each score, got 39"),
        ({"policies": ["a"] * 39 + [None]}, "policies: expected a name in every row, got none in row 39"),
        (
            {"units": [0] * 20 + [1] * 20},
            "outcome: expected outcomes of at least 10 units, got 2; label more",
        ),
        ({"level": 95}, "level: expected a number between 0 and 1, got 95"),
    ],
)
def test_what_cannot_be_estimated_is_refused_in_one_sentence(given, sentence):
    with pytest.raises(InputError, match=sentence):
        estimate_outcomes(**({"score": GOOD, "outcome": GOOD} | given))
