"""How many validation samples a post-hoc method needs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from calibrant.data.predictions import Predictions
from calibrant.errors import CalibrantError, InputError
from calibrant.evaluation.calibrated import calibrated, fit_named, is_of_pairs
from calibrant.evaluation.evaluate import evaluate
from calibrant.inference.units import Units
from calibrant.inputs import Floats, Progress, check_count, check_seed
from calibrant.posthoc.names import canonical_name, resolve_for_pairs
from calibrant.results import FrozenDict, Result


@dataclass(frozen=True, eq=False)
class SizeCurve:
    """A measure on the test set as a function of the number of samples for fitting.

    Attributes:
        size: Numbers of samples.
        mean: Mean of the measure over the random subsets of each size; NaN where none could be fitted.
        low: Lowest value over the subsets.
        high: Highest value over the subsets.
    """

    size: Tensor
    mean: Tensor
    low: Tensor
    high: Tensor


@dataclass(frozen=True, eq=False)
class ValidationSizes(Result):
    """A measure of several methods by number of validation samples, and of the uncalibrated model.

    Attributes:
        curves: One curve per method.
        measure: Name of the measure.
        uncalibrated: The measure of the uncalibrated model.
        n_repeats: Number of random subsets of each size.
    """

    curves: Mapping[str, SizeCurve]
    measure: str
    uncalibrated: float
    n_repeats: int


def by_validation_size(
    validation: Predictions,
    test: Predictions,
    *,
    methods: Sequence[str] = ("temperature", "smart"),
    sizes: Sequence[int] | None = None,
    n_repeats: int = 5,
    measure: str = "ece",
    n_bins: int = 15,
    seed: int = 0,
    progress: Progress | None = None,
) -> ValidationSizes:
    """Fit methods on random subsets of the validation set of growing size; measure them on the test set.

    All methods use the same subsets, which are made of whole units, but for the last one of each. A subset on
    which a method cannot be fitted is left out of its mean.

    Args:
        validation: Logits or probabilities with labels, held out from training, or confidences with hits.
        test: Other samples with the same classes, or other confidences with hits.
        methods: Names from :data:`calibrant.posthoc.names.METHODS`; ``"smart(settled=0)"`` sets an option.
        sizes: Numbers of samples; by default six, evenly spaced on a log scale from 100 (or a tenth) to all.
        n_repeats: Number of random subsets of each size.
        measure: Name from :data:`calibrant.metrics.names.MEASURES`.
        n_bins: Number of bins of a binned measure.
        seed: Equal seeds give equal subsets and fits.
        progress: Called with the name of the current method, the number done, and the total.
    """
    names = list(dict.fromkeys(canonical_name(name) for name in methods))
    validation = validation.counted()
    if is_of_pairs(validation.k):
        resolve_for_pairs(names)
    steps = _sizes(validation.n, sizes)
    rng = np.random.default_rng(check_seed(seed))
    drawn = Units.of(validation.units, validation.n)
    orders = [drawn.rows_of(rng.permutation(drawn.n)) for _ in range(check_count(n_repeats, "n_repeats"))]
    before = evaluate(test, measures=[measure], n_bins=n_bins).metrics[measure]
    curves = {}
    for done, name in enumerate(names):
        if progress is not None:
            progress(name, done, len(names))
        values = [
            [_measured(name, validation.take(order[:size]), test, measure, n_bins, seed) for order in orders]
            for size in steps
        ]
        curves[name] = _summary(steps, np.array(values))
    return ValidationSizes(FrozenDict(curves), measure, before, n_repeats)


def _measured(name: str, part: Predictions, test: Predictions, measure: str, n_bins: int, seed: int) -> float:
    try:
        calibrator = fit_named(name, part, seed=seed)
    except CalibrantError:
        return float("nan")
    return evaluate(calibrated(calibrator, test), measures=[measure], n_bins=n_bins).metrics[measure]


def _sizes(n: int, sizes: Sequence[int] | None) -> list[int]:
    if sizes is None:
        steps = np.geomspace(min(100, max(n // 10, 1)), n, 6).round()
        return sorted({int(step) for step in steps})
    wrong = [size for size in sizes if not 1 <= size <= n]
    if wrong or not len(sizes):
        raise InputError(
            f"sizes: expected numbers from 1 to the {n} samples of validation, got {wrong or 'none'}"
        )
    return sorted(set(sizes))


def _summary(sizes: list[int], values: Floats) -> SizeCurve:
    known = np.isfinite(values)
    count = known.sum(axis=1)
    mean = np.where(count > 0, np.where(known, values, 0).sum(axis=1) / np.maximum(count, 1), np.nan)
    low = np.where(known, values, np.inf).min(axis=1)
    high = np.where(known, values, -np.inf).max(axis=1)
    low, high = (np.where(count > 0, end, np.nan) for end in (low, high))
    return SizeCurve(torch.tensor(sizes), *(torch.from_numpy(each) for each in (mean, low, high)))
