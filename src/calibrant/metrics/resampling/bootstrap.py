"""Bootstrap: what every kind of resampling provides, and the checks of its options and values."""

import math
import sys
from abc import ABC, abstractmethod

import numpy as np

from calibrant.errors import InputError
from calibrant.inputs import Floats, Progress, check_count

# Fewer resamples would not give a usable interval.
_ENOUGH = 100


class Resampler(ABC):
    """A sample whose measure can be computed again on resamples."""

    @property
    @abstractmethod
    def value(self) -> float:
        """The measure of the sample itself."""

    @property
    def is_mean(self) -> bool:
        """Whether the measure is a mean over samples, which has no bias."""
        return False

    @property
    def at_once(self) -> int:
        """Number of resamples that are drawn together."""
        return 1

    @property
    def work(self) -> int:
        """Numbers computed for each resample, of which millions take a few hundredths of a second."""
        return 0

    @abstractmethod
    def draw(self, n_resamples: int, rng: np.random.Generator) -> Floats:
        """Return the measure of each of a few resamples; NaN where it is undefined."""

    @abstractmethod
    def jackknife(self, rng: np.random.Generator) -> tuple[Floats, Floats]:
        """Return the measure with samples left out, and the weight of each of these values."""

    def affordable(self, n_resamples: int, max_work: int | None) -> int:
        """Return how many resamples ``max_work`` numbers allow, but at least 100 if that many are wanted."""
        if max_work is None or self.work == 0:
            return n_resamples
        affordable = check_count(max_work, "max_work", at_least=0, at_most=sys.maxsize) // self.work
        return min(n_resamples, max(_ENOUGH, affordable))

    def replicates(
        self, n_resamples: int, rng: np.random.Generator, progress: Progress | None = None
    ) -> Floats:
        """Return the measure of each resample; NaN where it is undefined."""
        values = np.empty(n_resamples)
        for start in range(0, n_resamples, self.at_once):
            stop = min(start + self.at_once, n_resamples)
            values[start:stop] = self.draw(stop - start, rng)
            if progress is not None:
                progress("resamples", stop, n_resamples)
        return values


def check_level(level: float) -> float:
    """Return the level of an interval if it is a number between 0 and 1."""
    if not 0 < level < 1:
        raise InputError(f"level: expected a number between 0 and 1, got {level}; 95 % is 0.95")
    return float(level)


def check_finite(value: float, *, name: str = "metric") -> float:
    """Return the measure of the whole sample if it is finite."""
    if not math.isfinite(value):
        raise InputError(f"{name}: expected a finite value on the whole sample, got {value}")
    return value


def defined(values: Floats) -> Floats:
    """Return the finite replicates; more than half of all replicates must be finite."""
    finite: Floats = values[np.isfinite(values)]
    if 2 * len(finite) <= len(values):
        raise InputError(
            f"metric: expected a finite value on most resamples, got none on {len(values) - len(finite)} "
            f"of {len(values)}; it needs more samples"
        )
    return finite
