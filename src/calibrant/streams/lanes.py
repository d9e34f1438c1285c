"""Lanes: things that threads make ahead of their reader, a few at a time."""

from collections import deque
from collections.abc import Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
from typing import TypeVar

T = TypeVar("T")


def ahead(items: Generator[T, None, None], *, most: int) -> Generator[T, None, None]:
    """Yield items that a thread makes while others are at work, at most so many ahead."""
    end = object()
    with ThreadPoolExecutor(1) as pool:
        waiting: deque[Future[T | object]] = deque(pool.submit(next, items, end) for _ in range(most))
        try:
            while (item := waiting.popleft().result()) is not end:
                waiting.append(pool.submit(next, items, end))
                yield item  # type: ignore[misc]  # the end is no item
        finally:
            pool.shutdown(cancel_futures=True)
            items.close()


def in_turns(lanes: Sequence[Generator[T, None, None]]) -> Generator[T, None, None]:
    """Yield one item of each lane in turn until all have ended: an order that does not depend on their speed.

    Example:
        >>> def count(start, end):
        ...     yield from range(start, end)
        >>> list(in_turns([count(0, 2), count(10, 14)]))
        [0, 10, 1, 11, 12, 13]
    """
    end = object()
    with ExitStack() as stack:
        open_lanes = deque(stack.enter_context(closing(lane)) for lane in lanes)
        while open_lanes:
            lane = open_lanes.popleft()
            if (item := next(lane, end)) is not end:
                open_lanes.append(lane)
                yield item  # type: ignore[misc]  # the end is no item
