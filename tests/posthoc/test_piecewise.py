"""Step functions and polygons, one per column."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from calibrant.posthoc.fitting.piecewise import count_below, interpolate, ragged, step

ROWS = st.lists(st.lists(st.integers(-5, 5), min_size=1, max_size=9), min_size=1, max_size=4)


@given(ROWS)
def test_counting_agrees_with_numpy(rows):
    longest = max(len(row) for row in rows)
    table = np.array([sorted(row) + [np.inf] * (longest - len(row)) for row in rows])
    x = np.tile(np.arange(-6.0, 6.5, 0.5)[:, None], (1, len(rows)))
    expected = np.stack([np.searchsorted(table[c], x[:, c]) for c in range(len(rows))], axis=1)
    assert np.array_equal(count_below(torch.from_numpy(x), torch.from_numpy(table)), expected)


def test_a_step_function_has_its_lower_value_at_the_threshold():
    x = torch.tensor([[-9.0], [1.0], [1.5], [2.0], [9.0]])
    out = step(x, torch.tensor([[1.0, 2.0]]), torch.tensor([[10.0, 20.0, 30.0]]))
    assert out[:, 0].tolist() == [10, 10, 20, 20, 30]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_interpolation_agrees_with_numpy_in_rows_of_different_length(dtype):
    x = torch.linspace(-4, 4, 101, dtype=dtype)[:, None].repeat(1, 2)
    knots = torch.tensor([[-2.0, 0.0, 0.5, 3.0], [-1.0, 1.0, np.inf, np.inf]])
    values = torch.tensor([[5.0, 1.0, 2.0, 2.5], [0.0, 4.0, 0.0, 0.0]])
    out = interpolate(x, knots, values)
    assert out.dtype == dtype
    for column, size in enumerate([4, 2]):
        expected = np.interp(x[:, column], knots[column, :size], values[column, :size])
        assert out[:, column].numpy() == pytest.approx(expected, abs=1e-5)


def test_knots_that_coincide_are_a_jump():
    knots, values = torch.tensor([[0.0, 0.0, 1.0, 1.0]]), torch.tensor([[1.0, 1.0, 2.0, 2.0]])
    x = torch.tensor([[-1.0], [0.0], [0.5], [1.0], [2.0]])
    assert interpolate(x, knots, values)[:, 0].tolist() == [1, 1, 1.5, 2, 2]


def test_entries_go_to_their_rows():
    table = ragged(torch.tensor([0, 0, 2]), torch.tensor([1.0, 2.0, 3.0]), 3, fill=torch.inf)
    assert table.tolist() == [[1, 2], [torch.inf, torch.inf], [3, torch.inf]]
