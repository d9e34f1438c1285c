"""The gain of one trained model over another: it varies with the training runs and with the test samples.

Both are drawn: runs by their seeds, test samples by a paired bootstrap whose draws all runs share. The
variances add up. With few runs their variance is uncertain, so the gain has a t-distribution, whose degrees
of freedom are those of both estimates together (Welch and Satterthwaite).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, variance

import scipy

from calibrant.inference.rows import check_level
from calibrant.inputs import Floats


@dataclass(frozen=True)
class Gain:
    """A mean gain and how sure it is.

    Attributes:
        mean: Mean gain over the runs; positive is better.
        error: Its standard error; infinite for one run, whose variation is unknown.
        degrees: Degrees of freedom of the standard error.
    """

    mean: float
    error: float
    degrees: float

    @classmethod
    def of(cls, gains: Sequence[float], draws: Floats | None = None) -> "Gain":
        """Return the gain of several runs.

        Args:
            gains: Gain of each run.
            draws: Gains on draws of the test samples as deviations from their mean, shape ``(runs, draws)``;
                without them only the runs vary.

        Example:
            >>> gain = Gain.of([1.0, 2.0, 3.0])
            >>> gain.mean, round(gain.error, 3), gain.degrees
            (2.0, 0.577, 2.0)
        """
        mean = fmean(gains)
        if len(gains) < 2:
            return cls(mean, math.inf, 1.0)
        parts = [(variance(gains) / len(gains), len(gains) - 1.0)]
        if draws is not None:
            parts.append((float(draws.mean(axis=0).var(ddof=1)), draws.shape[1] - 1.0))
        total = sum(part for part, _ in parts)
        if total == 0:
            return cls(mean, 0.0, math.inf)
        return cls(mean, math.sqrt(total), total**2 / sum(part**2 / degrees for part, degrees in parts))

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """Return the interval of the gain that further runs on further samples would have.

        Example:
            >>> [round(end, 3) for end in Gain.of([1.0, 2.0, 3.0]).interval()]
            [-0.484, 4.484]
        """
        if self.error in (0.0, math.inf):
            return self.mean - self.error, self.mean + self.error
        half = self.error * float(scipy.special.stdtrit(self.degrees, (1 + check_level(level)) / 2))
        return self.mean - half, self.mean + half

    def p_above(self, threshold: float) -> float:
        """Return the p-value of the hypothesis that the gain is at most the threshold.

        Example:
            >>> gain = Gain.of([1.0, 2.0, 3.0])
            >>> round(gain.p_above(0.0), 3), round(gain.p_below(0.0), 3)
            (0.037, 0.963)
        """
        return self._tail(threshold - self.mean)

    def p_below(self, threshold: float) -> float:
        """Return the p-value of the hypothesis that the gain is at least the threshold."""
        return self._tail(self.mean - threshold)

    def _tail(self, distance: float) -> float:
        """Return how likely the mean is at least this far beyond where it is, in the other direction."""
        if self.error == 0:
            return 0.0 if distance < 0 else 1.0
        if math.isinf(self.error):
            return 1.0
        return float(scipy.special.stdtr(self.degrees, distance / self.error))
