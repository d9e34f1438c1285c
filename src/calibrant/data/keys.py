"""What a file of predictions must name, and which of what it names is used."""

from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

from calibrant.errors import FormatError

MATRICES = ("logits", "probs", "features")
VECTORS = ("confidence", "correct", "labels")
ARRAYS = (*MATRICES, *VECTORS)

_SHOWN = 12


def choose(values: dict[str, Any], names: Sequence[str], *, need_labels: bool) -> dict[str, Any]:
    """Keep the values that make one set of predictions; refuse a file that lacks or doubles them.

    Class scores say more than pairs, so ``confidence`` and ``correct`` next to ``logits`` or ``probs`` are
    ignored, as are ``labels`` and ``class_names`` next to a full pair. Logits next to probabilities are
    refused, because they may come from different models or temperatures.
    """
    if "logits" in values and "probs" in values:
        raise FormatError("expected either logits or probs, got both; keep the one you mean")
    if "logits" in values or "probs" in values:
        if need_labels and "labels" not in values:
            raise _missing("labels", ["labels"], names)
        return _without(values, "confidence", "correct")
    if "confidence" in values and "correct" in values:
        return _without(values, "labels", "class_names")
    if "confidence" in values or "correct" in values:
        other = "correct" if "confidence" in values else "confidence"
        raise _missing("confidence with correct", [other], names)
    raise _missing("logits, probs, or confidence with correct", ["logits", "probs", "confidence"], names)


def _without(values: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key not in keys}


def _missing(expected: str, keys: Sequence[str], names: Sequence[str]) -> FormatError:
    shown = ", ".join(names[:_SHOWN]) or "nothing"
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return FormatError(f"expected {expected}, got {shown}{more}; {_advice(keys, names)}")


def _advice(keys: Sequence[str], names: Sequence[str]) -> str:
    for name in names:
        stem, mark, rest = name.partition("_")
        if close := get_close_matches(name.lower(), keys, n=1, cutoff=0.75):
            return f"did you mean {close[0]!r} by {name!r}?"
        if close := get_close_matches(stem.lower(), set(keys).intersection(MATRICES), n=1, cutoff=0.75):
            return f"did you mean {close[0] + mark + rest!r} by {name!r}?"
    return f"rename what holds the {' or '.join(keys)}"
