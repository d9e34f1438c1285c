"""What the accumulators take from a batch, in few passes over it.

A batch is checked once, where it is read, and turned to one row per class block by block: what is summed,
compared or maximised over classes then runs along memory. The sums are those of the accumulators' own
``update``, to which tests compare them.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from calibrant.bins import bin_number
from calibrant.outcomes import Outcomes

_Array: TypeAlias = npt.NDArray[Any]
_Mask: TypeAlias = npt.NDArray[np.bool_]

# Entries of a block, which stays in the processor's cache with its temporaries.
_BLOCK = 1 << 17
TOP = 5


@dataclass(eq=False)
class ClassSums:
    """Sums over rows of class probabilities.

    Attributes:
        n: Number of rows.
        nll: Surprise at the true classes.
        brier: Squared distances from the true classes.
        top_errors: Rows whose true class is not among the five most probable ones; none of few classes.
        count: Rows in each bin of each class's probability, shape ``(k, n_bins)``, as the next two.
        confidence: Summed probabilities.
        correct: Rows that are of the class.
    """

    n: int
    nll: float
    brier: float
    top_errors: int | None
    count: npt.NDArray[np.int64]
    confidence: npt.NDArray[np.float64]
    correct: npt.NDArray[np.int64]


def sum_probs(p: Tensor, y: Tensor, n_bins: int) -> tuple[Outcomes, ClassSums]:
    """Read checked probabilities of shape ``(n, k)`` with labels."""
    probs, labels = np.ascontiguousarray(p.numpy()), y.numpy()
    sums = _Sums(probs, n_bins)
    confidence, correct = np.empty(len(probs), dtype=probs.dtype), np.empty(len(probs), dtype=bool)
    for rows in sums.blocks():
        table, ahead = sums.add(probs[rows], labels[rows])
        np.minimum(table.max(axis=0), 1, out=confidence[rows])
        np.equal(ahead, 0, out=correct[rows])
    return Outcomes(torch.from_numpy(confidence), torch.from_numpy(correct)), sums.done()


def sum_logits(z: Tensor, y: Tensor, n_bins: int) -> tuple[Outcomes, ClassSums]:
    """Read checked logits of shape ``(n, k)`` with labels; only of these is every surprise finite."""
    outcomes = Outcomes.from_logits(z, y)
    sums = sum_probs(torch.softmax(z, dim=1), y, n_bins)[1]
    # The confidence is exp(largest - logsumexp), so the logarithm of the sum need not be taken again.
    ahead = z.amax(dim=1).double() - z.gather(1, y[:, None]).squeeze(1).double()
    sums.nll = float((ahead - outcomes.confidence.log()).sum())
    return outcomes, sums


class _Sums:
    """Running sums over blocks of class probabilities, turned to one row per class.

    Temporaries are made once: asking the system for fresh memory costs as much as the sums.
    """

    def __init__(self, like: _Array, n_bins: int) -> None:
        (n, k), dtype = like.shape, like.dtype
        self.n, self.k, self.n_bins = n, k, n_bins
        self.nll = self.squares = self.labels = 0.0
        self.top_errors = 0
        # Not above the edge of the lowest bin, however that was rounded.
        self.lowest = np.nextafter(dtype.type(1 / n_bins), dtype.type(0))
        # Before the first bin there is room for zeros, and after the last one for what is rounded above one.
        self.slots = n_bins + 2
        self.exact = dtype == np.float32
        self.count, self.correct = np.zeros((2, k * self.slots), dtype=np.int64)
        self.placed, self.totals = np.zeros(k * self.slots), np.zeros(k)
        self.step = min(n, max(1, _BLOCK // k))
        size = self.step * k
        self._table, self._mask = np.empty(size, dtype), np.empty(size, dtype=bool)
        self._wide = torch.empty(size, dtype=torch.float64)
        self._small = np.min_scalar_type(-k)

    def blocks(self) -> Iterator[slice]:
        """Yield the rows of each block."""
        for start in range(0, self.n, self.step):
            yield slice(start, min(self.n, start + self.step))

    def add(self, probs: _Array, labels: npt.NDArray[np.int64]) -> tuple[_Array, _Array]:
        """Add a block of shape ``(m, k)``.

        Returns the block, one row per class, until the next one comes, and how many classes come before
        that of the label.
        """
        of_label = probs.ravel().take(np.arange(0, probs.size, self.k) + labels)
        self.nll -= _sum_of_logs(of_label)
        shape = probs.shape[::-1]
        table, mask = (array[: probs.size].reshape(shape) for array in (self._table, self._mask))
        for tile in range(0, len(probs), 1024):
            np.copyto(table[:, tile : tile + 1024], probs[tile : tile + 1024].T)
        self._place(table, mask)
        own = labels * self.slots
        own += bin_number(of_label.astype(np.float64), self.n_bins, exact=self.exact).astype(np.intp)
        self.correct += np.bincount(own, minlength=len(self.correct))
        self.labels += float(of_label.sum(dtype=np.float64))
        self._widen(table)
        ahead = self._ahead(table, labels, of_label, mask)
        self.top_errors += int(np.count_nonzero(ahead >= TOP))
        return table, ahead

    def done(self) -> ClassSums:
        """Return the sums of all rows."""
        count, confidence, correct = (self._bins(table) for table in (self.count, self.placed, self.correct))
        count[:, 0] += self.n - count.sum(axis=1)
        confidence[:, 0] += self.totals - confidence.sum(axis=1)
        return ClassSums(
            n=self.n,
            nll=self.nll,
            brier=max(0.0, self.squares - 2 * self.labels + self.n),
            top_errors=self.top_errors if self.k > TOP else None,
            count=count,
            confidence=confidence,
            correct=correct,
        )

    def _place(self, table: _Array, mask: _Mask) -> None:
        """Count and sum the entries of each bin, without the lowest one, which gets what the others leave."""
        np.greater(table, self.lowest, out=mask)
        where = np.flatnonzero(mask)
        values = table.ravel().take(where).astype(np.float64)
        per_class = np.diff(np.searchsorted(where, np.arange(self.k + 1) * table.shape[1]))
        place = bin_number(values, self.n_bins, exact=self.exact).astype(np.intp)
        place += np.repeat(np.arange(self.k) * self.slots, per_class)
        self.count += np.bincount(place, minlength=len(self.count))
        self.placed += np.bincount(place, values, minlength=len(self.placed))

    def _bins(self, table: _Array) -> _Array:
        """Give what lies outside of the unit interval to the bins at its ends."""
        table = table.reshape(self.k, self.slots)
        table[:, 1] += table[:, 0]
        table[:, -2] += table[:, -1]
        return table[:, 1:-1].copy()

    def _widen(self, table: _Array) -> None:
        """Sum entries and their squares in float64; NumPy's product would start threads of its own."""
        wide = self._wide[: table.size]
        np.copyto(wide.numpy(), table.ravel())
        self.totals += wide.view(table.shape).sum(dim=1).numpy()
        self.squares += float(torch.dot(wide, wide))

    def _ahead(self, table: _Array, labels: npt.NDArray[np.int64], of_label: _Array, mask: _Mask) -> _Array:
        """Count the classes more probable than that of the label, and among equals those before it."""
        np.greater(table, of_label, out=mask)
        ahead: _Array = np.add.reduce(mask.view(np.int8), axis=0, dtype=self._small)
        np.equal(table, of_label, out=mask)
        if np.count_nonzero(mask) > len(labels):
            mask &= np.arange(self.k)[:, None] < labels
            ahead += np.add.reduce(mask.view(np.int8), axis=0, dtype=self._small)
        return ahead


def _sum_of_logs(p: _Array) -> float:
    """Sum the logarithms of probabilities, of four float32 at once: their product is far from underflow."""
    wide = np.minimum(p.astype(np.float64), 1)
    if p.dtype == np.float32:
        rest = wide[len(wide) // 4 * 4 :]
        a, b, c, d = wide[: len(wide) // 4 * 4].reshape(4, -1)
        wide = np.concatenate([a * b * c * d, rest])
    return float(torch.from_numpy(wide).log_().sum())
