"""The bracketed Newton search."""

import math

import pytest

from calibrant.errors import FitError
from calibrant.solvers import increasing_root


@pytest.mark.parametrize("start", [-300.0, -1.0, 0.0, 5.0, 300.0])
def test_flat_ends_do_not_throw_the_search_away(start):
    root = increasing_root(lambda x: (math.tanh(x - 2), 1 - math.tanh(x - 2) ** 2), start=start)
    assert root == pytest.approx(2.0, abs=1e-9)


def test_a_function_without_a_root_is_an_error():
    with pytest.raises(FitError, match="did not settle within 200 steps"):
        increasing_root(lambda x: (1.0 + math.exp(min(x, 0.0)), math.exp(min(x, 0.0))))
