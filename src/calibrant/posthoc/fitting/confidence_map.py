"""Maps from (confidence, another number) to the chance of being right: a smooth one and a binned one.

A map is a few tensors by name, so that a calibrator can keep them as buffers.
"""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

# Nodes of the table over confidence and over the other number; between them it is linear.
_NODES = (257, 129)

# Cells of a grid with fewer samples than this would learn noise.
_CELL = 20


def density_ratio(confidence: Tensor, other: Tensor, correct: Tensor) -> dict[str, Tensor]:
    r"""Compare the densities of right and wrong predictions, estimated with Gaussian kernels.

    .. math:: P(\text{right} \mid c, d) =
        \frac{n_1 f_1(c, d) + s c}{n_1 f_1(c, d) + n_0 f_0(c, d) + s}

    with widths :math:`1.06\,\sigma\,n_j^{-1/6}` (the normal reference rule in two dimensions) for each axis
    and outcome, and :math:`s` the weight of one right sample at its centre, so that confidence stays as it
    is where nothing was seen. The other number is held within the range that was seen.
    """
    span = torch.stack([other.amin(), other.amax()])
    nodes = (
        torch.linspace(0, 1, _NODES[0], dtype=torch.float64, device=confidence.device),
        torch.lerp(
            span[0], span[1], torch.linspace(0, 1, _NODES[1], dtype=torch.float64, device=other.device)
        ),
    )
    steps = (1 / (_NODES[0] - 1), max(float(span[1] - span[0]), 1e-9) / (_NODES[1] - 1))
    weights, peaks = [], []
    for chosen in (correct, ~correct):
        kernels, widths = [], []
        for values, at, step in zip((confidence, other), nodes, steps, strict=True):
            width = max(_width(values, chosen), step)  # no finer than the table can hold
            kernels.append(torch.exp(-(((at[:, None] - values[chosen]) / width).square()) / 2))
            widths.append(width)
        peaks.append(1 / math.prod(widths))
        weights.append(kernels[0] @ kernels[1].T * peaks[-1])
    table = (weights[0] + peaks[0] * nodes[0][:, None]) / (weights[0] + weights[1] + peaks[0])
    return {"table": table, "span": span}


def interpolate(confidence: Tensor, other: Tensor, maps: Mapping[str, Tensor]) -> Tensor:
    """Read the table between its nodes."""
    table, span = maps["table"], maps["span"]
    share = (other - span[0]) / (span[1] - span[0]).clamp(min=1e-9)
    row, below = _place(confidence, table.shape[0])
    column, left = _place(share.clamp(0, 1), table.shape[1])
    flat, first = table.flatten(), row * table.shape[1] + column
    upper = torch.lerp(flat[first], flat[first + 1], left)
    lower = torch.lerp(flat[first + table.shape[1]], flat[first + table.shape[1] + 1], left)
    return torch.lerp(upper, lower, below)


def mean_shift(
    confidence: Tensor, other: Tensor, correct: Tensor, n_rows: int, n_columns: int
) -> dict[str, Tensor]:
    """Find by how much mean confidence misses accuracy in each cell of a grid of equal counts."""
    shrink = min(1.0, math.sqrt(len(confidence) / (_CELL * n_rows * n_columns)))
    n_rows, n_columns = max(1, int(n_rows * shrink)), max(1, int(n_columns * shrink))
    row_edges = _inner_edges(other, n_rows)
    row = _index(other, row_edges)
    edges = torch.stack(
        [
            _inner_edges(confidence[row == r] if bool((row == r).any()) else confidence, n_columns)
            for r in range(n_rows)
        ]
    )
    cell = row * n_columns + _index(confidence, edges[row])
    size = n_rows * n_columns
    count = torch.bincount(cell, minlength=size).clamp(min=1)
    shift = (torch.bincount(cell, correct.double() - confidence, minlength=size) / count).view(
        n_rows, n_columns
    )
    limit = torch.tensor(1 / (2 * len(confidence)), dtype=torch.float64, device=confidence.device)
    return {"row_edges": row_edges, "column_edges": edges, "shift": shift, "limit": limit}


def shifted(confidence: Tensor, other: Tensor, maps: Mapping[str, Tensor]) -> Tensor:
    """Move each confidence by the shift of its cell.

    A shift ends at half a sample from 0 and 1, unless the confidence was beyond that itself.
    """
    row = _index(other, maps["row_edges"])
    column = _index(confidence, maps["column_edges"][row])
    shift = maps["shift"].flatten()[row * maps["shift"].shape[1] + column]
    lowest = torch.minimum(confidence, maps["limit"])
    highest = torch.maximum(confidence, 1 - maps["limit"])
    return torch.minimum(torch.maximum(confidence + shift, lowest), highest)


def unchanged(maps: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a map of the same kind that leaves every confidence as it is."""
    if "shift" in maps:
        return {**maps, "shift": torch.zeros_like(maps["shift"])}
    table = maps["table"]
    stated = torch.linspace(0, 1, len(table), dtype=table.dtype, device=table.device)
    return {**maps, "table": stated[:, None].repeat(1, table.shape[1])}


def _width(values: Tensor, chosen: Tensor) -> float:
    # A handful of equal samples must not look like certainty: at least a quarter of the spread of all.
    sigma = max(float(values[chosen].std(correction=0)), float(values.std(correction=0)) / 4)
    return 1.06 * sigma * math.pow(int(chosen.sum()), -1 / 6)


def _place(share: Tensor, n_nodes: int) -> tuple[Tensor, Tensor]:
    """Return the node below a share of the way, and how far it is to the next one."""
    at = share * (n_nodes - 1)
    node = at.floor().clamp(max=n_nodes - 2)
    return node.long(), at - node


def _inner_edges(values: Tensor, n_bins: int) -> Tensor:
    return torch.quantile(values, torch.arange(1, n_bins, dtype=torch.float64, device=values.device) / n_bins)


def _index(values: Tensor, inner_edges: Tensor) -> Tensor:
    return (values[:, None] > inner_edges).sum(dim=1)
