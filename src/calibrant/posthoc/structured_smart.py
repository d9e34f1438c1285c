"""Structured matrix scaling, then SMART: the likelihood of the one with the calibration of the other."""

from typing import Self

import torch
from torch import Tensor

from calibrant.inputs import ArrayLike
from calibrant.posthoc.calibrator import check_fitting_set
from calibrant.posthoc.chain import Chain
from calibrant.posthoc.smart import SMART
from calibrant.posthoc.structured import StructuredMatrixScaling

N_FOLDS = 5


class StructuredSMART(Chain):
    """Repair the classes by structured matrix scaling, then the confidence by SMART.

    Matrix scaling finds the likeliest distribution but leaves confidence off; SMART repairs confidence but
    takes the classes as they come. The predicted class may change, in the first step only.
    """

    methods_in_order = (StructuredMatrixScaling, SMART)

    @classmethod
    def fit(
        cls, logits: ArrayLike, labels: ArrayLike, *, features: ArrayLike | None = None, seed: int = 0
    ) -> Self:
        """Fit the first step on all samples, the second on what the first says of samples it has not seen.

        On its own fitting set matrix scaling looks better calibrated than it is. So SMART is fitted on the
        predictions of five-fold cross-fitting, with the ridge that was chosen on all samples.
        """
        z, y = check_fitting_set(logits, labels)
        first = StructuredMatrixScaling.fit(z, y, seed=seed)
        between = _cross_fitted(z, y, seed=seed, strength=float(first.strength))
        return cls(first, SMART.fit(between, y, seed=seed))


@torch.no_grad()
def _cross_fitted(z: Tensor, y: Tensor, *, seed: int, strength: float) -> Tensor:
    folds = torch.arange(len(z)) % N_FOLDS
    folds = folds[torch.randperm(len(z), generator=torch.Generator().manual_seed(seed))].to(z.device)
    between = torch.empty_like(z)
    for fold in range(N_FOLDS):
        inside = folds == fold
        step = StructuredMatrixScaling.fit(z[~inside], y[~inside], seed=seed, strength=strength)
        between[inside] = step(z[inside])
    return between
