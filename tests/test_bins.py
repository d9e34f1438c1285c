"""Bins of confidence, against the definition written as a loop."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from calibrant.bins import equal_width_bins, equal_width_index, sorted_width_bins, top_label_bins
from calibrant.errors import InputError
from calibrant.outcomes import Outcomes

EDGE_NUMBERS = st.one_of(
    st.floats(0, 1),
    st.floats(0, 1, width=32),
    st.tuples(st.integers(0, 20), st.integers(1, 20)).map(lambda ab: min(ab) / max(ab)),
)


def bin_by_definition(value, n_bins):
    """The right-closed bin of a number, edge by edge."""
    return next(b for b in range(n_bins) if value <= (b + 1) / n_bins)


@given(st.lists(EDGE_NUMBERS, min_size=1, max_size=30), st.integers(1, 20))
def test_a_value_on_an_edge_lies_below_it(values, n_bins):
    expected = [bin_by_definition(v, n_bins) for v in values]
    assert equal_width_index(np.array(values), n_bins).tolist() == expected


@given(st.lists(st.floats(0, 1, width=32), min_size=1, max_size=30), st.integers(1, 20))
def test_float32_values_are_placed_as_exactly_as_float64_ones(values, n_bins):
    single = np.array(values, dtype=np.float32)
    assert np.array_equal(equal_width_index(single, n_bins), equal_width_index(single.astype(float), n_bins))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n_bins", [1, 3, 10, 15, 49])
def test_sorted_outcomes_fill_the_bins_that_unsorted_ones_fill(n_bins, dtype):
    rng = np.random.default_rng(0)
    edges = (np.arange(n_bins + 1) / n_bins).astype(dtype)
    near = [
        edges,
        np.nextafter(edges, dtype(0)),
        np.nextafter(edges, dtype(1)),
        rng.random(500).astype(dtype),
    ]
    values = np.concatenate(near)
    outcomes = Outcomes(torch.from_numpy(values), torch.from_numpy(rng.random(len(values)) < 0.5))
    found, expected = sorted_width_bins(outcomes.sorted(), n_bins), equal_width_bins(outcomes, n_bins)
    for name in ("edges", "count", "correct_sum"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))
    np.testing.assert_allclose(found.confidence_sum, expected.confidence_sum, rtol=1e-12)


def test_every_neighbour_of_every_edge_is_placed_exactly():
    for dtype in (np.float32, np.float64):
        for n_bins in (3, 7, 10, 15, 49, 1000):
            edges = (np.arange(1, n_bins) / n_bins).astype(dtype)
            for values in (edges, np.nextafter(edges, dtype(0)), np.nextafter(edges, dtype(1))):
                expected = np.searchsorted(np.arange(1, n_bins) / n_bins, values.astype(float), side="left")
                assert np.array_equal(equal_width_index(values, n_bins), expected)


def test_zero_and_one_belong_to_the_outer_bins():
    bins = top_label_bins(confidence=[0.0, 1.0, 1.0], correct=[False, True, False], n_bins=4)
    assert bins.count.tolist() == [1, 0, 0, 2]
    assert bins.correct_sum.tolist() == [0, 0, 0, 1]


@pytest.mark.parametrize("binning", ["width", "mass"])
def test_sums_are_those_of_a_loop(binning):
    rng = np.random.default_rng(0)
    confidence = np.round(rng.random(500), 2)
    correct = rng.random(500) < confidence
    bins = top_label_bins(confidence=confidence, correct=correct, n_bins=7, binning=binning)
    lower = -np.inf
    for b, upper in enumerate(bins.edges[1:].tolist()):
        inside = (confidence > lower) & (confidence <= upper)
        assert bins.count[b] == inside.sum()
        assert bins.correct_sum[b] == correct[inside].sum()
        assert float(bins.confidence_sum[b]) == pytest.approx(confidence[inside].sum(), abs=1e-12)
        lower = upper
    assert bins.n == 500
    assert float(bins.weight.sum()) == pytest.approx(1)


def test_equal_mass_bins_hold_equal_counts_when_nothing_is_tied():
    confidence = np.random.default_rng(1).random(103)
    bins = top_label_bins(confidence=confidence, correct=confidence > 0.5, n_bins=10, binning="mass")
    assert set(bins.count.tolist()) == {10, 11}


def test_tied_confidences_share_a_bin_whatever_their_order():
    confidence = [0.5] * 6 + [0.9] * 4
    correct = [True] * 3 + [False] * 3 + [True] * 4
    bins = top_label_bins(confidence=confidence, correct=correct, n_bins=5, binning="mass")
    assert bins.count.tolist() == [6, 0, 0, 4, 0]
    swapped = top_label_bins(confidence=confidence, correct=correct[::-1], n_bins=5, binning="mass")
    assert swapped.count.tolist() == bins.count.tolist()


def test_more_bins_than_samples_leaves_bins_empty():
    bins = top_label_bins(confidence=[0.3, 0.7], correct=[True, False], n_bins=5, binning="mass")
    assert bins.n == 2
    assert bins.gap[bins.count == 0].tolist() == [0.0] * 3


def test_an_empty_bin_has_no_accuracy():
    bins = top_label_bins(confidence=[0.9], correct=[True], n_bins=2)
    assert bins.accuracy[0].isnan()
    assert bins.confidence[0].isnan()


def test_an_unknown_binning_is_refused():
    with pytest.raises(InputError, match="^binning: expected 'width' or 'mass', got 'depth'"):
        top_label_bins(confidence=[0.5], correct=[True], binning="depth")


def test_threads_change_nothing(monkeypatch):
    rng = np.random.default_rng(2)
    confidence, correct = rng.random(5000), rng.random(5000) < 0.5
    one = top_label_bins(confidence=confidence, correct=correct)
    monkeypatch.setattr("calibrant.bins._WORTH_THREADS", 100)
    monkeypatch.setattr("torch.get_num_threads", lambda: 3)
    several = top_label_bins(confidence=confidence, correct=correct)
    assert several.count.tolist() == one.count.tolist()
    assert several.correct_sum.tolist() == one.correct_sum.tolist()
    assert several.confidence_sum.tolist() == pytest.approx(one.confidence_sum.tolist(), abs=1e-12)
