"""Random changes of the bytes of a file, and of the values in a JSON or TOML file."""

import copy
from collections.abc import Callable, Sequence
from typing import Any

from hypothesis import strategies as st

# What is put into files: numbers that are none, ends of lines and texts, brackets, formulas, and many of one.
_TOKENS = (
    *(b"nan", b"-inf", b"1e999", b"-1", b"0", b"1e-400", b"0x10", b"9" * 400, b"true", b"null"),
    *(b"\x00", b"\xff\xfe", b"\xed\xa0\x80", b"\r", b"\n", b",", b"\t", b'"', b"'", b"[", b"]", b"{", b"}"),
    *(b"[" * 5000, b'{"a":' * 2000, b"=1+1", b"\x1b[31m", b"\xff" * 8, b"\x00" * 16, b" " * 9),
)
_PLACE = st.integers(0, (1 << 16) - 1)
_LENGTH = st.integers(1, 40)

# One change: its name, where in the file it happens (in parts of 65,536), and what it needs.
_CHANGE = st.one_of(
    st.tuples(st.just("flip"), _PLACE, st.integers(0, 7)),
    st.tuples(st.just("set"), _PLACE, st.integers(0, 255)),
    st.tuples(st.just("set"), _PLACE, st.sampled_from(b"0123456789-.e")),
    st.tuples(st.just("delete"), _PLACE, _LENGTH),
    st.tuples(st.just("insert"), _PLACE, st.sampled_from(_TOKENS) | st.binary(min_size=1, max_size=8)),
    st.tuples(st.just("replace"), _PLACE, st.sampled_from(_TOKENS)),
    st.tuples(st.just("truncate"), _PLACE, st.none()),
    st.tuples(st.just("repeat"), _PLACE, _LENGTH),
    st.tuples(st.just("exchange"), _PLACE, _PLACE),
)
# One to three changes, most often one.
CHANGES = st.tuples(_CHANGE) | st.lists(_CHANGE, min_size=1, max_size=3)


def changed_bytes(content: bytes, changes: Sequence[tuple[str, int, Any]]) -> bytes:
    """Return the content after the changes, each of which sees what the one before made."""
    for how, place, what in changes:
        at = place * len(content) >> 16
        content = _CHANGED[how](content[:at], content[at:], what)
    return content


def _exchange(before: bytes, after: bytes, place: int) -> bytes:
    """Exchange a piece at the beginning of what follows with one from elsewhere in it."""
    at = place * len(after) >> 16
    piece = min(16, at)
    return before + after[at : at + piece] + after[piece:at] + after[:piece] + after[at + piece :]


_CHANGED: dict[str, Callable[[bytes, bytes, Any], bytes]] = {
    "flip": lambda before, after, bit: before + bytes(byte ^ 1 << bit for byte in after[:1]) + after[1:],
    "set": lambda before, after, byte: before + bytes([byte]) + after[1:],
    "delete": lambda before, after, n: before + after[n:],
    "insert": lambda before, after, token: before + token + after,
    "replace": lambda before, after, token: before + token + after[len(token) :],
    "truncate": lambda before, _after, _none: before,
    "repeat": lambda before, after, n: before + after[:n] + after,
    "exchange": _exchange,
}

# Values that a field may be given: of other types, out of every range, and deep.
VALUES = st.sampled_from(
    [
        *(None, True, False, 0, -1, 1, 2, 3.5, -0.0, 1e308, float("nan"), float("inf"), 10**30, -(10**30)),
        *("", "x", "nan", "inf", "../../x", "/dev/zero", "\x00", "\ud800", "\x1b[31m", "=1+1", "[/x]"),
        *([], {}, [[]], [None], ["x"], [1, 2], [1e400], {"x": 1}, {"": None}, [0.5] * 3),
    ]
)
# Where a value is changed: a number for each level, taken modulo the number of entries there.
PATHS = st.lists(st.integers(0, 63), min_size=1, max_size=8)


def changed_value(root: Any, path: list[int], value: Any, *, remove: bool) -> Any:
    """Return a copy of nested tables and lists in which one value is another one, or is not there."""
    root = copy.deepcopy(root)
    table = root
    for left, step in zip(range(len(path) - 1, -1, -1), path, strict=True):
        entries = list(table) if isinstance(table, dict) else list(range(len(table)))
        if not entries:
            break
        key = entries[step % len(entries)]
        inside = table[key]
        if not left or not isinstance(inside, (dict, list)) or not inside:
            if remove:
                del table[key]
            else:
                table[key] = value
            break
        table = inside
    return root
