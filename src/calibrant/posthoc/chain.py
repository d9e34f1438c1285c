"""Composition: one calibrator after another, each fitted on the log-probabilities of the one before it."""

from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from calibrant.errors import InputError
from calibrant.inputs import ArrayLike, check_features
from calibrant.posthoc.calibrator import Calibrator, check_weighted_set
from calibrant.posthoc.fitting.stored import declare


class Chain(Calibrator):
    """Apply one fitted calibrator, then another: log-probabilities are logits too."""

    stored = declare()
    part_names = ("first", "second")

    methods_in_order: ClassVar[tuple[type[Calibrator], ...]] = ()

    def __init__(self, first: Calibrator, second: Calibrator) -> None:
        super().__init__(n_classes=first.n_classes or second.n_classes)
        self.first = first
        self.second = second

    @classmethod
    def fit(
        cls,
        logits: ArrayLike,
        labels: ArrayLike,
        *,
        features: ArrayLike | None = None,
        weights: ArrayLike | None = None,
        seed: int = 0,
    ) -> Self:
        """Fit the first method, then the second on the first one's log-probabilities.

        Weights are refused if one of the methods cannot take them.
        """
        if len(cls.methods_in_order) != 2:
            raise InputError("Chain: expected two methods to fit, got none; write A.then(B).fit(...)")
        z, y, w = check_weighted_set(logits, labels, weights)
        h = None if features is None else check_features(features, n=z.shape[0], missing=True).to(z.device)
        before, after = cls.methods_in_order
        first = before.fit(z, y, features=h, weights=w, seed=seed)
        with torch.no_grad():
            between = first(z, h)
        return cls(first, after.fit(between, y, features=h, weights=w, seed=seed))

    @classmethod
    def takes_masked(cls, **_: Any) -> bool:  # noqa: ANN401  # those of fit
        """Return whether both methods take masked classes."""
        return all(method.takes_masked() for method in cls.methods_in_order)

    @property
    def applies_to_masked(self) -> bool:
        """Whether both calibrators take logits in which classes are masked."""
        return self.first.applies_to_masked and self.second.applies_to_masked

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
