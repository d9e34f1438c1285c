"""What prediction sets reach on labelled samples: coverage and size, overall and by class, group and size."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from calibrant.data.predictions import Predictions
from calibrant.inference.intervals import wilson_interval
from calibrant.inference.ratios import UnitRatios
from calibrant.inference.units import Units
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
        low: Lower end of the 95 % interval of the coverage: Wilson's, or that of
            :class:`~calibrant.inference.ratios.UnitRatios` if samples belong to units.
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
        low: Lower end of the 95 % interval of the coverage, see :class:`SetRow`.
        high: Its upper end.
        mean_size: Mean number of classes in a set.
        single: Share of sets with exactly one class.
        empty: Share of sets to which no class belongs by its score. Unless empty sets are allowed, these hold
            the most probable class.
        sizes: The sets of each size that occurs, from the smallest.
        classes: The samples of each true class, the lowest coverage first.
        groups: The samples of each group, the lowest coverage first; none without groups.
        n_units: Number of units that the samples belong to; None if every sample is drawn by itself.
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
    n_units: int | None = None


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
    units = Units.of(predictions.units, predictions.n)
    sets = _Sets(covered, sizes, None if units.are_rows else units.code)
    (overall,) = sets.rows(["all"], torch.zeros(predictions.n, dtype=torch.int64))
    return SetMeasures(
        n=overall.n,
        coverage=overall.coverage,
        low=overall.low,
        high=overall.high,
        mean_size=overall.mean_size,
        single=float((sizes == 1).double().mean()),
        empty=float(empty.double().mean()),
        sizes=sets.rows([str(size) for size in found.tolist()], places),
        classes=_worst_first(sets.rows(names, labels.cpu())),
        groups=() if groups is None else _worst_first(sets.rows(groups.names, groups.codes)),
        n_units=None if units.are_rows else units.n,
    )


def rows_of_parts(codes: Tensor, n_parts: int) -> tuple[Tensor, ...]:
    """Return the rows of each part, such as a class, from the place of each sample's part."""
    order = torch.argsort(codes, stable=True)
    return tuple(order.split(torch.bincount(codes, minlength=n_parts).tolist()))


@dataclass(frozen=True, eq=False)
class _Sets:
    """Sets of labelled samples: whether each holds the true class, its size, and the unit of the sample."""

    covered: Tensor
    sizes: Tensor
    units: npt.NDArray[np.intp] | None

    def rows(self, names: Sequence[str], codes: Tensor) -> tuple[SetRow, ...]:
        """Return what the sets of each part reach, of those that have samples."""
        parts = rows_of_parts(codes, len(names))
        used = [(name, rows) for name, rows in zip(names, parts, strict=True) if len(rows)]
        shares = [float(self.covered[rows].double().mean()) for _, rows in used]
        ends = self._ends([rows for _, rows in used], shares)
        return tuple(
            SetRow(name, len(rows), share, low, high, float(self.sizes[rows].double().mean()))
            for (name, rows), share, (low, high) in zip(used, shares, ends, strict=True)
        )

    def _ends(self, parts: Sequence[Tensor], shares: Sequence[float]) -> list[tuple[float, float]]:
        if self.units is None:
            return [
                wilson_interval(share, len(rows), level=LEVEL)
                for share, rows in zip(shares, parts, strict=True)
            ]
        covered, sums = self.covered.numpy(), []
        for rows in parts:
            _, place = np.unique(self.units[rows.numpy()], return_inverse=True)
            held = np.bincount(place[covered[rows.numpy()] > 0], minlength=place.max() + 1)
            sums.append((held, np.bincount(place)))
        ratios, side = UnitRatios.of(sums), (1 + LEVEL) / 2
        return list(zip(ratios.lower(side).tolist(), ratios.upper(side).tolist(), strict=True))


def _worst_first(rows: tuple[SetRow, ...]) -> tuple[SetRow, ...]:
    return tuple(sorted(rows, key=lambda row: (row.coverage, row.high)))
