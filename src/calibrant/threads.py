"""Threads over parts of an array; NumPy and torch release the interpreter while they compute."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise
from typing import TypeVar

import numpy as np
import torch

T = TypeVar("T")


def over_rows(function: Callable[[slice], T], n: int, *, in_threads: bool) -> list[T]:
    """Call a function on slices that cover ``n`` rows, one slice for each thread of torch, or only one.

    Example:
        >>> over_rows(lambda rows: rows.stop - rows.start, 10, in_threads=False)
        [10]
    """
    threads = torch.get_num_threads() if in_threads else 1
    if threads == 1:
        return [function(slice(0, n))]
    parts = [slice(a, b) for a, b in pairwise(np.linspace(0, n, threads + 1, dtype=int).tolist())]
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(function, parts))


@contextmanager
def one_thread_each() -> Iterator[None]:
    """Keep torch from starting threads while our own threads use all cores.

    Example:
        >>> with one_thread_each():
        ...     torch.get_num_threads()
        1
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
