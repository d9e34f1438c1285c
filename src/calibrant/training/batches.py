"""The order of training samples: the same for any number of processes, new in every epoch."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from calibrant.errors import InputError


@dataclass(frozen=True)
class Share:
    """Which of several processes this one is.

    Attributes:
        rank: Its number, from 0.
        of: How many there are.
    """

    rank: int = 0
    of: int = 1

    def rows(self, n: int) -> slice:
        """Return the part of ``n`` rows that belongs to this process; parts differ by at most one row.

        Example:
            >>> [Share(rank, 3).rows(8) for rank in range(3)]
            [slice(0, 2, None), slice(2, 5, None), slice(5, 8, None)]
        """
        return slice(n * self.rank // self.of, n * (self.rank + 1) // self.of)


@dataclass(frozen=True, eq=False)
class Batch:
    """The rows of one step.

    Attributes:
        rows: Row numbers of this process's samples in the training part.
        size: Samples of the step over all processes.
        place: Where this process's samples stand among them.
    """

    rows: Tensor
    size: int
    place: slice


def n_batches(n: int, batch_size: int, share: Share) -> int:
    """Return the number of steps of an epoch."""
    return len(_sizes(n, batch_size, share))


def epoch_batches(n: int, batch_size: int, *, seed: int, share: Share) -> Iterator[Batch]:
    """Yield the steps of an epoch over ``n`` samples in a random order.

    Every process has as many samples of a step as any other, because gradients are averaged over processes:
    batches are rounded down to a multiple of their number, and so is the last one, which may be smaller but
    not a single sample per process: nothing can be normalised over one.

    Args:
        n: Number of samples.
        batch_size: Samples of a step over all processes.
        seed: Where the order comes from; each epoch has its own.
        share: Which process this is.
    """
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    sizes = _sizes(n, batch_size, share)
    for rows in order[: sum(sizes)].split(sizes):
        place = share.rows(len(rows))
        yield Batch(rows[place], len(rows), place)


def _sizes(n: int, batch_size: int, share: Share) -> list[int]:
    if n < share.of:
        raise InputError(
            f"data: expected at least as many training samples as processes, got {n} for {share.of}"
        )
    size = max(batch_size - batch_size % share.of, share.of)
    sizes = [size] * (n // size)
    last = n % size - n % size % share.of
    return [*sizes, last] if last >= 2 * share.of or not sizes else sizes
