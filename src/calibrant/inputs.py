"""The one door for arrays: lists, NumPy, torch, pandas and polars come in, checked tensors go on.

Every ``check_*`` function returns a detached float32 or float64 tensor (int64 or bool for labels and
hits) on the caller's device, or raises :class:`~calibrant.errors.InputError` with one sentence.
Logits and probabilities are never told apart by their values: the caller names them.
"""

import warnings
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from calibrant.errors import InputError

ArrayLike: TypeAlias = Tensor | npt.ArrayLike
Floats: TypeAlias = npt.NDArray[np.float64]
#: Called with what is being worked on, how much of it is done, and how much there is.
Progress: TypeAlias = Callable[[str, int, int], None]

# Rounding moves the sum of a softmax row by at most about this much; CSV files round to few digits.
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
        array = array.astype(np.float64)  # longdouble and foreign byte orders
    if any(stride < 0 for stride in array.strides):
        array = array.copy()
    with warnings.catch_warnings():
        # Nothing here writes to its input, so a read-only array needs no copy.
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
    """Refuse what is not numeric; columns of Python numbers (pandas with gaps, say) become arrays of them."""
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
    """Return a result in the kind of array, and the floating type, of what the caller passed in."""
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
    low, high = torch.aminmax(z)
    if not (torch.isfinite(low) and torch.isfinite(high)):
        raise _not_finite(z, name)
    return torch.stack([torch.zeros_like(z), z], dim=1) if z.ndim == 1 else z


def check_probs(probs: ArrayLike, *, name: str = "probs") -> Tensor:
    """Check distributions of shape ``(n, k)``; shape ``(n,)`` is the probability of class 1."""
    raw = to_tensor(probs, name)
    tolerance = _SUM_TOLERANCE.get(raw.dtype, _DEFAULT_SUM_TOLERANCE)
    p = _check_table(raw, name, binary="the probability of class 1")
    _check_unit_interval(p, name, slack=tolerance, hint="; if these are logits, pass them as logits")
    if p.ndim == 1:
        return torch.stack([1 - p, p], dim=1)
    # As a product twice as fast as a sum over few classes.
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


def check_confidence(confidence: ArrayLike, *, name: str = "confidence") -> Tensor:
    """Check stated probabilities of being right, shape ``(n,)``."""
    c = to_tensor(confidence, name)
    _check_column(c, name)
    c = _floating(c, name)
    _check_unit_interval(c, name, slack=0.0, hint="; percentages must be divided by 100")
    return c


def check_score(score: ArrayLike, *, name: str = "score") -> Tensor:
    """Check finite real numbers of shape ``(n,)``; higher means surer."""
    s = to_tensor(score, name)
    _check_column(s, name)
    s = _floating(s, name)
    low, high = torch.aminmax(s)
    if not (torch.isfinite(low) and torch.isfinite(high)):
        raise _not_finite(s, name)
    return s


def check_correct(correct: ArrayLike, *, n: int, name: str = "correct") -> Tensor:
    """Check hits of shape ``(n,)``: true or 1 where the prediction was right."""
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


def check_features(features: ArrayLike, *, n: int, name: str = "features") -> Tensor:
    """Check penultimate activations of shape ``(n, d)``."""
    h = to_tensor(features, name)
    if h.ndim != 2 or h.shape[1] == 0:
        raise InputError(f"{name}: expected shape (n, d), got shape {tuple(h.shape)}")
    _check_length(h, name, n)
    h = _floating(h, name)
    low, high = torch.aminmax(h)
    if not (torch.isfinite(low) and torch.isfinite(high)):
        raise _not_finite(h, name)
    return h


def check_count(value: int, name: str, *, at_least: int = 1) -> int:
    """Check a whole number such as a number of bins."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < at_least:
        raise InputError(f"{name}: expected a whole number of at least {at_least}, got {value!r}")
    return int(value)


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
    # One pass without a temporary: NaN and infinities reach the extremes too.
    low, high = (float(v) for v in torch.aminmax(x))
    if low >= -min(slack, 1e-6) and high <= 1 + slack:
        return
    if not (np.isfinite(low) and np.isfinite(high)):
        raise _not_finite(x, name)
    bad = low if low < 0 else high
    row = int((x == bad).nonzero()[0, 0])
    raise InputError(f"{name}: expected numbers between 0 and 1, got {bad:.6g} in row {row}{hint}")


def _not_finite(x: Tensor, name: str) -> InputError:
    where = (~torch.isfinite(x)).nonzero()[0].tolist()
    place = f"row {where[0]}" + (f", column {where[1]}" if len(where) > 1 else "")
    value = float(x[tuple(where)])
    advice = "drop or repair such rows" if np.isnan(value) else "use a large finite number such as 1e4"
    return InputError(f"{name}: expected finite numbers, got {value} in {place}; {advice}")


def _floating(x: Tensor, name: str) -> Tensor:
    if x.is_complex():
        raise InputError(f"{name}: expected real numbers, got {_type_name(x)}")
    if x.dtype in (torch.float32, torch.float64):
        return x
    return x.to(torch.float32 if x.is_floating_point() else torch.float64)


def _type_name(x: Tensor) -> str:
    return str(x.dtype).removeprefix("torch.")
