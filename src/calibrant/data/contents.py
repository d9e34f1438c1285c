"""What a file of predictions contains: its keys, the arrays under them, and notes as JSON text."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from calibrant.data.columns import Columns
from calibrant.data.predictions import Groups, Stored
from calibrant.errors import FormatError, InputError, did_you_mean, listed

MATRICES = ("logits", "probs", "features")
VECTORS = ("confidence", "correct", "labels", "weights", "units", "score", "outcome")
ARRAYS = (*MATRICES, *VECTORS)
#: What is written, but read only if a person names it: many files have ids of their own.
IDS = "ids"
GROUPS = "groups"
GROUP = "groups_"
SIGNAL = "signal_"
# Longer names of digits are no numbers of classes.
_MOST_DIGITS = 9
# What others call our columns.
_USUAL = {
    "labels": ("label", "target", "targets", "y", "y_true", "truth", "true_label", "class", "true_class")
}


def select_form(values: dict[str, Any], names: Sequence[str], *, need_labels: bool) -> dict[str, Any]:
    """Return the values that make one set of predictions; refuse a file with too few or too many.

    Class scores contain more than pairs, so ``confidence`` and ``correct`` next to ``logits`` or ``probs``
    are ignored, as are ``labels`` and ``class_names`` next to a full pair, a ``score`` next to a confidence,
    and an ``outcome`` next to ``correct``: many files have such columns of their own. Logits next to
    probabilities are refused, because they may come from different models or temperatures. Groups stand
    beside any form.

    Args:
        values: The values of the file that have one of our keys.
        names: Everything that the file names, for the error message.
        need_labels: Whether a file without labels, or without ``correct``, is refused.
    """
    if "logits" in values and "probs" in values:
        raise FormatError("expected either logits or probs, got both; keep the one you mean")
    if "logits" in values or "probs" in values:
        if need_labels and "labels" not in values:
            raise _missing("labels", ["labels"], names)
        return _without(values, "confidence", "correct", "signals", "score", "outcome")
    known = "correct" in values or "outcome" in values
    form = next((key for key in ("confidence", "score") if key in values), None)
    if form is not None and (known or not need_labels):
        doubled = ["outcome"] if "correct" in values else []
        return _without(values, "labels", "class_names", *doubled, *(["score"] if form != "score" else []))
    if form == "score":
        raise _missing("score with outcome", ["outcome"], names)
    if "confidence" in values or "correct" in values:
        other = "correct" if "confidence" in values else "confidence"
        raise _missing("confidence with correct", [other], names)
    raise _missing("logits, probs, or confidence with correct", ["logits", "probs", "confidence"], names)


def find_columns(names: Sequence[str]) -> dict[str, list[str]]:
    """Return the columns of each of our keys, in the order of the classes; other columns are ignored."""
    found = {key: [key] for key in (*MATRICES, *VECTORS) if key in names}
    for key in MATRICES:
        spread = [f"{key}_{suffix}" for suffix in suffixes(names, key)]
        if spread and key in found:
            raise FormatError(
                f"{key}: expected one column or one per class, got both {key!r} and {spread[0]!r}; drop one"
            )
        if spread:
            found[key] = spread
    if "labels" not in found and (spread := _label_columns(names, found)):
        found["labels"] = spread
    check_once((column for columns in found.values() for column in columns), names)
    return found


def _label_columns(names: Sequence[str], found: Mapping[str, Sequence[str]]) -> list[str]:
    """Return a column of labels for each column of scores, if there are several labels at once."""
    for key in ("logits", "probs"):
        scores = [column.removeprefix(key) for column in found.get(key, [key]) if column != key]
        missing = [f"labels{name}" for name in scores if f"labels{name}" not in names]
        if scores and not missing:
            return [f"labels{name}" for name in scores]
        if len(missing) < len(scores):
            raise FormatError(
                f"labels: expected a column for each of the {len(scores)} columns of {key}, got none for "
                f"{missing[0].removeprefix('labels_')!r}; add {missing[0]!r}"
            )
    return []


def class_names(columns: dict[str, list[str]]) -> list[str] | None:
    """Return the names in the headers of the predictions, unless these only count from zero.

    Labels of such a file that are numbers are names too, see :func:`labels_by_number`.
    """
    for key in ("logits", "probs"):
        spread = columns.get(key, [key])
        if spread != [key]:
            named = [column.removeprefix(f"{key}_") for column in spread]
            return None if _only_count(named) else named
    return None


def under_our_names(names: Sequence[str], columns: Columns) -> dict[str, str]:
    """Return the names of a file by the names that we give them.

    Args:
        names: The names of all columns or arrays of the file.
        columns: Which of them hold what; these go before those that have our names already.

    Example:
        >>> under_our_names(["id", "p_cat", "p_dog", "y"], Columns(probs="p", labels="y"))
        {'id': 'id', 'probs_cat': 'p_cat', 'probs_dog': 'p_dog', 'labels': 'y'}
    """
    other = columns.other_names
    if not columns.use_labels:
        other = {key: named for key, named in other.items() if key != "labels"}
        names = [name for name in names if not re.match(r"labels(_|$)|correct$", name)]
    hidden = {"logits", "probs"} & other.keys() and {"logits", "probs"}
    ours = {
        name: name
        for name in names
        if name not in other and not any(name == key or name.startswith(f"{key}_") for key in hidden)
    }
    for key, named in other.items():
        found = _found(key, named, names)
        ours = {mine: theirs for mine, theirs in ours.items() if theirs not in found.values()} | found
    return ours


def _found(key: str, named: Sequence[str], names: Sequence[str]) -> dict[str, str]:
    """Return the columns that a person named for one of our keys, by our names."""
    if len(named) > 1:
        return {f"{key}_{place}": present([name], (), names)[0] for place, name in enumerate(named)}
    spread = [name for name in names if name.startswith(f"{named[0]}_")] if key in MATRICES else []
    if named[0] in names or not spread:
        return {key: present(named, (), names)[0]}
    return {f"{key}_{name.removeprefix(f'{named[0]}_')}": name for name in spread}


def with_classes(values: dict[str, Any], columns: Columns) -> dict[str, Any]:
    """Return the values with the names of the classes that a person gave."""
    if columns.classes is None:
        named = columns.logits or columns.probs
        names = _without_prefix(named) if len(named) > 1 else []
        return values | ({"class_names": names} if not _only_count(names) else {})
    own = list(values.get("class_names") or columns.classes)
    if own != list(columns.classes) and set(own) == set(columns.classes):
        raise InputError(
            f"classes: expected the order of the columns, {listed(own)}, got {listed(columns.classes)}; give "
            "that order"
        )
    labels = np.asarray(values.get("labels", ()))
    if len(labels) and labels.dtype.kind in "iuf" and all(is_number(name) for name in columns.classes):
        values = values | {"labels": [str(int(y)) if y == round(y) else y for y in labels.tolist()]}
    return values | {"class_names": columns.classes}


def _without_prefix(names: Sequence[str]) -> list[str]:
    """Return names of columns without what all of them begin with, up to a mark such as ``_``.

    Example:
        >>> _without_prefix(["p_cat", "p_dog"]), _without_prefix(["cat", "cow"])
        (['cat', 'dog'], ['cat', 'cow'])
        >>> _without_prefix(["P(<=50K)", "P(>50K)"])
        ['<=50K', '>50K']
    """
    ends = [place + 1 for place, letter in enumerate(names[0]) if letter in "_. -("]
    for end in reversed(ends):
        last = 1 if names[0][end - 1] == "(" and all(name.endswith(")") for name in names) else 0
        rests = [name[end : len(name) - last] for name in names if name.startswith(names[0][:end])]
        if len(rests) == len(names) and all(rests):
            return rests
    return list(names)


def _only_count(names: Sequence[str]) -> bool:
    """Whether names are the numbers from zero on, with or without leading zeros."""
    return all(map(_is_digits, names)) and [int(name) for name in names] == list(range(len(names)))


def labels_by_number(values: dict[str, Any], names: Sequence[str] | None) -> dict[str, Any]:
    """Return values whose labels are places among classes that the headers of a file name by numbers.

    Of the columns ``logits_0``, ``logits_2`` and ``logits_5`` the label 2 means the second, not the third.

    Example:
        >>> labels_by_number({"labels": [2, 5]}, ["0", "2", "5"])["labels"]
        array([1, 2])
    """
    numbers = _numbered(names)
    labels = np.asarray(values.get("labels", ()))
    if numbers is None or labels.ndim != 1 or not len(labels):
        return values
    if labels.dtype.kind in "UTO" and all(_is_digits(str(label)) for label in labels):
        labels = np.array([int(label) for label in labels])
    if labels.dtype.kind not in "iuf":
        return values
    places = np.searchsorted(numbers, labels).clip(max=len(numbers) - 1)
    wrong = np.flatnonzero(numbers[places] != labels)
    if len(wrong):
        raise InputError(
            f"labels: expected one of the classes {listed(list(names or ()))}, which the columns name, got "
            f"{labels[wrong[0]]} in row {wrong[0]}"
        )
    return values | {"labels": places}


def label_numbers(predictions: Stored) -> npt.NDArray[Any] | None:
    """Return labels for a file whose headers name the classes by numbers; None if they are places there."""
    numbers = _numbered(predictions.class_names)
    if numbers is None or "labels" not in predictions.arrays:
        return None
    return np.asarray(numbers[predictions.arrays["labels"].cpu().numpy()])


def _numbered(names: Sequence[str] | None) -> npt.NDArray[np.int64] | None:
    """Return names that are numbers in ascending order, but not those from zero on; else None."""
    if names is None or not all(map(_is_digits, names)) or _only_count(names):
        return None
    numbers = np.array([int(name) for name in names])
    return numbers if bool((np.diff(numbers) > 0).all()) else None


def to_arrays(predictions: Stored) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays by key; bfloat16, which NumPy does not support, becomes float32 without loss."""
    arrays = {}
    for key in (*ARRAYS, IDS):
        if key in predictions.arrays:
            tensor = predictions.arrays[key]
            tensor = tensor.float() if tensor.dtype == torch.bfloat16 else tensor
            arrays[key] = np.ascontiguousarray(tensor.cpu().numpy())
    return arrays


def of_class_one(scores: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the one number of two classes: the probability of class 1, or its log-odds from logits.

    Example:
        >>> of_class_one(np.array([[0.2, 0.8]])), of_class_one(np.array([[-1.5, -0.5]]))
        (array([0.8]), array([1.]))
    """
    return np.asarray(scores[:, 1] if (scores >= 0).all() else scores[:, 1] - scores[:, 0])


def beside_columns(names: Sequence[str]) -> list[str]:
    """Return the names of what stands beside predictions: groups, and signals as ``signal_<name>``.

    Groups of several columns are in ``groups_<name>``, one for each column.
    """
    return [name for name in names if is_group(name) or name.startswith(SIGNAL)]


def is_group(name: str) -> bool:
    """Whether a column of ours holds groups."""
    return name == GROUPS or name.startswith(GROUP)


def group_columns(groups: Groups) -> dict[str, Groups]:
    """Return the groups that files hold by the names of their columns: one, or one for each of several."""
    if not groups.columns:
        return {GROUPS: groups}
    n = len(groups)
    return {f"{GROUP}{column}": Groups.of(values, n=n) for column, values in groups.by_column.items()}


def from_beside(columns: Mapping[str, Any]) -> dict[str, Any]:
    """Return groups and signals as arguments of predictions, from the columns that hold them.

    Example:
        >>> from_beside({"groups": ["law"], "signal_wording": [0.5]})
        {'groups': ['law'], 'signals': {'wording': [0.5]}}
    """
    several = {name.removeprefix(GROUP): columns[name] for name in columns if name.startswith(GROUP)}
    values = {GROUPS: several} if several else {GROUPS: columns[GROUPS]} if GROUPS in columns else {}
    signals = {name.removeprefix(SIGNAL): columns[name] for name in columns if name.startswith(SIGNAL)}
    return values | ({"signals": signals} if signals else {})


def signal_arrays(predictions: Stored) -> dict[str, npt.NDArray[np.float64]]:
    """Return the signals by the names of their columns."""
    return {f"{SIGNAL}{name}": signal.cpu().numpy() for name, signal in predictions.signals.items()}


def notes_of(predictions: Stored) -> dict[str, Any]:
    """Return class names and metadata by key, those that are given."""
    notes: dict[str, Any] = {}
    if predictions.class_names is not None:
        notes["class_names"] = predictions.class_names
    if predictions.metadata:
        notes["metadata"] = dict(predictions.metadata)
    return notes


def to_text(value: Any) -> str:  # noqa: ANN401  # any JSON value
    """Return a value as JSON text that people can read."""
    return json.dumps(value, ensure_ascii=False)


def from_text(text: str, name: str) -> Any:  # noqa: ANN401  # any JSON value
    """Return the value of JSON text."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(
            f"{name}: expected JSON text, got {text[:40]!r} ({error.msg}); use json.dumps"
        ) from None


def _without(values: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key not in keys}


def present(wanted: Sequence[str], optional: Sequence[str], names: Sequence[str]) -> list[str]:
    """Return the columns to read: the wanted ones, which must be there, and optional ones that are."""
    for name in wanted:
        if name not in names:
            raise missing_column(name, names)
    return list(dict.fromkeys([*wanted, *(name for name in optional if name in names)]))


def missing_column(name: str, names: Sequence[str]) -> FormatError:
    """Return the error for a column that a person named and the file lacks."""
    return FormatError(f"expected a column {name!r}, got {listed(names)}{did_you_mean(name, names)}")


def _missing(expected: str, keys: Sequence[str], names: Sequence[str]) -> FormatError:
    return FormatError(f"expected {expected}, got {listed(names)}; {_advice(keys, names)}")


def _advice(keys: Sequence[str], names: Sequence[str]) -> str:
    for name in names:
        stem, mark, rest = name.partition("_")
        if close := get_close_matches(name.lower(), keys, n=1, cutoff=0.75):
            return f"did you mean {close[0]!r} by {name!r}? Say {close[0]}='{name}', or rename it"
        if close := get_close_matches(stem.lower(), set(keys).intersection(MATRICES), n=1, cutoff=0.75):
            meant = close[0] + mark + rest
            return f"did you mean {meant!r} by {name!r}? Say {close[0]}='{stem}', or rename it"
    usual = [name for name in names if name.lower() in _USUAL.get(keys[0], ())]
    hint = f"{keys[0]}='{usual[0]}'" if usual else " or ".join(f"{key}='NAME'" for key in keys)
    return f"say what holds the {' or '.join(keys)} with {hint}, or rename it"


def check_once(columns: Iterable[str], names: Sequence[str]) -> None:
    """Refuse a table in which one of these columns is there twice."""
    counts = Counter(names)
    for column in columns:
        if counts[column] > 1:
            raise FormatError(f"expected each column once, got {column!r} twice; drop or rename one")


def suffixes(names: Sequence[str], key: str) -> list[str]:
    """Return what follows ``key_``: numbers in numeric order, names in the order of the table."""
    found = [name.removeprefix(f"{key}_") for name in names if name.startswith(f"{key}_")]
    by_number: dict[int, str] = {}
    for suffix in filter(_is_digits, found):
        other = by_number.setdefault(int(suffix), suffix)
        if other != suffix:
            raise FormatError(f"{key}: expected each number once, got '{key}_{other}' and '{key}_{suffix}'")
    if all(map(_is_digits, found)):
        return sorted(found, key=int)
    if len(by_number) > 1 and by_number.keys() == set(range(len(by_number))):
        # To take 'logits_max' next to 'logits_0' and 'logits_1' for a third class would be a silent error.
        stray = next(suffix for suffix in found if not _is_digits(suffix))
        raise FormatError(
            f"{key}: expected columns with numbers or with names, "
            f"got both '{key}_0' and '{key}_{stray}'; rename one kind"
        )
    return found


def _is_digits(suffix: str) -> bool:
    return suffix.isascii() and suffix.isdigit() and len(suffix) <= _MOST_DIGITS


def is_number(suffix: str) -> bool:
    """Say whether a name is a whole number as it is usually written."""
    return suffix.isascii() and suffix.isdigit() and str(int(suffix)) == suffix
