"""Structured matrix scaling, then SMART: the likelihood of the one with the calibration of the other."""

from typing import ClassVar, Self, Unpack

import torch
from torch import Tensor

from calibrant.inputs import ArrayLike, at_least_float32
from calibrant.posthoc.chain import Chain
from calibrant.posthoc.fitting_set import FittingSet, Rows, sparing_threads
from calibrant.posthoc.smart import SMART
from calibrant.posthoc.structured import StructuredMatrixScaling, StructuredVectorScaling


class StructuredSMART(Chain):
    """Repair the classes by structured matrix scaling, then the confidence by SMART.

    Matrix scaling finds the likeliest distribution but leaves a gap between confidence and accuracy; SMART
    closes the gap but changes nothing else. The predicted class may change, in the first step only.
    """

    structure: ClassVar[type[StructuredMatrixScaling]] = StructuredMatrixScaling
    methods_in_order = (structure, SMART)

    @classmethod
    @sparing_threads
    def fit(
        cls,
        logits: ArrayLike | FittingSet,
        labels: ArrayLike | None = None,
        *,
        strength: float | None = None,
        smart_strength: float | None = None,
        tolerance: float = 1e-8,
        **rows: Unpack[Rows],
    ) -> Self:
        """Fit the first step on all samples, the second on held-out predictions of the first.

        On its own fitting set matrix scaling looks better calibrated than it is. So SMART is fitted on the
        predictions of cross-fitting, with the ridge that was chosen on all samples.

        Args:
            logits: Scores of shape ``(n, k)``, or ``(n,)`` for the log-odds of class 1.
            labels: Integer classes of shape ``(n,)``.
            strength: The strength of the ridge of structured matrix scaling; chosen if not given.
            smart_strength: The price of bending SMART's curve; chosen if not given.
            tolerance: The search of the first step ends when a step lowers the mean loss by less than this.
        """
        data = cls.data(logits, labels, **rows)
        first = cls.structure.fit(data, strength=strength, tolerance=tolerance)
        second = SMART.fit(data.with_logits(_cross_fitted(first, data)), strength=smart_strength)
        fitted = cls(first, second)
        of_smart = {f"smart_{name}": value for name, value in second.for_folds.items()}
        fitted.for_folds = {**first.for_folds, **of_smart}
        return fitted

    @classmethod
    def memory(cls, n: int, k: int) -> int:
        """Return about how many bytes the larger of both fits needs."""
        return cls.structure.memory(n, k)


class StructuredVectorSMART(StructuredSMART):
    """Repair the classes by structured vector scaling, then the confidence by SMART.

    :class:`StructuredSMART` for many classes: two numbers per class instead of one per pair of classes.
    """

    structure = StructuredVectorScaling
    methods_in_order = (structure, SMART)


@torch.no_grad()
def _cross_fitted(fitted: StructuredMatrixScaling, data: FittingSet) -> Tensor:
    """Predict every sample by the same method, fitted on the other folds with the same options."""
    data.check_can_hold_out()
    predicted = torch.empty_like(at_least_float32(data.logits))
    # A comparison begins with the first fold; from the other end, both share the work.
    for fold in reversed(data.folds.unique().tolist()):
        step = type(fitted).fit(data.without(fold), **fitted.for_folds)
        inside = data.folds == fold
        predicted[inside] = step(data.logits[inside])
    return predicted
