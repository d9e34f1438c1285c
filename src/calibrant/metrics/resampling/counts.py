"""Bootstrap from counts: measure a resample by how often it contains each sample, without copies of rows."""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from calibrant.bins import top_label_bins
from calibrant.inputs import Floats
from calibrant.metrics.measure import Measure
from calibrant.metrics.resampling.bootstrap import Resampler
from calibrant.metrics.resampling.ordered import binned_weights
from calibrant.metrics.resampling.rows import Rows, random_groups
from calibrant.metrics.resampling.weighted import Counts, Weighted
from calibrant.outcomes import check_outcomes

# Rows of counts are processed in blocks of about this many numbers, which fit into the processor's cache.
_BLOCK = 1 << 18


@dataclass(frozen=True, eq=False)
class CountResampler(Resampler):
    """Resamples of a measure that is a function of counts: exact, with the same draws as resampled rows.

    The jackknife leaves out the same groups of samples as that of resampled rows.
    """

    measured: float
    weighted: Weighted

    @property
    def value(self) -> float:
        """The measure of the sample itself."""
        return self.measured

    @property
    def at_once(self) -> int:
        """Number of resamples whose numbers fill a block of memory."""
        return max(1, _BLOCK // max(self.weighted.n, self.weighted.held))

    @property
    def work(self) -> int:
        """Numbers computed for each resample."""
        return max(self.weighted.n, self.weighted.held, self.weighted.work)

    def draw(self, n_resamples: int, rng: np.random.Generator) -> Floats:
        """Return the measure of samples drawn with replacement; NaN where it is undefined."""
        return self.weighted.of(drawn_counts(self.weighted.n, n_resamples, rng))

    def jackknife(self, rng: np.random.Generator) -> tuple[Floats, Floats]:
        """Return the measure without each group of samples; all values have weight one."""
        group, n_groups = random_groups(self.weighted.n, rng)
        values = []
        for start in range(0, n_groups, self.at_once):
            left_out = np.arange(start, min(start + self.at_once, n_groups))
            values.append(self.weighted.of((group != left_out[:, None]).astype(np.int64)))
        return np.concatenate(values), np.ones(n_groups)


def drawn_counts(n: int, n_resamples: int, rng: np.random.Generator) -> Counts:
    """Return how often each of ``n`` samples occurs in each resample, shape ``(n_resamples, n)``."""
    rows = rng.integers(n, size=(n_resamples, n))
    rows += n * np.arange(n_resamples)[:, None]
    return np.bincount(rows.ravel(), minlength=n_resamples * n).reshape(n_resamples, n)


def difference(a: Weighted, b: Weighted) -> Weighted:
    """Return the difference of a measure between two models, with the same counts for both."""
    return Weighted(
        a.n,
        lambda counts: a.values(counts) - b.values(counts),
        held=max(a.held, b.held),
        work=a.work + b.work,
        weights=a.weights,
    )


def weighted_of(measure: Measure | None, rows: Rows, options: Mapping[str, Any]) -> Weighted | None:
    """Return a measure of these rows as a function of counts; None if its entry has no such form."""
    if measure is None:
        return None
    if measure.weighted is not None:
        return measure.weighted(**rows, **options)
    bins = bin_options(measure, options)
    if measure.of_bins is None or bins is None:
        return None
    return binned_weights(check_outcomes(**rows), measure.of_bins, **bins)


def bin_options(measure: Measure, options: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the number and kind of bins; None if other options ask for a definition without bins."""
    # Measures that pass ``n_bins`` and ``binning`` on have the defaults of the bins.
    own = inspect.signature(measure.function).parameters
    parameters = {**inspect.signature(top_label_bins).parameters, **own}
    chosen = {name: options.get(name, parameters[name].default) for name in ("n_bins", "binning")}
    others = {name: value for name, value in options.items() if name not in chosen}
    if all(name in parameters and value == parameters[name].default for name, value in others.items()):
        return chosen
    return None
