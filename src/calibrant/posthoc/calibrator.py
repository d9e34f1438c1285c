"""What every calibrator is: a fitted, immutable map from logits to calibrated log-probabilities."""

import os
from abc import ABC, abstractmethod
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from calibrant.errors import FormatError, InputError
from calibrant.inputs import ArrayLike, check_features, check_labels, check_logits, same_kind


class Calibrator(nn.Module, ABC):
    """A fitted map from logits to calibrated log-probabilities.

    Calibrators are made by the class method ``fit`` of each method, or from known parameters; there is
    no unfitted state. All that was learned is in buffers, and the plain attributes named by ``options``
    are all else that a saved file must carry; so moving, saving, loading and exporting are the same for
    every method.

    Class attributes:
        preserves_accuracy: Whether the predicted class can never change.
        needs_features: Whether ``fit`` and ``forward`` ask for penultimate features.
        options: Names of plain attributes (numbers, text, lists of them) that a saved file carries.
    """

    preserves_accuracy: ClassVar[bool] = False
    needs_features: ClassVar[bool] = False
    options: ClassVar[tuple[str, ...]] = ()
    methods: ClassVar[dict[str, type["Calibrator"]]] = {}

    n_classes: int | None

    def __init_subclass__(cls, **kwargs: Any) -> None:  # noqa: ANN401  # Python's own hook
        super().__init_subclass__(**kwargs)
        if cls.__module__ != "calibrant.posthoc.chain" or cls.__name__ == "Chain":
            Calibrator.methods[cls.__name__] = cls

    def __init__(self, *, n_classes: int | None = None) -> None:
        super().__init__()
        self.n_classes = n_classes

    @classmethod
    @abstractmethod
    def fit(
        cls, logits: ArrayLike, labels: ArrayLike, *, features: ArrayLike | None = None, seed: int = 0
    ) -> Self:
        """Learn the map from held-out logits and labels; deterministic for a seed."""

    @abstractmethod
    def forward(self, logits: Tensor, features: Tensor | None = None) -> Tensor:
        """Return calibrated log-probabilities of shape ``(n, k)``."""

    def predict_proba(self, logits: ArrayLike, features: ArrayLike | None = None) -> ArrayLike:
        """Return calibrated probabilities of shape ``(n, k)`` in the caller's kind of array."""
        return same_kind(self.predict_log_proba(logits, features).exp(), like=logits)

    @torch.no_grad()
    def predict_log_proba(self, logits: ArrayLike, features: ArrayLike | None = None) -> Tensor:
        """Check the arguments and return calibrated log-probabilities of shape ``(n, k)``."""
        z = check_logits(logits)
        if self.n_classes not in (None, z.shape[1]):
            raise InputError(
                f"logits: expected the {self.n_classes} classes that {type(self).__name__} was fitted on, "
                f"got {z.shape[1]}"
            )
        if self.needs_features:
            required_features(features, type(self).__name__)
        h = None if features is None else check_features(features, n=z.shape[0]).to(z.device)
        calibrated: Tensor = self(z, h)
        return calibrated

    @classmethod
    def then(cls, other: type["Calibrator"]) -> type["Calibrator"]:
        """Return the method that fits this one, then the other one on what this one returns."""
        from calibrant.posthoc.chain import chain

        return chain(cls, other)

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


def check_fitting_set(logits: ArrayLike, labels: ArrayLike) -> tuple[Tensor, Tensor]:
    """Check the logits and labels that a method is fitted on; labels go to the device of the logits."""
    z = check_logits(logits)
    return z, check_labels(labels, n=z.shape[0], k=z.shape[1]).to(z.device)


def required_features(features: ArrayLike | None, method: str) -> ArrayLike:
    """Refuse a missing argument that a method cannot do without."""
    if features is None:
        raise InputError(
            f"features: expected penultimate features of shape (n, d), which {method} needs, got none"
        )
    return features
