"""Segments that nobody named: found by trees, corrected, and left alone where they do not differ."""

import numpy as np
import pytest
import torch

from calibrant.data import Predictions
from calibrant.errors import InputError
from calibrant.evaluation import calibrated, compare
from calibrant.posthoc import SegmentCalibration, load_calibrator
from calibrant.posthoc.fitting.boosted_trees import tree_sums


def answers(n, seed, *, shift=1.2):
    """Features, log-odds, the true probability of being right, and the segment in which it is another."""
    rng = np.random.default_rng(seed)
    x, s = rng.normal(size=(n, 3)), 1.5 * rng.normal(size=n)
    inside = (x[:, 0] > 0.3) & (x[:, 1] < 0.5)
    truth = 1 / (1 + np.exp(-(s - shift * inside)))
    return x, s, truth, inside


def fitted(n, seed, *, shift=1.2, **options):
    x, s, truth, _ = answers(n, seed, shift=shift)
    right = np.random.default_rng(seed + 100).random(n) < truth
    return SegmentCalibration.fit(s, right.astype(int), features=x, **options)


def test_trees_say_what_a_plain_walk_down_each_of_them_says():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 3))
    x[::7, 1] = np.nan
    inputs, limits = rng.integers(3, size=(5, 3)), rng.normal(size=(5, 3))
    limits[2] = np.inf
    leaves = rng.normal(size=(5, 4))
    expected = np.zeros(40)
    for row in range(40):
        for tree in range(5):
            node = 0
            while node < 3:
                node = 2 * node + (2 if x[row, inputs[tree, node]] > limits[tree, node] else 1)
            expected[row] += leaves[tree, node - 3]
    got = tree_sums(*(torch.from_numpy(each) for each in (x, inputs, limits, leaves)))
    np.testing.assert_allclose(got, expected)


def test_the_error_of_a_segment_falls_by_a_third_at_least_on_fresh_samples(tmp_path):
    found = fitted(2000, 1)
    x, s, truth, inside = answers(5000, 2)
    before, after = (
        max(abs((p[:, 1] - truth)[part].mean()) for part in (inside, ~inside))
        for p in (found.base.predict_proba(s), found.predict_proba(s, x))
    )
    assert before > 0.1
    assert after < before * 2 / 3
    found.save(tmp_path / "segments.safetensors")
    again = load_calibrator(tmp_path / "segments.safetensors")
    np.testing.assert_allclose(again.predict_proba(s, x), found.predict_proba(s, x), atol=1e-9)


def test_nothing_is_corrected_where_segments_do_not_differ():
    assert [fitted(1500, seed, shift=0.0).n_rounds for seed in range(3)] == [0, 0, 0]
    found, (x, s, _, _) = fitted(1500, 0, shift=0.0), answers(50, 9)
    np.testing.assert_allclose(found.predict_proba(s, x), found.base.predict_proba(s), atol=1e-12)


def test_equal_seeds_give_equal_trees():
    one, other = fitted(800, 3), fitted(800, 3)
    assert one.n_rounds > 0
    assert all(torch.equal(a, b) for a, b in zip(one.buffers(), other.buffers(), strict=True))


def test_copies_of_a_row_are_no_evidence_if_they_are_one_unit():
    x, s, truth, _ = answers(60, 5, shift=0.0)
    right = (np.random.default_rng(0).random(60) < truth).astype(int)
    rows = np.repeat(np.arange(60), 25)
    given = {"features": x[rows], "seed": 0}
    assert SegmentCalibration.fit(s[rows], right[rows], **given).n_rounds > 0
    assert SegmentCalibration.fit(s[rows], right[rows], **given, units=rows).n_rounds == 0


def test_signals_of_a_black_box_are_searched_and_must_come_back_by_name():
    x, s, truth, _ = answers(2000, 6)
    given = Predictions(
        confidence=1 / (1 + np.exp(-s)),
        correct=np.random.default_rng(1).random(2000) < truth,
        signals={"length": x[:, 0], "year": x[:, 1]},
    )
    found = compare(given, methods=["platt"], segments=True)
    assert found["segments"].metrics["nll"] < found["platt"].metrics["nll"] - 0.01
    with pytest.raises(InputError, match="signals: expected length, year in this order"):
        calibrated(found["segments"].calibrator, given.replaced(signals={"year": x[:, 1], "length": x[:, 0]}))
    with pytest.raises(InputError, match="segments: expected features, or signals beside the confidence"):
        compare(given.replaced(signals=None), methods=["platt"], segments=True)


def test_features_are_needed_and_have_the_width_of_the_fit():
    with pytest.raises(InputError, match="features: expected penultimate features"):
        SegmentCalibration.fit([0.0, 1.0], [0, 1])
    with pytest.raises(InputError, match="features: expected the 3 that SegmentCalibration was fitted on"):
        fitted(300, 0).predict_proba([0.5], [[1.0, 2.0]])


def test_the_worst_segment_is_corrected_about_as_well_as_by_mcgrad():
    methods = pytest.importorskip("mcgrad.methods", reason="the library mcgrad is not installed")
    pd = pytest.importorskip("pandas")
    x, s, truth, inside = answers(2000, 1)
    right = np.random.default_rng(101).random(2000) < truth
    frame = pd.DataFrame(x, columns=list("abc")).assign(score=1 / (1 + np.exp(-s)), label=right.astype(int))
    columns = {"categorical_feature_column_names": [], "numerical_feature_column_names": list("abc")}
    theirs = methods.MCGrad().fit(frame, "score", "label", **columns)
    x, s, truth, inside = answers(5000, 2)
    new = pd.DataFrame(x, columns=list("abc")).assign(score=1 / (1 + np.exp(-s)))
    peer = theirs.predict(new, "score", **columns)
    ours = fitted(2000, 1).predict_proba(s, x)[:, 1]
    errors = [abs((p - truth)[inside].mean()) for p in (ours, peer)]
    assert errors[0] < errors[1] + 0.03
