"""The order of training samples: the same for any number of processes, different in every epoch."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from calibrant.errors import InputError
from calibrant.training.processes import ProcessShare


@dataclass(frozen=True, eq=False)
class Batch:
    """The rows of one step.

    Attributes:
        rows: Row numbers of this process's samples in the training part.
        size: Samples of the step over all processes.
        place: The positions of this process's samples in the whole batch.
    """

    rows: Tensor
    size: int
    place: slice


def n_batches(n: int, batch_size: int, share: ProcessShare) -> int:
    """Return the number of steps of an epoch."""
    return len(_sizes(n, batch_size, share))


def epoch_batches(n: int, batch_size: int, *, seed: int, share: ProcessShare) -> Iterator[Batch]:
    """Yield the steps of an epoch over ``n`` samples in a random order.

    Gradients are averaged over processes, so each process has the same number of samples in a step: batch
    sizes are rounded down to a multiple of the number of processes. The last batch may be smaller, but it is
    dropped if it has one sample per process, because batch normalisation needs two.

    Args:
        n: Number of samples.
        batch_size: Samples of a step over all processes.
        seed: Seed of the order; each epoch has its own.
        share: This process.
    """
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    sizes = _sizes(n, batch_size, share)
    for rows in order[: sum(sizes)].split(sizes):
        place = share.rows(len(rows))
        yield Batch(rows[place], len(rows), place)


def _sizes(n: int, batch_size: int, share: ProcessShare) -> list[int]:
    if n < share.of:
        raise InputError(
            f"data: expected at least as many training samples as processes, got {n} for {share.of}"
        )
    size = max(batch_size - batch_size % share.of, share.of)
    sizes = [size] * (n // size)
    last = n % size - n % size % share.of
    return [*sizes, last] if last >= 2 * share.of or not sizes else sizes
