"""What a perfectly calibrated model would show by chance, beside what a model shows."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from calibrant.bins import Bins, equal_width_index
from calibrant.errors import InputError
from calibrant.inputs import ArrayLike, Floats, check_count
from calibrant.metrics.classwise import class_bins
from calibrant.metrics.measure import Measure
from calibrant.metrics.names import measure_of
from calibrant.metrics.resampling.bins import BinResampler
from calibrant.metrics.resampling.bootstrap import check_finite
from calibrant.metrics.resampling.calibrated import redrawn
from calibrant.metrics.resampling.counts import bin_options, weighted_of
from calibrant.metrics.resampling.rows import Rows, as_rows, call, generator, n_numbers
from calibrant.outcomes import check_outcomes
from calibrant.threads import few_threads

# A 95th percentile of fewer draws would be their largest value.
_FEWEST = 40
# Draws are measured together in blocks of about this many numbers.
_BLOCK = 1 << 19
# Values that differ by less than this share are the same: two ways of adding up differ in the last digits.
_SAME = 1e-9


@dataclass(frozen=True)
class Chance:
    """What a perfectly calibrated model with the same predictions would show by chance.

    Attributes:
        mean: Mean of the measure over samples of the same size from such a model.
        high: Its 95th percentile: a calibrated model shows more than this in one of twenty samples.
        p_value: Probability that a calibrated model shows at least as much as this one, as in
            :func:`~calibrant.metrics.calibration_test`.
        n_draws: Number of samples that were drawn.
    """

    mean: float
    high: float
    p_value: float
    n_draws: int


def by_chance(
    metric: Callable[..., Any],
    probs: ArrayLike | None = None,
    labels: ArrayLike | None = None,
    *,
    confidence: ArrayLike | None = None,
    correct: ArrayLike | None = None,
    weights: ArrayLike | None = None,
    n_draws: int = 400,
    seed: int = 0,
    max_work: int | None = None,
    **options: Any,  # noqa: ANN401  # the measure's own options
) -> Chance | None:
    """Return what a perfectly calibrated model with the same predictions would show by chance.

    The predictions are fixed. Hits are drawn with the confidences as their probabilities, or labels with the
    class probabilities, again and again, and measured each time. With few samples or many bins, a calibrated
    model can show a large error; an error below ``high`` is no evidence against calibration.

    The distribution is that of :func:`~calibrant.metrics.calibration_test` with the measure as its statistic.
    For errors of bins of the confidence, the hits of a fine bin are drawn at once, as there. Weights are
    fixed like the predictions.

    Args:
        metric: A calibration error of this library, or a function with the same arguments that returns a
            number which grows with miscalibration.
        probs: Class probabilities of shape ``(n, k)``, with ``labels``.
        labels: Integer classes of shape ``(n,)``.
        confidence: Instead of ``probs``: confidences of shape ``(n,)``, with ``correct``.
        correct: Whether each prediction was right, shape ``(n,)``.
        weights: How much each sample counts, shape ``(n,)``.
        n_draws: Number of samples to draw.
        seed: Equal seeds give equal results.
        max_work: Limit on the numbers that are computed, about 5 ns each. Fewer samples are drawn if it
            demands so; if it does not allow 40, the result is None.
        **options: Passed to the measure.

    Example:
        >>> from calibrant.metrics import expected_calibration_error
        >>> hits = [True] * 80 + [False] * 20
        >>> found = by_chance(expected_calibration_error, confidence=[0.85] * 100, correct=hits)
        >>> round(found.mean, 2), round(found.high, 2), found.p_value > 0.1
        (0.03, 0.07, True)

    References:
        Bröcker and Smith, "Increasing the reliability of reliability diagrams", Weather and Forecasting 2007.
        Vaicenavicius et al., "Evaluating model calibration in classification", AISTATS 2019.
    """
    n_draws = check_count(n_draws, "n_draws", at_least=_FEWEST)
    rows = as_rows(probs=probs, labels=labels, confidence=confidence, correct=correct, weights=weights)
    measure, rng = measure_of(metric), generator(seed)
    if measure is not None and not measure.noise_floor:
        raise InputError(
            f"metric: expected a calibration error, got {metric.__name__}, which a calibrated model "
            "need not have at 0"
        )
    with few_threads(n_numbers(rows)):
        value = check_finite(call(metric, rows, options))
        draws = _draws(metric, measure, rows, options)
        if max_work is not None:
            n_draws = min(n_draws, max_work // max(1, draws.work))
        if n_draws < _FEWEST:
            return None
        at_once = max(1, _BLOCK // max(1, draws.held))
        blocks = [min(at_once, n_draws - start) for start in range(0, n_draws, at_once)]
        drawn = np.concatenate([draws.draw(block, rng) for block in blocks])
    defined = drawn[np.isfinite(drawn)]
    if 2 * len(defined) <= n_draws:
        return None
    # Counted this way, an undefined draw is extreme.
    at_least = n_draws - np.count_nonzero(drawn < value - _SAME * abs(value))
    return Chance(
        float(defined.mean()),
        float(np.quantile(defined, 0.95)),
        float((1 + at_least) / (1 + n_draws)),
        len(defined),
    )


@dataclass(frozen=True, eq=False)
class _Draws:
    """How a measure is drawn as if the predictions were calibrated.

    Attributes:
        draw: Takes a number of draws and a random generator, and returns the measure of each.
        work: Numbers computed for each draw.
        held: Numbers in memory for each draw.
    """

    draw: Callable[[int, np.random.Generator], Floats]
    work: int
    held: int


def _draws(
    metric: Callable[..., Any], measure: Measure | None, rows: Rows, options: Mapping[str, Any]
) -> _Draws:
    """Return the fastest way to draw a measure of these rows."""
    if measure is not None and measure.reads == "outcomes":
        outcomes = check_outcomes(**rows)
        bins = bin_options(measure, options)
        if measure.of_bins is not None and bins is not None and "weights" not in rows:
            binned = BinResampler.from_outcomes(outcomes, measure.of_bins, **bins)
            cells = len(binned.fine.count)
            return _Draws(binned.draw_calibrated, cells, cells)
        pairs = {"confidence": outcomes.confidence, "correct": outcomes.correct}
        rows = pairs if outcomes.weights is None else {**pairs, "weights": outcomes.weights}
        counted = _of_both_outcomes(measure, rows, options)
        if counted is not None:
            return counted
    by_class = _is_by_class(measure, rows, options)
    if measure is not None and measure.of_class_bins is not None and by_class:
        return _of_class_bins(measure, rows, options)
    redraw = redrawn(rows)

    def draw(n_draws: int, rng: np.random.Generator) -> Floats:
        return np.array([call(metric, redraw(rng), options) for _ in range(n_draws)])

    quadratic = measure is not None and measure.max_samples is not None
    n = len(next(iter(rows.values())))
    # Sorting and searching take a few passes.
    return _Draws(draw, n * n if quadratic else 4 * n_numbers(rows), n)


def _of_both_outcomes(measure: Measure, rows: Rows, options: Mapping[str, Any]) -> _Draws | None:
    """Return draws that count each sample once: as a hit or as a miss, both of which are sorted only once."""
    n = len(rows["confidence"])
    both = {name: torch.as_tensor(values).repeat(2) for name, values in rows.items()}
    both["correct"] = torch.arange(2 * n, device=both["confidence"].device) < n
    weighted = weighted_of(measure, both, options)
    if weighted is None:
        return None
    probability = torch.as_tensor(rows["confidence"]).cpu().double().numpy()

    def draw(n_draws: int, rng: np.random.Generator) -> Floats:
        hits = (rng.random((n_draws, n)) < probability).astype(np.int64)
        return weighted.of(np.concatenate([hits, 1 - hits], axis=1))

    held = max(2 * n, weighted.held)
    return _Draws(draw, max(held, weighted.work), held)


def _is_by_class(measure: Measure | None, rows: Rows, options: Mapping[str, Any]) -> bool:
    """Return whether a measure reads unweighted bins of equal width of each class."""
    known = options.get("binning", "width") == "width" and options.keys() <= {"n_bins", "binning"}
    return measure is not None and "probs" in rows and "weights" not in rows and known


def _of_class_bins(measure: Measure, rows: Rows, options: Mapping[str, Any]) -> _Draws:
    """Return draws of labels, of which only those in the bin of their class count."""
    probs, n_bins = torch.as_tensor(rows["probs"]), int(options.get("n_bins", 15))
    p, of_class_bins = probs.cpu(), measure.of_class_bins
    assert of_class_bins is not None
    fixed = class_bins(p, rows["labels"], n_bins=n_bins)
    n, k = p.shape
    redraw = redrawn({"probs": p, "labels": rows["labels"]})

    def draw(n_draws: int, rng: np.random.Generator) -> Floats:
        values = np.empty(n_draws)
        for each in range(n_draws):
            labels = torch.as_tensor(redraw(rng)["labels"])
            place = equal_width_index(p.gather(1, labels[:, None]).squeeze(1).numpy(), n_bins)
            hits = np.bincount(labels.numpy() * n_bins + place, minlength=k * n_bins).reshape(k, n_bins)
            drawn = Bins(fixed.edges, fixed.count, fixed.confidence_sum, torch.from_numpy(hits))
            values[each] = float(of_class_bins(drawn))
        return values

    # A label is searched among the classes by bisection.
    return _Draws(draw, n * (6 + 2 * math.ceil(math.log2(k))), n)
