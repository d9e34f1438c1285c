"""What prediction sets reach on labelled samples: coverage and size, overall and by class, group and size."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from calibrant.data.predictions import Predictions
from calibrant.inference.intervals import wilson_interval
from calibrant.results import Result

# Level of the intervals of observed coverage.
LEVEL = 0.95


@dataclass(frozen=True)
class SetRow(Result):
    """The sets of the samples of one class, of one group, or of one size.

    Attributes:
        name: Name of the class or group, or the size.
        n: Number of samples.
        coverage: Share of the sets that hold the true class.
        low: Lower end of Wilson's 95 % interval of the coverage.
        high: Its upper end.
        mean_size: Mean number of classes in a set.
    """

    name: str
    n: int
    coverage: float
    low: float
    high: float
    mean_size: float


@dataclass(frozen=True, eq=False)
class SetMeasures(Result):
    """What prediction sets reach on labelled samples.

    Attributes:
        n: Number of samples.
        coverage: Share of the sets that hold the true class.
        low: Lower end of Wilson's 95 % interval of the coverage.
        high: Its upper end.
        mean_size: Mean number of classes in a set.
        single: Share of sets with exactly one class.
        empty: Share of sets to which no class belongs by its score. Unless empty sets are allowed, these hold
            the most probable class.
        sizes: The sets of each size that occurs, from the smallest.
        classes: The samples of each true class, the lowest coverage first.
        groups: The samples of each group, the lowest coverage first; none without groups.
    """

    n: int
    coverage: float
    low: float
    high: float
    mean_size: float
    single: float
    empty: float
    sizes: tuple[SetRow, ...]
    classes: tuple[SetRow, ...]
    groups: tuple[SetRow, ...]


def measures_of_sets(predictions: Predictions, covered: Tensor, sizes: Tensor, empty: Tensor) -> SetMeasures:
    """Return what sets reach.

    Args:
        predictions: The labelled samples.
        covered: Whether each set holds the true class.
        sizes: The number of classes in each set.
        empty: Whether no class belongs to a set by its score.
    """
    labels, groups = predictions.labels, predictions.groups
    assert labels is not None
    names = predictions.problem.names
    found, places = sizes.unique(return_inverse=True)
    overall = _row("all", covered, sizes)
    return SetMeasures(
        n=overall.n,
        coverage=overall.coverage,
        low=overall.low,
        high=overall.high,
        mean_size=overall.mean_size,
        single=float((sizes == 1).double().mean()),
        empty=float(empty.double().mean()),
        sizes=_rows([str(size) for size in found.tolist()], places, covered, sizes),
        classes=_worst_first(_rows(names, labels.cpu(), covered, sizes)),
        groups=() if groups is None else _worst_first(_rows(groups.names, groups.codes, covered, sizes)),
    )


def rows_of_parts(codes: Tensor, n_parts: int) -> tuple[Tensor, ...]:
    """Return the rows of each part, such as a class, from the place of each sample's part."""
    order = torch.argsort(codes, stable=True)
    return tuple(order.split(torch.bincount(codes, minlength=n_parts).tolist()))


def _rows(names: Sequence[str], codes: Tensor, covered: Tensor, sizes: Tensor) -> tuple[SetRow, ...]:
    parts = zip(names, rows_of_parts(codes, len(names)), strict=True)
    return tuple(_row(name, covered[rows], sizes[rows]) for name, rows in parts if len(rows))


def _row(name: str, covered: Tensor, sizes: Tensor) -> SetRow:
    n, coverage = len(covered), float(covered.double().mean())
    low, high = wilson_interval(coverage, n, level=LEVEL)
    return SetRow(name, n, coverage, low, high, float(sizes.double().mean()))


def _worst_first(rows: tuple[SetRow, ...]) -> tuple[SetRow, ...]:
    return tuple(sorted(rows, key=lambda row: (row.coverage, row.high)))
