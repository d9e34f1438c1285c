"""What every calibrator is: a fitted, immutable map from logits to calibrated log-probabilities."""

import functools
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Self, TypedDict, Unpack

import numpy as np
import torch
from torch import Tensor, nn

from calibrant.errors import FormatError, InputError
from calibrant.inputs import (
    ArrayLike,
    at_least_float32,
    check_features,
    check_labels,
    check_logits,
    same_kind,
)
from calibrant.posthoc.fitting.shared import part_of
from calibrant.threads import few_threads

# Entries that are calibrated at a time.
_BLOCK_ENTRIES = 1 << 22


class UnusedSeed(TypedDict, total=False):
    """The seed, which every method accepts, for a method without randomness."""

    seed: int


class UnusedFeatures(TypedDict, total=False):
    """Penultimate features, which every method accepts, for a method that reads logits only."""

    features: ArrayLike | None


class Unused(UnusedFeatures, UnusedSeed, total=False):
    """Both, for a method that uses neither."""


class Calibrator(nn.Module, ABC):
    """A fitted map from logits to calibrated log-probabilities.

    Calibrators are made by the class method ``fit`` of each method, or from known parameters; there is
    no unfitted state. Everything that was learned is in buffers; the only other things that a saved file
    needs are the plain attributes named in ``options``. So moving, saving, loading and exporting are the same
    for every method.

    Class attributes:
        preserves_accuracy: Whether the predicted class can never change.
        needs_features: Whether ``fit`` and ``forward`` require penultimate features.
        options: Names of plain attributes (numbers, text, lists of them) that are saved to a file.
    """

    preserves_accuracy: bool = False
    needs_features: bool = False
    options: ClassVar[tuple[str, ...]] = ()
    methods: ClassVar[dict[str, type["Calibrator"]]] = {}

    n_classes: int | None

    def __init_subclass__(cls, **kwargs: Any) -> None:  # noqa: ANN401  # Python's own hook
        super().__init_subclass__(**kwargs)
        if cls.__module__ != "calibrant.posthoc.chain" or cls.__name__ == "Chain":
            Calibrator.methods[cls.__name__] = cls
        if "fit" in cls.__dict__:
            setattr(cls, "fit", classmethod(_on_few_threads(cls.__dict__["fit"].__func__)))  # noqa: B010

    def __init__(self, *, n_classes: int | None = None) -> None:
        super().__init__()
        self.n_classes = n_classes

    @classmethod
    @abstractmethod
    def fit(
        cls, logits: ArrayLike, labels: ArrayLike, *, features: ArrayLike | None = None, seed: int = 0
    ) -> Self:
        """Learn the map from held-out logits and labels; equal seeds give equal fits.

        Args:
            logits: Scores of shape ``(n, k)``, or ``(n,)`` for the log-odds of class 1.
            labels: Integer classes of shape ``(n,)``.
            features: Penultimate activations of shape ``(n, d)``; most methods do not use them.
            seed: Seed of whatever is random in the fit.
        """

    @classmethod
    def memory(cls, n: int, k: int) -> int:
        """Return about how many bytes a fit on ``n`` samples of ``k`` classes needs beside the logits."""
        return 32 * n * k

    @abstractmethod
    def forward(self, logits: Tensor, features: Tensor | None = None) -> Tensor:
        """Return calibrated log-probabilities of shape ``(n, k)``."""

    def register_buffers(self, **buffers: Tensor) -> None:
        """Register what was learned, by name."""
        for name, buffer in buffers.items():
            self.register_buffer(name, buffer)

    @property
    def uses_features(self) -> bool:
        """Whether this calibrator, or one that it holds, reads features."""
        parts = (part for part in self.modules() if isinstance(part, Calibrator))
        return any(part.needs_features or getattr(part, "n_features", None) is not None for part in parts)

    @property
    def missing_features(self) -> bool:
        """Whether NaN is allowed for missing features: if all that read features allow it, or none does."""
        held = (part for part in self.children() if isinstance(part, Calibrator))
        readers = [part for part in held if part.uses_features]
        return all(part.missing_features for part in readers) if readers else not self.uses_features

    @property
    def group_names(self) -> tuple[str, ...] | None:
        """The groups of samples that have a map of their own; None if there is one map for all."""
        return None

    def predict_proba(
        self, logits: ArrayLike, features: ArrayLike | None = None, groups: ArrayLike | None = None
    ) -> ArrayLike:
        """Return calibrated probabilities of shape ``(n, k)`` in the caller's kind of array."""
        return same_kind(self.predict_log_proba(logits, features, groups).exp(), like=logits)

    @torch.no_grad()
    def predict_log_proba(
        self, logits: ArrayLike, features: ArrayLike | None = None, groups: ArrayLike | None = None
    ) -> Tensor:
        """Check the arguments and return calibrated log-probabilities of shape ``(n, k)``.

        Args:
            logits: Scores of shape ``(n, k)``, or ``(n,)`` for the log-odds of class 1.
            features: Penultimate activations of shape ``(n, d)``, for methods that use them.
            groups: The name of the group of each sample, where groups have maps of their own; samples of
                other groups, and all samples without this argument, get the common map.
        """
        z = check_logits(logits)
        if self.n_classes not in (None, z.shape[1]):
            raise InputError(
                f"logits: expected the {self.n_classes} classes that {type(self).__name__} was fitted on, "
                f"got {z.shape[1]}"
            )
        if self.needs_features:
            required_features(features, type(self).__name__)
        allowed = self.missing_features
        h = None if features is None else check_features(features, n=len(z), missing=allowed).to(z.device)
        if groups is None or self.group_names is None:
            return self._in_blocks(z, h)
        return self._in_blocks(z, h, group_places(groups, self.group_names, n=len(z)).to(z.device))

    def _in_blocks(self, *rows_of: Tensor | None) -> Tensor:
        """Apply the map to some rows at a time, so that its own arrays are small beside the logits."""
        z = rows_of[0]
        assert z is not None
        rows = max(1, _BLOCK_ENTRIES // z.shape[1])
        calibrated: Tensor = self(*(each if each is None else each[:rows] for each in rows_of))
        if len(z) <= rows:
            return calibrated
        whole = calibrated.new_empty(z.shape)
        whole[:rows] = calibrated
        for start in range(rows, len(z), rows):
            part = slice(start, start + rows)
            whole[part] = self(*(each if each is None else each[part] for each in rows_of))
        return whole

    @classmethod
    def then(cls, other: type["Calibrator"]) -> type["Calibrator"]:
        """Return the method that fits this one, then the other one on this one's log-probabilities."""
        from calibrant.posthoc.chain import chain

        return chain(cls, other)

    @property
    def searched(self) -> Mapping[str, Any]:
        """Options that ``fit`` found by a search; passed to another ``fit`` they save the search."""
        return {}

    @property
    def n_parameters(self) -> int:
        """How many numbers were learned."""
        return sum(buffer.numel() for buffer in self.buffers() if buffer.is_floating_point())

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the calibrator to a safetensors file, all or nothing."""
        from calibrant.posthoc.files import save_calibrator

        save_calibrator(self, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a calibrator of this method, or of any when called on ``Calibrator``."""
        from calibrant.posthoc.files import load_calibrator

        calibrator = load_calibrator(path)
        if not isinstance(calibrator, cls):
            raise FormatError(
                f"{os.fspath(path)}: expected a {cls.__name__}, got a {type(calibrator).__name__}; "
                "use load_calibrator to read any method"
            )
        return calibrator


def _on_few_threads(fit: Callable[..., Any]) -> Callable[..., Any]:
    """Return a fit that uses one thread for few logits; threads of small operations wait for each other."""

    @functools.wraps(fit)
    def fit_on_few_threads(cls: type[Calibrator], *args: Any, **options: Any) -> Any:  # noqa: ANN401  # as fit
        logits = args[0] if args else options.get("logits")
        with few_threads(math.prod(getattr(logits, "shape", ()))):
            return fit(cls, *args, **options)

    return fit_on_few_threads


class Identity(Calibrator):
    """Leave the model uncalibrated: the softmax of its logits; the predicted class never changes."""

    preserves_accuracy = True

    @classmethod
    def fit(cls, logits: ArrayLike, labels: ArrayLike, **unused: Unpack[Unused]) -> Self:
        """Check the fitting set as every method does; there is nothing to learn."""
        z, _ = check_fitting_set(logits, labels, **unused)
        return cls(n_classes=z.shape[1])

    def forward(self, logits: Tensor, features: Tensor | None = None) -> Tensor:
        """Return the model's own log-probabilities of shape ``(n, k)``."""
        return torch.log_softmax(at_least_float32(logits), dim=1)


def check_fitting_set(
    logits: ArrayLike, labels: ArrayLike, **unused: Unpack[Unused]
) -> tuple[Tensor, Tensor]:
    """Check the logits and labels that a method is fitted on; labels go to the device of the logits.

    Args:
        logits: Scores of shape ``(n, k)``, or ``(n,)`` for the log-odds of class 1.
        labels: Integer classes of shape ``(n,)``.
        **unused: Arguments of ``fit`` that the method ignores; any but features and a seed are refused.
    """
    for name in unused.keys() - Unused.__annotations__.keys():
        raise TypeError(f"fit() got an unexpected keyword argument {name!r}")
    # Parts of a set in folds were checked as a whole, and a checked copy would not be known as a part.
    z = logits if isinstance(logits, Tensor) and part_of(logits) else check_logits(logits)
    return z, check_labels(labels, n=z.shape[0], k=z.shape[1]).to(z.device)


def group_places(groups: ArrayLike, names: Sequence[str], *, n: int) -> Tensor:
    """Return the place of each sample's group among names, shape ``(n,)``; -1 for groups without a name."""
    given = np.asarray(groups).astype(str)
    if given.shape != (n,):
        raise InputError(f"groups: expected {n} names, one per sample, got shape {given.shape}")
    places = {name: place for place, name in enumerate(names)}
    return torch.tensor([places.get(name, -1) for name in given.tolist()], dtype=torch.int64)


def required_features(
    features: ArrayLike | None, method: str, *, what: str = "penultimate features of shape (n, d)"
) -> ArrayLike:
    """Refuse missing features that a method needs."""
    if features is None:
        raise InputError(f"features: expected {what}, which {method} needs, got none")
    return features
