"""Predictions whose rows depend on each other."""

import math

import numpy as np

from calibrant import Predictions


def answers(n_units, *, seed, size=5, rho=0.9, root=1):
    """Answers to questions: those to one share their confidence, and mostly whether they are right.

    The confidence is a root of the probability, so above it unless it is the first root.
    """
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 2 * size, n_units) if size > 1 else np.ones(n_units, dtype=int)
    unit = np.repeat(np.arange(n_units), sizes)
    honest = 1 / (1 + np.exp(-rng.normal(1, 1.5, n_units)))[unit]
    alike = rng.random(len(unit)) < math.sqrt(rho)
    drawn = np.where(alike, rng.random(n_units)[unit], rng.random(len(unit)))
    return Predictions(confidence=honest ** (1 / root), correct=drawn < honest, units=1000 * seed + unit)


def joined(*parts):
    fields = ("confidence", "correct", "units")
    return Predictions(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in fields})
