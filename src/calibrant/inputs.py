"""The one door for arrays: lists, NumPy, torch, pandas and polars arrays become checked tensors.

Every ``check_*`` function returns a detached float32 or float64 tensor (int64 or bool for labels and
hits) on the caller's device, or raises :class:`~calibrant.errors.InputError` with one sentence.
Whether values are logits or probabilities is never guessed: the caller names them.
"""

import math
import reprlib
import warnings
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from itertools import combinations
from typing import Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from typing_extensions import TypeAliasType

from calibrant.errors import InputError, did_you_mean, listed
from calibrant.mistakes import (
    advice_on_label_matrix,
    advice_on_range,
    advice_on_sums,
    advice_on_values,
    look_like_probs,
)

# A named alias: `help()` shows its name instead of all that it stands for.
ArrayLike = TypeAliasType("ArrayLike", Tensor | npt.ArrayLike)
Floats: TypeAlias = npt.NDArray[np.float64]
Integers: TypeAlias = npt.NDArray[np.int64]
#: Called with a description of the current work, how much is done, and the total.
Progress: TypeAlias = Callable[[str, int, int], None]
ChoiceT = TypeVar("ChoiceT", bound=str)

# Rounding changes the sum of a softmax row by at most about this much; CSV files have few digits.
_SUM_TOLERANCE = {torch.float16: 1e-2, torch.bfloat16: 3e-2}
_DEFAULT_SUM_TOLERANCE = 1e-3


def to_tensor(value: ArrayLike, name: str) -> Tensor:
    """Return the value as a detached tensor of its own number type, without copying if possible."""
    if isinstance(value, Tensor):
        return _plain(value, name).detach()
    array = _to_numbers(to_array(value, name), name)
    if array.dtype.kind in "iu":
        array = array.astype(np.int64, copy=False)
    elif array.dtype not in (np.float16, np.float32, np.float64, np.bool_):
        array = array.astype(np.float64)  # longdouble and other byte orders
    if any(stride < 0 for stride in array.strides):
        array = array.copy()
    if array.flags.writeable:
        return torch.from_numpy(array)
    with warnings.catch_warnings():
        # Calibrant never writes to its input, so a read-only array needs no copy.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(array)


def _plain(value: Tensor, name: str) -> Tensor:
    """Refuse tensors whose numbers are not there to be read, one for each entry."""
    advice = None
    if value.device.type == "meta":
        advice = "one on the meta device, which holds no numbers; load them first"
    elif value.is_nested:
        advice = "a nested one; pad its rows with torch.nested.to_padded_tensor"
    elif value.layout != torch.strided:
        advice = f"one of layout {_short_name(value.layout)}; pass its .to_dense()"
    elif value.is_quantized:
        advice = "a quantised one; pass its .dequantize()"
    elif any(getattr(value, "names", ())):  # of older versions of torch
        advice = "one with named dimensions; pass its .rename(None)"
    elif value.is_complex():
        raise InputError(f"{name}: expected real numbers, got {_short_name(value.dtype)}")
    if advice is not None:
        raise InputError(f"{name}: expected a plain tensor, got {advice}")
    return value


def to_array(value: npt.ArrayLike, name: str) -> npt.NDArray[Any]:
    """Return the value as a NumPy array of any type; arrays in which entries are masked are refused."""
    for row, part in enumerate(value if isinstance(value, (list, tuple)) else ()):
        if isinstance(part, np.ma.MaskedArray) and np.ma.is_masked(part):
            raise _masked(name, row)
    if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
        raise _masked(name, int(np.argwhere(np.atleast_1d(value.mask))[0, 0]))
    try:
        return np.asarray(value)
    except (ValueError, TypeError, RuntimeError) as error:
        raise InputError(
            f"{name}: expected an array, got {type(value).__name__} with rows that do not form one ({error})"
        ) from None


def _masked(name: str, row: int) -> InputError:
    return InputError(
        f"{name}: expected a number in every place, got a masked entry in row {row}; drop such rows, or fill "
        "them with .filled(value)"
    )


def _to_numbers(array: npt.NDArray[Any], name: str) -> npt.NDArray[Any]:
    """Refuse arrays that are not numeric; objects that are numbers become a numeric one."""
    if array.dtype.kind == "O" and not any(isinstance(entry, str) for entry in array.flat):
        try:
            missing = np.reshape([type(entry).__name__ == "NAType" for entry in array.flat], array.shape)
            array = np.array(np.where(missing, np.nan, array).tolist())
            if array.dtype.kind == "O":
                array = array.astype(np.float64)  # None becomes NaN, which is refused with its row
        except (ValueError, TypeError):
            such = reprlib.repr(array.flat[0])
            raise InputError(f"{name}: expected numbers, got objects such as {such}") from None
    if array.dtype.kind in "USTO":
        such = f" such as {reprlib.repr(str(array.flat[0]))}" if array.size else ""
        raise InputError(f"{name}: expected numbers, got strings{such}")
    if array.dtype.kind not in "fiub":
        raise InputError(f"{name}: expected numbers, got an array of type {array.dtype}")
    return array


def group_name(columns: Sequence[str], levels: Sequence[str]) -> str:
    """Return the name of the samples that have these levels of some columns.

    Example:
        >>> group_name(["race", "sex"], ["Asian", "Male"])
        'race=Asian, sex=Male'
    """
    return ", ".join(f"{column}={level}" for column, level in zip(columns, levels, strict=True))


def column_sets(columns: Sequence[str]) -> list[tuple[str, ...]]:
    """Return each column by itself, then each two columns together, and so on to all of them.

    Example:
        >>> column_sets(["race", "sex"])
        [('race',), ('sex',), ('race', 'sex')]
    """
    return [each for size in range(1, len(columns) + 1) for each in combinations(columns, size)]


def same_kind(result: Tensor, like: ArrayLike) -> ArrayLike:
    """Return a result as the same kind of array, with the same floating type, as the caller's argument.

    Half precision becomes float32: small probabilities would be 0 in it, and their logarithm infinite.
    """
    if isinstance(like, Tensor):
        of_half = torch.promote_types(like.dtype, torch.float32)
        return result.to(like.device, of_half if like.is_floating_point() else result.dtype)
    if isinstance(like, (list, tuple)):
        return result.tolist()
    array: npt.NDArray[Any] = result.detach().cpu().numpy()
    if isinstance(like, np.ndarray) and like.dtype.kind == "f":
        array = array.astype(np.float32 if like.dtype == np.float16 else like.dtype, copy=False)
    return array


def check_logits(logits: ArrayLike, *, name: str = "logits") -> Tensor:
    """Check scores of shape ``(n, k)``; shape ``(n,)`` is the log-odds of class 1 in a binary problem.

    A score of ``-inf`` masks a class, such as an option that a question does not have: its probability is 0.
    """
    raw = to_tensor(logits, name)
    z = _check_table(raw, name, binary="the log-odds of class 1")
    if z.ndim == 1:
        _check_finite(z, name)
        return torch.stack([torch.zeros_like(z), z], dim=1)
    low, high = (float(end) for end in torch.aminmax(z))
    if not (math.isfinite(low) and math.isfinite(high)):
        _check_masked(z, name)
    elif low >= 0 and look_like_probs(z, tolerance=_tolerance(raw)):
        _warn_of_probs(name)
    return z


def _check_masked(z: Tensor, name: str) -> None:
    """Refuse numbers that are neither finite nor ``-inf``, and rows in which all classes are masked."""
    masked = torch.isneginf(z)
    _check_finite(z.masked_fill(masked, 0.0), name)
    if bool(masked.all(dim=1).any()):
        row = int(masked.all(dim=1).nonzero()[0])
        raise InputError(
            f"{name}: expected a class that is not masked in every row, got only -inf in row {row}"
        )


def masked_classes(logits: Tensor) -> Tensor | None:
    """Return where logits are -inf, which masks a class; None if no class is masked."""
    return torch.isneginf(logits) if float(logits.amin()) == -math.inf else None


def check_label_exists(logits: Tensor, labels: Tensor, *, name: str = "labels") -> None:
    """Refuse checked labels whose class is masked in checked logits."""
    masked = torch.isneginf(logits.gather(1, labels[:, None].to(logits.device))).squeeze(1)
    if bool(masked.any()):
        row = int(masked.nonzero()[0])
        raise InputError(
            f"{name}: expected a class that is not masked, got class {int(labels[row])} in row {row}, whose "
            "logit is -inf; repair the label or the mask"
        )


def check_labelled_logits(logits: ArrayLike, labels: ArrayLike) -> tuple[Tensor, Tensor]:
    """Check scores and their true classes, which go to the device of the scores and are not masked."""
    z = check_logits(logits)
    y = check_labels(labels, n=z.shape[0], k=z.shape[1]).to(z.device)
    check_label_exists(z, y)
    return z, y


@cache  # once for each argument; Python's own registry forgets what it has shown
def _warn_of_probs(name: str) -> None:
    warnings.warn(
        f"{name}: expected logits, got rows of at least 0 that all sum to one; these look like "
        "probabilities: pass them as probs, or in a file rename the columns to probs",
        stacklevel=3,
    )


def check_probs(probs: ArrayLike, *, name: str = "probs") -> Tensor:
    """Check distributions of shape ``(n, k)``; shape ``(n,)`` is the probability of class 1."""
    raw = to_tensor(probs, name)
    tolerance = _tolerance(raw)
    p = _check_table(raw, name, binary="the probability of class 1")
    _check_unit_interval(p, name, slack=tolerance, advice=advice_on_values)
    if p.ndim == 1:
        return torch.stack([1 - p, p], dim=1)
    # For few classes a product is twice as fast as a sum.
    sums = p @ torch.ones(p.shape[1], dtype=p.dtype, device=p.device)
    wrong = (sums - 1).abs()
    if float(wrong.max()) > tolerance:
        row = int(wrong.argmax())
        raise InputError(
            f"{name}: expected rows that sum to one, got {float(sums[row]):.6g} in row {row}; "
            f"{advice_on_sums(p, tolerance=tolerance)}"
        )
    return p


def check_labels(labels: ArrayLike, *, n: int, k: int, name: str = "labels") -> Tensor:
    """Check classes of shape ``(n,)``: whole numbers, of any type, from 0 to ``k - 1``."""
    y = _label_tensor(labels, name)
    if y.ndim == 2:
        raise InputError(
            f"{name}: expected shape (n,), got shape {tuple(y.shape)}, {advice_on_label_matrix(y, name=name)}"
        )
    _check_column(y, name, n=n, k=k)
    if y.is_floating_point():
        _check_whole(y, name)
    y = y.to(torch.int64)
    low, high = (int(v) for v in torch.aminmax(y))
    if low < 0 or high >= k:
        bad = low if low < 0 else high
        row = int((y == bad).nonzero()[0])
        advice = advice_on_range(low, high, k=k, name=name)
        raise InputError(f"{name}: expected classes from 0 to {k - 1}, got {bad} in row {row}; {advice}")
    return y


def _label_tensor(labels: ArrayLike, name: str) -> Tensor:
    try:
        return to_tensor(labels, name)
    except InputError as error:
        if "strings" not in str(error):
            raise
        raise InputError(
            f"{name}: expected integer classes, {str(error).split(', ', 1)[1]}; replace each name by the "
            "place of its class, or name the classes in that order with class_names="
        ) from None


def _check_whole(y: Tensor, name: str) -> None:
    """Refuse labels that are fractions or missing."""
    wrong = y != y.round()
    if bool(wrong.any()):
        row = int(wrong.nonzero()[0])
        value = float(y[row])
        advice = (
            "drop rows without a label"
            if math.isnan(value)
            else "if these are probabilities, pass them as probs"
        )
        raise InputError(f"{name}: expected integer classes, got {value:.6g} in row {row}; {advice}")


def check_labelled_probs(probs: ArrayLike, labels: ArrayLike) -> tuple[Tensor, Tensor]:
    """Check distributions and their true classes, which go to the device of the distributions."""
    p = check_probs(probs)
    return p, check_labels(labels, n=p.shape[0], k=p.shape[1]).to(p.device)


def check_confidence(confidence: ArrayLike, *, name: str = "confidence") -> Tensor:
    """Check confidences, the stated probabilities of a correct prediction, of shape ``(n,)``."""
    c = to_tensor(confidence, name)
    _check_column(c, name)
    c = _floating(c)
    _check_unit_interval(c, name, slack=0.0, advice=lambda _: "percentages must be divided by 100")
    return c


def check_score(score: ArrayLike, *, name: str = "score") -> Tensor:
    """Check finite scores of shape ``(n,)``; a higher score means more confident."""
    s = to_tensor(score, name)
    _check_column(s, name)
    s = _floating(s)
    _check_finite(s, name)
    return s


def check_correct(correct: ArrayLike, *, n: int, name: str = "correct") -> Tensor:
    """Check hits of shape ``(n,)``: true or 1 where the prediction was correct."""
    a = to_tensor(correct, name)
    _check_column(a, name, n=n)
    if a.dtype == torch.bool:
        return a
    other = (a != 0) & (a != 1)
    if bool(other.any()):
        row = int(other.nonzero()[0])
        raise InputError(
            f"{name}: expected true/false or 1/0, got {a[row].item():.6g} in row {row}; "
            "compare predicted with true classes first"
        )
    return a != 0


def check_outcome(outcome: ArrayLike, *, n: int, name: str = "outcome") -> Tensor:
    """Check outcomes from 0 to 1 of shape ``(n,)``: yes, no, or how far; float64."""
    a = to_tensor(outcome, name)
    _check_column(a, name, n=n)
    o = a.double()
    _check_finite(o, name)
    _check_unit_interval(o, name, slack=0.0, advice=lambda _: "divide grades by the highest one")
    return o


def check_features(features: ArrayLike, *, n: int, name: str = "features", missing: bool = False) -> Tensor:
    """Check penultimate activations, or other numbers about each sample, of shape ``(n, d)``.

    Args:
        features: Numbers of shape ``(n, d)``.
        n: Number of samples.
        name: How errors name the features.
        missing: Whether NaN is allowed, for a number that is missing.
    """
    h = to_tensor(features, name)
    if h.ndim != 2 or h.shape[1] == 0:
        raise InputError(f"{name}: expected shape (n, d), got shape {tuple(h.shape)}")
    _check_length(h, name, n)
    h = _floating(h)
    _check_finite(h.nan_to_num(nan=0.0, posinf=torch.inf, neginf=-torch.inf) if missing else h, name)
    return h


def check_weights(weights: ArrayLike, *, n: int, name: str = "weights", some: bool = True) -> Tensor:
    """Check how much each sample counts: finite numbers of at least 0; float64, shape ``(n,)``.

    Args:
        weights: One number for each sample.
        n: Number of samples.
        name: How errors name the weights.
        some: Whether weights that are all 0 are refused; a part of some predictions may have no others.
    """
    w = to_tensor(weights, name)
    _check_column(w, name, n=n)
    w = _floating(w).double()
    _check_finite(w, name)
    if float(w.min()) < 0:
        row = int((w < 0).nonzero()[0])
        raise InputError(f"{name}: expected numbers of at least 0, got {float(w[row]):.6g} in row {row}")
    if some and float(w.max()) == 0:
        raise no_weight(name)
    return w


def check_units(units: ArrayLike, *, n: int) -> Tensor:
    """Check the unit of each row: integers of shape ``(n,)``; rows of equal ones depend on each other."""
    given = to_tensor(units, "units")
    if given.is_floating_point() or given.is_complex() or given.ndim != 1 or len(given) != n:
        kind = f"{given.dtype} of shape {tuple(given.shape)}".removeprefix("torch.")
        raise InputError(f"units: expected {n} integers, one per row, got {kind}")
    return given.long()


def no_weight(name: str = "weights") -> InputError:
    """Return the error to raise when all weights are zero."""
    return InputError(f"{name}: expected a weight above 0 for some sample, got only zeros")


def check_label_logits(logits: ArrayLike, *, name: str = "logits") -> Tensor:
    """Check the log-odds of several labels at once, shape ``(n, l)``."""
    z = _check_label_table(to_tensor(logits, name), name)
    z = _floating(z)
    _check_finite(z, name)
    return z


def check_label_probs(probs: ArrayLike, *, name: str = "probs") -> Tensor:
    """Check the probabilities of several labels at once, shape ``(n, l)``; rows need not sum to one."""
    p = _check_label_table(to_tensor(probs, name), name)
    p = _floating(p)
    _check_unit_interval(p, name, slack=0.0, advice=advice_on_values)
    return p


def check_label_matrix(labels: ArrayLike, *, shape: tuple[int, ...], name: str = "labels") -> Tensor:
    """Check which labels each sample has: true/false or 1/0, of the shape ``(n, l)`` of the predictions."""
    y = to_tensor(labels, name)
    if tuple(y.shape) != shape:
        raise InputError(
            f"{name}: expected 1 or 0 for each label, shape {shape}, got shape {tuple(y.shape)}; for one "
            "class per sample use Predictions"
        )
    return check_correct(y.flatten(), n=y.numel(), name=name).view(shape)


def check_count(value: int, name: str, *, at_least: int = 1, at_most: int = 100_000_000) -> int:
    """Check a whole number such as a number of resamples; numbers beyond any memory are refused."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < at_least:
        raise InputError(f"{name}: expected a whole number of at least {at_least}, got {value!r}")
    if value > at_most:
        raise InputError(f"{name}: expected a whole number of at most {at_most:,}, got {int(value):,}")
    return int(value)


def check_seed(value: int, name: str = "seed") -> int:
    """Check a seed: a whole number that fits into 32 bits, as every library of random numbers takes it."""
    return check_count(value, name, at_least=0, at_most=2**32 - 1)


def check_number(value: float, name: str, *, at_least: float | None = None) -> float:
    """Check a finite number: a positive one unless a lower bound is given.

    Example:
        >>> check_number(-1, "width")
        Traceback (most recent call last):
        calibrant.errors.InputError: width: expected a positive number, got -1
    """
    is_number = isinstance(value, (int, float, np.number, Tensor)) and not isinstance(value, bool)
    if not is_number or not (value > 0 if at_least is None else value >= at_least) or value == math.inf:
        wanted = "a positive number" if at_least is None else f"a number of at least {at_least:g}"
        raise InputError(f"{name}: expected {wanted}, got {value}")
    return float(value)


def check_flag(value: bool, name: str) -> bool:
    """Return True or False; refuse anything else."""
    if not isinstance(value, bool):
        raise InputError(f"{name}: expected True or False, got {value!r}")
    return value


def check_choice(value: str, name: str, choices: Iterable[ChoiceT]) -> ChoiceT:
    """Check a word against the words that an option knows.

    Example:
        >>> check_choice("mas", "binning", ["width", "mass"])
        Traceback (most recent call last):
        calibrant.errors.InputError: binning: expected 'width' or 'mass', got 'mas'; did you mean 'mass'?
    """
    known = list(choices)
    for choice in known:
        if value == choice:
            return choice
    shown = " or ".join(map(repr, known)) if len(known) == 2 else f"one of {', '.join(known)}"
    raise InputError(f"{name}: expected {shown}, got {value!r}{did_you_mean(str(value), known)}")


def names_of_columns(value: ArrayLike, form: str) -> list[str] | None:
    """Return the names of the columns of a DataFrame, without the form in front; none if they only count.

    Example:
        >>> import pandas as pd
        >>> names_of_columns(pd.DataFrame({"probs_cat": [0.9], "probs_dog": [0.1]}), "probs")
        ['cat', 'dog']
    """
    columns = getattr(value, "columns", None)
    if columns is None or form == "confidence":
        return None
    names = [str(name) for name in columns]
    if all(name.startswith(f"{form}_") for name in names):
        names = [name.removeprefix(f"{form}_") for name in names]
    counted = (
        [str(i) for i in range(len(names))],
        [f"column_{i}" for i in range(len(names))],
    )  # pandas, polars
    return None if names in counted else names


def class_order(
    wanted: Sequence[str] | None, given: Sequence[str] | None, *, name: str = "predictions"
) -> Tensor | None:
    """Return the place of each wanted class among the given ones; None if they are the same or unknown.

    Args:
        wanted: Names of classes in the wanted order, if they are known.
        given: Names of the classes that there are, if they are known.
        name: What has them, for error messages.

    Example:
        >>> class_order(["dog", "cat", "fox"], ["cat", "dog", "fox"])
        tensor([1, 0, 2])
    """
    if wanted is None or given is None or tuple(wanted) == tuple(given):
        return None
    places = {each: place for place, each in enumerate(given)}
    if set(wanted) != places.keys():
        raise InputError(
            f"{name}: expected the classes {listed(list(wanted))}, got {listed(list(given))}; give "
            "predictions of the same classes"
        )
    return torch.tensor([places[each] for each in wanted])


def at_least_float32(x: Tensor) -> Tensor:
    """Widen half precision, in which a softmax would lose too many digits."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _check_table(x: Tensor, name: str, *, binary: str) -> Tensor:
    if x.ndim not in (1, 2):
        raise InputError(
            f"{name}: expected shape (n, k), or (n,) for {binary}, got shape {tuple(x.shape)}"
            + ("; put a single sample into a list" if x.ndim == 0 else "")
        )
    if x.shape[0] == 0:
        raise InputError(f"{name}: expected at least one sample, got shape {tuple(x.shape)}")
    if x.ndim == 2 and x.shape[1] < 2:
        raise InputError(
            f"{name}: expected at least two classes, got shape {tuple(x.shape)}; "
            f"for a binary problem pass {binary} with shape (n,)"
        )
    return _floating(x)


def _check_label_table(x: Tensor, name: str) -> Tensor:
    if x.ndim != 2 or 0 in x.shape:
        raise InputError(f"{name}: expected shape (n, l), one column for each label, got {tuple(x.shape)}")
    return x


def _check_column(x: Tensor, name: str, *, n: int | None = None, k: int | None = None) -> None:
    if x.ndim != 1:
        raise InputError(
            f"{name}: expected shape (n,), got shape {tuple(x.shape)}"
            + ("; put a single sample into a list" if x.ndim == 0 else "")
        )
    if x.shape[0] == 0 and n is None:
        raise InputError(f"{name}: expected at least one sample, got none")
    if n is not None:
        _check_length(x, name, n, k)


def _check_length(x: Tensor, name: str, n: int, k: int | None = None) -> None:
    if x.shape[0] != n:
        advice = "; the predictions look transposed, pass their .T" if x.shape[0] == k else ""
        raise InputError(f"{name}: expected {n} entries, one per prediction, got {x.shape[0]}{advice}")


def _check_unit_interval(x: Tensor, name: str, *, slack: float, advice: Callable[[Tensor], str]) -> None:
    # One pass without a temporary; the extremes also show NaN and infinity.
    low, high = (float(v) for v in torch.aminmax(x))
    if low >= -min(slack, 1e-6) and high <= 1 + slack:
        return
    _check_finite(x, name)
    bad = low if low < 0 else high
    row = int((x == bad).nonzero()[0, 0])
    raise InputError(f"{name}: expected numbers between 0 and 1, got {bad:.6g} in row {row}; {advice(x)}")


def _check_finite(x: Tensor, name: str) -> None:
    if all(math.isfinite(float(end)) for end in torch.aminmax(x)):
        return
    where = (~torch.isfinite(x)).nonzero()[0].tolist()
    place = f"row {where[0]}" + (f", column {where[1]}" if len(where) > 1 else "")
    value = float(x[tuple(where)])
    advice = "drop or repair such rows" if np.isnan(value) else "use a large finite number such as 1e4"
    raise InputError(f"{name}: expected finite numbers, got {value} in {place}; {advice}")


def _floating(x: Tensor) -> Tensor:
    if x.dtype in (torch.float32, torch.float64):
        return x
    return x.to(torch.float32 if x.is_floating_point() else torch.float64)


def _tolerance(x: Tensor) -> float:
    """Return how much a row of probabilities of this type may differ from one in sum."""
    return _SUM_TOLERANCE.get(x.dtype, _DEFAULT_SUM_TOLERANCE)


def _short_name(kind: torch.dtype | torch.layout) -> str:
    return str(kind).removeprefix("torch.")
