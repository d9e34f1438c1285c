"""Meta-Cal (Ma and Blaschko, "Meta-Cal: Well-controlled Post-hoc Calibration by Ranking", ICML 2021)."""

import math
from typing import Literal, Self, TypeAlias, Unpack, get_args

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from calibrant.errors import FitError, InputError
from calibrant.inputs import ArrayLike, Floats, at_least_float32, check_choice
from calibrant.posthoc.calibrator import Calibrator
from calibrant.posthoc.fitting.masked import FAR, mask_again
from calibrant.posthoc.fitting.stored import NOT_NEGATIVE, POSITIVE, declare, one_number
from calibrant.posthoc.fitting.temperature_search import likeliest_temperature
from calibrant.posthoc.fitting_set import FittingSet, Rows, sparing_threads

MetaCalVariant: TypeAlias = Literal["miscoverage", "accuracy"]

_MISCOVERAGE = 0.05

# Shares of the samples whose accuracy is tested, one after the other, for the accuracy variant.
_CANDIDATES = 20


class MetaCal(Calibrator):
    """Make predictions uniform where the model is likely wrong, and calibrate the rest by a temperature.

    Samples are ranked by the entropy of their softmax. Those at or above a threshold become exactly
    uniform: their confidence is ``1 / k``, and their accuracy is about that too, because a uniform row
    predicts the first class; with masked classes, ``k`` is the number of classes that a sample has. With the
    predicted class of the model they would be far underconfident. The cost is accuracy and likelihood, which
    may be lower than those of the model itself; :meth:`abstains` returns which samples become uniform. The
    logits of the others are divided by a temperature. The threshold gives a guarantee about new samples of
    the same kind, which fails with a probability of at most ``tolerance``:

    - ``"miscoverage"`` (MetaMis): at most the share ``bound`` of right predictions becomes uniform;
    - ``"accuracy"`` (MetaAcc): of the predictions that do not become uniform, at least the share ``bound`` is
      right.
    """

    takes_weights = False
    masks = True
    stored = declare(threshold=one_number(NOT_NEGATIVE), temperature=one_number(POSITIVE))

    threshold: Tensor
    temperature: Tensor

    def __init__(self, threshold: float, temperature: float, *, n_classes: int | None = None) -> None:
        super().__init__(n_classes=n_classes)
        self.register_buffers(
            threshold=torch.tensor(threshold, dtype=torch.float64),
            temperature=torch.tensor(temperature, dtype=torch.float64),
        )

    @classmethod
    @sparing_threads
    def fit(
        cls,
        logits: ArrayLike | FittingSet,
        labels: ArrayLike | None = None,
        *,
        variant: MetaCalVariant = "miscoverage",
        bound: float | None = None,
        tolerance: float = 0.05,
        **rows: Unpack[Rows],
    ) -> Self:
        """Choose the threshold that gives the guarantee, then fit a temperature to the samples below it.

        The guarantee rests on exact binomial bounds for order statistics of the entropy. As nothing about the
        entropy is learned, all samples serve for both steps; the paper splits them and bounds less tightly.
        Weights of samples are refused, because such bounds count whole samples.

        Args:
            logits: Scores of shape ``(n, k)``, or ``(n,)`` for the log-odds of class 1.
            labels: Integer classes of shape ``(n,)``.
            variant: Which guarantee to give.
            bound: The share in the guarantee. For ``"miscoverage"`` 0.05 unless given; with too few samples
                to guarantee that (fewer than 59 right ones, by default), no sample becomes uniform. For
                ``"accuracy"`` half-way between the accuracy on the fitting set and 1 unless given.
            tolerance: Probability that the guarantee fails.

        Raises:
            FitError: No share of the samples is accurate enough to promise ``bound``, or there is no
                temperature, see :meth:`TemperatureScaling.fit`.
        """
        data = cls.data(logits, labels, **rows)
        z, y = data.logits, data.labels
        check_choice(variant, "variant", get_args(MetaCalVariant))
        tolerance = _check_share(tolerance, "tolerance")
        correct = z.argmax(dim=1) == y
        if bound is None:
            bound = _MISCOVERAGE if variant == "miscoverage" else (1 + float(correct.double().mean())) / 2
            bound = min(bound, 1 - 1e-9)
        bound = _check_share(bound, "bound")
        score = _entropy(z)
        if variant == "miscoverage":
            threshold = _miscoverage_threshold(score[correct], bound, tolerance)
        else:
            threshold = _accuracy_threshold(score, correct, bound, tolerance)
        below = score < threshold
        # Without a miss below the threshold there is no temperature for those samples alone.
        kept = data.take(below) if bool((below & ~correct).any()) else data
        temperature = likeliest_temperature(kept)
        # A score never reaches twice the entropy of a uniform row.
        return cls(min(threshold, 2 * math.log(z.shape[1])), temperature, n_classes=z.shape[1])

    def abstains(self, logits: Tensor) -> Tensor:
        """Return whether each sample becomes uniform, shape ``(n,)``."""
        return _entropy(logits) >= self.threshold

    def forward(self, logits: Tensor, features: Tensor | None = None) -> Tensor:
        """Return calibrated log-probabilities of shape ``(n, k)``."""
        z = at_least_float32(logits)
        calibrated = torch.log_softmax(z / self.temperature.to(z.dtype), dim=1)
        # In float64, so that the logarithm is the one of Python.
        even = -(z > -torch.inf).sum(dim=1, keepdim=True).double().log()
        return mask_again(torch.where(self.abstains(logits)[:, None], even.to(z.dtype), calibrated), z)


def _check_share(value: float, name: str) -> float:
    if not isinstance(value, (int, float, np.number)) or not 0 < value < 1:
        raise InputError(f"{name}: expected a number between 0 and 1, got {value}")
    return float(value)


def _entropy(logits: Tensor) -> Tensor:
    log_p = torch.log_softmax(logits.double(), dim=1).clamp(min=-FAR)
    return -(log_p.exp() * log_p).sum(dim=1)


def _at_least(hits: npt.NDArray[np.integer], n: npt.NDArray[np.integer] | int, share: float) -> Floats:
    """Return the probability of at least ``hits`` hits among ``n`` if each has the probability ``share``."""
    from scipy.special import betainc

    tail = betainc(np.maximum(hits, 1), n - hits + 1, share)
    return np.where(hits > 0, tail, 1.0).astype(np.float64)


def _miscoverage_threshold(scores: Tensor, bound: float, tolerance: float) -> float:
    """Return the lowest threshold that at most ``bound`` of the right predictions exceed.

    It is the r-th smallest of the n scores of right predictions. More than ``bound`` of the distribution
    exceeds it only if at least r of n scores fall in the lower ``1 - bound``, a binomial event, whose
    probability must be at most ``tolerance`` (Tong et al., Science Advances 2018, "umbrella").
    """
    n = len(scores)
    ranks = np.arange(1, n + 1)
    enough = ranks[_at_least(ranks, n, 1 - bound) <= tolerance]
    if not len(enough):
        return math.inf
    return math.nextafter(float(scores.sort().values[enough[0] - 1]), math.inf)


def _accuracy_threshold(scores: Tensor, correct: Tensor, bound: float, tolerance: float) -> float:
    """Return the largest threshold below which predictions are right often enough.

    Samples below an order statistic are a fair sample of what lies below it, so their hits are binomial;
    the tolerance is shared among the candidates.
    """
    ordered = scores.sort()
    values = ordered.values.cpu().numpy()
    hits = np.concatenate([[0], correct[ordered.indices].cpu().numpy().cumsum()])
    n = len(values)
    ranks = np.unique(-(-n * np.arange(1, _CANDIDATES + 1) // _CANDIDATES))
    thresholds = np.append(values[ranks[:-1] - 1], math.inf)
    below = np.searchsorted(values, thresholds, side="left")
    passed = thresholds[_at_least(hits[below], below, bound) <= tolerance / _CANDIDATES]
    if not len(passed):
        raise FitError(
            f"Meta-Cal: no share of the {n} samples is accurate enough to promise an accuracy of "
            f"{bound:.4g}; lower the bound, raise the tolerance or give more samples"
        )
    return float(passed[-1])
