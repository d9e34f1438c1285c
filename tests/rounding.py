"""What the same arithmetic may give in another order: other memory, other blocks, other threads."""

import numpy as np


def assert_equal_up_to_rounding(found, expected):
    """Compare floating-point numbers that were summed in another order, and everything else exactly.

    A matrix product may depend on where its arrays begin in memory, a sum on blocks and threads. Each rounds
    by half a unit in the last place, so 1e-12 in float64 and 1e-5 in float32, relative to the largest number,
    leave room for thousands of roundings and none for a wrong number.
    """
    found, expected = np.asarray(found), np.asarray(expected)
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
    if not np.issubdtype(expected.dtype, np.floating):
        np.testing.assert_array_equal(found, expected)
        return
    allowed = 1e-12 if expected.dtype == np.float64 else 1e-5
    largest = np.abs(expected, where=np.isfinite(expected), out=np.zeros_like(expected)).max(initial=1.0)
    np.testing.assert_allclose(found, expected, rtol=0, atol=allowed * largest)
