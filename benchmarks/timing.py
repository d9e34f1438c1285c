"""What the benchmarks share: options, Markdown tables, time and memory of a computation."""

import argparse
import multiprocessing
import resource
import time
from collections.abc import Callable

import torch


def benchmark_parser(doc: str, quick: str) -> argparse.ArgumentParser:
    """Return a parser with the first line of a module's docstring and the option ``--quick``."""
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help=f"{quick}, to see that it runs")
    return parser


def table_head(*columns: str) -> str:
    """Return the heading of a Markdown table and the rule below it."""
    return f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}"


def table_row(*cells: object) -> str:
    """Return a row of a Markdown table."""
    return f"| {' | '.join(map(str, cells))} |"


def print_head(*columns: str) -> None:
    """Print the heading of a Markdown table."""
    print(table_head(*columns), flush=True)


def print_row(*cells: object) -> None:
    """Print a row of a Markdown table at once."""
    print(table_row(*cells), flush=True)


def best_time(
    run: Callable[[], object],
    *,
    seconds: float = 2.0,
    most: int = 7,
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """Return the shortest time of at most ``most`` runs, which stop after about the given seconds."""
    best, spent = float("inf"), 0.0
    for _ in range(most):
        start = clock()
        run()
        took = clock() - start
        best, spent = min(best, took), spent + took
        if spent > seconds:
            break
    return best


def extra_memory(run: Callable[[], object]) -> float:
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
