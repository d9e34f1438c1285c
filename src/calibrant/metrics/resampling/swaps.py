"""Swap test: two equally good models differ as much after their predictions are swapped in random rows."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calibrant.metrics.resampling.rows import Rows


def swap_p_value(
    measure: Callable[[Rows], float], a: Rows, b: Rows, *, n_swaps: int, rng: np.random.Generator
) -> float:
    """Return the share of swaps after which two models differ at least as much as they do.

    It is exact: if the two predictions of a sample could as well have been made by the other model, all
    swaps are equally likely, and so are all ranks of the difference among theirs. Models with different
    numbers of classes cannot be swapped; for them the share is the smallest one.

    Args:
        measure: The measure of rows.
        a: The rows of the first model.
        b: The rows of the second model, of the same samples.
        n_swaps: Number of swaps.
        rng: Which rows are swapped.
    """
    if any(values.shape != b[name].shape for name, values in a.items()):
        return 1 / (1 + n_swaps)
    found, n = abs(measure(a) - measure(b)), len(next(iter(a.values())))
    reached = 0
    for _ in range(n_swaps):
        swap = rng.random(n) < 0.5
        one = {name: _where(swap, b[name], values) for name, values in a.items()}
        other = {name: _where(swap, a[name], values) for name, values in b.items()}
        reached += not abs(measure(one) - measure(other)) < found  # also if undefined
    return (1 + reached) / (1 + n_swaps)


def _where(swap: np.ndarray, others: Any, values: Any) -> Any:  # noqa: ANN401  # an array of either kind
    """Return the values, with the others in the rows to swap."""
    rows = swap.reshape(-1, *(1,) * (values.ndim - 1))
    if isinstance(values, Tensor):
        there = torch.from_numpy(rows).to(values.device)
        return torch.where(there, torch.as_tensor(others, device=values.device), values)
    return np.where(rows, np.asarray(others), values)
