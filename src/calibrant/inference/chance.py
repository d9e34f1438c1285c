"""What a perfectly calibrated model would show by chance, beside what a model shows."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from calibrant.bins import Binning, Bins, equal_width_index
from calibrant.errors import InputError
from calibrant.inference.draws import POINTS, BinResampler, OfBins, bin_options, merged, weighted_of
from calibrant.inference.rows import RowArrays, apply_to, as_rows, check_finite, generator, n_numbers, n_rows
from calibrant.inference.units import Units
from calibrant.inputs import ArrayLike, Floats, check_confidence, check_count, check_probs
from calibrant.metrics.classwise import adaptive_calibration_error, class_bins
from calibrant.metrics.decomposition import ClassRanks, brier_calibration
from calibrant.metrics.measure import Measure
from calibrant.metrics.names import measure_of
from calibrant.outcomes import Outcomes, check_outcomes
from calibrant.threads import few_threads

# A 95th percentile of fewer draws would be their largest value.
_FEWEST = 40
# Draws are measured together in blocks of about this many numbers.
_BLOCK = 1 << 19
# The share of a draw in sorting the columns of all classes once.
_SORTED = 10
# Values that differ by less than this share are the same: two ways of adding up differ in the last digits.
_SAME = 1e-9
# Bins of confidence in which the hits of a unit are compared.
_BINS = 15
# After this many draws from a calibrated model, a value that is this many of their ranges above them is not
# compared with more of them.
_FIRST, _FAR = 5, 8.0


@dataclass(frozen=True)
class Chance:
    """What a perfectly calibrated model with the same predictions would show by chance.

    Attributes:
        mean: Mean of the measure over samples of the same size from such a model.
        high: Its 95th percentile: a calibrated model shows more than this in one of twenty samples.
        p_value: Probability that a calibrated model shows at least as much as this one, as in
            :func:`~calibrant.inference.calibration_test`.
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
    units: ArrayLike | None = None,
    n_draws: int = 400,
    seed: int = 0,
    max_work: int | None = None,
    **options: Any,  # noqa: ANN401  # the measure's own options
) -> Chance | None:
    """Return what a perfectly calibrated model with the same predictions would show by chance.

    The predictions are fixed. Hits are drawn with the confidences as their probabilities, or labels with the
    class probabilities, again and again, and measured each time. With few samples or many bins, a calibrated
    model can show a large error; an error below ``high`` is no evidence against calibration.

    The distribution is that of :func:`calibration_test` with the measure as its statistic.
    For errors of bins of the confidence, the hits of a fine bin are drawn at once, as there. Weights are
    fixed like the predictions. Hits of samples that depend on each other are drawn with the dependence that
    they have, see :class:`Dependence`.

    Args:
        metric: A calibration error of this library, or a function with the same arguments that returns a
            number which grows with miscalibration.
        probs: Class probabilities of shape ``(n, k)``, with ``labels``.
        labels: Integer classes of shape ``(n,)``.
        confidence: Instead of ``probs``: confidences of shape ``(n,)``, with ``correct``.
        correct: Whether each prediction was right, shape ``(n,)``.
        weights: How much each sample counts, shape ``(n,)``.
        units: An integer for each sample, shape ``(n,)``; samples with equal ones depend on each other.
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
    drawn_units = Units.of(units, n_rows(rows))
    if max_work is not None and not drawn_units.are_rows and max_work < _FEWEST * n_rows(rows):
        return None  # before their dependence is measured
    with few_threads(n_numbers(rows)):
        draws = _draws(metric, measure, rows, options, drawn_units)
        if max_work is not None:
            n_draws = min(n_draws, max_work // max(1, draws.work))
        if n_draws < _FEWEST:
            return None
        value = check_finite(apply_to(metric, rows, options))
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
    metric: Callable[..., Any],
    measure: Measure | None,
    rows: RowArrays,
    options: Mapping[str, Any],
    units: Units,
) -> _Draws:
    """Return the fastest way to draw a measure of these rows."""
    if measure is not None and measure.reads == "outcomes":
        outcomes = check_outcomes(**rows)
        bins = bin_options(measure, options) if units.are_rows else None
        if measure.of_bins is not None and bins is not None and "weights" not in rows:
            binned = BinResampler.from_outcomes(outcomes, measure.of_bins, **bins)
            cells = len(binned.fine.count)
            return _Draws(binned.draw_calibrated, cells, cells)
        pairs = {"confidence": outcomes.confidence, "correct": outcomes.correct}
        rows = {**pairs, **{name: rows[name] for name in ("weights",) if name in rows}}
        counted = _of_both_outcomes(measure, rows, options, units)
        if counted is not None:
            return counted
    by_class = _by_class(measure, rows, options)
    if by_class is not None:
        return _of_class_bins(*by_class, rows, int(options.get("n_bins", 15)), units)
    if metric is brier_calibration and "weights" not in rows:
        return _of_class_ranks(rows, units)
    redraw = redrawn(rows, units)

    def draw(n_draws: int, rng: np.random.Generator) -> Floats:
        return np.array([apply_to(metric, redraw(rng), options) for _ in range(n_draws)])

    quadratic = measure is not None and measure.max_samples is not None
    n = n_rows(rows)
    # Sorting and searching take a few passes.
    return _Draws(draw, n * n if quadratic else 4 * n_numbers(rows), n)


def _of_both_outcomes(
    measure: Measure, rows: RowArrays, options: Mapping[str, Any], units: Units
) -> _Draws | None:
    """Return draws that count each sample once: as a hit or as a miss; both are sorted only once."""
    n, kinds, fixed = len(rows["confidence"]), None, rows
    if "weights" not in rows and "score" not in options:
        confidence = torch.as_tensor(rows["confidence"])
        outcomes = Outcomes(confidence, torch.zeros(n, dtype=torch.bool, device=confidence.device))
        outcomes, kinds = merged(outcomes, cells=POINTS if measure.smooth else None)
        fixed = {"confidence": outcomes.confidence, "correct": outcomes.correct}
    both = {name: torch.as_tensor(values).repeat(2) for name, values in fixed.items()}
    half = len(both["confidence"]) // 2
    both["correct"] = torch.arange(2 * half, device=both["confidence"].device) < half
    weighted = weighted_of(measure, both, options)
    if weighted is None:
        return None
    probability = torch.as_tensor(rows["confidence"]).cpu().double().numpy()
    uniform = uniform_numbers(rows, units)
    size = np.ones(n, dtype=np.int64) if kinds is None else kinds.sum(axis=1)

    def draw(n_draws: int, rng: np.random.Generator) -> Floats:
        hits = np.stack([uniform(rng) < probability for _ in range(n_draws)]).astype(np.int64)
        hits = hits if kinds is None else (kinds @ hits.T).T
        return weighted.of(np.concatenate([hits, size - hits], axis=1))

    held = max(2 * n, weighted.held)
    return _Draws(draw, max(held, weighted.work), held)


def _by_class(
    measure: Measure | None, rows: RowArrays, options: Mapping[str, Any]
) -> tuple[OfBins, Binning] | None:
    """Return a measure as a function of the unweighted bins of each class, and their kind; else None."""
    if measure is None or "probs" not in rows or "weights" in rows:
        return None
    if measure.function is adaptive_calibration_error and options.keys() <= {"n_bins"}:
        return lambda bins: bins.average_gap().mean(), "mass"
    if measure.of_class_bins is None or not options.keys() <= {"n_bins", "binning"}:
        return None
    return measure.of_class_bins, options.get("binning", "width")


def _of_class_bins(
    of_class_bins: OfBins, binning: Binning, rows: RowArrays, n_bins: int, units: Units
) -> _Draws:
    """Return draws of labels; only those in the bin of their class count."""
    p = torch.as_tensor(rows["probs"]).cpu()
    fixed = class_bins(p, rows["labels"], n_bins=n_bins, binning=binning)
    n, k = p.shape
    redraw = redrawn({"probs": p, "labels": rows["labels"]}, units)
    upper = fixed.edges[..., 1:].contiguous()

    def draw(n_draws: int, rng: np.random.Generator) -> Floats:
        values = np.empty(n_draws)
        for each in range(n_draws):
            labels = torch.as_tensor(redraw(rng)["labels"])
            own = p.gather(1, labels[:, None]).squeeze(1)
            if binning == "width":
                place = equal_width_index(own.numpy(), n_bins)
            else:
                place = torch.searchsorted(upper[labels], own.double().clamp(0, 1)[:, None])[:, 0].numpy()
            hits = np.bincount(labels.numpy() * n_bins + place, minlength=k * n_bins).reshape(k, n_bins)
            drawn = Bins(fixed.edges, fixed.count, fixed.confidence_sum, torch.from_numpy(hits))
            values[each] = float(of_class_bins(drawn))
        return values

    # A label is searched among the classes by bisection.
    sorting = 0 if binning == "width" else n * k // _SORTED
    return _Draws(draw, n * (6 + 2 * math.ceil(math.log2(k))) + sorting, n)


def _of_class_ranks(rows: RowArrays, units: Units) -> _Draws:
    """Return draws of labels, for the Brier score above that of isotonic regression by class."""
    p = check_probs(rows["probs"]).cpu()
    n, k = p.shape
    redraw, ranks = (
        redrawn({"probs": p, "labels": rows["labels"]}, units),
        ClassRanks.from_probs(p.clamp(0, 1)),
    )

    def draw(n_draws: int, rng: np.random.Generator) -> Floats:
        drawn = (torch.as_tensor(redraw(rng)["labels"]).numpy() for _ in range(n_draws))
        return np.array([ranks.brier_calibration(labels) for labels in drawn])

    return _Draws(draw, n * (30 + 2 * math.ceil(math.log2(k))) + n * k // _SORTED, n)


def redrawn(rows: RowArrays, units: Units) -> Callable[[np.random.Generator], RowArrays]:
    """Return a function that draws hits or labels as if the predictions, which are fixed, were calibrated.

    A hit occurs if a uniform number is below the confidence. Those of rows that depend on each other have the
    :class:`Dependence` of the observed hits. Class labels are drawn likewise, from the most probable class
    on.
    """
    (given, predictions), (drawn, _), *_ = rows.items()
    uniform = uniform_numbers(rows, units)

    def same_kind(values: Tensor) -> RowArrays:
        return {**rows, drawn: values if isinstance(predictions, Tensor) else values.numpy()}

    if given == "confidence":
        c = check_confidence(predictions)
        return lambda rng: same_kind(torch.from_numpy(uniform(rng)).to(c.device) < c)
    probs, order = check_probs(predictions), None
    if not units.are_rows:
        probs, order = probs.sort(dim=1, descending=True)
    cumulative = probs.cumsum(dim=1)
    total = cumulative[:, -1:]

    def labels(rng: np.random.Generator) -> RowArrays:
        reached = torch.from_numpy(uniform(rng)[:, None]).to(total) * total
        classes = torch.searchsorted(cumulative, reached, right=True).clamp_(max=cumulative.shape[1] - 1)
        return same_kind((classes if order is None else order.gather(1, classes)).squeeze(1))

    return labels


def uniform_numbers(rows: RowArrays, units: Units) -> Callable[[np.random.Generator], Floats]:
    """Return what draws a uniform number for each row, shared within a unit as often as hits demand."""
    n = n_rows(rows)
    if units.are_rows:
        return lambda rng: rng.random(n)
    outcomes = check_outcomes(**{name: values for name, values in rows.items() if name != "weights"})
    return Dependence.of(outcomes, units).uniform


@dataclass(frozen=True, eq=False)
class Dependence:
    r"""How much the hits of a unit depend on each other, and how sure the units are of it.

    Of the uniform numbers that decide on hits, a row takes that of its unit with probability
    :math:`\sqrt\rho`, else one of its own. So every hit keeps its probability. With errors :math:`e = a - p`
    of hits :math:`a` and confidences :math:`p`, a calibrated model has, over pairs of rows of a unit,

    .. math:: \sum_{i \ne j} \mathrm E\, e_i e_j = \rho \sum_{i \ne j} (\min(p_i, p_j) - p_i p_j)

    This gives :math:`\rho`; pairs in the same bin of confidence give another one, and the larger one is used.
    Few units, very unequal ones, and rare misses leave it open: each draw has its own :math:`\rho`, for
    which the sum of squares of the units is multiplied by :math:`f / \chi^2_f`, as in a t-distribution.

    Rows below one half may be turned, as if their opposite had been predicted: the forecasts of two
    candidates in one race depend on each other that way. They are if errors are then more alike.

    Attributes:
        units: The units.
        cells: For units, and for rows of a unit in the same bin: the sum of squares of their summed errors,
            and the largest sum of products, that of hits which all take the number of their unit.
        squares: Sum of squares of the errors.
        degrees: Degrees of freedom of the sums of squares of units.
        turned: Whether each row is turned; None if none is.
    """

    units: Units
    cells: tuple[tuple[float, float], ...]
    squares: float
    degrees: float
    turned: npt.NDArray[np.bool_] | None = None

    @classmethod
    def of(cls, outcomes: Outcomes, units: Units) -> "Dependence":
        """Return the dependence of outcomes."""
        p = outcomes.confidence.double().cpu().numpy()
        error = outcomes.correct.cpu().numpy() - p
        squares, turned = float(error @ error), p < 0.5
        of_units, of_bins = _sums_of_pairs(p, error, units)
        if turned.any():
            others = _sums_of_pairs(np.where(turned, 1 - p, p), np.where(turned, -error, error), units)
            if _share(others[0], squares) > _share(of_units, squares):
                return cls._of_sums(p, others, squares, units, turned)
        return cls._of_sums(p, (of_units, of_bins), squares, units, None)

    @classmethod
    def _of_sums(
        cls,
        p: Floats,
        cells: tuple[tuple[float, float], ...],
        squares: float,
        units: Units,
        turned: npt.NDArray[np.bool_] | None,
    ) -> "Dependence":
        sizes, variance = units.sizes.astype(np.float64), float((p * (1 - p)).mean())
        variances = sizes * (1 + (sizes - 1) * _share(cells[0], squares))
        # The variance of a square over the square of its mean: 2 for a normal error, more for rare misses.
        unsure = max(2.0, (1 - 4 * variance) / variance) if variance > 0 else 2.0
        degrees = 2 / unsure * float(variances.sum()) ** 2 / float(variances @ variances)
        return cls(units, cells, squares, degrees, turned)

    def uniform(self, rng: np.random.Generator) -> Floats:
        """Return a uniform number for each row."""
        factor = self.degrees / max(float(rng.chisquare(self.degrees)), 1e-300)
        rho = max(_share((factor * sums, most), self.squares) for sums, most in self.cells)
        n = len(self.units.code)
        drawn = rng.random(n)
        common = rng.random(self.units.n)[self.units.code]
        np.copyto(drawn, common, where=rng.random(n) < math.sqrt(rho))
        return drawn if self.turned is None else np.where(self.turned, 1 - drawn, drawn)


def _share(cell: tuple[float, float], squares: float) -> float:
    """Return the correlation that sums of squares and of products imply, from 0 to 1."""
    sums, most = cell
    return min(max((sums - squares) / most, 0.0), 1.0) if most > 1e-12 * squares else 0.0


def _sums_of_pairs(p: Floats, error: Floats, units: Units) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return the sum of squared sums and the largest sum of products, of units and of their bins."""
    order = np.lexsort((p, units.code))
    code, p, error = units.code[order], p[order], error[order]
    new = np.diff(code, prepend=-1) != 0
    others = new | (np.diff(equal_width_index(p, _BINS), prepend=-1) != 0)
    of_units, of_bins = (_sums_of_cells(p, error, np.flatnonzero(each)) for each in (new, others))
    return of_units, of_bins


def _sums_of_cells(p: Floats, error: Floats, starts: npt.NDArray[np.intp]) -> tuple[float, float]:
    sizes = np.diff(starts, append=len(p))
    after = np.repeat(starts + sizes, sizes) - np.arange(1, len(p) + 1)  # larger ones in the same cell
    products = float(np.square(np.add.reduceat(p, starts)).sum()) - float(p @ p)
    sums = float(np.square(np.add.reduceat(error, starts)).sum())
    return sums, 2 * float(p @ after) - products


def if_calibrated(
    metric: Callable[..., Any],
    rows: RowArrays,
    options: Mapping[str, Any],
    units: Units,
    rng: np.random.Generator,
) -> Callable[[], float] | None:
    """Return what draws a measure as if the predictions were calibrated; None if it has no noise floor."""
    measure = measure_of(metric)
    if measure is None or not measure.noise_floor:
        return None
    if measure.of_bins is not None and bin_options(measure, options) is None:  # another definition
        return None
    if measure.reads == "probs":
        draws = _draws(metric, measure, rows, options, units)
        return lambda: float(draws.draw(1, rng)[0])
    redraw = redrawn(rows, units)
    return lambda: apply_to(metric, redraw(rng), options)


def could_be_calibrated(value: float, draw: Callable[[], float], *, level: float) -> bool:
    """Return whether a calibrated model with the same predictions reaches a value by chance.

    For a calibrated model, the value is the largest of 40 exchangeable ones in 1 of 40 cases. So the answer
    is no for ``(1 - level) / 2`` of the calibrated models, whatever the measure and the number of samples.

    Args:
        value: The measure of the sample.
        draw: Returns the measure of outcomes that are drawn as if the predictions were calibrated.
        level: Level of the interval, which then begins at 0.
    """
    drawn: list[float] = []
    while len(drawn) < round(2 / (1 - level)) - 1:
        drawn.append(draw())
        if not drawn[-1] < value:  # also if undefined
            return True
        if len(drawn) == _FIRST and 0 < _FAR * (max(drawn) - min(drawn)) < value - max(drawn):
            return False
    return False
