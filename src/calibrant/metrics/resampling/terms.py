"""Bootstrap of measures that are means over samples: the terms are computed once and drawn again."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from calibrant.inputs import Floats, Progress
from calibrant.metrics.names import measure_of

# Up to this many terms every one of them is drawn by itself.
_EXACT = 1 << 15
_CELLS = 1024
_BLOCK = 1 << 20


@dataclass(frozen=True, eq=False)
class TermResampler:
    """Resamples of a mean of one term per sample.

    Up to 32,768 terms are drawn one by one. More are first sorted into 1,024 cells of equal width: how
    many of a resample fall into each cell is multinomial and drawn exactly; their sum is drawn from the
    normal distribution with the mean and the variance of the cell. So the variance of the mean is exact,
    and only what the shape *within* a narrow cell adds to the skewness is lost. Terms with at most two
    values, such as hits, lose nothing.
    """

    terms: Floats

    @property
    def value(self) -> float:
        """Mean of the terms."""
        return float(self.terms.mean())

    def replicates(
        self, n_resamples: int, rng: np.random.Generator, progress: Progress | None = None
    ) -> Floats:
        """Return the mean of each resample."""
        n = len(self.terms)
        draw, width = (self._drawer(rng), n) if n <= _EXACT else (self._cell_drawer(rng), _CELLS)
        step = max(1, _BLOCK // width)
        values = np.empty(n_resamples)
        for start in range(0, n_resamples, step):
            stop = min(start + step, n_resamples)
            values[start:stop] = draw(stop - start)
            if progress is not None:
                progress("resamples", stop, n_resamples)
        return values

    def jackknife(self, rng: np.random.Generator) -> tuple[Floats, Floats]:  # noqa: ARG002  # the same for all bootstraps
        """Return the mean without each of the terms, all of weight one."""
        values = (self.terms.sum() - self.terms) / (len(self.terms) - 1)
        return values, np.ones_like(values)

    def _drawer(self, rng: np.random.Generator) -> Callable[[int], Floats]:
        n = len(self.terms)

        def draw(size: int) -> Floats:
            means: Floats = self.terms.take(rng.integers(n, size=(size, n))).mean(axis=1)
            return means

        return draw

    def _cell_drawer(self, rng: np.random.Generator) -> Callable[[int], Floats]:
        n = len(self.terms)
        count, mean, variance = _cells(self.terms)

        def draw(size: int) -> Floats:
            counts = rng.multinomial(n, count / n, size=size)
            # The sums of the cells are independent and normal given the counts, so their total is normal.
            means: Floats = (counts @ mean + np.sqrt(counts @ variance) * rng.standard_normal(size)) / n
            return means

        return draw


def _cells(terms: Floats) -> tuple[Floats, Floats, Floats]:
    """Count, mean and variance of the terms in each cell of equal width that is not empty."""
    low, high = float(terms.min()), float(terms.max())
    scale = (_CELLS - 1) / (high - low) if high > low else 0.0
    count, total, squares = np.zeros((3, _CELLS))
    for start in range(0, len(terms), _BLOCK):
        block = terms[start : start + _BLOCK] - low
        place = (block * scale).astype(np.intp)
        count += np.bincount(place, minlength=_CELLS)
        total += np.bincount(place, weights=block, minlength=_CELLS)
        squares += np.bincount(place, weights=block * block, minlength=_CELLS)
    used = count > 0
    count, mean, square = count[used], total[used] / count[used], squares[used] / count[used]
    return count, mean + low, (square - mean * mean).clip(min=0.0)


def terms_of(metric: Callable[..., Any], arguments: Mapping[str, Any]) -> Floats | None:
    """Return the terms of which a measure is the mean; none if its entry has no terms."""
    measure = measure_of(metric)
    if measure is None or measure.terms is None:
        return None
    # A wrong argument is refused as the measure itself would.
    inspect.signature(metric).bind(**arguments)
    values: Floats = measure.terms(**arguments).double().cpu().numpy()
    return values
