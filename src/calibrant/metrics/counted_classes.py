"""Class probabilities that are sorted or binned once, so that resamples are measured by their counts."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import scipy
import torch
from torch import Tensor

from calibrant.bins import Bins, equal_width_index, rounded_down
from calibrant.inputs import Floats
from calibrant.metrics.counted import Counts, EqualMass, Ordered, Steps, Weighted
from calibrant.metrics.ranking import last_of_equals
from calibrant.outcomes import Outcomes

# Float32 holds whole numbers up to this one exactly.
_EXACT = 1 << 24
_STRETCH = 32


@dataclass(frozen=True, eq=False)
class ClassCells:
    """Members of each class and other samples, in ascending order of the probability of the class.

    Neighbours that are all members, or all others, share a cell. That is enough for measures that depend
    only on how members and others alternate, such as AUROC and isotonic regression, and there are far fewer
    cells than samples. Equal probabilities of members and others share a cell of their own.

    Attributes:
        members: The samples in each cell that are members: a table of cells by samples.
        others: The other samples in each cell.
        start: First cell of each class.
    """

    members: "scipy.sparse.csr_array"
    others: "scipy.sparse.csr_array"
    start: npt.NDArray[np.intp]

    @classmethod
    def from_probs(cls, p: Tensor, y: Tensor) -> "ClassCells":
        """Sort the column of each class."""
        table, labels = p.cpu().numpy(), y.cpu().numpy()
        n, k = table.shape
        start = [0]
        parts: dict[bool, list[npt.NDArray[np.intp]]] = {True: [], False: []}
        sizes: dict[bool, list[npt.NDArray[np.intp]]] = {True: [], False: []}
        for c in range(k):
            column = table[:, c]
            order = np.argsort(column)
            member = labels[order] == c
            cell = _cells(column[order], member)
            n_cells = int(cell[-1]) + 1
            start.append(start[-1] + n_cells)
            for kind in (True, False):
                chosen = member == kind
                parts[kind].append(order[chosen].astype(np.int32))
                sizes[kind].append(np.bincount(cell[chosen], minlength=n_cells))
        members, others = (
            _ones(np.concatenate(parts[kind]), np.concatenate(sizes[kind]), n) for kind in parts
        )
        return cls(members, others, np.array(start[:-1]))

    def __len__(self) -> int:
        return int(self.members.shape[0])

    def sums(self, weights: npt.NDArray[np.floating]) -> tuple[Floats, Floats]:
        """Return the weights of the members and others in each cell, shape ``(r, cells)`` each."""
        across = np.ascontiguousarray(weights.T)
        members, others = ((table @ across).T for table in (self.members, self.others))
        return members.astype(np.float64, order="C"), others.astype(np.float64, order="C")


def class_table(y: Tensor, k: int) -> "scipy.sparse.csr_array":
    """Return a table of zeros and ones, which sums counts over the samples of each class."""
    labels = y.cpu().numpy()
    ones = np.ones(len(labels))
    return scipy.sparse.csr_array((ones, (labels, np.arange(len(labels)))), shape=(k, len(labels)))


def class_weights(counts: Counts) -> npt.NDArray[np.floating]:
    """Return counts in the smallest type in which their sums are exact; weights stay as they are."""
    if counts.dtype.kind == "f":
        return counts.astype(np.float64, copy=False)
    return counts.astype(np.float32) if counts.sum(axis=1).max() < _EXACT else counts.astype(np.float64)


def width_class_weights(p: Tensor, y: Tensor, n_bins: int, *, weights: Tensor | None) -> Weighted:
    """Return the mean over classes of the expected gap of equal-width bins, as a function of counts."""
    table, labels = p.cpu().numpy(), y.cpu().numpy()
    n, k = table.shape
    rows, columns = np.nonzero(table > rounded_down(np.array([1 / n_bins]), table.dtype))
    error = -table.astype(np.float64)
    error[np.arange(n), labels] += 1
    place = columns * n_bins + equal_width_index(table[rows, columns], n_bins)
    above = scipy.sparse.csr_array((error[rows, columns], (place, rows)), shape=(k * n_bins, n))
    errors = torch.from_numpy(error)

    def values(counts: Counts) -> Floats:
        each = counts.astype(np.float64)
        gaps = (above @ each.T).T.reshape(len(counts), k, n_bins)
        # The lowest bin is the rest of the total of each class. Torch's product uses torch's threads.
        gaps[..., 0] += (torch.from_numpy(each) @ errors).numpy() - gaps.sum(axis=-1)
        return np.asarray(np.abs(gaps).sum(axis=(1, 2)) / (k * counts.sum(axis=1)))

    return Weighted(n, values, k * n_bins, 4 * n + n * k // 32, weights)


def mass_class_weights(
    p: Tensor, y: Tensor, n_bins: int, of_bins: Callable[[Bins], Tensor], *, weights: Tensor | None
) -> Weighted:
    """Return the mean over classes of a measure of the gaps of equal-mass bins, as a function of counts."""
    stretches = _Stretches.from_probs(p.clamp(0, 1), y)
    edges = torch.arange(n_bins + 1, dtype=torch.float64) / n_bins

    def weighed(counts: Counts) -> Floats:
        bins = (ordered.sums(counts).bins(n_bins, "mass") for ordered in _ordered_classes(p, y))
        return np.asarray(torch.stack([of_bins(each) for each in bins]).mean(dim=0))

    def bins_of(counts: Counts) -> Bins:
        count, gap = (np.diff(each, axis=-1, prepend=0) for each in stretches.up_to_ends(counts, n_bins))
        # The measure reads only counts and gaps; a gap is the difference of the last two sums.
        none = torch.zeros(gap.shape, dtype=torch.float64)
        return Bins(edges, torch.from_numpy(count), none, torch.from_numpy(gap))

    def measure(bins: Bins) -> Floats:
        return np.asarray(of_bins(bins).mean(dim=-1))

    def values(counts: Counts) -> Floats:
        return weighed(counts) if counts.dtype.kind == "f" else measure(bins_of(counts))

    n, k = p.shape
    steps = Steps(f"{n_bins} bins of equal count of each class", bins_of, measure)
    return Weighted(
        n, values, k * n_bins * _STRETCH // 2, n * k, weights, None if weights is not None else steps
    )


def _ordered_classes(p: Tensor, y: Tensor) -> Iterator[Ordered]:
    """Yield the samples in the order of the probability of each class, and whether they belong to it."""
    for c in range(p.shape[1]):
        yield Ordered.from_outcomes(Outcomes(p[:, c].clamp(0, 1).contiguous(), y == c))


@dataclass(frozen=True, eq=False)
class _Stretches:
    """The samples in ascending order of the probability of each class, in stretches of a few samples.

    Sums over whole stretches are sparse products. Only the stretches in which a bin ends are looked into.

    Attributes:
        order: Index of each sample, shape ``(k, stretches, _STRETCH)``; ``n`` after the last one.
        error: Membership minus probability of each of them.
        last: Place of the last sample with an equal probability.
        ones: Table of zeros and ones, which sums counts over stretches.
        errors: The same with the errors instead of ones.
    """

    order: npt.NDArray[np.int32]
    error: Floats
    last: npt.NDArray[np.intp]
    ones: "scipy.sparse.csr_array"
    errors: "scipy.sparse.csr_array"

    @classmethod
    def from_probs(cls, p: Tensor, y: Tensor) -> "_Stretches":
        """Sort the column of each class."""
        table, labels = p.cpu().numpy(), y.cpu().numpy()
        n, k = table.shape
        per_class = -(-n // _STRETCH)
        order = np.full((k, per_class * _STRETCH), n, dtype=np.int32)
        error = np.zeros(order.shape)
        last = np.full(order.shape, n - 1)
        for c in range(k):
            order[c, :n] = np.argsort(table[:, c])
            column = table[order[c, :n], c]
            error[c, :n] = (labels[order[c, :n]] == c) - column.astype(np.float64)
            ends = last_of_equals(column)
            last[c, :n] = np.repeat(ends, np.diff(ends, prepend=-1))
        sizes = np.tile(np.diff(np.arange(per_class + 1) * _STRETCH).clip(max=n), k)
        sizes[per_class - 1 :: per_class] = n - (per_class - 1) * _STRETCH
        ones = _ones(order[:, :n].ravel(), sizes, n)
        errors = scipy.sparse.csr_array((error[:, :n].ravel(), ones.indices, ones.indptr), shape=ones.shape)
        shape = (k, per_class, _STRETCH)
        return cls(order.reshape(shape), error.reshape(shape), last, ones, errors)

    def up_to_ends(self, counts: Counts, n_bins: int) -> tuple[Counts, Floats]:
        """Return the counts and errors up to the end of each bin of equal count, shape ``(r, k, n_bins)``."""
        r, (k, per_class, _) = len(counts), self.order.shape
        weights = class_weights(counts)
        # Resamples are the last axis until single stretches are looked into.
        whole = (self.ones @ weights.T).astype(np.int64).reshape(k, per_class, r)
        whole_errors = (self.errors @ weights.T.astype(np.float64)).reshape(k, per_class, r)
        up_to, errors_up_to = whole.cumsum(axis=1), whole_errors.cumsum(axis=1)
        padded = np.append(counts, np.zeros((r, 1), dtype=np.int64), axis=1)
        flat, ahead = padded.astype(np.min_scalar_type(padded.max())).ravel(), padded.shape[1]
        row, column = np.arange(r)[:, None, None], np.arange(k)[:, None]
        goal = -(-np.arange(1, n_bins + 1) * counts.sum(axis=1)[:, None, None] // n_bins)
        groups = np.ascontiguousarray(up_to.transpose(2, 0, 1)).reshape(r * k, per_class)
        stretch = EqualMass(groups).ends(n_bins).reshape(r, k, n_bins)
        missing = goal - (up_to - whole)[column, stretch, row]
        drawn = flat.take(self.order[column, stretch] + ahead * row[..., None])
        short = np.cumsum(drawn, axis=-1, dtype=np.int32) < missing[..., None]
        # Of few numbers in a row, einsum sums faster than sum.
        end = self.last[column, _STRETCH * stretch + np.einsum("rkbs->rkb", short.view(np.uint8))]
        moved = np.nonzero(end // _STRETCH != stretch)  # a bin ends after equal probabilities
        if len(moved[0]):
            stretch[moved] = end[moved] // _STRETCH
            drawn[moved] = flat.take(self.order[moved[1], stretch[moved]] + ahead * moved[0][:, None])
        drawn *= np.arange(_STRETCH) <= (end - _STRETCH * stretch)[..., None]
        count = (up_to - whole)[column, stretch, row] + np.einsum("rkbs->rkb", drawn, dtype=np.int64)
        error = np.einsum("rkbs,rkbs->rkb", drawn, self.error[column, stretch])
        return count, (errors_up_to - whole_errors)[column, stretch, row] + error


def _cells(ordered: npt.NDArray[np.floating], member: npt.NDArray[np.bool_]) -> npt.NDArray[np.intp]:
    """Return the cell of each of the sorted samples of a class."""
    last = last_of_equals(ordered)
    size = np.diff(last, prepend=-1)
    n_members = np.diff(np.cumsum(member)[last], prepend=0)
    mixed = (n_members > 0) & (n_members < size)
    only_members = n_members == size
    new = np.append(True, mixed[1:] | mixed[:-1] | (only_members[1:] != only_members[:-1]))
    return np.repeat(np.cumsum(new) - 1, size)


def _ones(columns: npt.NDArray[np.intp], sizes: npt.NDArray[np.intp], n: int) -> "scipy.sparse.csr_array":
    """Return a table of zeros and ones, given the places of the ones, row after row."""
    ends = np.append(0, np.cumsum(sizes))
    return scipy.sparse.csr_array(
        (np.ones(len(columns), dtype=np.float32), columns, ends), shape=(len(sizes), n)
    )
