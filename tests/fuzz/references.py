"""Measures by their definitions, as slow loops over samples with weights, in double precision."""

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, TypeAlias

# Confidence, whether it was right, and the weight of each sample.
Pairs: TypeAlias = Sequence[tuple[float, bool, float]]


def top_label(probs: Sequence[Sequence[float]], labels: Sequence[int], weights: Sequence[float]) -> Pairs:
    """Return the confidence in the first of the most probable classes, and whether it is the label."""
    best = [list(row).index(max(row)) for row in probs]
    return [
        (row[c], c == label, weight)
        for row, c, label, weight in zip(probs, best, labels, weights, strict=True)
    ]


def of_class(
    probs: Sequence[Sequence[float]], labels: Sequence[int], weights: Sequence[float], c: int
) -> Pairs:
    """Return the probability of one class, and whether it is the label."""
    return [(row[c], label == c, weight) for row, label, weight in zip(probs, labels, weights, strict=True)]


def mean(terms: Sequence[tuple[float, float]]) -> float:
    """Return the mean of (value, weight)."""
    return math.fsum(value * weight for value, weight in terms) / math.fsum(weight for _, weight in terms)


def share(pairs: Pairs) -> float:
    """Return the share of right ones; NaN if there are none at all."""
    terms = [(float(right), w) for _, right, w in pairs]
    return mean(terms) if any(w for _, w in terms) else math.nan


def average_precision(pairs: Pairs) -> float:
    """Return the mean over the right ones of the share of right ones among those that are not below."""
    terms = [(share([each for each in pairs if each[0] >= c]), w) for c, right, w in pairs if right and w]
    return mean(terms) if terms else math.nan


def gaps(pairs: Pairs, n_bins: int) -> list[tuple[float, float]]:
    """Return (weight, confidence minus accuracy) of each right-closed bin of equal width with weight."""
    found = []
    for b in range(n_bins):
        inside = [
            each for each in pairs if b / n_bins < each[0] <= (b + 1) / n_bins or (b == 0 and each[0] == 0)
        ]
        weight = math.fsum(w for _, _, w in inside)
        if weight > 0:
            found.append((weight, math.fsum((c - right) * w for c, right, w in inside) / weight))
    return found


def ece(pairs: Pairs, n_bins: int) -> float:
    """Return the mean gap."""
    return mean([(abs(gap), weight) for weight, gap in gaps(pairs, n_bins)])


def auroc(pairs: Pairs) -> float:
    """Return how often a right one is above a wrong one; ties count one half."""
    total = shares = 0.0
    for score, right, weight in pairs:
        for other, other_right, other_weight in pairs:
            if right and not other_right:
                total += weight * other_weight
                shares += weight * other_weight * (1.0 if score > other else 0.5 if score == other else 0.0)
    return shares / total if total else math.nan


def cumulative_gaps(pairs: Pairs) -> list[float]:
    """Return the sums of (right minus confidence) up to each distinct confidence, from nothing on."""
    total = math.fsum(w for _, _, w in pairs)
    return [0.0] + [
        math.fsum((right - c) * w for c, right, w in pairs if c <= upper) / total
        for upper in sorted({c for c, _, w in pairs if w > 0})
    ]


def two_bins(pairs: Pairs) -> float:
    """Return the mean squared error of two bins over all places that part them."""
    total = math.fsum(w for _, _, w in pairs)
    ends = sorted({0.0, 1.0, *(c for c, _, _ in pairs)})
    found = 0.0
    for low, high in pairwise(ends):
        for side in (True, False):
            gap = math.fsum((right - c) * w for c, right, w in pairs if (c <= low) == side)
            found += (high - low) * (gap / total) ** 2
    return found


def _log_loss(p: float) -> float:
    return -math.log(max(p, 1e-12))


#: By name of the measure: (pairs, number of bins) to the value.
OF_PAIRS: dict[str, Callable[[Pairs, int], float]] = {
    "accuracy": lambda pairs, _: mean([(right, w) for _, right, w in pairs]),
    "mean_confidence": lambda pairs, _: mean([(c, w) for c, _, w in pairs]),
    "expected_calibration_error": ece,
    "maximum_calibration_error": lambda pairs, n: max(abs(gap) for _, gap in gaps(pairs, n)),
    "rms_calibration_error": lambda pairs, n: math.sqrt(mean([(g * g, w) for w, g in gaps(pairs, n)])),
    "average_calibration_error": lambda pairs, n: mean([(abs(g), 1) for _, g in gaps(pairs, n)]),
    "overconfidence": lambda pairs, n: mean([(max(g, 0), w) for w, g in gaps(pairs, n)]),
    "underconfidence": lambda pairs, n: mean([(max(-g, 0), w) for w, g in gaps(pairs, n)]),
    "auroc_correctness": lambda pairs, _: auroc(pairs),
    "ks_error": lambda pairs, _: max(map(abs, cumulative_gaps(pairs))),
    "kuiper_error": lambda pairs, _: max(cumulative_gaps(pairs)) - min(cumulative_gaps(pairs)),
    "averaged_two_bin_error": lambda pairs, _: two_bins(pairs),
}

#: By name of the measure: the value for (probability of the second of two classes, whether it is the label).
OF_POSITIVE: dict[str, Callable[[Pairs], float]] = {
    "base_rate": share,
    "recall": lambda pairs: share([(c, c > 0.5, w) for c, right, w in pairs if right]),
    "precision": lambda pairs: share([each for each in pairs if each[0] > 0.5]),
    "average_precision": average_precision,
}

#: By name of the measure: (probs, labels, weights, number of bins) to the value.
OF_CLASSES: dict[str, Callable[[Any, Any, Any, int], float]] = {
    "negative_log_likelihood": lambda probs, labels, weights, _: mean(
        [(_log_loss(row[y]), w) for row, y, w in zip(probs, labels, weights, strict=True)]
    ),
    "brier_score": lambda probs, labels, weights, _: mean(
        [
            (math.fsum((p - (c == y)) ** 2 for c, p in enumerate(row)), w)
            for row, y, w in zip(probs, labels, weights, strict=True)
        ]
    ),
    "classwise_calibration_error": lambda probs, labels, weights, n: mean(
        [(ece(of_class(probs, labels, weights, c), n), 1) for c in range(len(probs[0]))]
    ),
}
