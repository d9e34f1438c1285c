"""Threads that never hurt: our own over parts of an array or over jobs, and torch's only where they help.

Torch splits single operations over threads, which then wait for each other: when another program uses a
core, work on small arrays takes many times as long. Small problems therefore run on one thread, and large
jobs run side by side with one thread each. NumPy and torch release the interpreter while they compute.
"""

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import copy_context
from itertools import pairwise
from types import TracebackType
from typing import Generic, TypeVar

import numpy as np
import torch

T = TypeVar("T")
J = TypeVar("J")

# Work on fewer numbers than this runs on one thread.
WORTH_THREADS = 1 << 22

# Jobs on fewer numbers than this run one after another.
WORTH_JOBS = 1 << 19

_lock = threading.Lock()
_inside = threading.local()
# The threads inside one_thread_each, and the number of threads that torch may use outside.
_users, _outside = 0, torch.get_num_threads()
_abandoned = threading.Event()


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

    Any number of threads may be inside at once. Each has its own number again when it leaves, and new threads
    have the one of the program once the last has left.

    Example:
        >>> with one_thread_each():
        ...     torch.get_num_threads()
        1
    """
    depth = getattr(_inside, "depth", 0)
    if depth == 0:
        _enter()
    _inside.depth = depth + 1
    try:
        yield
    finally:
        _inside.depth = depth
        if depth == 0:
            _leave()


def _enter() -> None:
    """Use one thread in this thread and in those that begin from now on."""
    global _users, _outside  # as torch's own number is
    with _lock:
        own = torch.get_num_threads()
        if _users == 0 and own != _outside:
            # A thread that began while others were inside has one thread itself, but not the program.
            _outside = own if own > 1 else _in_another_thread(torch.get_num_threads)
        _inside.own = own if own > 1 else _outside
        _users += 1
        torch.set_num_threads(1)


def _leave() -> None:
    """Use as many threads in this thread as before, and once all have left, in those that begin."""
    global _users  # as torch's own number is
    with _lock:
        _users -= 1
        # Torch has a number for each thread that used it, and one for those that begin; this sets both.
        torch.set_num_threads(_inside.own)
        for_others = 1 if _users else _outside
        if for_others != _inside.own:
            _in_another_thread(lambda: torch.set_num_threads(for_others))


def _alone(work: Callable[[], T]) -> T:
    with one_thread_each():
        return work()


def _in_another_thread(work: Callable[[], T]) -> T:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result()


def few_threads(n_numbers: int) -> AbstractContextManager[None]:
    """Run work on this many numbers on one thread if they are few, however many torch may use."""
    return one_thread_each() if n_numbers < WORTH_THREADS else nullcontext()


class SideBySide(Generic[J, T]):
    """Jobs that run side by side, one thread each, on as many cores as torch may use.

    Jobs on few numbers run one after another: threads of short operations wait for the interpreter. More jobs
    can be added whenever one has ended. On any error, and on Ctrl-C, jobs that have not begun are dropped at
    once, and those that run are abandoned: their results are lost, but nobody waits for them.
    """

    def __init__(self, n_numbers: int) -> None:
        cores = max(1, min(torch.get_num_threads(), os.cpu_count() or 1))
        self.n_workers = cores if n_numbers >= WORTH_JOBS else 1
        self._pool = ThreadPoolExecutor(self.n_workers, thread_name_prefix="calibrant")
        self._jobs: dict[Future[T], J] = {}
        self._one_thread = one_thread_each()

    def __enter__(self) -> "SideBySide[J, T]":
        self._one_thread.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Ctrl-C may come between the start of a job and its entry here.
        interrupted = kind is not None and not issubclass(kind, Exception)
        running = interrupted or any(not future.done() for future in self._jobs)
        if running:
            _abandoned.set()
        self._pool.shutdown(wait=not running, cancel_futures=True)
        self._one_thread.__exit__(None, None, None)

    def add(self, job: J, work: Callable[[], T]) -> None:
        """Add a job, known by a name of any kind; jobs begin in the order in which they were added."""
        self._jobs[self._pool.submit(copy_context().run, _alone, work)] = job

    def ended(self) -> Iterator[tuple[J, Future[T]]]:
        """Yield jobs as they end, until none is left."""
        while self._jobs:
            # With a timeout the main thread can be interrupted on every system.
            done, _ = wait(self._jobs, timeout=1.0, return_when=FIRST_COMPLETED)
            for future in [future for future in self._jobs if future in done]:
                yield self._jobs.pop(future), future

    def running(self) -> Iterable[J]:
        """Return the jobs that are under way, the oldest first."""
        return [job for future, job in self._jobs.items() if future.running()]


def work_was_abandoned() -> bool:
    """Whether threads may still be busy with work whose result nobody waits for."""
    return _abandoned.is_set()
