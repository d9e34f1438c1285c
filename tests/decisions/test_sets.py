"""Prediction sets: the definitions as plain loops, MAPIE, the beta law, and what is refused."""

import json
import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from scipy.stats import betabinom, chisquare

from calibrant import FormatError, InputError, Predictions
from calibrant.data.labels import LabelPredictions
from calibrant.decisions import PredictionSets, calibrate_part, compare_sets, coverage_law, load_rule
from calibrant.decisions.conformal import RankedClasses, SetScore, place_of_threshold, threshold
from calibrant.posthoc import TemperatureScaling
from tests.conftest import draw, softmax

KINDS = [("lac", False), ("aps", False), ("aps", True), ("raps", False), ("raps", True)]
RAPS = {"penalty": 0.05, "k_reg": 2}


def predictions(n, k, *, seed=0, **more):
    logits, labels = draw(n, k, seed=seed, sharpen=1.7)
    return Predictions(logits=logits, labels=labels, **more)


def options(method, randomised):
    return {"method": method, "randomised": randomised, **(RAPS if method == "raps" else {})}


def score_of_loop(p, y, u, *, method, penalty=0.0, k_reg=0):
    """The score of a class as the papers define it."""
    if method == "lac":
        return 1 - p[y]
    order = sorted(range(len(p)), key=lambda c: (-p[c], c))
    rank = order.index(y) + 1
    return sum(p[c] for c in order[:rank]) - u * p[y] + penalty * max(0, rank - k_reg)


def uniforms(seed, stream, n):
    return np.random.default_rng([seed, stream]).random(n)


def sets_of_loop(fitting, test, *, alpha, method, randomised, penalty=0.0, k_reg=0):
    """Fit and apply sets, one class of one sample after the other; empty sets stay empty."""
    raps = {"method": method, "penalty": penalty, "k_reg": k_reg}
    p, y = softmax(fitting.logits.numpy()), fitting.labels.tolist()
    u = uniforms(0, 0, len(y)) * randomised
    scores = sorted(score_of_loop(*each, **raps) for each in zip(p, y, u, strict=True))
    q = scores[math.ceil((len(y) + 1) * (1 - Fraction(str(alpha)))) - 1]
    drawn = uniforms(0, 1, test.n) * randomised
    rows = zip(softmax(test.logits.numpy()), drawn, strict=True)
    return [{c for c in range(test.k) if score_of_loop(p, c, u, **raps) <= q + 1e-12} for p, u in rows]


def held(rule, given):
    return [{int(name) for name in names} for names in rule.decide(given).columns["set"]]


@pytest.mark.parametrize(("method", "randomised"), KINDS)
@pytest.mark.parametrize("k", [2, 5])
def test_sets_are_those_of_the_definition(method, randomised, k):
    fitting, test, given = predictions(87, k), predictions(200, k, seed=1), options(method, randomised)
    rule = PredictionSets.fit(fitting, alpha=0.2, allow_empty=True, **given)
    expected = sets_of_loop(fitting, test, alpha=0.2, **given)
    assert held(rule, test) == expected
    # The score of the second of two classes is one, so that the sets hold both if many labels are second.
    assert len(set(map(len, expected))) > 1 or (k == 2 and method != "lac" and not randomised)
    filled = held(PredictionSets.fit(fitting, alpha=0.2, **given), test)
    top = softmax(test.logits.numpy()).argmax(axis=1)
    assert filled == [each or {int(c)} for each, c in zip(expected, top, strict=True)]


@pytest.mark.parametrize(("method", "randomised"), KINDS)
def test_thresholds_by_class_and_group_are_those_of_fits_on_each(method, randomised):
    groups = ["a"] * 150 + ["b"] * 250
    fitting, test = predictions(400, 4, groups=groups), predictions(100, 4, seed=1, groups=["b", "a"] * 50)
    given = options(method, randomised)
    u = torch.from_numpy(uniforms(0, 0, 400))
    p = torch.softmax(fitting.logits, dim=1)
    score = SetScore(**given)
    of_labels = score.of(RankedClasses(p), u).gather(1, fitting.labels[:, None])[:, 0]
    by_class = PredictionSets.fit(fitting, by="class", **given)
    for c in range(4):
        own = of_labels[fitting.labels == c].sort().values
        expected = float(own[math.ceil((len(own) + 1) * 0.9) - 1])
        assert float(by_class.thresholds[c]) == pytest.approx(expected, abs=1e-12)
    by_group = PredictionSets.fit(fitting, by="group", allow_empty=True, **given)
    assert by_group.group_names == ("a", "b")
    whole = PredictionSets.fit(fitting, **given)
    assert by_group.thresholds[-1] == whole.thresholds[0]
    assert by_group.n == whole.n == by_class.n == 400
    own = of_labels[:150].sort().values[math.ceil(151 * 0.9) - 1]
    drawn = torch.from_numpy(uniforms(0, 1, 100))
    scores = score.of(RankedClasses(torch.softmax(test.logits, dim=1)), drawn)[1::2]
    assert held(by_group, test)[1::2] == [set(np.flatnonzero(row).tolist()) for row in scores <= own]


@pytest.mark.parametrize(("method", "randomised"), KINDS)
def test_coverage_has_its_beta_law_in_2000_splits(method, randomised):
    splits, n, n_test, alpha = 2000, 39, 60, 0.2
    logits, labels = draw(splits * (n + n_test), 4, sharpen=2.0)
    rng = np.random.default_rng(1)
    u = torch.from_numpy(rng.random(len(labels)))
    p = torch.softmax(torch.from_numpy(logits), dim=1)
    of_labels = SetScore(**options(method, randomised)).of(RankedClasses(p), u)
    scores = of_labels.gather(1, torch.from_numpy(labels)[:, None]).view(splits, -1)
    limits = threshold(scores[:, :n], alpha)
    covered = (scores[:, n:] <= limits[:, None]).sum(dim=1).numpy()
    place = place_of_threshold(n, alpha)
    law = betabinom(n_test, place, n + 1 - place)
    edges = law.ppf(np.linspace(0, 1, 13)[1:-1])
    share = np.diff([0, *law.cdf(edges), 1])
    counts = np.bincount(np.searchsorted(edges, covered), minlength=len(share))
    assert chisquare(counts, splits * share).pvalue > 0.001
    band = coverage_law(n, alpha, n_test=n_test, level=0.99)
    inside = (covered / n_test >= band.low) & (covered / n_test <= band.high)
    assert inside.mean() > 0.985
    assert covered.mean() / n_test == pytest.approx(band.mean, abs=0.006)


@pytest.mark.parametrize(("method", "randomised"), KINDS)
def test_measures_are_those_of_the_sets_of_each_sample(method, randomised):
    groups = ["a", "b"] * 150
    fitting, test = predictions(200, 4), predictions(300, 4, seed=1, groups=groups, class_names=list("wxyz"))
    rule = PredictionSets.fit(fitting, alpha=0.3, allow_empty=True, **options(method, randomised))
    found, sets = rule.measure(test), held(rule, Predictions(logits=test.logits))
    labels = test.labels.tolist()
    hits = np.array([y in each for y, each in zip(labels, sets, strict=True)])
    sizes = np.array(list(map(len, sets)))
    assert found.coverage == pytest.approx(hits.mean())
    assert found.mean_size == pytest.approx(sizes.mean())
    assert found.single == pytest.approx((sizes == 1).mean())
    assert found.empty == pytest.approx((sizes == 0).mean())
    assert {row.name: row.n for row in found.sizes} == {
        str(size): int((sizes == size).sum()) for size in np.unique(sizes)
    }
    for place, name in enumerate("wxyz"):
        row = next(each for each in found.classes if each.name == name)
        assert row.coverage == pytest.approx(hits[test.labels == place].mean())
    assert [row.coverage for row in found.classes] == sorted(row.coverage for row in found.classes)
    assert {row.name for row in found.groups} == {"a", "b"}
    filled = PredictionSets.fit(fitting, alpha=0.3, **options(method, randomised)).measure(test)
    assert filled.empty == found.empty
    assert filled.coverage >= found.coverage
    assert filled.sizes[0].name != "0"


class Recorded(np.random.RandomState):
    """Random numbers for MAPIE that are ours."""

    def __init__(self, *streams):
        super().__init__(0)
        self.streams = list(streams)

    def uniform(self, size):
        return self.streams.pop(0).reshape(size)


class Precomputed:
    """A fitted classifier whose features are the probabilities."""

    def __init__(self, k):
        self.classes_ = np.arange(k)
        self.n_features_in_ = k

    def __sklearn_is_fitted__(self):
        return True

    def fit(self, *_):
        return self

    def predict(self, x):
        return np.asarray(x).argmax(axis=1)

    def predict_proba(self, x):
        return np.asarray(x)


def mapie_sets(score, fitting, test, *, alpha, state=None, last=True):
    """The sets of MAPIE, of shape (n, k), and its fitted score."""
    classification = pytest.importorskip("mapie.classification", reason="MAPIE is not installed")
    pytest.importorskip("sklearn")
    x, y = softmax(fitting.logits.numpy()), fitting.labels.numpy()
    made = classification.SplitConformalClassifier(
        Precomputed(fitting.k), confidence_level=1 - alpha, conformity_score=score, random_state=state
    )
    made.conformalize(x, y)
    _, sets = made.predict_set(
        softmax(test.logits.numpy()), conformity_score_params={"include_last_label": last}
    )
    return sets[:, :, 0], made._mapie_classifier.conformity_score_function_


def as_matrix(rule, test):
    return np.array([[str(c) in names for c in range(test.k)] for names in rule.decide(test).columns["set"]])


@pytest.mark.parametrize("k", [2, 10])
@pytest.mark.parametrize("alpha", [0.05, 0.1, 0.3])
def test_lac_has_the_sets_of_mapie(k, alpha):
    fitting, test = predictions(500, k), predictions(1000, k, seed=1)
    theirs, score = mapie_sets("lac", fitting, test, alpha=alpha)
    ours = PredictionSets.fit(fitting, alpha=alpha, allow_empty=True)
    assert score.quantiles_[0] == pytest.approx(1 + float(ours.thresholds[0]), abs=1e-12)
    assert np.array_equal(as_matrix(ours, test), theirs)


@pytest.mark.parametrize("alpha", [0.05, 0.1, 0.3])
def test_randomised_aps_has_the_sets_of_mapie_with_the_same_random_numbers(alpha):
    fitting, test = predictions(500, 10), predictions(1000, 10, seed=1)
    state = Recorded(uniforms(0, 0, 500), uniforms(0, 1, 1000))
    theirs, score = mapie_sets("aps", fitting, test, alpha=alpha, state=state, last="randomized")
    ours = PredictionSets.fit(fitting, alpha=alpha, method="aps", randomised=True, allow_empty=True)
    assert score.quantiles_[0] == pytest.approx(1 + float(ours.thresholds[0]), abs=1e-12)
    assert np.array_equal(as_matrix(ours, test), theirs)


def test_raps_has_the_threshold_of_mapie_and_its_sets_up_to_the_classes_without_a_penalty():
    from sklearn.model_selection import StratifiedShuffleSplit

    fitting, test, alpha = predictions(1000, 10), predictions(1000, 10, seed=1), 0.1
    theirs, score = mapie_sets("raps", fitting, test, alpha=alpha, state=0, last="randomized")
    penalty, k_reg = float(score.lambda_star), int(score.k_star[0])
    split = StratifiedShuffleSplit(n_splits=1, test_size=score.size_raps, random_state=0)
    rest, _ = next(split.split(fitting.logits.numpy(), fitting.labels.numpy()))
    drawn = [torch.from_numpy(np.random.RandomState(0).uniform(size=n)) for n in (len(rest), test.n)]
    ours = SetScore("raps", True, penalty, k_reg)
    ranked = [RankedClasses(torch.softmax(each, dim=1)) for each in (fitting.logits[rest], test.logits)]
    of_labels = ours.of(ranked[0], drawn[0]).gather(1, fitting.labels[rest][:, None])[:, 0]
    limit = threshold(of_labels, alpha)
    assert score.quantiles_[0] == pytest.approx(1 + float(limit), abs=1e-12)
    # Beyond, MAPIE draws the last class with another probability than that of its score.
    crossing = (SetScore("raps", False, penalty, k_reg).of(ranked[1]) < limit).sum(dim=1).numpy() + 1
    within = crossing <= k_reg
    assert 0.5 < within.mean() < 1
    sets = (ours.of(ranked[1], drawn[1]) <= limit).numpy()
    assert np.array_equal(sets[within], theirs[within])


def test_other_sets_of_mapie_hold_ours():
    """MAPIE fits on randomised scores in any case and adds the class that crosses the threshold."""
    fitting, test = predictions(500, 10), predictions(1000, 10, seed=1)
    state = Recorded(uniforms(0, 0, 500))
    theirs, _ = mapie_sets("aps", fitting, test, alpha=0.1, state=state)
    ours = as_matrix(PredictionSets.fit(fitting, method="aps", randomised=True, allow_empty=True), test)
    assert (ours <= theirs).all()
    assert (ours < theirs).any()


def test_the_threshold_is_an_order_statistic_and_alpha_a_decimal_number():
    scores = torch.rand(1000, dtype=torch.float64)
    for n in range(9, 120):
        for alpha in (0.1, 0.15, 0.3):
            exact = math.ceil((n + 1) * (1 - Fraction(repr(alpha))))
            assert place_of_threshold(n, alpha) == exact
            assert threshold(scores[:n], alpha) == scores[:n].sort().values[exact - 1]
    # In floating point (19 + 1) * (1 - 0.15) is above 17.
    assert place_of_threshold(19, 0.15) == 17
    assert threshold(scores[:8], 0.1) == torch.inf


def test_tiny_probabilities_are_told_apart():
    """One minus them would be one, and every class would be in the sets."""
    logits = np.tile([60.0, 0.0, -10.0, -20.0], (20, 1))
    fitting = Predictions(logits=logits, labels=[1] * 20)
    for method in ("lac", "aps"):
        rule = PredictionSets.fit(fitting, method=method, allow_empty=True)
        assert rule.decide(fitting.take([0])).columns["set"] == [["0", "1"]]


def test_equal_scores_are_covered_together():
    probs = [[0.5, 0.3, 0.2]] * 30 + [[0.2, 0.4, 0.4]] * 30
    labels = [0] * 15 + [1] * 15 + [2] * 30
    given = Predictions(probs=probs, labels=labels)
    for method, randomised in KINDS[:2]:
        rule = PredictionSets.fit(given, alpha=0.3, method=method, randomised=randomised)
        assert rule.measure(given).coverage >= 0.7
    lac = PredictionSets.fit(given, alpha=0.3)
    assert lac.decide(given.take([0, 59])).columns["set"] == [["0"], ["1", "2"]]


def test_masked_classes_are_in_no_set():
    logits, labels = draw(200, 4)
    masked = (np.arange(200) + labels) % 4
    masked = np.where(masked == labels, (labels + 1) % 4, masked)
    logits[np.arange(200), masked] = -np.inf
    given = Predictions(logits=logits, labels=labels)
    as_probs = Predictions(probs=softmax(logits), labels=labels)
    for method, randomised in KINDS:
        for each in (given, as_probs):
            rule = PredictionSets.fit(each, alpha=0.01, **options(method, randomised))
            sets = held(rule, each)
            assert not any(int(c) in found for c, found in zip(masked, sets, strict=True))
    small = PredictionSets.fit(given.take(labels > 0), by="class", alpha=0.05, small="include")
    assert small.thresholds[0] == torch.inf
    found = held(small, given)
    assert [0 in each for each in found] == (masked != 0).tolist()


def test_true_classes_without_probability_are_counted_as_missed():
    probs = np.tile([0.6, 0.4, 0.0], (40, 1))
    few = Predictions(probs=probs, labels=[0] * 38 + [2] * 2)
    assert PredictionSets.fit(few).decide(few.take([0])).columns["set"] == [["0"]]
    many = Predictions(probs=probs, labels=[0] * 35 + [2] * 5)
    with pytest.raises(InputError, match="a probability above 0 of the true class in at least 90 %"):
        PredictionSets.fit(many)


def test_raps_chooses_its_penalty_on_other_samples_than_its_threshold():
    given, test = predictions(1000, 20), predictions(2000, 20, seed=1)
    rule = PredictionSets.fit(given, method="raps", seed=3)
    assert rule.n == 800
    assert rule.penalty in (0.001, 0.01, 0.1, 0.2, 0.5)
    # Equal parts and choices in a plain loop.
    order = np.random.default_rng([3, 2]).permutation(1000)
    tuning, rest = given.take(np.sort(order[:200])), given.take(np.sort(order[200:]))
    p = softmax(tuning.logits.numpy())
    ranks = sorted(1 + (row > row[y]).sum() for row, y in zip(p, tuning.labels.tolist(), strict=True))
    assert rule.k_reg == ranks[math.ceil(201 * 0.9) - 1]
    sizes = {}
    for penalty in (0.001, 0.01, 0.1, 0.2, 0.5):
        raps = {"method": "raps", "penalty": penalty, "k_reg": rule.k_reg, "allow_empty": True}
        sizes[penalty] = PredictionSets.fit(tuning, **raps).measure(tuning).mean_size
    assert rule.penalty == min(sizes, key=sizes.get)
    same = PredictionSets.fit(rest, method="raps", penalty=rule.penalty, k_reg=rule.k_reg)
    assert same.thresholds == rule.thresholds
    assert rule.measure(test).mean_size < PredictionSets.fit(given, method="aps").measure(test).mean_size


def test_the_sets_of_a_sample_follow_from_the_seed_and_its_place():
    fitting, test = predictions(300, 5), predictions(400, 5, seed=1)
    one, same, other = (
        PredictionSets.fit(fitting, method="aps", randomised=True, seed=seed) for seed in (0, 0, 1)
    )
    assert held(one, test) == held(same, test) == held(one, test)
    assert held(one, test) != held(other, test)
    assert held(one, test)[:100] == held(one, test.take(np.arange(100)))


def test_blocks_change_nothing(monkeypatch):
    fitting, test = predictions(300, 7), predictions(400, 7, seed=1, groups=["a", "b"] * 200)
    whole = compare_sets(fitting, test).to_dict()
    sets = PredictionSets.fit(test, method="aps", randomised=True, by="group")
    expected = held(sets, test)
    monkeypatch.setattr("calibrant.decisions.sets._BLOCK_ENTRIES", 7 * 64)
    assert compare_sets(fitting, test).to_dict() == whole
    assert held(sets, test) == expected


def test_temperature_scaling_keeps_lac_sets_of_two_classes_and_widens_randomised_aps_sets():
    logits, labels = draw(6000, 10, sharpen=3.0)
    given = Predictions(logits=logits, labels=labels)
    calibrator, rest = calibrate_part(given)
    assert (rest.n, type(calibrator)) == (3000, TemperatureScaling)
    found = compare_sets(rest, calibrators={"temperature": calibrator}, allow_empty=True)
    size = {(each.scores, each.name): each.measures.mean_size for each in found.results}
    assert len(size) == 10
    assert size["temperature", "aps, randomised"] > size["raw", "aps, randomised"]
    logits, labels = draw(1000, 2, sharpen=3.0)
    two = Predictions(logits=logits, labels=labels)
    raw, after = (PredictionSets.fit(two, calibrator=each) for each in (None, TemperatureScaling(3.0)))
    assert held(raw, two) == held(after, two)


def test_samples_of_a_calibrator_and_of_the_sets_are_different_and_together_all():
    given = predictions(101, 3)
    _, rest = calibrate_part(given, 0.3, seed=5)
    assert rest.n == 71
    for share in (0, 1, 1.5, 0.001):
        with pytest.raises(InputError, match="split: expected a"):
            calibrate_part(given, share)


def test_a_calibrator_is_applied_saved_and_names_classes(tmp_path):
    names = ["cat", "dog", "fox"]
    fitting = predictions(300, 3, class_names=names)
    test = predictions(50, 3, seed=1, class_names=names)
    calibrator = TemperatureScaling(2.0)
    calibrator.class_names = tuple(names)
    for by, method, randomised in ((None, "lac", False), ("class", "raps", False), (None, "aps", True)):
        rule = PredictionSets.fit(
            fitting, calibrator=calibrator, by=by, method=method, randomised=randomised, alpha=0.07
        )
        rule.save(tmp_path / "sets.safetensors")
        loaded = load_rule(tmp_path / "sets.safetensors")
        assert isinstance(loaded, PredictionSets)
        assert loaded.decide(test).columns == rule.decide(test).columns
        assert (loaded.guarantee, loaded.n, loaded.alpha) == (rule.guarantee, rule.n, 0.07)
        swapped = test.in_order(["fox", "cat", "dog"])
        assert loaded.decide(swapped).columns == rule.decide(test).columns
        assert loaded.measure(swapped).to_dict() == rule.measure(test).to_dict()
    columns = rule.decide(test).columns
    assert columns["set_size"] == list(map(len, columns["set"]))
    assert set().union(*columns["set"]) == set(names)


def test_sets_name_the_most_probable_class_first():
    given = Predictions(probs=[[0.2, 0.5, 0.3], [0.4, 0.25, 0.35]], class_names=["cat", "dog", "fox"])
    fitting = Predictions(probs=[[0.4, 0.3, 0.3]] * 20, labels=[0] * 10 + [1] * 10)
    sets = PredictionSets.fit(fitting).decide(given).columns["set"]
    assert sets == [["1", "2"], ["0", "2"]]
    fitting = Predictions(probs=[[0.4, 0.4, 0.2]] * 20, labels=[2] * 20, class_names=given.class_names)
    sets = PredictionSets.fit(fitting).decide(given).columns["set"]
    assert sets == [["dog", "fox", "cat"], ["cat", "fox", "dog"]]


def test_groups_that_the_fit_has_not_seen_have_the_common_threshold_and_a_warning():
    fitting = predictions(300, 4, groups=["a"] * 100 + ["b"] * 200)
    rule = PredictionSets.fit(fitting, by="group", method="aps")
    common = PredictionSets.fit(fitting, method="aps")
    test = predictions(50, 4, seed=1)
    new = Predictions(logits=test.logits, groups=["c"] * 50)
    with pytest.warns(UserWarning, match="no samples of c in the fit; their sets have the common threshold"):
        assert held(rule, new) == held(common, test)
    with pytest.raises(InputError, match="groups: expected the group of each sample, because each group"):
        rule.decide(test)
    with pytest.raises(InputError, match="groups: expected the group of each sample for sets by group"):
        PredictionSets.fit(test, by="group")


def test_a_file_whose_parts_do_not_fit_together_is_refused(tmp_path):
    path = tmp_path / "sets.safetensors"
    for by, expected in ((None, 1), ("class", 3), ("group", 4)):
        rule = PredictionSets.fit(predictions(300, 3, groups=list("abc") * 100), by=by)
        rule.thresholds, rule.counts = rule.thresholds.repeat(2), rule.counts.repeat(2)
        rule.save(path)
        with pytest.raises(FormatError, match=f"thresholds: expected {expected}, got {2 * expected}"):
            load_rule(path)
    for name, value, message in (
        ("alpha", 1.0, "alpha: expected a number between 0 and 1"),
        ("method", "best", "method: expected"),
        ("penalty", -1.0, "penalty: expected a number of at least 0"),
        ("group_names", ["a", "a"], "group_names: expected different names"),
    ):
        rule = PredictionSets.fit(predictions(100, 3))
        setattr(rule, name, value)
        rule.save(path)
        with pytest.raises(FormatError, match=message):
            load_rule(path)


@pytest.mark.parametrize("alpha", [0, 1, -0.1, 1.5, math.nan, math.inf, True, "0.1"])
def test_alpha_is_between_0_and_1(alpha):
    with pytest.raises(InputError, match="alpha: expected a number between 0 and 1"):
        PredictionSets.fit(predictions(100, 3), alpha=alpha)
    with pytest.raises(InputError, match="alpha: expected a number between 0 and 1"):
        coverage_law(100, alpha)


def test_too_few_samples_for_the_guarantee_are_refused():
    given = predictions(18, 3)
    with pytest.raises(InputError, match="expected at least 19 samples for alpha 0.05, got 18; .* 0.053$"):
        PredictionSets.fit(given, alpha=0.05)
    PredictionSets.fit(given, alpha=0.053)
    with pytest.raises(InputError, match="expected at least 19 samples for alpha 0.05, got 16"):
        PredictionSets.fit(predictions(20, 3), alpha=0.05, method="raps")
    with pytest.raises(InputError, match="at least 19 samples"):
        coverage_law(18, 0.05)


def test_small_classes_and_groups_are_named_or_included():
    names, groups = ["cat", "dog", "fox"], ["a"] * 195 + ["b"] * 5
    logits, labels = draw(200, 3)
    labels[labels == 2] = 0
    labels[:4] = 2
    given = Predictions(logits=logits, labels=labels, class_names=names, groups=groups)
    with pytest.raises(InputError, match="9 samples of each class for alpha 0.1, got 4 of fox; .*every set"):
        PredictionSets.fit(given, by="class")
    with pytest.raises(InputError, match="9 samples of each group for alpha 0.1, got 5 of b; .*every class"):
        PredictionSets.fit(given, by="group")
    by_class = PredictionSets.fit(given, by="class", small="include")
    assert all("fox" in each for each in by_class.decide(given).columns["set"])
    sizes = PredictionSets.fit(given, by="group", small="include").decide(given).columns["set_size"]
    assert sizes[195:] == [3] * 5
    assert min(sizes[:195]) == 1


def test_what_has_no_sets_is_one_sentence():
    given = predictions(100, 3)
    pairs = Predictions(confidence=[0.9] * 100, correct=[True] * 100)
    several = LabelPredictions(probs=[[0.9, 0.8]] * 50, labels=[[1, 0]] * 50)
    weighted = Predictions(logits=given.logits, labels=given.labels, weights=np.arange(100))
    rule = PredictionSets.fit(given)
    for call in (PredictionSets.fit, rule.measure):
        with pytest.raises(InputError, match="got confidences of a black box, which have no classes"):
            call(pairs)
        with pytest.raises(InputError, match="expected one label for each sample, got several"):
            call(several)
        with pytest.raises(InputError, match="weights: expected none for prediction sets"):
            call(weighted)
        with pytest.raises(InputError, match="labels: expected the true class of each sample, got none"):
            call(Predictions(logits=given.logits))
    with pytest.raises(InputError, match="got confidences of a black box, which have no classes"):
        rule.decide(pairs)
    with pytest.raises(
        InputError, match="expected scores of 3 classes, which .* was fitted on, got scores of 4"
    ):
        rule.decide(predictions(10, 4))
    for options, message in (
        ({"method": "lak"}, "method: expected one of lac, aps, raps, ordered, got 'lak'; did you mean 'lac'"),
        ({"by": "label"}, "by: expected 'class' or 'group', got 'label'"),
        ({"randomised": True}, "randomised: expected False for lac"),
        ({"penalty": 0.1}, "penalty: expected none for lac"),
        ({"method": "raps", "penalty": -0.1}, "penalty: expected a number of at least 0"),
        ({"method": "raps", "k_reg": 1.5}, "k_reg: expected a whole number"),
        ({"small": "drop"}, "small: expected 'refuse' or 'include'"),
        ({"seed": -1}, "seed: expected a whole number of at least 0"),
        ({"allow_empty": 1}, "allow_empty: expected True or False"),
    ):
        with pytest.raises(InputError, match=message):
            PredictionSets.fit(given, **options)
    with pytest.raises(InputError, match="law: expected sets with one threshold, got sets by class"):
        PredictionSets.fit(given, by="class").law()
    assert rule.law(50).n_test == 50


def test_equal_weights_are_none():
    given = predictions(100, 3)
    equal = Predictions(logits=given.logits, labels=given.labels, weights=[2.0] * 100)
    assert PredictionSets.fit(equal).thresholds == PredictionSets.fit(given).thresholds


def test_results_are_json():
    found = compare_sets(predictions(100, 3), methods=["lac", "aps"], by="class")
    answer = json.loads(found.to_json())
    assert [each["method"] for each in answer["results"]] == ["lac", "aps", "aps"]
    assert (answer["by"], answer["n_test"]) == ("class", None)
    assert answer["results"][0]["measures"]["classes"][0]["name"] in "012"


@pytest.mark.slow
def test_a_graph_gives_the_same_sets(tmp_path):
    runtime = pytest.importorskip("onnxruntime")
    from calibrant.integrations.onnx import export_onnx

    fitting, test = predictions(400, 5), predictions(300, 5, seed=1)
    rule = PredictionSets.fit(fitting, method="raps", by="class", calibrator=TemperatureScaling(1.5))
    export_onnx(rule, tmp_path / "sets.onnx")
    session = runtime.InferenceSession(tmp_path / "sets.onnx", providers=["CPUExecutionProvider"])
    logits = test.logits.float().numpy()
    logits[:20, 1] = -np.inf
    sets, sizes = session.run(["sets", "sizes"], {"logits": logits})
    expected = rule.decide(Predictions(logits=logits))
    assert sizes.tolist() == expected.columns["set_size"]
    assert [set(map(str, np.flatnonzero(row))) for row in sets] == list(map(set, expected.columns["set"]))


def test_sets_that_need_more_than_scores_are_not_exported(tmp_path):
    pytest.importorskip("onnxruntime")
    from calibrant.integrations.onnx import export_onnx

    given = predictions(100, 3, groups=["a", "b"] * 50)
    randomised = PredictionSets.fit(given, method="aps", randomised=True)
    with pytest.raises(InputError, match="export: .* got sets that need random numbers; fit them with"):
        export_onnx(randomised, tmp_path / "x.onnx")
    with pytest.raises(InputError, match="export: .* got sets that need groups; fit one rule for each group"):
        export_onnx(PredictionSets.fit(given, by="group"), tmp_path / "x.onnx")
    with pytest.raises(InputError, match="uniforms: expected one for each sample, got none"):
        randomised(torch.zeros(1, 3))


def dependent(n_units, size, seed, *, k=4, **more):
    """Class scores of units whose samples share most of the noise, and their class."""
    rng = np.random.default_rng(seed)
    units = np.repeat(np.arange(n_units), size)
    labels = rng.integers(k, size=n_units)[units]
    noise = 3 * rng.normal(size=(n_units, k))[units] + rng.normal(size=(len(units), k))
    return Predictions(logits=4 * np.eye(k)[labels] + noise, labels=labels, units=units, **more)


def test_units_of_one_row_change_no_set():
    fitting, test = predictions(300, 4), predictions(200, 4, seed=1)
    alone, others = (each.replaced(units=np.arange(each.n)[::-1].copy()) for each in (fitting, test))
    assert compare_sets(alone, others).choose().to_dict() == compare_sets(fitting, test).choose().to_dict()
    for by in ("class", None):
        rules = [PredictionSets.fit(each, by=by, method="raps") for each in (fitting, alone)]
        assert rules[0].guarantee == rules[1].guarantee
        assert torch.equal(rules[0].thresholds, rules[1].thresholds)
    plain, other = (calibrate_part(each, 0.3, seed=4)[1] for each in (fitting, alone))
    assert torch.equal(plain.logits, other.logits)


def test_the_threshold_counts_the_scores_of_a_new_unit_as_infinite():
    # The smallest threshold with at most alpha times all samples missed, those of a new unit of 5 among them.
    scores = torch.arange(100.0)
    for alpha in (0.1, 0.25):
        allowed = math.floor(Fraction(repr(alpha)) * 105) - 5
        assert threshold(scores, alpha, unit_size=5) == 99 - allowed
    assert threshold(scores[:44], 0.1, unit_size=5) == torch.inf
    fitting = dependent(40, 5, 0)
    rule = PredictionSets.fit(fitting, alpha=0.2)
    of_labels = -torch.softmax(fitting.logits, dim=1).gather(1, fitting.labels[:, None])[:, 0]
    missed = int((of_labels > rule.thresholds[0]).sum())
    assert missed == math.floor(0.2 * 205) - 5


def test_a_unit_is_never_divided_and_the_guarantee_names_units(tmp_path):
    given = dependent(60, 5, 0).take(np.random.default_rng(0).permutation(300))
    _, rest = calibrate_part(given, 0.4, seed=1)
    assert sorted(rest.units.unique(return_counts=True)[1].tolist()) == [5] * 36
    rule = PredictionSets.fit(given, method="raps")
    assert (rule.n, rule.n_units) == (240, 48)
    assert rule.guarantee == (
        "Of the sets of new units at least 90 % hold the true class on average, their rows counted, if new "
        "units are drawn like the fit's 240 rows of 48 units."
    )
    rule.save(tmp_path / "sets.safetensors")
    loaded = load_rule(tmp_path / "sets.safetensors")
    assert loaded.guarantee == rule.guarantee
    assert loaded.law(100) == rule.law(100)


def test_a_file_from_before_units_is_read_as_sets_of_independent_samples(tmp_path, monkeypatch):
    rule = PredictionSets.fit(predictions(200, 3))
    old = tuple(name for name in rule.options if name not in ("n_units", "place", "per_effective"))
    monkeypatch.setattr(PredictionSets, "options", old)
    rule.save(tmp_path / "sets.safetensors")
    monkeypatch.undo()
    loaded = load_rule(tmp_path / "sets.safetensors")
    assert loaded.guarantee == rule.guarantee
    assert loaded.law() == rule.law()


def test_observed_coverage_has_an_interval_by_unit_and_the_law_is_wider():
    fitting, test = dependent(150, 6, 0), dependent(100, 6, 1)
    by_unit = PredictionSets.fit(fitting, alpha=0.2)
    by_row = PredictionSets.fit(fitting.replaced(units=None), alpha=0.2)
    found, blind = by_unit.measure(test), by_unit.measure(test.replaced(units=None))
    assert (found.n, found.n_units, found.coverage) == (600, 100, blind.coverage)
    assert found.high - found.low > 1.5 * (blind.high - blind.low)
    assert found.low < found.coverage < found.high
    wide, narrow = by_unit.law(), by_row.law()
    assert wide.high - wide.low > 1.5 * (narrow.high - narrow.low)
    observed = compare_sets(fitting, test, alpha=0.2).choose().observed("test")
    assert "of 600 sets of 100 units" in observed
    assert "Of fits on 900 rows of 150 units, 99 % have" in observed


@pytest.mark.parametrize("by", [None, "class"])
def test_sets_of_new_units_hold_the_true_class_as_often_as_guaranteed(by):
    test = dependent(500, 10, 0, k=2).replaced(units=None)
    covered, by_row = [], []
    for seed in range(1, 151):
        fitting = dependent(10, 10, seed, k=2)
        for given, found in ((fitting, covered), (fitting.replaced(units=None), by_row)):
            rule = PredictionSets.fit(given, alpha=0.2, by=by, small="include", allow_empty=True)
            found.append(rule.measure(test).coverage)
    error = np.std(covered) / math.sqrt(150)
    assert np.mean(covered) >= 0.8 - 2 * error
    assert np.mean(by_row) < 0.8 - 2 * error


def test_too_few_units_are_refused():
    with pytest.raises(
        InputError, match="expected at least 90 samples for alpha 0.1, as the unit of a sample has 10 on"
    ):
        PredictionSets.fit(dependent(8, 10, 0))
