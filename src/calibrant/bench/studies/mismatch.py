"""Whether sharpening can lower the likelihood loss and raise the smooth calibration error (SMART, Prop. A.2).

Two classes, one temperature. In a slice A of margins some confidences are too low by rho_u (the set U), some
too high by rho_o (the set O), with masses such that Eq. (31) holds. The proposition says that sharpening A
then lowers the NLL and raises smCE. Its proof follows one probe psi that looks at O only; that the
correlation with psi rises does not make the largest one rise, which is smCE. Samples beyond A keep their
temperature, and the proposition assumes nothing about them.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from calibrant.bench.rows import Record
from calibrant.metrics.smooth_calibration import smooth_calibration_error

_Floats = npt.NDArray[np.float64]

_ATOMS = 24
_SHARPER = 1.001


@dataclass(frozen=True)
class Population:
    """Confidences with the share of samples that have them and how often those are right.

    Attributes:
        confidence: Probability of the predicted class, above one half.
        mass: Share of all samples; sums to one.
        accuracy: Share of these that is right.
        sharpened: Which of them are in the slice.
        low: The set O is all confidences from here ...
        high: ... to here.
        gap: Distance between U and O.
    """

    confidence: _Floats
    mass: _Floats
    accuracy: _Floats
    sharpened: npt.NDArray[np.bool_]
    low: float
    high: float
    gap: float

    def at(self, s: float) -> _Floats:
        """Return the confidences after the slice's temperature was divided by ``s``."""
        odds = np.log(self.confidence / (1 - self.confidence))
        return np.where(self.sharpened, 1 / (1 + np.exp(-s * odds)), self.confidence)

    def nll(self, p: _Floats) -> float:
        """Return the negative log-likelihood at these confidences."""
        losses = -self.accuracy * np.log(p) - (1 - self.accuracy) * np.log1p(-p)
        return float((self.mass * losses).sum())

    def probe(self, p: _Floats) -> float:
        """Return the correlation with the proposition's probe: 0 on U, negative on O, in between a ramp.

        The ramp stays clear of both by a tenth of the gap, so that no sample is on it before or after.
        """
        away = np.maximum(self.low - p, p - self.high) - 0.1 * self.gap
        psi = -(0.8 * self.gap - away.clip(min=0.0)).clip(min=0.0)
        return float((self.mass * (self.accuracy - p) * psi).sum())

    def smce(self, p: _Floats, *, n: int = 40_000) -> float:
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
    """Yield in how many random populations that satisfy Eq. (31) each part of the proposition holds.

    The key has ``beyond``: ``nothing`` if all samples are in the slice, or ``overconfident`` if as many as
    are in it have higher confidences that are too high.
    """
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(settings.get("draws", 100)):
        population = random_population(rng, beyond=key["beyond"] == "overconfident")
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


def random_population(rng: np.random.Generator, *, beyond: bool) -> Population:
    """Draw until Eq. (31) holds: rho_u gamma_min mu_u > gamma_max (rho_o mu_o + mu_gap); the gap is empty."""
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
    accuracy = np.concatenate([under + rho_u, over - rho_o])
    inside = np.ones(len(confidence), dtype=bool)
    if beyond:
        # Enough that the worst bias of the whole is overconfidence.
        away = np.linspace(0.9, 0.97, _ATOMS)
        confidence, accuracy = np.append(confidence, away), np.append(accuracy, away - rng.uniform(0.5, 0.9))
        mass, inside = np.append(mass, np.full(_ATOMS, 1 / _ATOMS)) / 2, np.append(inside, [False] * _ATOMS)
    gap = float(edges[2] - edges[1])
    return Population(confidence, mass, accuracy, inside, float(over.min()), float(over.max()), gap)
