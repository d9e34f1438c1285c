"""The one door for arrays: lists, NumPy, torch, pandas and polars arrays become checked tensors.

Every ``check_*`` function returns a detached float32 or float64 tensor (int64 or bool for labels and
hits) on the caller's device, or raises :class:`~calibrant.errors.InputError` with one sentence.
Whether values are logits or probabilities is never guessed: the caller names them.
"""

import math
import warnings
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from calibrant.errors import InputError

ArrayLike: TypeAlias = Tensor | npt.ArrayLike
Floats: TypeAlias = npt.NDArray[np.float64]
#: Called with a description of the current work, how much is done, and the total.
Progress: TypeAlias = Callable[[str, int, int], None]
ChoiceT = TypeVar("ChoiceT", bound=str)

# Rounding changes the sum of a softmax row by at most about this much; CSV files have few digits.
_SUM_TOLERANCE = {torch.float16: 1e-2, torch.bfloat16: 3e-2}
_DEFAULT_SUM_TOLERANCE = 1e-3


def to_tensor(value: ArrayLike, name: str) -> Tensor:
    """Return the value as a detached tensor of its own number type, without copying if possible."""
    if isinstance(value, Tensor):
        return value.detach()
    array = _to_numbers(_to_array(value, name), name)
    if array.dtype.kind in "iu":
        array = array.astype(np.int64, copy=False)
    elif array.dtype not in (np.float16, np.float32, np.float64, np.bool_):
        array = array.astype(np.float64)  # longdouble and other byte orders
    if any(stride < 0 for stride in array.strides):
        array = array.copy()
    with warnings.catch_warnings():
        # Calibrant never writes to its input, so a read-only array needs no copy.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(array)


def _to_array(value: npt.ArrayLike, name: str) -> npt.NDArray[Any]:
    try:
        return np.asarray(value)
    except (ValueError, TypeError, RuntimeError) as error:
        raise InputError(
            f"{name}: expected an array, got {type(value).__name__} with rows that do not form one ({error})"
        ) from None


def _to_numbers(array: npt.NDArray[Any], name: str) -> npt.NDArray[Any]:
    """Refuse arrays that are not numeric; objects that are numbers become a numeric one."""
    if array.dtype.kind == "O" and not any(isinstance(entry, str) for entry in array.flat):
        try:
            array = np.array(array.tolist())
            if array.dtype.kind == "O":
                array = array.astype(np.float64)  # None becomes NaN, which is refused with its row
        except (ValueError, TypeError):
            raise InputError(f"{name}: expected numbers, got objects such as {array.flat[0]!r}") from None
    if array.dtype.kind in "USTO":
        raise InputError(f"{name}: expected numbers, got strings such as {str(array.flat[0])!r}")
    if array.dtype.kind not in "fiub":
        raise InputError(f"{name}: expected numbers, got an array of type {array.dtype}")
    return array


def same_kind(result: Tensor, like: ArrayLike) -> ArrayLike:
    """Return a result as the same kind of array, with the same floating type, as the caller's argument."""
    if isinstance(like, Tensor):
        return result.to(like.device, like.dtype if like.is_floating_point() else result.dtype)
    if isinstance(like, (list, tuple)):
        return result.tolist()
    array: npt.NDArray[Any] = result.detach().cpu().numpy()
    if isinstance(like, np.ndarray) and like.dtype.kind == "f":
        array = array.astype(like.dtype, copy=False)
    return array


def check_logits(logits: ArrayLike, *, name: str = "logits") -> Tensor:
    """Check scores of shape ``(n, k)``; shape ``(n,)`` is the log-odds of class 1 in a binary problem."""
    z = _check_table(to_tensor(logits, name), name, binary="the log-odds of class 1")
    _check_finite(z, name)
    return torch.stack([torch.zeros_like(z), z], dim=1) if z.ndim == 1 else z


def check_probs(probs: ArrayLike, *, name: str = "probs") -> Tensor:
    """Check distributions of shape ``(n, k)``; shape ``(n,)`` is the probability of class 1."""
    raw = to_tensor(probs, name)
    tolerance = _SUM_TOLERANCE.get(raw.dtype, _DEFAULT_SUM_TOLERANCE)
    p = _check_table(raw, name, binary="the probability of class 1")
    _check_unit_interval(p, name, slack=tolerance, hint="; if these are logits, pass them as logits")
    if p.ndim == 1:
        return torch.stack([1 - p, p], dim=1)
    # For few classes a product is twice as fast as a sum.
    sums = p @ torch.ones(p.shape[1], dtype=p.dtype, device=p.device)
    wrong = (sums - 1).abs()
    if float(wrong.max()) > tolerance:
        row = int(wrong.argmax())
        raise InputError(
            f"{name}: expected rows that sum to one, got {float(sums[row]):.6g} in row {row}; "
            "divide each row by its sum if it holds weights, or apply softmax if it holds logits"
        )
    return p


def check_labels(labels: ArrayLike, *, n: int, k: int, name: str = "labels") -> Tensor:
    """Check integer classes of shape ``(n,)``, each from 0 to ``k - 1``."""
    try:
        y = to_tensor(labels, name)
    except InputError as error:
        if "strings" not in str(error):
            raise
        raise InputError(
            f"{name}: expected integer classes, {str(error).split(', ', 1)[1]}; map names to indices first, "
            f"e.g. with np.unique({name}, return_inverse=True)"
        ) from None
    if y.ndim == 2 and y.shape[1] > 1:
        raise InputError(
            f"{name}: expected shape (n,), got shape {tuple(y.shape)}, which looks one-hot; "
            f"pass {name}.argmax(axis=1)"
        )
    _check_column(y, name, n=n)
    if y.is_floating_point():
        raise InputError(
            f"{name}: expected integer classes, got {_type_name(y)}; "
            f"convert with {name}.astype(int) if they are whole numbers"
        )
    y = y.to(torch.int64)
    low, high = (int(v) for v in torch.aminmax(y))
    if low < 0 or high >= k:
        bad = low if low < 0 else high
        row = int((y == bad).nonzero()[0])
        if low < 0:
            advice = "drop rows that mark something to ignore"
        elif low >= 1 and high == k:
            advice = f"if classes are counted from one, pass {name} - 1"
        else:
            advice = f"the predictions have {k} classes"
        raise InputError(f"{name}: expected classes from 0 to {k - 1}, got {bad} in row {row}; {advice}")
    return y


def check_labelled_probs(probs: ArrayLike, labels: ArrayLike) -> tuple[Tensor, Tensor]:
    """Check distributions and their true classes, which go to the device of the distributions."""
    p = check_probs(probs)
    return p, check_labels(labels, n=p.shape[0], k=p.shape[1]).to(p.device)


def check_confidence(confidence: ArrayLike, *, name: str = "confidence") -> Tensor:
    """Check confidences, the stated probabilities of a correct prediction, of shape ``(n,)``."""
    c = to_tensor(confidence, name)
    _check_column(c, name)
    c = _floating(c, name)
    _check_unit_interval(c, name, slack=0.0, hint="; percentages must be divided by 100")
    return c


def check_score(score: ArrayLike, *, name: str = "score") -> Tensor:
    """Check finite scores of shape ``(n,)``; a higher score means more confident."""
    s = to_tensor(score, name)
    _check_column(s, name)
    s = _floating(s, name)
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
    h = _floating(h, name)
    _check_finite(h.nan_to_num(nan=0.0, posinf=torch.inf, neginf=-torch.inf) if missing else h, name)
    return h


def check_count(value: int, name: str, *, at_least: int = 1) -> int:
    """Check a whole number such as a number of bins."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < at_least:
        raise InputError(f"{name}: expected a whole number of at least {at_least}, got {value!r}")
    return int(value)


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
        calibrant.errors.InputError: binning: expected 'width' or 'mass', got 'mas'
    """
    known = list(choices)
    for choice in known:
        if value == choice:
            return choice
    shown = " or ".join(map(repr, known)) if len(known) == 2 else f"one of {', '.join(known)}"
    raise InputError(f"{name}: expected {shown}, got {value!r}")


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
    return _floating(x, name)


def _check_column(x: Tensor, name: str, *, n: int | None = None) -> None:
    if x.ndim != 1:
        raise InputError(
            f"{name}: expected shape (n,), got shape {tuple(x.shape)}"
            + ("; put a single sample into a list" if x.ndim == 0 else "")
        )
    if x.shape[0] == 0 and n is None:
        raise InputError(f"{name}: expected at least one sample, got none")
    if n is not None:
        _check_length(x, name, n)


def _check_length(x: Tensor, name: str, n: int) -> None:
    if x.shape[0] != n:
        raise InputError(f"{name}: expected {n} entries, one per prediction, got {x.shape[0]}")


def _check_unit_interval(x: Tensor, name: str, *, slack: float, hint: str) -> None:
    # One pass without a temporary; the extremes also show NaN and infinity.
    low, high = (float(v) for v in torch.aminmax(x))
    if low >= -min(slack, 1e-6) and high <= 1 + slack:
        return
    _check_finite(x, name)
    bad = low if low < 0 else high
    row = int((x == bad).nonzero()[0, 0])
    raise InputError(f"{name}: expected numbers between 0 and 1, got {bad:.6g} in row {row}{hint}")


def _check_finite(x: Tensor, name: str) -> None:
    if all(torch.isfinite(end) for end in torch.aminmax(x)):
        return
    where = (~torch.isfinite(x)).nonzero()[0].tolist()
    place = f"row {where[0]}" + (f", column {where[1]}" if len(where) > 1 else "")
    value = float(x[tuple(where)])
    advice = "drop or repair such rows" if np.isnan(value) else "use a large finite number such as 1e4"
    raise InputError(f"{name}: expected finite numbers, got {value} in {place}; {advice}")


def _floating(x: Tensor, name: str) -> Tensor:
    if x.is_complex():
        raise InputError(f"{name}: expected real numbers, got {_type_name(x)}")
    if x.dtype in (torch.float32, torch.float64):
        return x
    return x.to(torch.float32 if x.is_floating_point() else torch.float64)


def _type_name(x: Tensor) -> str:
    return str(x.dtype).removeprefix("torch.")
