"""The batch across all processes of a data-parallel run.

A loss that uses statistics of the batch must see the whole batch; otherwise training with eight processes
differs from training with one. This module exchanges sums and rows so that every process computes the loss
of the global batch. The gradients are those of the global batch after they are **averaged over processes**,
as DistributedDataParallel and Fabric do. Without an initialised process group nothing is exchanged.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

_LOCAL: ContextVar[bool] = ContextVar("calibrant_local_batch", default=False)


@contextmanager
def local_batch() -> Iterator[None]:
    """Limit losses within this block to the samples of this process, e.g. to validate on one process."""
    token = _LOCAL.set(True)
    try:
        yield
    finally:
        _LOCAL.reset(token)


def world_size() -> int:
    """Return the number of processes that share a batch: 1 without a process group."""
    # The context is read last: torch.compile cannot trace it, and without a process group it need not.
    if not dist.is_available() or not dist.is_initialized() or _LOCAL.get():
        return 1
    return dist.get_world_size()


def global_sum(values: Tensor) -> Tensor:
    """Return the sum over processes of tensors of one shape, with the gradient of the global batch."""
    if world_size() == 1:
        return values
    total: Tensor = _GlobalSum.apply(values)  # type: ignore[no-untyped-call]  # torch's own
    return total


def global_rows(values: Tensor) -> Tensor:
    """Return the rows of all processes, in the order of their ranks, with the gradient of the global batch.

    Processes may hold different numbers of rows, none included.
    """
    if world_size() == 1:
        return values
    gathered: Tensor = _GlobalRows.apply(values)  # type: ignore[no-untyped-call]  # torch's own
    return gathered


class _GlobalSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:  # noqa: ANN401, ARG004  # torch gives the context no type
        total = values.detach().clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # noqa: ANN401, ARG004  # as above
        # Every process computes the same loss; averaging the gradients later divides by their number.
        return gradient * dist.get_world_size()


class _GlobalRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:  # noqa: ANN401  # as above
        counts = _counts(len(values), values.device)
        start = sum(counts[: dist.get_rank()])
        ctx.own = slice(start, start + len(values))
        padded = values.new_zeros((max(counts), *values.shape[1:]))
        padded[: len(values)] = values.detach()
        parts = [torch.empty_like(padded) for _ in counts]
        dist.all_gather(parts, padded)
        return torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # noqa: ANN401  # as above
        return gradient[ctx.own] * dist.get_world_size()


def _counts(count: int, device: torch.device) -> list[int]:
    own = torch.tensor([count], device=device)
    parts = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, own)
    return [int(part) for part in parts]
