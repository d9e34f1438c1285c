"""Answer only when the confidence is at least a threshold: how much that answers, and how much is wrong."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from calibrant.errors import InputError
from calibrant.inference.bands import effective_size
from calibrant.inference.intervals import wilson_interval
from calibrant.inputs import Floats
from calibrant.outcomes import LEAST_DOUBT, Outcomes

#: Confidences from which one may want to answer.
AT_LEAST = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
#: Shares of wrong answers that one may want to accept.
AT_MOST_WRONG = (0.01, 0.05, 0.1)


@dataclass(frozen=True)
class Answering:
    """What is answered, and how much of that is wrong, if the confidence must be at least a threshold.

    Attributes:
        threshold: The lowest confidence that is answered; None if every threshold leaves more wrong answers
            than accepted.
        at_most_wrong: The share of wrong answers that was accepted; the threshold is the lowest that leaves
            no more on these samples. None if the threshold itself was given.
        n: Number of samples that are answered.
        answered: Their share of all samples, by weight if samples have weights.
        wrong: Share of wrong ones among them, by weight; None if nothing is answered.
        low: Lower end of Wilson's 95 % interval of that share; None if nothing is answered.
        high: Upper end.
    """

    threshold: float | None
    at_most_wrong: float | None
    n: int
    answered: float
    wrong: float | None
    low: float | None
    high: float | None


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
    used = outcomes.take((outcomes.counts > 0).nonzero().squeeze(1))
    ordered = used.take(used.confidence.argsort(stable=True))
    confidence, w = ordered.confidence.double().cpu().numpy(), ordered.counts.cpu().numpy()
    misses = ~ordered.correct.cpu().numpy()
    # Sums over all samples from each place on; the last are 0.
    total, wrong = (np.append(np.cumsum(each[::-1])[::-1], 0.0) for each in (w, w * misses))
    rows = []
    for threshold in at_least:
        place = int(np.searchsorted(confidence, threshold - LEAST_DOUBT / 2))
        rows.append(_answering(float(threshold), None, ordered, place, total, wrong))
    starts = np.flatnonzero(np.diff(confidence, prepend=-1.0) > 0)
    rates = wrong[starts] / total[starts]
    for share in at_most_wrong:
        enough = starts[rates <= share]
        place = int(enough[0]) if len(enough) else len(confidence)
        lowest = float(confidence[place]) if len(enough) else None
        rows.append(_answering(lowest, float(share), ordered, place, total, wrong))
    return tuple(rows)


def _answering(
    threshold: float | None, share: float | None, ordered: Outcomes, place: int, total: Floats, wrong: Floats
) -> Answering:
    """Return what answering from a place on leaves wrong, from sums over all samples from each place on."""
    n = len(ordered) - place
    if n == 0:
        return Answering(threshold, share, 0, 0.0, None, None, None)
    rate = min(float(wrong[place]) / float(total[place]), 1.0)
    low, high = wilson_interval(rate, effective_size(ordered.take(torch.arange(place, len(ordered)))))
    return Answering(threshold, share, n, float(total[place]) / float(total[0]), rate, low, high)
