"""Discrimination: does confidence separate right predictions from wrong ones, and classes from each other?"""

import math
from typing import Unpack

import numpy as np
import numpy.typing as npt

from calibrant.inputs import ArrayLike, Floats, check_labelled_probs
from calibrant.metrics.counted import Counts, Weighted, ranked_weights
from calibrant.metrics.counted_classes import ClassCells, class_table, class_weights
from calibrant.metrics.ranking import Ranked, Ranking, check_ranked, check_ranking, last_of_equals, wins
from calibrant.outcomes import checked_weights


def auroc_correctness(
    probs: ArrayLike | None = None, labels: ArrayLike | None = None, **ranked: Unpack[Ranked]
) -> float:
    """Return the probability that a right prediction is more confident than a wrong one; ties count one half.

    The result is NaN if all predictions are right or all are wrong. A real-valued ``score`` may replace the
    confidence; it is given with ``correct``, or with ``probs`` and ``labels``.

    Example:
        >>> auroc_correctness(confidence=[0.9, 0.8, 0.7, 0.6], correct=[True, False, True, False])
        0.75
        >>> auroc_correctness(score=[3.0, -1.0, -1.0], correct=[True, False, True])
        0.75
    """
    if ranked.get("score") is not None or ranked.get("weights") is not None:
        return check_ranking(probs, labels, **ranked).auroc()
    keys = check_ranked(probs, labels, **ranked).sorted_keys()
    twice, right = wins(keys)
    pairs = right * (len(keys) - right)
    return twice / (2 * pairs) if pairs else math.nan


def auroc_ovo(probs: ArrayLike, labels: ArrayLike, *, weights: ArrayLike | None = None) -> float:
    r"""Return the AUROC of class probabilities, averaged over all pairs of classes (macro one-vs-one).

    .. math:: \frac{2}{k (k - 1)} \sum_{i < j} \frac{A(i \mid j) + A(j \mid i)}{2}, \quad
        A(i \mid j) = P\left(p_i(x) > p_i(x') \mid y = i,\ y' = j\right)

    For a pair of classes it is the probability that a sample of one class has a higher probability of that
    class than a sample of the other; ties count one half. All pairs have the same weight, so class
    frequencies do not matter. The average is over the classes in the labels; NaN if there are fewer than
    two.

    Example:
        >>> auroc_ovo([[0.8, 0.1, 0.1], [0.2, 0.5, 0.3], [0.3, 0.4, 0.3], [0.6, 0.1, 0.3]], [0, 1, 2, 2])
        0.9166666666666666

    References:
        Hand and Till, "A simple generalisation of the area under the ROC curve for multiple class
        classification problems", Machine Learning 2001.
    """
    if weights is not None:
        return auroc_ovo_weights(probs, labels, weights=weights).value
    wins, count = _wins(probs, labels)
    if len(count) < 2:
        return math.nan
    chances = wins / np.outer(count, count)
    return float(chances[~np.eye(len(count), dtype=bool)].mean())


def auroc_ovr(probs: ArrayLike, labels: ArrayLike, *, weights: ArrayLike | None = None) -> float:
    r"""Return the AUROC of class probabilities, averaged over all classes (macro one-vs-rest).

    .. math:: \frac{1}{k} \sum_i P\left(p_i(x) > p_i(x') \mid y = i,\ y' \ne i\right)

    For a class it is the probability that a sample of it has a higher probability of that class than a
    sample of any other class; ties count one half. All classes have the same weight, but the rest contains
    the other classes by their frequency. The average is over the classes in the labels; NaN if there are
    fewer than two.

    Example:
        >>> auroc_ovr([[0.8, 0.1, 0.1], [0.2, 0.5, 0.3], [0.3, 0.4, 0.3], [0.6, 0.1, 0.3]], [0, 1, 2, 2])
        0.9166666666666666

    References:
        Provost and Domingos, "Well-trained PETs: improving probability estimation trees", 2000.
    """
    if weights is not None:
        return auroc_ovr_weights(probs, labels, weights=weights).value
    wins, count = _wins(probs, labels)
    if len(count) < 2:
        return math.nan
    of_rest = wins.sum(axis=1) - wins.diagonal()
    return float((of_rest / (count * (count.sum() - count))).mean())


auroc_correctness_weights = ranked_weights(Ranking.aurocs)


def auroc_ovo_weights(probs: ArrayLike, labels: ArrayLike, *, weights: ArrayLike | None = None) -> Weighted:
    """Return :func:`auroc_ovo` as a function of counts.

    It is the AUROC of one class against the rest if each class has the same total weight.
    """
    return _one_against_rest(probs, labels, balanced=True, weights=weights)


def auroc_ovr_weights(probs: ArrayLike, labels: ArrayLike, *, weights: ArrayLike | None = None) -> Weighted:
    """Return :func:`auroc_ovr` as a function of counts."""
    return _one_against_rest(probs, labels, balanced=False, weights=weights)


def _one_against_rest(
    probs: ArrayLike, labels: ArrayLike, *, balanced: bool, weights: ArrayLike | None
) -> Weighted:
    p, y = check_labelled_probs(probs, labels)
    cells, place = ClassCells.from_probs(p, y), y.cpu().numpy()
    in_class = class_table(y, p.shape[1])

    def values(counts: Counts) -> Floats:
        of_class = (in_class @ counts.T).T
        each = class_weights(counts)
        if balanced:
            total = of_class[:, place]
            each = each / np.where(total > 0, total, 1)
        members, others = cells.sums(each)
        up_to = others.cumsum(axis=1)
        # A member beats the others before it in its class, and half of those with an equal probability.
        before_class = np.append(np.zeros((len(counts), 1)), up_to[:, cells.start[1:] - 1], axis=1)
        wins = np.add.reduceat(members * (up_to - 0.5 * others), cells.start, axis=1)
        size = np.add.reduceat(members, cells.start, axis=1)
        wins -= size * before_class
        occurs = of_class > 0
        n_classes = occurs.sum(axis=1)
        pairs = size * (size.sum(axis=1, keepdims=True) - size)
        chance = np.divide(wins, pairs, out=np.zeros_like(wins), where=pairs > 0).sum(axis=1)
        return np.where(n_classes > 1, chance / n_classes, math.nan)

    return Weighted(len(place), values, 4 * len(cells), p.numel(), checked_weights(weights, len(place)))


def _wins(probs: ArrayLike, labels: ArrayLike) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """Return a table of comparisons between classes, and the number of samples of each class.

    Entry ``(i, j)`` counts the pairs of a sample of class ``i`` and a sample of class ``j`` in which the
    first has the higher probability of class ``i``; ties count one half. Only classes that occur have a row,
    a column and a count.
    """
    p, y = check_labelled_probs(probs, labels)
    classes, place, count = np.unique(y.cpu().numpy(), return_inverse=True, return_counts=True)
    wins = np.empty((len(classes), len(classes)))
    for row, label in enumerate(classes):
        column = p[:, label].cpu().numpy()
        order = np.argsort(column)
        member = place[order]
        last = last_of_equals(column[order])
        up_to = np.cumsum(member == row)[last]
        # Samples of this class that come later count fully, equal ones count one half.
        above = count[row] - 0.5 * (up_to + np.append(0, up_to[:-1]))
        wins[row] = np.bincount(member, weights=np.repeat(above, np.diff(last + 1, prepend=0)))
    return wins, count
