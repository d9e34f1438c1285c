"""Composition: one calibrator after another, each fitted on the log-probabilities of the one before it."""

from typing import ClassVar, Self

import torch
from torch import Tensor

from calibrant.errors import InputError
from calibrant.inputs import ArrayLike, check_features
from calibrant.posthoc.calibrator import Calibrator, check_fitting_set


class Chain(Calibrator):
    """Apply one fitted calibrator, then another: log-probabilities are logits too."""

    methods_in_order: ClassVar[tuple[type[Calibrator], ...]] = ()

    def __init__(self, first: Calibrator, second: Calibrator) -> None:
        super().__init__(n_classes=first.n_classes or second.n_classes)
        self.first = first
        self.second = second

    @classmethod
    def fit(
        cls, logits: ArrayLike, labels: ArrayLike, *, features: ArrayLike | None = None, seed: int = 0
    ) -> Self:
        """Fit the first method, then the second on the first one's log-probabilities."""
        if len(cls.methods_in_order) != 2:
            raise InputError("Chain: expected two methods to fit, got none; write A.then(B).fit(...)")
        z, y = check_fitting_set(logits, labels)
        h = None if features is None else check_features(features, n=z.shape[0], missing=True).to(z.device)
        before, after = cls.methods_in_order
        first = before.fit(z, y, features=h, seed=seed)
        with torch.no_grad():
            between = first(z, h)
        return cls(first, after.fit(between, y, features=h, seed=seed))

    def forward(self, logits: Tensor, features: Tensor | None = None) -> Tensor:
        """Return calibrated log-probabilities of shape ``(n, k)``."""
        calibrated: Tensor = self.second(self.first(logits, features), features)
        return calibrated


def chain(before: type[Calibrator], after: type[Calibrator]) -> type[Chain]:
    """Make the method that fits one method after another."""
    attributes = {
        "__doc__": f"{before.__name__}, then {after.__name__}.",
        "__module__": __name__,
        "methods_in_order": (before, after),
        "preserves_accuracy": before.preserves_accuracy and after.preserves_accuracy,
        "needs_features": before.needs_features or after.needs_features,
    }
    return type(f"{before.__name__}Then{after.__name__}", (Chain,), attributes)
