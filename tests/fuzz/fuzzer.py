"""What a fuzzer is: cases that are drawn at random, and the verdict on what Calibrant does with one.

Every case must end in one of three ways: refused in one sentence (a ``CalibrantError``), right, or - where a
format has no checksum - other, which is a valid result of a file that says something else. Everything else is
a failure: another exception, a wrong number, much memory, no end.
"""

import signal
import tracemalloc
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import pyarrow as pa
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from calibrant.errors import CalibrantError

Verdict: TypeAlias = Literal["refused", "right", "other"]

# A case that takes longer than this by the clock, on however busy a machine, has no end.
_SECONDS = 240
# What reading a small file may take beside ten times its size, e.g. for lazy imports and caches.
_CONSTANT = 32 << 20


class WrongError(AssertionError):
    """Calibrant gave a wrong result."""


@dataclass(frozen=True)
class Fuzzer:
    """Cases that are drawn at random, and what is done with each.

    Attributes:
        part: What is attacked: functions, files, calibrators, commands or writing.
        kind: What is attacked within it, as the results name it.
        cases: Draws a case; its ``repr`` is shown if it fails.
        judge: Gives a case to Calibrant and returns the verdict; raises if it is a failure.
        share: How many cases are tried for each one of a cheap fuzzer.
    """

    part: str
    kind: str
    cases: st.SearchStrategy[Any]
    judge: Callable[[Any], Verdict]
    share: float = 1.0

    def examples(self, n: int) -> int:
        """Return how many cases are tried if ``n`` are asked for."""
        return max(1, round(self.share * n))

    def check(self, n: int, *, random: bool = False) -> None:
        """Try cases and raise the first failure, made as small as possible."""

        @settings(_QUIET, max_examples=self.examples(n), derandomize=not random)
        @given(self.cases)
        def each(case: Any) -> None:
            self.verdict(case)

        each()

    def count(self, n: int, *, at: int = 0) -> "Tally":
        """Try cases that the seed ``at`` draws and return how they ended."""
        tally = Tally()

        @seed(at)
        @settings(_QUIET, max_examples=self.examples(n), phases=[Phase.generate])
        @given(self.cases)
        def each(case: Any) -> None:
            try:
                tally.counts[self.verdict(case)] += 1
            except Exception as error:
                tally.counts["wrong" if isinstance(error, WrongError) else "traceback"] += 1
                tally.failures.append((case, error))

        each()
        return tally

    def verdict(self, case: Any) -> Verdict:
        """Return the verdict on a case; what never ends is stopped and wrong."""
        with warnings.catch_warnings(), _time_limit():
            warnings.simplefilter("error")
            warnings.simplefilter("ignore", UserWarning)  # our own notes, and torch's on its experiments
            return self.judge(case)


_QUIET = settings(deadline=None, database=None, suppress_health_check=list(HealthCheck))


@dataclass
class Tally:
    """How the cases of a fuzzer ended.

    Attributes:
        counts: Number of cases by how they ended: a verdict, ``"wrong"`` or ``"traceback"``.
        failures: The cases that are wrong or end in a traceback, and the exceptions.
    """

    counts: Counter[str] = field(default_factory=Counter)
    failures: list[tuple[Any, Exception]] = field(default_factory=list)

    @property
    def tried(self) -> int:
        """Number of cases."""
        return self.counts.total()


def judged(call: Callable[[], Any], check: Callable[[Any], Verdict | None]) -> Verdict:
    """Return the verdict on a call: refused, or what ``check`` says about the result, by default right."""
    try:
        result = call()
    except CalibrantError as error:
        check_sentence(str(error))
        return "refused"
    return check(result) or "right"


def check_sentence(text: str) -> None:
    """Refuse a message that is not a sentence of one line."""
    expect(bool(text.strip()) and "\n" not in text and "Traceback" not in text, f"no sentence: {text!r}")
    expect(len(text) < 2000, f"a message of {len(text):,} characters")


def expect(holds: bool, otherwise: str) -> None:
    """Raise that a result is wrong unless it holds."""
    if not holds:
        raise WrongError(otherwise)


# Pools live as long as the arrays in them, whose end nobody knows.
_POOLS: list[pa.MemoryPool] = []


@contextmanager
def bounded_memory(size: int) -> Iterator[None]:
    """Expect a block that reads a file of ``size`` bytes not to need more than ten times as much."""
    before = pa.default_memory_pool()
    pool = pa.proxy_memory_pool(before)
    _POOLS.append(pool)
    pa.set_memory_pool(pool)
    tracemalloc.start()
    try:
        yield
        used = tracemalloc.get_traced_memory()[1] + (pool.max_memory() or 0)
    finally:
        tracemalloc.stop()
        pa.set_memory_pool(before)
    expect(used <= 10 * size + _CONSTANT, f"{used:,} bytes of memory for a file of {size:,}")


@contextmanager
def _time_limit() -> Iterator[None]:
    def stop(*_: object) -> None:
        raise WrongError(f"no end after {_SECONDS} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, _SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
