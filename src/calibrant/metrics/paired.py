"""Paired comparison: is one model better than another on the same samples, beyond chance?"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from calibrant.errors import InputError
from calibrant.inputs import ArrayLike, Floats, Progress, check_choice, check_count
from calibrant.metrics.names import measure_of
from calibrant.metrics.resampling.bootstrap import Resampler, check_finite, check_level, defined
from calibrant.metrics.resampling.counts import CountResampler, difference, weighted_of
from calibrant.metrics.resampling.rows import (
    RowResampler,
    Rows,
    as_rows,
    call,
    generator,
    n_numbers,
    same_length,
)
from calibrant.metrics.resampling.terms import TermResampler, terms_of
from calibrant.threads import few_threads


@dataclass(frozen=True)
class PairedDifference:
    """Difference of a measure between two models on the same samples.

    Attributes:
        difference: ``value_a - value_b``; for a measure that is better when low, negative favours ``a``.
        low: Lower end of the interval of the difference.
        high: Upper end of the interval of the difference.
        p_value: Two-sided probability of a difference at least as large between models that do not differ.
            Below ``1 - level`` when the interval does not contain 0.
        value_a: The measure of ``a``.
        value_b: The measure of ``b``.
        level: Share of repeated samples whose interval would cover the true difference.
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
    n_resamples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
    max_work: int | None = None,
    progress: Progress | None = None,
    **options: Any,  # noqa: ANN401  # the measure's own options
) -> PairedDifference:
    r"""Return the difference of a measure between two models, with an interval and a p-value.

    Both models are measured on the same rows, drawn again with replacement. Samples that are hard for both
    models do not widen the interval of the difference, so it is narrower than the two separate intervals
    suggest. Its ends are percentiles of the resampled differences :math:`d_1 \ldots d_B`, and

    .. math:: p = \min\Big(1,\; 2\,\frac{1 + \min(\#\{d_r \le 0\},\, \#\{d_r \ge 0\})}{1 + B}\Big)

    inverts that interval. For means over samples (accuracy, NLL, Brier) the differences of their terms are
    drawn. Other measures of the catalogue are computed from how often a resample contains each sample. Any
    other function is called twice per resample.

    Args:
        metric: A measure of this library, or a function with the same arguments that returns a number.
        a: Class probabilities of the first model, shape ``(n, k)``; confidences of shape ``(n,)`` if
            ``correct_a`` and ``correct_b`` are given instead of ``labels``.
        b: The same of the second model.
        labels: Integer classes of shape ``(n,)``, for both models.
        correct_a: Whether each prediction of ``a`` was right, shape ``(n,)``.
        correct_b: Whether each prediction of ``b`` was right, shape ``(n,)``.
        reads: ``"logits"`` if ``a`` and ``b`` are logits, for a measure that takes them.
        n_resamples: Number of resamples.
        level: Share of repeated samples whose interval should cover the true difference.
        seed: Equal seeds give equal results.
        max_work: Limit on the numbers that are computed, as for :func:`~calibrant.metrics.with_interval`.
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
    n_resamples, level = check_count(n_resamples, "n_resamples", at_least=2), check_level(level)
    rows_a, rows_b = _read(a, b, labels, correct_a, correct_b, reads)
    with few_threads(n_numbers(rows_a)):
        value_a = check_finite(call(metric, rows_a, options))
        value_b = check_finite(call(metric, rows_b, options))
        resampler = _resampler(metric, rows_a, rows_b, options, value=value_a - value_b)
        n_resamples = resampler.affordable(n_resamples, max_work)
        differences = defined(resampler.replicates(n_resamples, generator(seed), progress))
    low, high = np.quantile(differences, [(1 - level) / 2, (1 + level) / 2])
    return PairedDifference(
        difference=value_a - value_b,
        low=float(low),
        high=float(high),
        p_value=_p_value(differences),
        value_a=value_a,
        value_b=value_b,
        level=level,
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
) -> tuple[Rows, Rows]:
    check_choice(reads, "reads", ("probs", "logits"))
    if labels is not None and correct_a is None and correct_b is None:
        both = as_rows(**{reads: a, "labels": labels}), as_rows(**{reads: b, "labels": labels})
    elif labels is None and correct_a is not None and correct_b is not None:
        both = as_rows(confidence=a, correct=correct_a), as_rows(confidence=b, correct=correct_b)
    else:
        given = {"labels": labels, "correct_a": correct_a, "correct_b": correct_b}
        named = [name for name, value in given.items() if value is not None]
        raise InputError(
            "arguments: expected either labels or correct_a with correct_b, "
            f"got {' with '.join(named) or 'none of them'}"
        )
    same_length({"a": next(iter(both[0].values())), "b": next(iter(both[1].values()))})
    return both


def _resampler(
    metric: Callable[..., Any], rows_a: Rows, rows_b: Rows, options: dict[str, Any], *, value: float
) -> Resampler:
    measure = measure_of(metric)
    terms_a = terms_of(measure, {**rows_a, **options})
    terms_b = terms_of(measure, {**rows_b, **options})
    if terms_a is not None and terms_b is not None:
        return TermResampler(terms_a - terms_b)
    weighted_a, weighted_b = weighted_of(measure, rows_a, options), weighted_of(measure, rows_b, options)
    if weighted_a is not None and weighted_b is not None:
        return CountResampler(value, difference(weighted_a, weighted_b))

    def of_rows(drawn: Rows) -> float:
        first = {name: drawn[f"{name}_a"] for name in rows_a}
        second = {name: drawn[f"{name}_b"] for name in rows_b}
        return call(metric, first, options) - call(metric, second, options)

    together = {f"{name}_a": values for name, values in rows_a.items()}
    together |= {f"{name}_b": values for name, values in rows_b.items()}
    return RowResampler(of_rows, together)


def _p_value(differences: Floats) -> float:
    beyond = min(np.count_nonzero(differences <= 0), np.count_nonzero(differences >= 0))
    return min(1.0, float(2 * (1 + beyond) / (1 + len(differences))))
