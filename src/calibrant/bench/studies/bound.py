"""Whether the Charbonnier objective bounds the smooth calibration error (SMART, Theorem 3.1)."""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from calibrant.bench.rows import Record
from calibrant.bench.sources import load_source
from calibrant.metrics.charbonnier import charbonnier_error, smoothing_bias, smoothing_bias_bound
from calibrant.metrics.smooth_calibration import smooth_calibration_error

_Floats = npt.NDArray[np.float64]
_Hits = npt.NDArray[np.bool_]


def bound_study(
    key: Mapping[str, Any], settings: Mapping[str, Any], seed: int, data: Path | None
) -> Iterator[Record]:
    r"""Yield how close smCE comes to :math:`H_{\lambda,\delta} + 2 B_\lambda`, at worst, which is 1 at most.

    The key has ``predictions``, ``random`` or a source, and ``lam``. ``least_needed`` is the ratio of smCE to
    H alone at worst: below 1 the bias is never needed.
    """
    lam = float(key["lam"])
    bias = smoothing_bias(lam)
    rng = np.random.default_rng(seed)
    if key["predictions"] == "random":
        drawn = [random_outcomes(rng) for _ in range(settings.get("draws", 100))]
    else:
        parts = load_source(key["predictions"], seed=seed, data=data).tests.values()
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


def random_outcomes(rng: np.random.Generator) -> tuple[_Floats, _Hits]:
    """Draw confidences from a random Beta distribution, and hits from a random function of them.

    The function may be anything, from always right to always wrong: the theorem makes no exception.
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
