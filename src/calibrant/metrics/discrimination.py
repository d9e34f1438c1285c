"""Discrimination: does confidence tell right predictions from wrong ones, and one class from another?"""

import math
from typing import Unpack

import numpy as np
import numpy.typing as npt

from calibrant.inputs import ArrayLike, check_labels, check_probs
from calibrant.metrics.ranking import check_ranking, last_of_equals
from calibrant.outcomes import Pairs


def auroc_correctness(
    probs: ArrayLike | None = None,
    labels: ArrayLike | None = None,
    *,
    score: ArrayLike | None = None,
    **pairs: Unpack[Pairs],
) -> float:
    """Chance that a right prediction is more confident than a wrong one; ties count one half.

    NaN when all predictions are right or all are wrong: there is nothing to tell apart. Any
    real-valued ``score`` may take the place of the confidence, beside ``correct`` or beside ``probs``
    with ``labels``.

    Example:
        >>> auroc_correctness(confidence=[0.9, 0.8, 0.7, 0.6], correct=[True, False, True, False])
        0.75
        >>> auroc_correctness(score=[3.0, -1.0, -1.0], correct=[True, False, True])
        0.75
    """
    return check_ranking(probs, labels, score=score, **pairs).auroc()


def auroc_ovo(probs: ArrayLike, labels: ArrayLike) -> float:
    r"""Chance that a class's probability is higher for a sample of it than for one of another class.

    .. math:: \frac{2}{k (k - 1)} \sum_{i < j} \frac{A(i \mid j) + A(j \mid i)}{2}, \quad
        A(i \mid j) = P\left(p_i(x) > p_i(x') \mid y = i,\ y' = j\right)

    Ties count one half; all pairs of classes weigh the same (macro one-vs-one), so it does not depend on
    how common they are. The average is over the classes that occur in the labels; NaN if fewer than
    two do.

    Example:
        >>> auroc_ovo([[0.8, 0.1, 0.1], [0.2, 0.5, 0.3], [0.3, 0.4, 0.3], [0.6, 0.1, 0.3]], [0, 1, 2, 2])
        0.9166666666666666

    References:
        Hand and Till, "A simple generalisation of the area under the ROC curve for multiple class
        classification problems", Machine Learning 2001.
    """
    wins, count = _wins(probs, labels)
    if len(count) < 2:
        return math.nan
    chances = wins / np.outer(count, count)
    return float(chances[~np.eye(len(count), dtype=bool)].mean())


def auroc_ovr(probs: ArrayLike, labels: ArrayLike) -> float:
    r"""Chance that a class's probability is higher for a sample of it than for any other sample.

    .. math:: \frac{1}{k} \sum_i P\left(p_i(x) > p_i(x') \mid y = i,\ y' \ne i\right)

    Ties count one half; all classes weigh the same (macro one-vs-rest), but each is compared with the
    others as common as they are. The average is over the classes that occur in the labels; NaN if
    fewer than two do.

    Example:
        >>> auroc_ovr([[0.8, 0.1, 0.1], [0.2, 0.5, 0.3], [0.3, 0.4, 0.3], [0.6, 0.1, 0.3]], [0, 1, 2, 2])
        0.9166666666666666

    References:
        Provost and Domingos, "Well-trained PETs: improving probability estimation trees", 2000.
    """
    wins, count = _wins(probs, labels)
    if len(count) < 2:
        return math.nan
    of_rest = wins.sum(axis=1) - wins.diagonal()
    return float((of_rest / (count * (count.sum() - count))).mean())


def _wins(probs: ArrayLike, labels: ArrayLike) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """Compare every sample of a class, by the probability of that class, with the samples of each class.

    Entry ``(i, j)`` counts the pairs of a sample of class ``i`` and one of class ``j`` of which the first has
    the higher probability of class ``i``, equals as one half; beside it, how many samples each class has.
    Only classes that occur have a row, a column and a count.
    """
    p = check_probs(probs)
    y = check_labels(labels, n=p.shape[0], k=p.shape[1]).cpu().numpy()
    classes, place, count = np.unique(y, return_inverse=True, return_counts=True)
    wins = np.empty((len(classes), len(classes)))
    for row, label in enumerate(classes):
        column = p[:, label].cpu().numpy()
        order = np.argsort(column)
        member = place[order]
        last = last_of_equals(column[order])
        up_to = np.cumsum(member == row)[last]
        # Of the samples of this class, all that come later are above, and half of those that are equal.
        above = count[row] - 0.5 * (up_to + np.append(0, up_to[:-1]))
        wins[row] = np.bincount(member, weights=np.repeat(above, np.diff(last + 1, prepend=0)))
    return wins, count
