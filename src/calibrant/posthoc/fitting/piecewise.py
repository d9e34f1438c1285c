"""Functions of one number in pieces, one per column: what binning and isotonic methods learn.

Built from gathers and comparisons only, so that they export to ONNX and compile with any batch size. Tables
have one row per column of the input; ragged rows are filled up with ``+inf``, which no input reaches.
"""

import torch
from torch import Tensor


def count_below(x: Tensor, thresholds: Tensor) -> Tensor:
    """Count, for each input of shape ``(n, m)``, the thresholds of its column that lie below it.

    Args:
        x: Inputs of shape ``(n, m)``.
        thresholds: Ascending rows of shape ``(m, b)``.
    """
    table = thresholds.to(x.dtype)
    size = table.shape[1]
    found = torch.zeros_like(x, dtype=torch.int64)
    for bit in reversed(range(size.bit_length())):
        trial = found + (1 << bit)
        below = take(table, (trial - 1).clamp(max=size - 1)) < x
        found = torch.where(below & (trial <= size), trial, found)
    return found


def take(table: Tensor, index: Tensor) -> Tensor:
    """Read row ``c`` of a table of shape ``(m, b)`` at the indices in column ``c``, shape ``(n, m)``."""
    rows, size = table.shape
    return table.reshape(-1)[index + size * torch.arange(rows, device=table.device)]


def step(x: Tensor, thresholds: Tensor, values: Tensor) -> Tensor:
    """Evaluate step functions: ``values[c, i]`` where ``i`` thresholds of column ``c`` lie below the input.

    Args:
        x: Inputs of shape ``(n, m)``.
        thresholds: Ascending rows of shape ``(m, b)``.
        values: Shape ``(m, b + 1)``.
    """
    return take(values.to(x.dtype), count_below(x, thresholds))


def interpolate(x: Tensor, knots: Tensor, values: Tensor) -> Tensor:
    """Evaluate functions that are linear between knots and constant beyond them.

    Args:
        x: Inputs of shape ``(n, m)``.
        knots: Ascending rows of shape ``(m, b)`` with at least two entries.
        values: Shape ``(m, b)``.
    """
    knots, values = knots.to(x.dtype), values.to(x.dtype)
    right = count_below(x, knots).clamp(1, knots.shape[1] - 1)
    start = take(knots, right - 1)
    width = (take(knots, right) - start).clamp(min=torch.finfo(x.dtype).tiny)
    part = ((x - start) / width).clamp(0.0, 1.0)
    return torch.lerp(take(values, right - 1), take(values, right), part)


def ragged(rows: Tensor, entries: Tensor, n_rows: int, *, fill: float) -> Tensor:
    """Arrange entries, sorted by the row that each belongs to, as a table of shape ``(n_rows, longest)``."""
    counts = torch.bincount(rows, minlength=n_rows)
    place = torch.arange(len(rows), device=rows.device) - (counts.cumsum(0) - counts)[rows]
    table = entries.new_full((n_rows, int(counts.max())), fill)
    table[rows, place] = entries
    return table
