"""Time and memory of a computation, as the benchmarks measure them."""

import multiprocessing
import resource
import time
from collections.abc import Callable

import torch


def best_time(run: Callable[[], float], *, seconds: float = 2.0, most: int = 7) -> tuple[float, float]:
    """Return the best of several runs within about the given time, and the value."""
    best, spent, value = float("inf"), 0.0, float("nan")
    for _ in range(most):
        start = time.perf_counter()
        value = run()
        took = time.perf_counter() - start
        best, spent = min(best, took), spent + took
        if spent > seconds:
            break
    return best, value


def extra_memory(run: Callable[[], float]) -> float:
    """Return by how many MB the peak resident set of a forked process grows."""
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()

    def child() -> None:
        torch.set_num_threads(1)  # threads of the parent do not survive a fork
        before = _resident()
        run()
        queue.put(max(0.0, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024 - before))

    process = context.Process(target=child)
    process.start()
    process.join()
    return float(queue.get()) if process.exitcode == 0 else float("nan")


def _resident() -> float:
    with open("/proc/self/statm", encoding="ascii") as file:  # noqa: PTH123 - not a file to be found
        return int(file.read().split()[1]) * resource.getpagesize() / 2**20
