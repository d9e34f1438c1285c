"""Bootstrap of measures that are means over samples: compute the terms once, and draw them again."""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch

from calibrant.inputs import Floats
from calibrant.metrics.measure import Measure
from calibrant.metrics.resampling.bootstrap import Resampler
from calibrant.metrics.resampling.counts import CountResampler
from calibrant.metrics.resampling.rows import Rows
from calibrant.metrics.resampling.weighted import by_row, mean_weights
from calibrant.outcomes import effective

# Up to this many terms are drawn one by one.
_EXACT = 1 << 15
_CELLS = 1024
_BLOCK = 1 << 20


@dataclass(frozen=True, eq=False)
class TermResampler(Resampler):
    """Resamples of a mean of one term per sample.

    Up to 32,768 terms are drawn one by one. More terms are first sorted into 1,024 cells of equal width. The
    number of terms in each cell of a resample is multinomial and drawn exactly; their sum is drawn from the
    normal distribution with the mean and the variance of the cell. So the variance of the mean is exact;
    only the skewness *within* a narrow cell is lost. For terms with at most two values, such as hits,
    nothing is lost.
    """

    terms: Floats

    @property
    def value(self) -> float:
        """Mean of the terms."""
        return float(self.terms.mean())

    @property
    def is_mean(self) -> bool:
        """Always."""
        return True

    @property
    def at_once(self) -> int:
        """Number of resamples whose terms or counts fill a block of memory."""
        n = len(self.terms)
        return max(1, _BLOCK // (n if n <= _EXACT else _CELLS))

    def draw(self, n_resamples: int, rng: np.random.Generator) -> Floats:
        """Return the mean of each resample."""
        n = len(self.terms)
        if n <= _EXACT:
            means: Floats = self.terms.take(rng.integers(n, size=(n_resamples, n))).mean(axis=1)
            return means
        count, mean, variance = self._cells
        counts = rng.multinomial(n, count / n, size=n_resamples)
        # Given the counts, the sums of the cells are independent and normal, so their total is normal.
        noise = np.sqrt(counts @ variance) * rng.standard_normal(n_resamples)
        return np.asarray((counts @ mean + noise) / n)

    def jackknife(self, rng: np.random.Generator) -> tuple[Floats, Floats]:  # noqa: ARG002  # the same for all bootstraps
        """Return the mean without each of the terms; all values have weight one."""
        values = (self.terms.sum() - self.terms) / (len(self.terms) - 1)
        return values, np.ones_like(values)

    @cached_property
    def _cells(self) -> tuple[Floats, Floats, Floats]:
        """Count, mean and variance of the terms in each non-empty cell of equal width."""
        low, high = float(self.terms.min()), float(self.terms.max())
        scale = (_CELLS - 1) / (high - low) if high > low else 0.0
        count, total, squares = np.zeros((3, _CELLS))
        for start in range(0, len(self.terms), _BLOCK):
            block = self.terms[start : start + _BLOCK] - low
            place = (block * scale).astype(np.intp)
            count += np.bincount(place, minlength=_CELLS)
            total += np.bincount(place, weights=block, minlength=_CELLS)
            squares += np.bincount(place, weights=block * block, minlength=_CELLS)
        used = count > 0
        count, mean, square = count[used], total[used] / count[used], squares[used] / count[used]
        return count, mean + low, (square - mean * mean).clip(min=0.0)


def term_resampler(
    measure: Measure | None,
    rows: Rows,
    options: Mapping[str, Any],
    minus: Rows | None = None,
    *,
    per_row: int = 1,
) -> Resampler | None:
    """Return resamples of a mean over samples, or of its difference to other rows; None if it is no mean."""
    terms = terms_of(measure, {**rows, **options})
    if terms is None:
        return None
    if minus is not None:
        others = terms_of(measure, {**minus, **options})
        assert others is not None
        terms = terms - others
    if "weights" not in rows:
        return TermResampler(terms.reshape(-1, per_row).mean(axis=1) if per_row > 1 else terms)
    weighted = mean_weights(terms, effective(torch.as_tensor(rows["weights"])))
    return CountResampler(weighted.value, by_row(weighted, per_row))


def terms_of(measure: Measure | None, arguments: Mapping[str, Any]) -> Floats | None:
    """Return the terms whose mean is the measure; None if its catalogue entry has no terms."""
    if measure is None or measure.terms is None:
        return None
    # Wrong arguments raise the same error as in the measure itself.
    inspect.signature(measure.function).bind(**arguments)
    arguments = {name: value for name, value in arguments.items() if name != "weights"}
    values: Floats = measure.terms(**arguments).double().cpu().numpy()
    return values
