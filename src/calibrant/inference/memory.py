"""What resamples of equal rows have in common: drawn and measured once, whoever asks for it."""

import hashlib
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

import numpy as np

from calibrant.inference.rows import RowArrays, n_numbers

T = TypeVar("T")

# Rows with more numbers than this are not looked up: telling them apart would take longer.
_MOST = 1 << 21

_kept: ContextVar[dict[Hashable, Any] | None] = ContextVar("_kept", default=None)


@contextmanager
def remembering() -> Iterator[None]:
    """Inside, and in jobs that run beside it, draw and measure equal resamples of equal rows only once.

    Measures of one model are resampled from the same seed, and models are compared on the resamples on which
    each was measured before.
    """
    if _kept.get() is not None:
        yield
        return
    token = _kept.set({})
    try:
        yield
    finally:
        _kept.reset(token)


def is_remembering() -> bool:
    """Whether what is computed in this thread is remembered."""
    return _kept.get() is not None


def remembered(key: Hashable, compute: Callable[[], T]) -> T:
    """Return what was computed for an equal key, or compute it; without a key it is not remembered."""
    kept = _kept.get()
    if kept is None or key is None:
        return compute()
    if key not in kept:
        kept[key] = compute()
    found: T = kept[key]
    return found


def key_of(rows: RowArrays, *what: object) -> Hashable:
    """Return a key that only equal rows have; None if nothing is remembered, or there are too many rows."""
    if not is_remembering() or n_numbers(rows) > _MOST:
        return None
    digest = hashlib.blake2b()
    for name, values in sorted(rows.items()):
        array = np.ascontiguousarray(values.numpy(force=True) if hasattr(values, "numpy") else values)
        digest.update(f"{name} {array.dtype} {array.shape} ".encode())
        digest.update(array.data)
    return digest.digest(), *map(repr, what)


def continued(key: Hashable, rng: np.random.Generator, compute: Callable[[], T]) -> T:
    """Return what was drawn from equal random numbers, and leave the generator as after drawing it."""

    def drawn() -> tuple[T, Mapping[str, Any]]:
        return compute(), rng.bit_generator.state

    found, rng.bit_generator.state = remembered(
        None if key is None else (key, repr(rng.bit_generator.state)), drawn
    )
    return found
