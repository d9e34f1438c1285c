"""Statements of the SMART paper, checked numerically.

Theorem 3.1: the Charbonnier objective bounds the smooth calibration error.

Lemma 2 and Eqs. (28) to (30): how much sharpening raises the confidence of a sample at least, and how much it
raises the NLL at most. These are functions of logits; their tests draw many.

Proposition A.2: sharpening can lower the NLL and raise the smooth calibration error. Two classes, one
temperature. In a slice A of margins some confidences are too low by at least rho_u (the set U), some too high
by at least rho_o (the set O), with masses such that Eq. (31) holds. The proposition says that sharpening A
then lowers the NLL and raises smCE. Neither follows:

- Eq. (31) bounds from below what sharpening gains on U, but not from above what it costs on O, where the gap
  may be far larger than rho_o; the proof takes it for at most rho_o there. If both gaps are *equal* to rho_u
  and rho_o, the NLL falls.
- The proof follows one probe psi that is nonzero on O only. The correlation with psi rises, but smCE is the
  largest correlation with any probe, and that need not rise. Samples outside A keep their temperature, and
  the proposition assumes nothing about them.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from calibrant.errors import InputError
from calibrant.inputs import ArrayLike, Floats, check_choice, check_logits, check_probs, to_tensor
from calibrant.metrics.charbonnier import charbonnier_error, smoothing_bias, smoothing_bias_bound
from calibrant.metrics.smooth_calibration import smooth_calibration_error
from calibrant.papers.model_predictions import load_model_predictions
from calibrant.papers.rows import Record

_Hits = npt.NDArray[np.bool_]

_ATOMS = 24
_SHARPER = 1.001


def bound_study(
    key: Mapping[str, Any], settings: Mapping[str, Any], seed: int, data: Path | None
) -> Iterator[Record]:
    r"""Yield the largest ratio of smCE to its bound :math:`H_{\lambda,\delta} + 2 B_\lambda`, at most 1.

    The key has ``predictions``, either ``random`` or a source, and ``lam``. ``least_needed`` is the largest
    ratio of smCE to H alone: if it is below 1, the bias is never needed.
    """
    lam = float(key["lam"])
    bias = smoothing_bias(lam)
    rng = np.random.default_rng(seed)
    if key["predictions"] == "random":
        drawn = [random_outcomes(rng) for _ in range(settings.get("draws", 100))]
    else:
        parts = load_model_predictions(key["predictions"], seed=seed, data=data).tests.values()
        drawn = [
            (outcomes.confidence.double().numpy(), outcomes.correct.numpy())
            for outcomes in (part.outcomes() for part in parts)
        ]
    ratios, alone, errors, bounds = [], [], [], []
    for confidence, correct in drawn:
        error = smooth_calibration_error(confidence=confidence, correct=correct)
        for delta in settings.get("deltas", (0.0, 1e-3, 0.1)):
            smoothed = charbonnier_error(confidence=confidence, correct=correct, lam=lam, delta=delta)
            ratios.append(error / (smoothed + 2 * bias))
            alone.append(error / smoothed)
            errors.append(error)
            bounds.append(smoothed + 2 * bias)
    yield Record(
        {},
        {
            "worst_ratio": max(ratios),
            "median_ratio": float(np.median(ratios)),
            "least_needed": max(alone),
            "violated": float(np.mean([ratio > 1 + 1e-12 for ratio in ratios])),
            "mean_error": float(np.mean(errors)),
            "mean_bound": float(np.mean(bounds)),
            "bias": bias,
            "bias_bound": min(1.0, 1.339 / math.sqrt(lam)) if lam >= 1 else smoothing_bias_bound(lam),
        },
    )


def random_outcomes(rng: np.random.Generator) -> tuple[Floats, _Hits]:
    """Draw confidences from a random Beta distribution, and correctness from a random function of them.

    The function ranges from always correct to always wrong, since the theorem makes no assumption about it.
    """
    n = int(rng.integers(1, 400))
    a, b = np.exp(rng.normal(scale=1.5, size=2))
    confidence = rng.beta(a, b, size=n)
    kind = rng.integers(4)
    level = rng.random()
    rate = [
        confidence,
        np.full(n, level),
        (confidence > level).astype(float),
        (confidence <= level).astype(float),
    ][kind]
    return confidence, rng.random(n) < rate


@dataclass(frozen=True, eq=False)
class BoundedQuantity:
    """A quantity of each sample, or of all of them, with the bound that the paper proves; float64."""

    value: Tensor
    bound: Tensor


def top_logit_advantage(logits: ArrayLike, *, temperature: ArrayLike | float = 1.0) -> BoundedQuantity:
    r"""Return how far the largest scaled logit lies above the expected one, and its lower bound (Lemma 2).

    .. math:: t_M - \langle t \rangle_q \ge (1 - p)\,(t_M - t_{(2)}) = (1 - p)\,m / T

    with :math:`t = z / T`, :math:`q = \mathrm{softmax}(t)`, :math:`p = q_M` and the margin :math:`m`. Times
    :math:`p` the left side is the slope of the confidence as the temperature is divided by a growing number.
    With two classes both sides are the same.

    Args:
        logits: Scores of shape ``(n, k)``.
        temperature: One number, or one per sample.

    Example:
        >>> advantage = top_logit_advantage([[2.0, 0.0, -1.0]])
        >>> round(float(advantage.value[0]), 3), round(float(advantage.bound[0]), 3)
        (0.354, 0.312)
    """
    t, q = _scaled(logits, temperature)
    top = t.topk(2, dim=1).values
    value = top[:, 0] - (q * t).sum(dim=1)
    return BoundedQuantity(value, (1 - q.amax(dim=1)) * (top[:, 0] - top[:, 1]))


def nll_slope(
    logits: ArrayLike, truth: ArrayLike, *, temperature: ArrayLike | float = 1.0
) -> BoundedQuantity:
    r"""Return the slope of the expected NLL of each sample as it is sharpened, and its upper bound (Eq. 28).

    .. math:: \mathbb{E}[\langle t \rangle_q - t_Y \mid x] \le (p - r)\,g + (1 - r)\,\Delta

    with the probability :math:`r` that the prediction is right, the gap :math:`g = t_{(1)} - t_{(2)}` and the
    spread :math:`\Delta = t_{(2)} - t_{(k)}` of the other logits. With two classes both sides are the same.

    Args:
        logits: Scores of shape ``(n, k)``.
        truth: The true distribution of the label of each sample, shape ``(n, k)``.
        temperature: One number, or one per sample.

    Example:
        >>> slope = nll_slope([[2.0, 0.0, -1.0]], [[0.6, 0.3, 0.1]])
        >>> round(float(slope.value[0]), 3), round(float(slope.bound[0]), 3)
        (0.546, 0.888)
    """
    t, slope, excess, miss = _sharpened(logits, truth, temperature)
    return BoundedQuantity(slope, excess + miss * _spread(t))


def spread_control(logits: ArrayLike, inside: ArrayLike, *, temperature: ArrayLike | float = 1.0) -> float:
    r"""Return the largest spread of the logits that are not on top, over a slice: :math:`\Delta_G` (Eq. 29).

    Args:
        logits: Scores of shape ``(n, k)``.
        inside: Whether each sample is in the slice of margins, shape ``(n,)``.
        temperature: One number, or one per sample.
    """
    t, _ = _scaled(logits, temperature)
    return float(torch.where(_inside(inside, t), _spread(t), 0.0).max())


def slice_nll_slope(
    logits: ArrayLike, truth: ArrayLike, inside: ArrayLike, *, temperature: ArrayLike | float = 1.0
) -> BoundedQuantity:
    r"""Return the slope of the NLL as a slice of margins is sharpened, and its upper bound (Eq. 30).

    .. math:: \frac{d}{ds} L = \mathbb{E}[1_A (\langle t \rangle_q - t_Y)]
        \le \mathbb{E}[1_A (p - r)\,g] + \Delta_G\,\mu_A

    with the share :math:`\mu_A` of samples in the slice. With two classes both sides are the same.

    Args:
        logits: Scores of shape ``(n, k)``.
        truth: The true distribution of the label of each sample, shape ``(n, k)``.
        inside: Whether each sample is in the slice of margins, shape ``(n,)``.
        temperature: One number, or one per sample.
    """
    t, slope, excess, _ = _sharpened(logits, truth, temperature)
    chosen = _inside(inside, t).double()
    control = spread_control(logits, inside, temperature=temperature)
    return BoundedQuantity((chosen * slope).mean(), (chosen * excess).mean() + control * chosen.mean())


def _sharpened(
    logits: ArrayLike, truth: ArrayLike, temperature: ArrayLike | float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the scaled logits, the slope of the NLL, (p - r) g and 1 - r of each sample."""
    t, q = _scaled(logits, temperature)
    eta = check_probs(truth, name="truth").double()
    if eta.shape != t.shape:
        raise InputError(f"truth: expected shape {tuple(t.shape)}, got shape {tuple(eta.shape)}")
    r = eta.gather(1, t.argmax(dim=1, keepdim=True)).squeeze(1)
    top = t.topk(2, dim=1).values
    return t, ((q - eta) * t).sum(dim=1), (q.amax(dim=1) - r) * (top[:, 0] - top[:, 1]), 1 - r


def _scaled(logits: ArrayLike, temperature: ArrayLike | float) -> tuple[Tensor, Tensor]:
    """Return the logits over the temperature, and their softmax."""
    z = check_logits(logits).double()
    divisor = torch.as_tensor(temperature, dtype=torch.float64)
    if divisor.ndim and divisor.shape != (len(z),):
        raise InputError(
            f"temperature: expected one number or shape ({len(z)},), got shape {tuple(divisor.shape)}"
        )
    if not bool(((divisor > 0) & torch.isfinite(divisor)).all()):
        raise InputError("temperature: expected positive finite numbers, got others")
    t = z / divisor.reshape(-1, 1)
    return t, torch.softmax(t, dim=1)


def _spread(t: Tensor) -> Tensor:
    """Return the second largest minus the smallest entry of each row."""
    return t.topk(2, dim=1).values[:, 1] - t.amin(dim=1)


def _inside(inside: ArrayLike, t: Tensor) -> Tensor:
    chosen = to_tensor(inside, "inside")
    if chosen.shape != (len(t),):
        raise InputError(f"inside: expected shape ({len(t)},), got shape {tuple(chosen.shape)}")
    return chosen.bool()


@dataclass(frozen=True)
class Population:
    """A population of samples: confidences with their mass and accuracy.

    Attributes:
        confidence: Probability of the predicted class, above one half.
        mass: Share of all samples; sums to one.
        accuracy: Accuracy of the samples with this confidence.
        sharpened: Whether they are in the slice A.
        low: Lowest confidence of the set O.
        high: Highest confidence of the set O.
        gap: Distance between U and O.
    """

    confidence: Floats
    mass: Floats
    accuracy: Floats
    sharpened: npt.NDArray[np.bool_]
    low: float
    high: float
    gap: float

    def at(self, s: float) -> Floats:
        """Return the confidences after the temperature of the slice is divided by ``s``."""
        odds = np.log(self.confidence / (1 - self.confidence))
        return np.where(self.sharpened, 1 / (1 + np.exp(-s * odds)), self.confidence)

    def nll(self, p: Floats) -> float:
        """Return the negative log-likelihood at these confidences."""
        losses = -self.accuracy * np.log(p) - (1 - self.accuracy) * np.log1p(-p)
        return float((self.mass * losses).sum())

    def probe(self, p: Floats) -> float:
        """Return the correlation with the proposition's probe: 0 on U, negative on O, a ramp in between.

        The ramp keeps a tenth of the gap away from both, so that no sample is on it before or after.
        """
        away = np.maximum(self.low - p, p - self.high) - 0.1 * self.gap
        psi = -(0.8 * self.gap - away.clip(min=0.0)).clip(min=0.0)
        return float((self.mass * (self.accuracy - p) * psi).sum())

    def smce(self, p: Floats, *, n: int = 40_000) -> float:
        """Return the smooth calibration error of ``n`` samples in these proportions."""
        counts = np.round(self.mass * n).astype(int)
        hits = np.round(counts * self.accuracy).astype(int)
        confidence = np.repeat(p, counts)
        correct = np.concatenate([np.arange(c) < h for c, h in zip(counts, hits, strict=True)])
        return smooth_calibration_error(confidence=confidence, correct=correct)


def mismatch_study(
    key: Mapping[str, Any],
    settings: Mapping[str, Any],
    seed: int,
    _data: Path | None,
) -> Iterator[Record]:
    """Yield the share of populations satisfying Eq. (31) in which each part of the proposition holds.

    The key has ``gaps``: ``equal`` for random populations whose gaps are rho_u and rho_o, ``at least`` for
    random ones whose gaps are these or larger, as printed, or ``counterexample`` for that one population. And
    it has ``beyond``: ``nothing`` if all samples are in the slice, or ``overconfident`` if there are as many
    overconfident samples outside it, at higher confidences.
    """
    gaps = check_choice(key["gaps"], "gaps", ("equal", "at least", "counterexample"))
    beyond = check_choice(key["beyond"], "beyond", ("nothing", "overconfident")) == "overconfident"
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(1 if gaps == "counterexample" else settings.get("draws", 100)):
        if gaps == "counterexample":
            population = counterexample()
        else:
            population = random_population(rng, beyond=beyond, larger=gaps == "at least")
        before, after = population.at(1.0), population.at(_SHARPER)
        found.append(
            (
                population.nll(after) - population.nll(before),
                population.probe(after) - population.probe(before),
                population.smce(after) - population.smce(before),
            )
        )
    nll, probe, smce = np.array(found).T
    yield Record(
        {},
        {
            "nll_falls": float((nll < 0).mean()),
            "probe_rises": float((probe > 0).mean()),
            "smce_rises": float((smce > 0).mean()),
            "both": float(((nll < 0) & (smce > 0)).mean()),
            "nll_change": float(nll.mean()),
            "smce_change": float(smce.mean()),
        },
    )


def counterexample() -> Population:
    """Return a population to which proposition A.2 applies, and whose NLL rises when it is sharpened.

    Half of the samples have confidences around 0.6 and are right 0.1 more often (rho_u = 0.1), half have
    confidences around 0.8 and are right 0.7 less often, which is at least rho_o = 0.01. Then Eq. (31) holds,
    0.019 > 0.007, but the slope of the NLL is 0.46.

    Example:
        >>> population = counterexample()
        >>> population.nll(population.at(1.01)) > population.nll(population.at(1.0))
        True
    """
    under, over = np.linspace(0.595, 0.605, _ATOMS), np.linspace(0.795, 0.805, _ATOMS)
    return Population(
        np.concatenate([under, over]),
        np.full(2 * _ATOMS, 0.5 / _ATOMS),
        np.concatenate([under + 0.1, over - 0.7]),
        np.ones(2 * _ATOMS, dtype=bool),
        float(over.min()),
        float(over.max()),
        float(over.min() - under.max()),
    )


def random_population(rng: np.random.Generator, *, beyond: bool, larger: bool = False) -> Population:
    """Draw until Eq. (31) holds: rho_u gamma_min mu_u > gamma_max (rho_o mu_o + mu_gap), with mu_gap = 0.

    Args:
        rng: Source of random numbers.
        beyond: Whether there are as many overconfident samples outside the slice.
        larger: Whether the gaps may exceed rho_u and rho_o, as the proposition allows, instead of being equal
            to them.
    """
    while True:
        edges = np.sort(rng.uniform(0.52, 0.85, size=4))
        first = np.linspace(edges[0], edges[1], _ATOMS)
        second = np.linspace(edges[2], edges[3], _ATOMS)
        under, over = (first, second) if rng.random() < 0.5 else (second, first)
        rho_u = rng.uniform(0.02, max(0.03, 0.98 - under.max()))
        rho_o = rng.uniform(0.02, over.min() - 0.02)
        mu_u = rng.uniform(0.3, 0.98)
        odds = np.log(edges[[0, 3]] / (1 - edges[[0, 3]]))
        if edges[2] - edges[1] > 0.02 and rho_u * odds[0] * mu_u > odds[1] * rho_o * (1 - mu_u):
            break
    confidence = np.concatenate([under, over])
    mass = np.concatenate([np.full(_ATOMS, mu_u / _ATOMS), np.full(_ATOMS, (1 - mu_u) / _ATOMS)])
    if larger:
        rho_u = rho_u + rng.random() * (1 - under.max() - rho_u)
        rho_o = rho_o + rng.random() * (over.min() - rho_o)
    accuracy = np.concatenate([under + rho_u, over - rho_o])
    inside = np.ones(len(confidence), dtype=bool)
    if beyond:
        # Enough that overconfidence dominates the whole population.
        away = np.linspace(0.9, 0.97, _ATOMS)
        confidence, accuracy = np.append(confidence, away), np.append(accuracy, away - rng.uniform(0.5, 0.9))
        mass, inside = np.append(mass, np.full(_ATOMS, 1 / _ATOMS)) / 2, np.append(inside, [False] * _ATOMS)
    gap = float(edges[2] - edges[1])
    return Population(confidence, mass, accuracy, inside, float(over.min()), float(over.max()), gap)
