"""Structured matrix scaling, then SMART: the likelihood of the one with the calibration of the other."""

from collections.abc import Mapping
from typing import Any, ClassVar, Self, Unpack

import torch
from torch import Tensor

from calibrant.errors import FitError
from calibrant.inputs import ArrayLike, at_least_float32
from calibrant.posthoc.calibrator import UnusedFeatures, check_weighted_set
from calibrant.posthoc.chain import Chain
from calibrant.posthoc.fitting.folds import deal, shuffled
from calibrant.posthoc.fitting.shared import in_folds, part_of, without_fold
from calibrant.posthoc.fitting.weighing import rows_of
from calibrant.posthoc.smart import SMART
from calibrant.posthoc.structured import StructuredMatrixScaling, StructuredVectorScaling

N_FOLDS = 5


class StructuredSMART(Chain):
    """Repair the classes by structured matrix scaling, then the confidence by SMART.

    Matrix scaling finds the likeliest distribution but leaves a gap between confidence and accuracy; SMART
    closes the gap but changes nothing else. The predicted class may change, in the first step only.
    """

    structure: ClassVar[type[StructuredMatrixScaling]] = StructuredMatrixScaling
    methods_in_order = (structure, SMART)

    @classmethod
    def fit(
        cls,
        logits: ArrayLike,
        labels: ArrayLike,
        *,
        strength: float | None = None,
        smart_strength: float | None = None,
        weights: ArrayLike | None = None,
        seed: int = 0,
        **unused: Unpack[UnusedFeatures],
    ) -> Self:
        """Fit the first step on all samples, the second on held-out predictions of the first.

        On its own fitting set matrix scaling looks better calibrated than it is. So SMART is fitted on the
        predictions of five-fold cross-fitting, with the ridge that was chosen on all samples. Within a
        comparison the folds are those of the comparison, whose fits are used.

        Args:
            logits: Scores of shape ``(n, k)``, or ``(n,)`` for the log-odds of class 1.
            labels: Integer classes of shape ``(n,)``.
            weights: How much each sample counts, shape ``(n,)``; only their ratios matter.
            seed: Seed of the folds and of SMART's first weights.
            strength: The strength of the ridge of structured matrix scaling; chosen if not given.
            smart_strength: The price of bending SMART's curve; chosen if not given.
        """
        z, y, w = check_weighted_set(logits, labels, weights, **unused)
        first = cls.structure.fit(z, y, strength=strength, weights=w, seed=seed)
        held_out = _cross_fitted(first, z, y, w, seed)
        return cls(first, SMART.fit(held_out, y, strength=smart_strength, weights=w, seed=seed))

    @classmethod
    def memory(cls, n: int, k: int) -> int:
        """Return about how many bytes the larger of both fits needs."""
        return cls.structure.memory(n, k)

    @property
    def searched(self) -> Mapping[str, Any]:
        """The strengths of both steps, which the fit chose; a file does not keep that of SMART."""
        of_smart = {f"smart_{name}": value for name, value in self.second.searched.items()}
        return {**self.first.searched, **of_smart}


class StructuredVectorSMART(StructuredSMART):
    """Repair the classes by structured vector scaling, then the confidence by SMART.

    :class:`StructuredSMART` for many classes: two numbers per class instead of one per pair of classes.
    """

    structure = StructuredVectorScaling
    methods_in_order = (structure, SMART)


@torch.no_grad()
def _cross_fitted(
    fitted: StructuredMatrixScaling, z: Tensor, y: Tensor, weights: Tensor | None, seed: int
) -> Tensor:
    """Predict every sample by the same method, fitted on the other folds with the same options."""
    part = part_of(z)
    if part is None or len(part.folds.unique()) < 2:
        if len(z) < 2:
            raise FitError("logits: expected at least two samples to fit SMART out of fold, got one")
        folds = deal(shuffled(len(z), seed=seed).argsort(), N_FOLDS)
        z = in_folds(z.view_as(z), folds)
    else:
        folds = part.folds
    predicted = torch.empty_like(at_least_float32(z))
    # A comparison begins with the first fold; from the other end, both share the work.
    for fold in reversed(folds.unique().tolist()):
        rows = (folds == fold).nonzero().squeeze(1).to(z.device)
        rest = rows_of(weights, (folds != fold).nonzero().squeeze(1).to(z.device))
        step = type(fitted).fit(*without_fold(z, y, fold), weights=rest, seed=seed, **fitted.searched)
        predicted[rows] = step(z[rows])
    return predicted
