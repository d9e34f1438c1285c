"""Composition: one calibrator after another, each fitted on the log-probabilities of the one before it."""

from typing import ClassVar, Self, Unpack

import torch
from torch import Tensor

from calibrant.errors import InputError
from calibrant.inputs import ArrayLike
from calibrant.posthoc.calibrator import Calibrator
from calibrant.posthoc.fitting.stored import declare
from calibrant.posthoc.fitting_set import FittingSet, Rows, sparing_threads


class Chain(Calibrator):
    """Apply one fitted calibrator, then another: log-probabilities are logits too."""

    masks = True
    stored = declare()
    part_names = ("first", "second")

    methods_in_order: ClassVar[tuple[type[Calibrator], ...]] = ()

    def __init__(self, first: Calibrator, second: Calibrator) -> None:
        super().__init__(n_classes=first.n_classes or second.n_classes)
        self.first = first
        self.second = second

    @classmethod
    @sparing_threads
    def fit(
        cls,
        logits: ArrayLike | FittingSet,
        labels: ArrayLike | None = None,
        **rows: Unpack[Rows],
    ) -> Self:
        """Fit the first method, then the second on the first one's log-probabilities.

        Weights and masked classes are refused if one of the methods cannot take them.
        """
        if len(cls.methods_in_order) != 2:
            raise InputError("Chain: expected two methods to fit, got none; write A.then(B).fit(...)")
        data = cls.data(logits, labels, **rows)
        before, after = cls.methods_in_order
        first = before.fit(data)
        with torch.no_grad():
            between = first(data.logits, data.features)
        return cls(first, after.fit(data.with_logits(between)))

    @property
    def group_names(self) -> tuple[str, ...] | None:
        """The groups that the first calibrator has a map for; None if there is one map for all."""
        return self.first.group_names

    @property
    def group_columns(self) -> tuple[str, ...]:
        """The columns that make these groups, if there are several."""
        return self.first.group_columns

    def forward(self, logits: Tensor, features: Tensor | None = None, groups: Tensor | None = None) -> Tensor:
        """Return calibrated log-probabilities of shape ``(n, k)``."""
        given = (logits, features) if groups is None else (logits, features, groups)
        calibrated: Tensor = self.second(self.first(*given), features)
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
