"""Paired comparison: is one model better than another on the same samples, beyond chance?"""

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from calibrant.errors import InputError
from calibrant.inference.chance import if_calibrated
from calibrant.inference.draws import (
    RESAMPLES,
    Resampler,
    affordable,
    draw_all,
    mean_resampler,
    resampler_of,
    terms_of,
)
from calibrant.inference.intervals import corrected_ends, two_sided_p_value
from calibrant.inference.rows import (
    RowArrays,
    apply_to,
    as_rows,
    check_finite,
    check_level,
    defined,
    generator,
    n_numbers,
    n_rows,
    same_length,
)
from calibrant.inference.units import Spread, Units
from calibrant.inputs import ArrayLike, Floats, Progress, check_choice, check_count
from calibrant.metrics.names import measure_of
from calibrant.outcomes import check_outcomes
from calibrant.threads import few_threads

# Draws of each model as if it were calibrated.
_FLOOR_DRAWS = 20


@dataclass(frozen=True)
class PairedDifference:
    """Difference of a measure between two models on the same samples.

    Attributes:
        difference: ``value_a - value_b``; for a measure that is better when low, negative favours ``a``.
        low: Lower end of the interval of the difference.
        high: Upper end of the interval of the difference.
        p_value: Two-sided probability of a difference at least as large between models that do not differ.
            Below ``1 - level`` if and only if the interval does not contain 0, but for rounding.
        value_a: The measure of ``a``.
        value_b: The measure of ``b``.
        level: Share of repeated samples whose interval would cover the difference on the population.
        standard_error: Standard deviation of the difference over the resamples.
        n_resamples: Number of resamples on which both measures were defined.
        n_undefined: Number of resamples that were dropped because a measure was NaN or infinite.
    """

    difference: float
    low: float
    high: float
    p_value: float
    value_a: float
    value_b: float
    level: float
    standard_error: float
    n_resamples: int
    n_undefined: int


def paired_difference(
    metric: Callable[..., Any],
    a: ArrayLike,
    b: ArrayLike,
    labels: ArrayLike | None = None,
    *,
    correct_a: ArrayLike | None = None,
    correct_b: ArrayLike | None = None,
    reads: Literal["probs", "logits"] = "probs",
    weights: ArrayLike | None = None,
    units: ArrayLike | None = None,
    n_resamples: int = RESAMPLES,
    level: float = 0.95,
    seed: int = 0,
    max_work: int | None = None,
    progress: Progress | None = None,
    **options: Any,  # noqa: ANN401  # the measure's own options
) -> PairedDifference:
    r"""Return the difference of a measure between two models, with an interval and a p-value.

    Both models are measured on the same rows, drawn again with replacement. Samples that are hard for both
    models do not widen the interval of the difference, so it is narrower than the two separate intervals
    suggest. For means over samples (accuracy, NLL, Brier) the differences of their terms are drawn. Other
    measures of the catalogue are computed from how often a resample contains each sample. Any other function
    is called twice per resample.

    The ends of the interval are percentiles of the resampled differences, and the p-value inverts them.
    Except for means over samples, both are corrected so that a bias is not taken for a difference:

    - Percentiles are moved and extended by the step from the difference to the resampled ones, as in
      :func:`~calibrant.inference.with_interval`.
    - A model that is less sure has a larger calibration error by chance, even if both are calibrated. The
      interval is extended by the difference of what calibrated models with these predictions have on average.
    - For calibration errors and measures of ranking, a difference that is significant by then must survive a
      swap test: the predictions of the two models (or their ranks) are swapped in random rows, again and
      again. Two equally good models differ as much after a swap as before, so this test has its nominal size
      whatever the number of samples. If swapped models differ as much in more than ``1 - level`` of the
      swaps, their share is the p-value, and the interval contains 0.

    Args:
        metric: A measure of this library, or a function with the same arguments that returns a number.
        a: Class probabilities of the first model, shape ``(n, k)``; confidences of shape ``(n,)`` if
            ``correct_a`` and ``correct_b`` are given instead of ``labels``.
        b: The same of the second model.
        labels: Integer classes of shape ``(n,)``, for both models.
        correct_a: Whether each prediction of ``a`` was right, shape ``(n,)``.
        correct_b: Whether each prediction of ``b`` was right, shape ``(n,)``.
        reads: ``"logits"`` if ``a`` and ``b`` are logits, for a measure that takes them.
        weights: How much each sample counts, shape ``(n,)``. Samples are drawn with equal probability and
            keep their weights.
        units: An integer for each sample, shape ``(n,)``: samples with equal ones are drawn and swapped
            together. By default every sample is drawn alone.
        n_resamples: Number of resamples.
        level: Share of repeated samples whose interval should cover the true difference.
        seed: Equal seeds give equal results.
        max_work: Limit on the numbers that are computed, as for :func:`~calibrant.inference.with_interval`.
        progress: Called with ``"resamples"``, the number done, and the total.
        **options: Passed to the measure.

    Example:
        >>> from calibrant.metrics import brier_score
        >>> labels = [0, 1] * 20
        >>> sure, unsure = [[0.9, 0.1], [0.2, 0.8]] * 20, [[0.6, 0.4], [0.5, 0.5]] * 20
        >>> result = paired_difference(brier_score, sure, unsure, labels)
        >>> round(result.difference, 3), result.high < 0, result.p_value < 0.01
        (-0.36, True, True)

    References:
        Efron and Tibshirani, "An Introduction to the Bootstrap", 1993, chapters 13 and 15.
        Koehn, "Statistical significance tests for machine translation evaluation", EMNLP 2004.
    """
    rows_a, rows_b = _read(a, b, labels, correct_a, correct_b, reads, weights)
    with few_threads(n_numbers(rows_a)):
        models = {"a": Measured.of(metric, rows_a, options), "b": Measured.of(metric, rows_b, options)}
        found = differences_from(
            models,
            "b",
            units=units,
            n_resamples=n_resamples,
            level=level,
            seed=seed,
            max_work=max_work,
            progress=progress,
        )
    return found["a"]


@dataclass(frozen=True, eq=False)
class Measured:
    """A measure of one model, with what a comparison with others on the same samples needs.

    Attributes:
        metric: The measure.
        options: Its options.
        rows: What it is measured on; for measures of confidence and correctness these alone. For a mean over
            samples only the weights, if there are any.
        value: The measure.
        terms: The terms whose mean it is, if it is a mean over samples.
    """

    metric: Callable[..., Any]
    options: Mapping[str, Any]
    rows: RowArrays
    value: float
    terms: Floats | None

    @classmethod
    def of(
        cls,
        metric: Callable[..., Any],
        rows: RowArrays,
        options: Mapping[str, Any],
        *,
        value: float | None = None,
    ) -> "Measured":
        """Measure a model, unless its value is known, and keep what comparisons need."""
        same_length(rows)
        value = check_finite(apply_to(metric, rows, options) if value is None else value)
        terms = terms_of(measure_of(metric), {**rows, **options})
        if terms is not None:
            rows = {name: values for name, values in rows.items() if name == "weights"}
        return cls(metric, options, rows, value, terms)

    def __len__(self) -> int:
        return n_rows(self.rows) if self.terms is None else len(self.terms)

    def resampler(self, units: Units, minus: "Measured") -> Resampler:
        """Return resamples like those of other models; for means over samples, of the difference."""
        if self.terms is not None and minus.terms is not None:
            return mean_resampler(self.terms - minus.terms, self.rows.get("weights"), units)
        return resampler_of(self.metric, self.rows, self.options, units, value=self.value, exact=True)

    def floor(self, units: Units, seed: int) -> float:
        """Return what a calibrated model with these predictions has on average by chance; 0 if nothing."""
        if self.terms is not None:
            return 0.0
        # The same random numbers for all models: equal predictions have equal floors.
        draw = if_calibrated(self.metric, self.rows, self.options, units, generator(seed))
        return 0.0 if draw is None else float(np.mean([draw() for _ in range(_FLOOR_DRAWS)]))

    def to_swap(self) -> RowArrays | None:
        """Return the rows for the swap test; None for means, AUROC of classes, and other functions.

        Of measures of the order of the confidences, ranks are swapped: mixing two scales would spoil it.
        """
        measure = measure_of(self.metric)
        if measure is None or measure.terms is not None or "score" in self.options:
            return None
        if measure.noise_floor or measure.of_ranks is None:
            return self.rows if measure.better == "lower" else None
        outcomes = check_outcomes(**self.rows)
        values = outcomes.confidence.cpu().numpy()
        _, place, count = np.unique(values, return_inverse=True, return_counts=True)
        ranks = (count.cumsum() - (count - 1) / 2)[place] / (1 + len(outcomes))
        others = {"weights": self.rows["weights"]} if "weights" in self.rows else {}
        return {"confidence": ranks, "correct": outcomes.correct.cpu().numpy(), **others}


def differences_from(
    models: Mapping[str, Measured],
    reference: str,
    *,
    units: ArrayLike | None = None,
    n_resamples: int = RESAMPLES,
    level: float = 0.95,
    seed: int = 0,
    max_work: int | None = None,
    progress: Progress | None = None,
) -> dict[str, PairedDifference]:
    """Return the difference of a measure of each other model from one of them, as ``paired_difference`` does.

    All models are measured on the same resamples, and each of them only once.

    Args:
        models: A measure of each model, on the same samples.
        reference: The model from which the others may differ.
        units: An integer for each sample, as for :func:`paired_difference`.
        n_resamples: Number of resamples.
        level: Share of repeated samples whose interval should cover the true difference.
        seed: Equal seeds give equal results.
        max_work: Limit on the numbers that are computed for a difference.
        progress: Called with ``"resamples"``, the number done, and the total.
    """
    n_resamples, level = check_count(n_resamples, "n_resamples", at_least=2), check_level(level)
    best = models[reference]
    others = {name: each for name, each in models.items() if name != reference}
    drawn = Units.of(units, len(best))
    # Those of means over samples are resamples of differences; of others the models themselves are resampled.
    to_draw = [*others.values(), *([best] if best.terms is None else [])]
    resamplers = [each.resampler(drawn, minus=best) for each in to_draw]
    work = sum(sorted(each.work for each in resamplers)[-2:])
    rng = generator(seed)
    values = draw_all(resamplers, affordable(n_resamples, work, max_work), rng, progress)
    own = values.pop() if best.terms is None else 0.0
    floor = best.floor(drawn, seed)
    return {
        name: _judged(
            each,
            best,
            replicates - own,
            each.floor(drawn, seed) - floor,
            drawn,
            biased=not resamplers[0].is_mean,
            # Of a difference of two measures that is known which leaves more open.
            spread=min(resampler.spread, resamplers[-1].spread, key=lambda each: each.degrees)
            if best.terms is None
            else resampler.spread,
            level=level,
            rng=copy.deepcopy(rng),
        )
        for (name, each), replicates, resampler in zip(others.items(), values, resamplers, strict=False)
    }


def _judged(
    a: Measured,
    b: Measured,
    differences: Floats,
    floor: float,
    units: Units,
    *,
    biased: bool,
    spread: Spread,
    level: float,
    rng: np.random.Generator,
) -> PairedDifference:
    """Return the difference with its interval and p-value, from resampled differences."""
    found, n_resamples = a.value - b.value, len(differences)
    differences = defined(differences)
    low, high = corrected_ends(found, differences, level=level, biased=biased, floor=floor, spread=spread)
    p_value = two_sided_p_value(found, differences, biased=biased, floor=floor, spread=spread)
    ours, theirs = a.to_swap(), b.to_swap()
    if p_value <= 1 - level and ours is not None and theirs is not None:
        explained = swap_p_value(
            lambda rows: apply_to(a.metric, rows, a.options),
            ours,
            theirs,
            units,
            n_swaps=round(3 / (1 - level)) - 1,
            rng=rng,
        )
        if explained > 1 - level:
            low, high, p_value = min(low, 0.0), max(high, 0.0), explained
    return PairedDifference(
        difference=found,
        low=low,
        high=high,
        p_value=p_value,
        value_a=a.value,
        value_b=b.value,
        level=level,
        standard_error=float(differences.std(ddof=1)),
        n_resamples=len(differences),
        n_undefined=n_resamples - len(differences),
    )


def _read(
    a: ArrayLike,
    b: ArrayLike,
    labels: ArrayLike | None,
    correct_a: ArrayLike | None,
    correct_b: ArrayLike | None,
    reads: str,
    weights: ArrayLike | None,
) -> tuple[RowArrays, RowArrays]:
    check_choice(reads, "reads", ("probs", "logits"))
    if labels is not None and correct_a is None and correct_b is None:
        both = (
            as_rows(**{reads: a, "labels": labels, "weights": weights}),
            as_rows(**{reads: b, "labels": labels, "weights": weights}),
        )
    elif labels is None and correct_a is not None and correct_b is not None:
        both = (
            as_rows(confidence=a, correct=correct_a, weights=weights),
            as_rows(confidence=b, correct=correct_b, weights=weights),
        )
    else:
        given = {"labels": labels, "correct_a": correct_a, "correct_b": correct_b}
        named = [name for name, value in given.items() if value is not None]
        raise InputError(
            "arguments: expected either labels or correct_a with correct_b, "
            f"got {' with '.join(named) or 'none of them'}"
        )
    same_length({"a": next(iter(both[0].values())), "b": next(iter(both[1].values()))})
    return both


def swap_p_value(
    measure: Callable[[RowArrays], float],
    a: RowArrays,
    b: RowArrays,
    units: Units,
    *,
    n_swaps: int,
    rng: np.random.Generator,
) -> float:
    """Return the share of swaps after which two models differ at least as much as they do.

    It is exact: if the predictions of a unit could as well have been made by the other model, all
    swaps are equally likely, and so are all ranks of the difference among theirs. Models with different
    numbers of classes cannot be swapped; for them the share is the smallest one.

    Args:
        measure: The measure of rows.
        a: The rows of the first model.
        b: The rows of the second model, of the same samples.
        units: The rows that are swapped together.
        n_swaps: Number of swaps.
        rng: Which rows are swapped.
    """
    if any(values.shape != b[name].shape for name, values in a.items()):
        return 1 / (1 + n_swaps)
    found, reached = abs(measure(a) - measure(b)), 0
    for _ in range(n_swaps):
        swap = units.draw_half(rng)
        one = {name: _where(swap, b[name], values) for name, values in a.items()}
        other = {name: _where(swap, a[name], values) for name, values in b.items()}
        reached += not abs(measure(one) - measure(other)) < found  # also if undefined
    return (1 + reached) / (1 + n_swaps)


def _where(swap: np.ndarray, others: Any, values: Any) -> Any:  # noqa: ANN401  # an array of either kind
    """Return the values, with the others in the rows to swap."""
    rows = swap.reshape(-1, *(1,) * (values.ndim - 1))
    if isinstance(values, Tensor):
        there = torch.from_numpy(rows).to(values.device)
        return torch.where(there, torch.as_tensor(others, device=values.device), values)
    return np.where(rows, np.asarray(others), values)
