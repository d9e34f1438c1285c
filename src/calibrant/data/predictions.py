"""``Predictions``: the output of a classifier and, if known, the true classes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from calibrant.errors import InputError
from calibrant.inputs import (
    ArrayLike,
    check_confidence,
    check_correct,
    check_features,
    check_labels,
    check_logits,
    check_probs,
    to_tensor,
)
from calibrant.outcomes import Outcomes


@dataclass(frozen=True, eq=False, init=False, repr=False)
class Predictions:
    """The output of a classifier for ``n`` samples and, if known, their true classes.

    Exactly one form is given: ``logits``, ``probs``, or ``confidence`` with ``correct`` for a black box
    that only returns its confidence. Arrays are checked once, here, and stored as detached tensors of the
    caller's floating type on the device of the predictions; memory is shared where possible.

    Args:
        logits: Scores of shape ``(n, k)``, or log-odds of class 1 of shape ``(n,)``.
        probs: Distributions of shape ``(n, k)``, or probabilities of class 1 of shape ``(n,)``.
        confidence: Stated probabilities that the prediction is correct, shape ``(n,)``.
        correct: Whether each prediction was correct, beside ``confidence``, shape ``(n,)``.
        labels: True classes of shape ``(n,)``; none for unlabelled or out-of-distribution samples.
        features: Penultimate activations of shape ``(n, d)``.
        class_names: One name for each of the ``k`` classes.
        metadata: Notes about the predictions, text to text; empty by default.

    Example:
        >>> Predictions(probs=[[0.9, 0.1], [0.4, 0.6]], labels=[0, 1], class_names=["cat", "dog"])
        Predictions(n=2, k=2, probs float64, labels, class_names)
    """

    logits: Tensor | None
    probs: Tensor | None
    confidence: Tensor | None
    correct: Tensor | None
    labels: Tensor | None
    features: Tensor | None
    class_names: tuple[str, ...] | None
    metadata: Mapping[str, str]

    # Written out because it takes any array, while the fields above are always tensors.
    def __init__(
        self,
        *,
        logits: ArrayLike | None = None,
        probs: ArrayLike | None = None,
        confidence: ArrayLike | None = None,
        correct: ArrayLike | None = None,
        labels: ArrayLike | None = None,
        features: ArrayLike | None = None,
        class_names: Sequence[str] | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        values: dict[str, Any] = {
            "logits": logits,
            "probs": probs,
            "confidence": confidence,
            "correct": correct,
            "labels": labels,
            "features": features,
            "class_names": class_names,
        }
        given = {name: value for name, value in values.items() if value is not None}
        form = _check_form(list(given))
        main = _keep_type(_FORMS[form], given[form], form)
        n, k = len(main), main.shape[-1]  # pairs have no k, and none of the arguments that need it below
        given[form] = main
        if "correct" in given:
            given["correct"] = check_correct(given["correct"], n=n).to(main.device)
        if "labels" in given:
            given["labels"] = check_labels(given["labels"], n=n, k=k).to(main.device)
        if "features" in given:
            check = partial(check_features, n=n)
            given["features"] = _keep_type(check, given["features"], "features").to(main.device)
        if "class_names" in given:
            given["class_names"] = _check_class_names(given["class_names"], k)
        for name, value in (values | given | {"metadata": _check_metadata(metadata or {})}).items():
            object.__setattr__(self, name, value)

    def __len__(self) -> int:
        return len(self._main)

    def __repr__(self) -> str:
        form, main = next(iter(self._tensors().items()))
        parts = [f"n={self.n}", f"{form} {str(main.dtype).removeprefix('torch.')}"]
        if self.k is not None:
            parts.insert(1, f"k={self.k}")
        parts += [name for name in ("correct", "labels") if getattr(self, name) is not None]
        if self.features is not None:
            parts.append(f"features d={self.features.shape[1]}")
        parts += [name for name in ("class_names", "metadata") if getattr(self, name)]
        return f"Predictions({', '.join(parts)})"

    def __reduce__(self) -> tuple[Callable[[], "Predictions"], tuple[()]]:
        # Needed by workers and deepcopy, because a read-only mapping cannot be pickled.
        return partial(Predictions, **{**self._tensors(), **self._notes()}), ()

    @property
    def n(self) -> int:
        """Number of samples."""
        return len(self)

    @property
    def k(self) -> int | None:
        """Number of classes; none for (confidence, correct) pairs."""
        return None if self.confidence is not None else self._main.shape[1]

    def to_probs(self) -> Tensor:
        """Return class probabilities of shape ``(n, k)``: those given, or the softmax of the logits."""
        if self.probs is not None:
            return self.probs
        if self.logits is not None:
            return torch.softmax(_widen(self.logits), dim=1)
        raise InputError(
            "predictions: expected logits or probs, got confidence with correct; "
            "pairs have no class probabilities, so use a top-label measure"
        )

    def to_logits(self) -> Tensor:
        """Return scores of shape ``(n, k)`` whose softmax are the probabilities: those given, or their logs.

        A probability of 0 becomes the smallest positive number, so that its logarithm is finite.
        """
        if self.logits is not None:
            return self.logits
        p = _widen(self.to_probs())
        return p.clamp(min=torch.finfo(p.dtype).tiny).log()

    def outcomes(self) -> Outcomes:
        """Return the confidence of each prediction and whether it was correct."""
        if self.confidence is not None and self.correct is not None:
            return Outcomes(_widen(self.confidence), self.correct)
        if self.labels is None:
            raise InputError(
                "labels: expected the true class of each sample, got none; "
                "without labels it is unknown whether a prediction was correct"
            )
        if self.logits is not None:
            return Outcomes.from_logits(self.logits, self.labels)
        return Outcomes.from_probs(_widen(self._main), self.labels)

    def take(self, rows: ArrayLike) -> "Predictions":
        """Return the samples with these row numbers, or those where a mask of length ``n`` is true."""
        index = _check_rows(rows, self.n).to(self._main.device)
        chosen = {name: tensor[index] for name, tensor in self._tensors().items()}
        return Predictions(**{**chosen, **self._notes()})

    @property
    def _main(self) -> Tensor:
        return next(iter(self._tensors().values()))

    def _tensors(self) -> dict[str, Tensor]:
        """Return the arrays that were given, the predictions first."""
        names = ("logits", "probs", "confidence", "correct", "labels", "features")
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}

    def _notes(self) -> dict[str, Any]:
        return {"class_names": self.class_names, "metadata": dict(self.metadata)}


_FORMS: dict[str, Callable[[Tensor], Tensor]] = {
    "logits": check_logits,
    "probs": check_probs,
    "confidence": check_confidence,
}


def _check_form(given: list[str]) -> str:
    """Return which of the three forms the predictions have."""
    form = [name for name in given if name in ("logits", "probs", "confidence", "correct")]
    if form in (["logits"], ["probs"]):
        return form[0]
    if not form or form[0] != "confidence":
        raise InputError(
            "predictions: expected exactly one of logits, probs, or confidence with correct, "
            f"got {' with '.join(form) if form else 'none of them'}; pass one form"
        )
    if "labels" in given:
        raise InputError(
            "labels: expected none next to confidence, because the predicted class is unknown, got some; "
            "pass correct = (predicted == labels) instead"
        )
    if "correct" not in form:
        raise InputError(
            "correct: expected a hit or miss for each confidence, got none; "
            "pass correct = (predicted == labels)"
        )
    if "class_names" in given:
        raise InputError(
            "class_names: expected none next to confidence, which has no classes, got some; leave them out"
        )
    return "confidence"


def _keep_type(check: Callable[[Tensor], Tensor], value: ArrayLike, name: str) -> Tensor:
    """Check a value and return it in its own floating type; checks convert half precision to float32."""
    raw = to_tensor(value, name)
    checked = check(raw)
    return checked.to(raw.dtype) if raw.is_floating_point() else checked


def _widen(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()


def _check_class_names(class_names: Sequence[str], k: int) -> tuple[str, ...]:
    if isinstance(class_names, str):
        raise InputError(
            f"class_names: expected {k} names, got the one string {class_names!r}; pass a list of strings"
        )
    names = tuple(class_names)
    for name in names:
        if not isinstance(name, str):
            raise InputError(
                f"class_names: expected strings, got {type(name).__name__} {name!r}; convert each with str"
            )
    if len(names) != k:
        raise InputError(f"class_names: expected {k} names, got {len(names)}; pass one name per class")
    if len(set(names)) != k:
        twice = next(name for name in names if names.count(name) > 1)
        raise InputError(f"class_names: expected unique names, got {str(twice)!r} twice; rename one of them")
    return tuple(str(name) for name in names)  # NumPy strings become plain ones


def _check_metadata(metadata: Mapping[str, str]) -> Mapping[str, str]:
    if not isinstance(metadata, Mapping):
        raise InputError(
            f"metadata: expected a mapping of text to text, got {type(metadata).__name__}; pass a dict"
        )
    for key, value in metadata.items():
        if not (isinstance(key, str) and isinstance(value, str)):
            raise InputError(
                f"metadata: expected text keys and values, got {key!r}: {value!r}; "
                "convert with str or json.dumps"
            )
    return MappingProxyType(dict(metadata))


def _check_rows(rows: ArrayLike, n: int) -> Tensor:
    index = to_tensor(rows, "rows")
    if index.ndim != 1 or len(index) == 0:
        raise InputError(
            f"rows: expected a list of row numbers or a mask, got shape {tuple(index.shape)}; "
            "name at least one row"
        )
    if index.dtype == torch.bool:
        if len(index) != n:
            raise InputError(f"rows: expected a mask of {n} entries, got {len(index)}; give one per sample")
        return index
    if index.is_floating_point():
        raise InputError(
            "rows: expected whole numbers or a mask, got fractions; convert with rows.astype(int)"
        )
    low, high = (int(v) for v in torch.aminmax(index))
    if low < 0 or high >= n:
        raise InputError(
            f"rows: expected numbers from 0 to {n - 1}, got {low if low < 0 else high}; there are {n} samples"
        )
    return index.long()
