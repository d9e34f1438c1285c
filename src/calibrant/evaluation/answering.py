"""Answer only when the confidence is at least a threshold: how much that answers, and how much is wrong."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from calibrant.errors import InputError
from calibrant.metrics.intervals import wilson_interval
from calibrant.outcomes import LEAST_DOUBT, Outcomes

#: Confidences from which one may want to answer.
AT_LEAST = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
#: Shares of wrong answers that one may want to accept.
AT_MOST_WRONG = (0.01, 0.05, 0.1)


@dataclass(frozen=True)
class Answering:
    """What is answered, and how much of that is wrong, if the confidence must be at least a threshold.

    Attributes:
        threshold: The lowest confidence that is answered; NaN if every threshold leaves more wrong answers
            than accepted.
        at_most_wrong: The share of wrong answers that was accepted; the threshold is the lowest that leaves
            no more on these samples. None if the threshold itself was given.
        n: Number of samples that are answered.
        answered: Their share of all samples.
        wrong: Share of wrong ones among them; NaN if nothing is answered.
        low: Lower end of Wilson's 95 % interval of that share.
        high: Upper end.
    """

    threshold: float
    at_most_wrong: float | None
    n: int
    answered: float
    wrong: float
    low: float
    high: float


def answer_when(
    outcomes: Outcomes,
    *,
    at_least: Sequence[float] = AT_LEAST,
    at_most_wrong: Sequence[float] = AT_MOST_WRONG,
) -> tuple[Answering, ...]:
    """Return what each threshold answers and leaves wrong, and the thresholds that leave few wrong.

    The interval of a threshold that was chosen by its wrong answers is a little too narrow, because it was
    chosen on the same samples.

    Args:
        outcomes: Confidences, and whether each prediction was right.
        at_least: Thresholds; a confidence that equals one, to a millionth, is answered.
        at_most_wrong: Shares of wrong answers; for each, the lowest threshold that leaves no more.

    Example:
        >>> import torch
        >>> pairs = Outcomes(torch.tensor([0.9, 0.8, 0.7]), torch.tensor([True, False, True]))
        >>> given, found = answer_when(pairs, at_least=[0.8], at_most_wrong=[0.4])
        >>> given.n, given.wrong, round(found.threshold, 6), round(found.wrong, 2)
        (2, 0.5, 0.7, 0.33)
    """
    for name, shares in (("at_least", at_least), ("at_most_wrong", at_most_wrong)):
        for share in shares:
            if not 0 <= share <= 1:
                raise InputError(f"{name}: expected numbers from 0 to 1, got {share}; 80 % is 0.8")
    ordered = outcomes.sorted()
    confidence = ordered.confidence.double().numpy()
    # Wrong ones from each place on, in ascending order of confidence.
    wrong = np.append(np.cumsum(~ordered.correct.numpy()[::-1])[::-1], 0)
    n = len(confidence)
    rows = []
    for threshold in at_least:
        place = int(np.searchsorted(confidence, threshold - LEAST_DOUBT / 2))
        rows.append(_answering(float(threshold), None, n - place, int(wrong[place]), n))
    starts = np.flatnonzero(np.diff(confidence, prepend=-1.0) > 0)
    rates = wrong[starts] / (n - starts)
    for share in at_most_wrong:
        enough = starts[rates <= share]
        place = int(enough[0]) if len(enough) else n
        threshold = float(confidence[place]) if len(enough) else math.nan
        rows.append(_answering(threshold, float(share), n - place, int(wrong[place]), n))
    return tuple(rows)


def _answering(threshold: float, share: float | None, answered: int, wrong: int, n: int) -> Answering:
    if answered == 0:
        return Answering(threshold, share, 0, 0.0, math.nan, math.nan, math.nan)
    low, high = wilson_interval(wrong / answered, answered)
    return Answering(threshold, share, answered, answered / n, wrong / answered, low, high)
