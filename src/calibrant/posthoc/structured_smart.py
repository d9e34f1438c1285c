"""Structured matrix scaling, then SMART: the likelihood of the one with the calibration of the other."""

from typing import Self, Unpack

import torch
from torch import Tensor

from calibrant.inputs import ArrayLike
from calibrant.posthoc.calibrator import UnusedFeatures, check_fitting_set
from calibrant.posthoc.chain import Chain
from calibrant.posthoc.fitting.folds import cross_fit, deal, shuffled
from calibrant.posthoc.smart import SMART
from calibrant.posthoc.structured import StructuredMatrixScaling

N_FOLDS = 5


class StructuredSMART(Chain):
    """Repair the classes by structured matrix scaling, then the confidence by SMART.

    Matrix scaling finds the likeliest distribution but leaves a gap between confidence and accuracy; SMART
    closes the gap but changes nothing else. The predicted class may change, in the first step only.
    """

    methods_in_order = (StructuredMatrixScaling, SMART)

    @classmethod
    def fit(
        cls, logits: ArrayLike, labels: ArrayLike, *, seed: int = 0, **unused: Unpack[UnusedFeatures]
    ) -> Self:
        """Fit the first step on all samples, the second on held-out predictions of the first.

        On its own fitting set matrix scaling looks better calibrated than it is. So SMART is fitted on the
        predictions of five-fold cross-fitting, with the ridge that was chosen on all samples.

        Args:
            logits: Scores of shape ``(n, k)``, or ``(n,)`` for the log-odds of class 1.
            labels: Integer classes of shape ``(n,)``.
            seed: Seed of the folds and of SMART's first weights.
        """
        z, y = check_fitting_set(logits, labels, **unused)
        first = StructuredMatrixScaling.fit(z, y, seed=seed)
        strength = float(first.strength)

        @torch.no_grad()
        def predict(rest: Tensor, held_out: Tensor) -> Tensor:
            step = StructuredMatrixScaling.fit(z[rest], y[rest], seed=seed, strength=strength)
            log_probs: Tensor = step(z[held_out])
            return log_probs

        folds = deal(shuffled(len(z), seed=seed).argsort(), N_FOLDS).to(z.device)
        return cls(first, SMART.fit(cross_fit(folds, predict), y, seed=seed))
