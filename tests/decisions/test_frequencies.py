"""Classes that became more or less frequent: the correction, the estimate, its tests and refusals."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from calibrant import FitError, FormatError, InputError, Predictions
from calibrant.data import LabelPredictions, load_bundled
from calibrant.decisions import estimate_frequencies, read_frequencies
from calibrant.decisions.frequencies import (
    _Bias,
    _by_confusion,
    _fit_test,
    _likeliest,
    _mean_test,
    _share_of_chance,
)
from calibrant.evaluation import calibrated, compare, fit_method
from calibrant.inference.units import Units
from calibrant.metrics import negative_log_likelihood
from calibrant.posthoc import (
    FrequencyCorrection,
    Identity,
    TemperatureScaling,
    VectorScaling,
    load_calibrator,
)
from calibrant.posthoc.files import describe, restore
from calibrant.posthoc.frequencies import check_frequencies, treats_classes_alike
from calibrant.posthoc.names import method_named
from calibrant.solvers import likeliest_shares
from tests.conftest import softmax

MEANS = np.eye(4)[:, :3] * 2.5


def world(frequencies, n, seed, *, spread=1.0):
    """Samples of four classes around their means, and the true logits where all are equally frequent."""
    rng = np.random.default_rng(seed)
    labels = rng.choice(4, size=n, p=frequencies)
    x = MEANS[labels] + spread * rng.normal(size=(n, 3))
    logits = -np.square(x[:, None] - MEANS).sum(axis=2) / (2 * spread**2)
    return Predictions(logits=logits, labels=labels, class_names=["ant", "bee", "cow", "dog"])


def rows_of(*sets):
    """Each row as a unit."""
    return tuple(Units.of(None, len(each)) for each in sets)


EVEN, NEW = np.full(4, 0.25), np.array([0.6, 0.05, 0.25, 0.1])


def test_the_correction_is_bayes_rule():
    logits = np.random.default_rng(0).normal(size=(50, 4))
    corrected = FrequencyCorrection.of(Identity(), NEW, old=EVEN)
    p = softmax(logits)
    for row, found in zip(p, corrected.predict_proba(logits), strict=True):
        joint = [row[c] * NEW[c] / EVEN[c] for c in range(4)]
        assert found == pytest.approx([each / sum(joint) for each in joint], abs=1e-12)


def test_the_true_probabilities_of_one_world_become_those_of_another():
    rows = world(NEW, 20_000, 1)
    before = negative_log_likelihood(rows.to_probs(), rows.labels)
    after = calibrated(FrequencyCorrection.of(Identity(), NEW, old="balanced"), rows)
    scipy_best = minimize(
        lambda b: negative_log_likelihood(softmax(rows.logits.numpy() + b), rows.labels), np.zeros(4)
    )
    assert negative_log_likelihood(after.to_probs(), rows.labels) < before - 0.05
    # No other intercepts are much better.
    assert negative_log_likelihood(after.to_probs(), rows.labels) == pytest.approx(scipy_best.fun, abs=1e-3)


def test_correcting_there_and_back_changes_nothing():
    there = FrequencyCorrection.of(Identity(), NEW, old=EVEN)
    back = FrequencyCorrection.of(there, EVEN)
    logits = np.random.default_rng(0).normal(size=(20, 4))
    np.testing.assert_allclose(back.predict_proba(logits), softmax(logits), atol=1e-12)


def test_a_class_that_no_longer_occurs_has_no_probability_and_masked_ones_stay_masked():
    corrected = FrequencyCorrection.of(Identity(), [0.5, 0.5, 0], old="balanced")
    found = corrected.predict_proba([[1.0, 0.0, 9.0], [0.0, -np.inf, 0.0]])
    assert found[0][2] < 1e-6
    assert found[1][1] == 0
    assert found[1][0] == pytest.approx(1, abs=1e-9)


def test_calibrators_know_the_class_frequencies_of_their_fitting_set_also_after_saving(tmp_path):
    rows = world(NEW, 400, 0)
    shares = (np.bincount(rows.labels, minlength=4) / 400).tolist()
    fitted = fit_method(method_named("temperature"), rows)
    compared = compare(rows, methods=["temperature", "vector"], n_resamples=10)
    for each in (fitted, *(result.calibrator for result in compared.results)):
        assert list(each.class_frequencies) == pytest.approx(shares)
        each.save(tmp_path / "c.safetensors")
        loaded = load_calibrator(tmp_path / "c.safetensors")
        assert list(loaded.class_frequencies) == pytest.approx(shares)
        same = FrequencyCorrection.of(loaded, shares).predict_proba(rows.logits)
        torch.testing.assert_close(same, loaded.predict_proba(rows.logits))
    weighted = Predictions(logits=[[2.0, 0.0], [0.0, 1.0]] * 10, labels=[0, 1] * 10, weights=[3, 1] * 10)
    known = fit_method(method_named("temperature"), weighted).class_frequencies
    assert known == pytest.approx((0.75, 0.25))


def test_a_corrected_calibrator_is_saved_whole_and_knows_the_new_frequencies(tmp_path):
    rows = world(EVEN, 400, 0)
    corrected = FrequencyCorrection.of(fit_method(method_named("vector"), rows), NEW)
    corrected.save(tmp_path / "c.safetensors")
    loaded = load_calibrator(tmp_path / "c.safetensors")
    assert loaded.class_frequencies == pytest.approx(tuple(NEW))
    assert loaded.class_names == ("ant", "bee", "cow", "dog")
    torch.testing.assert_close(loaded.predict_proba(rows.logits), corrected.predict_proba(rows.logits))
    turned = rows.in_order(["dog", "cow", "bee", "ant"])
    np.testing.assert_allclose(
        calibrated(loaded, turned).to_probs().flip(1), calibrated(loaded, rows).to_probs(), atol=1e-12
    )


def test_a_method_can_be_fitted_for_other_frequencies():
    rows, others = world(EVEN, 4000, 0), world(NEW, 4000, 1)
    fitted = FrequencyCorrection.fit(rows.logits, rows.labels, frequencies=NEW, method="temperature")
    plain = TemperatureScaling.fit(rows.logits, rows.labels)
    losses = [
        negative_log_likelihood(each.predict_proba(others.logits), others.labels) for each in (fitted, plain)
    ]
    assert losses[0] < losses[1] - 0.05


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ([0.5, 0.4], "p: expected frequencies that sum to one, got the sum 0.9"),
        ([0.5, 0.25, 0.25], r"p: expected 2 numbers, one for each class, got shape \(3,\)"),
        ([1.5, -0.5], "p: expected frequencies of at least 0, got -0.5"),
        ([np.nan, 1.0], "p: expected frequencies of at least 0, got nan"),
        ("even", "p: expected 'balanced' or the frequency of each class, got 'even'"),
        ({"cat": 1.0}, "p: expected a frequency of every class, got none of dog"),
        ({"cat": 0.5, "dgo": 0.5}, "p: expected the classes cat, dog, got 'dgo'; did you mean 'dog'"),
    ],
)
def test_wrong_frequencies_are_refused_in_one_sentence(given, sentence):
    with pytest.raises(InputError, match=f"^{sentence}"):
        check_frequencies(given, k=2, class_names=["cat", "dog"], name="p")


def test_a_calibrator_that_does_not_know_its_frequencies_asks_for_them():
    with pytest.raises(InputError, match="^old: expected the class frequencies of the set"):
        FrequencyCorrection.of(TemperatureScaling(2.0), [0.5, 0.5])
    with pytest.raises(InputError, match="got none of class 1; fit on samples of it"):
        FrequencyCorrection.of(TemperatureScaling(2.0), [0.5, 0.5], old=[1.0, 0.0])


def test_calibrators_without_numbers_of_single_classes_are_recognised():
    rows = world(NEW, 500, 0)
    for name, alike in (("temperature", True), ("smart", True), ("vector", False), ("matrix", False)):
        assert treats_classes_alike(method_named(name).fit(rows.logits, rows.labels), 4) is alike, name


def test_em_finds_the_frequencies_that_a_convex_solver_finds():
    rows = world(NEW, 2000, 0)
    p = softmax(rows.logits.numpy())
    found = _likeliest(p / EVEN, np.full(2000, 1 / 2000), EVEN)
    np.testing.assert_allclose(found, likeliest_shares(p / EVEN), atol=1e-5)


def test_em_is_the_loop_of_saerens():
    p = softmax(np.random.default_rng(0).normal(size=(30, 3)))
    old, new = np.array([0.5, 0.3, 0.2]), np.array([0.5, 0.3, 0.2])
    for _ in range(3):
        adjusted = []
        for row in p:
            joint = [row[c] * new[c] / old[c] for c in range(3)]
            adjusted.append([each / sum(joint) for each in joint])
        new = np.mean(adjusted, axis=0)
    found = _likeliest(p / old, np.full(30, 1 / 30), old, most=3)
    np.testing.assert_allclose(found, new, atol=1e-12)


def test_biases_repair_probabilities_that_are_wrong_for_single_classes():
    rows = world(EVEN, 5000, 0)
    wrong = np.log(softmax(2.0 * rows.logits.numpy() + np.array([1.0, 0.0, -1.0, 0.5])))
    bias = _Bias.fit(wrong, rows.labels.numpy())
    assert bias.scale == pytest.approx(0.5, rel=0.1)
    np.testing.assert_allclose(
        bias(wrong).mean(axis=0), np.bincount(rows.labels, minlength=4) / 5000, atol=2e-3
    )
    vector = VectorScaling.fit(wrong, rows.labels, ridge=0.01).predict_proba(wrong)
    assert np.abs(bias(wrong) - vector).max() < 0.05


def test_bbse_solves_the_confusion():
    rng = np.random.default_rng(0)
    labels = rng.integers(3, size=3000)
    p = softmax(2 * np.eye(3)[labels] + rng.normal(size=(3000, 3)))
    others = rng.choice(3, p=[0.2, 0.7, 0.1], size=3000)
    q = softmax(2 * np.eye(3)[others] + rng.normal(size=(3000, 3)))
    table = np.array([[np.mean(p[labels == c].argmax(axis=1) == j) for c in range(3)] for j in range(3)])
    expected = np.linalg.solve(table, np.bincount(q.argmax(axis=1), minlength=3) / 3000)
    np.testing.assert_allclose(_by_confusion(p, labels, q), expected / expected.sum(), atol=1e-9)


@pytest.mark.parametrize("name", [None, "temperature", "vector"])
def test_new_frequencies_are_found_and_lie_in_their_intervals(name):
    labelled, unlabelled = world(EVEN, 3000, 0), world(NEW, 3000, 1)
    calibrator = None if name is None else fit_method(method_named(name), labelled)
    found = estimate_frequencies(labelled, unlabelled, calibrator=calibrator, n_resamples=60)
    np.testing.assert_allclose(found.frequencies, NEW, atol=0.03)
    np.testing.assert_allclose(found.second_opinion, NEW, atol=0.04)
    np.testing.assert_allclose(found.applied, NEW, atol=0.03)
    assert (found.low <= NEW).all()
    assert (found.high >= NEW).all()
    assert (found.high - found.low).max() < 0.1
    assert found.has_shift()
    assert found.is_explained()
    assert found.distance == pytest.approx(np.abs(NEW - EVEN).sum() / 2, abs=0.03)
    losses = [
        negative_log_likelihood(calibrated(each, unlabelled).to_probs(), unlabelled.labels)
        for each in (found.calibrator, FrequencyCorrection.of(Identity(), NEW, old=EVEN))
    ]
    assert losses[0] == pytest.approx(losses[1], abs=0.01)
    plain = json.loads(found.to_json())
    assert plain["classes"] == ["ant", "bee", "cow", "dog"]
    assert "calibrator" not in plain


def test_the_order_of_classes_and_the_labels_of_the_new_rows_do_not_matter():
    labelled, rows = world(EVEN, 500, 0), world(NEW, 500, 1)
    bare = Predictions(logits=rows.logits, class_names=rows.class_names)
    turned = rows.in_order(["dog", "cow", "bee", "ant"])
    one, *others = (estimate_frequencies(labelled, each, n_resamples=5) for each in (rows, bare, turned))
    for other in others:
        np.testing.assert_allclose(other.frequencies, one.frequencies)
        np.testing.assert_allclose(other.low, one.low)


def test_without_a_shift_the_correction_is_drawn_back_to_the_old_frequencies():
    test, moved, drawn = load_bundled("cifar10_test"), [], []
    for seed in range(4):
        rows = np.random.default_rng(seed).permutation(test.n)
        found = estimate_frequencies(test.take(rows[:1000]), test.take(rows[1000:2000]), n_resamples=2)
        moved.append(np.abs(found.frequencies - found.old).sum())
        drawn.append(np.abs(found.applied - found.old).sum())
    # Both sets are as large, so that the mean of their frequencies is nearest to the truth.
    assert 0.4 < np.mean(drawn) / np.mean(moved) < 0.75


def test_james_and_stein_draw_back_by_the_error_of_the_means():
    rng = np.random.default_rng(0)
    n, m, k = 4000, 1000, 6
    centre = rng.normal(size=k) * 0.08
    p, q = rng.normal(size=(n, k)), centre + rng.normal(size=(m, k))
    found = _mean_test(p, q, rows_of(p, q), rng)
    difference = q.mean(axis=0) - p.mean(axis=0)
    expected = (k - 2) / (m * np.square(difference).sum())  # the rows have unit variance
    assert _share_of_chance(found.statistic, found.rank, n, m) == pytest.approx(expected, rel=0.1)
    assert _share_of_chance(0.0, k, n, m) == 1.0
    assert _share_of_chance(50.0, 2, n, m) == 0.0


def test_the_test_of_a_shift_has_its_level_and_finds_small_shifts():
    p_values = [
        _mean_test(
            softmax(world(EVEN, 150, seed).logits.numpy()),
            softmax(world(EVEN, 200, 1000 + seed).logits.numpy()),
            (Units.of(None, 150), Units.of(None, 200)),
            np.random.default_rng(seed),
        ).p_value
        for seed in range(60)
    ]
    assert np.mean(np.array(p_values) <= 0.05) <= 0.13
    assert 0.3 < np.mean(p_values) < 0.7
    near = np.array([0.32, 0.18, 0.25, 0.25])
    assert estimate_frequencies(world(EVEN, 2000, 0), world(near, 2000, 1), n_resamples=2).has_shift()


def test_hotellings_statistic_is_its_definition():
    rng = np.random.default_rng(0)
    p, q = softmax(rng.normal(size=(40, 3))), softmax(0.3 + rng.normal(size=(60, 3)))
    found = _mean_test(p, q, rows_of(p, q), rng)
    both = np.concatenate([p, q])[:, :2]  # the last column follows from the others
    difference = p[:, :2].mean(axis=0) - q[:, :2].mean(axis=0)
    spread = np.cov(both.T) * (1 / 40 + 1 / 60)
    assert found.statistic == pytest.approx(difference @ np.linalg.solve(spread, difference))
    assert found.rank == 2


def test_samples_that_look_different_are_not_explained_by_frequencies():
    val, noisy = load_bundled("cifar10_val"), load_bundled("cifar10_test_noise")
    found = estimate_frequencies(val, noisy.take(np.arange(2000)), n_resamples=100)
    assert not found.is_explained()
    c = np.random.default_rng(0).uniform(size=500)
    assert _fit_test(c, np.ones(500), c[::-1], rows_of(c, c), 50, np.random.default_rng(0)) == 1.0


def test_classes_that_nobody_can_tell_apart_are_refused_by_name():
    rows = world(EVEN, 2000, 0)
    labels = rows.labels.numpy().copy()
    either = np.flatnonzero((labels == 1) | (labels == 3))
    labels[either] = np.random.default_rng(0).choice([1, 3], size=len(either))
    confused = Predictions(logits=rows.logits, labels=labels, class_names=rows.class_names)
    calibrator = fit_method(method_named("vector"), confused)
    with pytest.raises(FitError, match=r"can tell apart, got '(bee|dog)' and '(bee|dog)', which it confuses"):
        estimate_frequencies(confused, world(NEW, 2000, 1), calibrator=calibrator, n_resamples=2)


def test_equal_seeds_give_equal_results_and_very_many_rows_are_sampled(monkeypatch):
    labelled, rows = world(EVEN, 300, 0), world(NEW, 900, 1)
    one, same = (estimate_frequencies(labelled, rows, n_resamples=5, seed=3) for _ in range(2))
    assert one.to_json() == same.to_json()
    monkeypatch.setattr("calibrant.decisions.frequencies._MOST_ENTRIES", 4 * 600)
    monkeypatch.setattr("calibrant.decisions.frequencies._MOST_PERMUTED", 10)
    part = estimate_frequencies(labelled, rows, n_resamples=5)
    assert part.n_unlabelled == 900
    np.testing.assert_allclose(part.frequencies, one.frequencies, atol=0.08)
    assert part.has_shift()


def test_what_makes_no_sense_is_refused_in_one_sentence():
    labelled, rows = world(EVEN, 200, 0), world(NEW, 200, 1)
    pairs = Predictions(confidence=[0.5] * 50, correct=[True] * 50)
    several = LabelPredictions(probs=[[0.5, 0.5]] * 50, labels=[[1, 0]] * 50)
    weighted = Predictions(logits=rows.logits, labels=rows.labels, weights=np.arange(200))
    rare = Predictions(logits=rows.logits, labels=np.where(rows.labels == 1, 0, rows.labels))
    cases = {
        "labelled: expected the class of each sample": (Predictions(logits=rows.logits), rows),
        "unlabelled: expected scores of 4 classes, as in labelled, got scores of 3 classes": (
            labelled,
            Predictions(logits=rows.logits[:, :3]),
        ),
        "unlabelled: expected the classes ant, bee, cow, dog, got": (
            labelled,
            Predictions(logits=rows.logits, class_names=["a", "b", "c", "d"]),
        ),
        "unlabelled: expected at least 20 samples, got 10": (labelled, rows.take(np.arange(10))),
        "labelled: expected at least 5 samples of every class, got 0 of '1'": (rare, rows),
        "labelled: expected scores of classes, .* got confidences": (pairs, pairs),
        "labelled: expected scores of classes": (several, several),
        "weights: expected none for class frequencies": (labelled, weighted),
    }
    for sentence, (one, two) in cases.items():
        with pytest.raises(InputError, match=f"^{sentence}"):
            estimate_frequencies(one, two)
    for options, sentence in (
        ({"level": 1.0}, "level: expected a number between 0 and 1, got 1.0"),
        ({"n_resamples": 1}, "n_resamples: expected a whole number of at least 2, got 1"),
        ({"seed": -1}, "seed: expected a whole number of at least 0, got -1"),
    ):
        with pytest.raises(InputError, match=f"^{sentence}"):
            estimate_frequencies(labelled, rows, **options)
    found = estimate_frequencies(labelled, rows, n_resamples=2)
    for question in (found.has_shift, found.is_explained):
        with pytest.raises(InputError, match="^alpha: expected a number between 0 and 1, got 0"):
            question(0)


def test_a_file_of_frequencies_has_a_head_or_none(tmp_path):
    path = tmp_path / "new.csv"
    for text in (
        "class,frequency\ncat,0.75\n dog , 0.25\n\n",
        "cat,0.75\ndog,0.25",
        "\ufeffcat,0.75\r\ndog,.25",
    ):
        path.write_text(text, encoding="utf-8")
        assert read_frequencies(path) == {"cat": 0.75, "dog": 0.25}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("cat,0.5,1\n", "expected two columns, the class and its frequency, got 3 in row 1"),
        ("cat,0.5\ndog,half\n", "expected a number for class 'dog', got 'half'"),
        ("cat,0.5\ncat,0.5\n", "expected each class once, got 'cat' twice"),
        ("class,frequency\n", "expected a row for each class, got none"),
        ("", "expected a row for each class, got none"),
    ],
)
def test_a_damaged_file_of_frequencies_is_refused(tmp_path, text, sentence):
    (tmp_path / "new.csv").write_text(text)
    with pytest.raises(FormatError, match=f"^new.csv: {sentence}"):
        read_frequencies(tmp_path / "new.csv")
    with pytest.raises(FormatError, match="^other.csv: no such file in"):
        read_frequencies(tmp_path / "other.csv")


@pytest.mark.parametrize("shares", [[0.5, 0.6], [1.0], [1.5, -0.5], ["a", "b"]])
def test_a_file_with_impossible_class_frequencies_is_refused(shares):
    known = VectorScaling(torch.ones(2), torch.zeros(2))
    known.class_frequencies = (0.25, 0.75)
    description = describe(known)
    assert restore(description, dict(known.state_dict())).class_frequencies == (0.25, 0.75)
    with pytest.raises(FormatError, match="class_frequencies"):
        restore(description | {"class_frequencies": shares}, dict(known.state_dict()))


def test_units_of_one_row_change_nothing():
    labelled, unlabelled = world(EVEN, 300, 0), world(NEW, 200, 1)
    plain = estimate_frequencies(labelled, unlabelled, n_resamples=10)
    alone = (replace(each, units=np.arange(each.n) + 7) for each in (labelled, unlabelled))
    assert estimate_frequencies(*alone, n_resamples=10).to_dict() == plain.to_dict()


def test_copies_of_rows_with_their_unit_say_no_more_about_frequencies_than_the_rows():
    labelled, unlabelled = world(EVEN, 300, 0), world(EVEN, 200, 5)
    plain = estimate_frequencies(labelled, unlabelled, n_resamples=60)
    rows = [np.repeat(np.arange(each.n), 5) for each in (labelled, unlabelled)]
    copies = [each.take(row) for each, row in zip((labelled, unlabelled), rows, strict=True)]
    blind = estimate_frequencies(*copies, n_resamples=60)
    by_unit = estimate_frequencies(
        *(replace(each, units=row) for each, row in zip(copies, rows, strict=True)), n_resamples=60
    )
    assert (by_unit.n_labelled_units, by_unit.n_unlabelled_units) == (300, 200)
    width, by_hand, too_small = ((each.high - each.low).mean() for each in (by_unit, plain, blind))
    assert width == pytest.approx(by_hand, rel=0.2)
    assert too_small < 0.6 * by_hand
    assert by_unit.p_value == pytest.approx(plain.p_value, abs=0.05)
    assert blind.p_value < plain.p_value / 2
    assert "1,000 predictions of 200 units" in by_unit.to_table().title
