"""Inductive Venn-Abers prediction (Vovk & Petej, UAI 2014; Vovk, Petej & Fedorova, NIPS 2015)."""

from itertools import pairwise
from typing import Self, TypeAlias, Unpack

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from calibrant.inputs import ArrayLike, Floats
from calibrant.posthoc.fitting.binary import Mode, binary_questions
from calibrant.posthoc.fitting.score_map import ScoreMap, count_below, ragged, take
from calibrant.posthoc.fitting.sorted_scores import ScoreGroups
from calibrant.posthoc.fitting.stored import ASCENDING, LOG_PROBABILITIES, Numbers, declare
from calibrant.posthoc.fitting_set import FittingSet, Rows, sparing_threads

_Places: TypeAlias = npt.NDArray[np.intp]


class VennAbers(ScoreMap):
    r"""Isotonic regression that counts the sample in question twice: once as a miss, once as a hit.

    The two fits give :math:`p_0 < p_1`, one of which is perfectly calibrated whatever the data; they are
    merged to :math:`p_1 / (1 - p_0 + p_1)`, which minimises the worst regret in log-loss and is never 0 or 1.

    Modes are those of :class:`~calibrant.posthoc.fitting.score_map.ScoreMap`. Every class keeps the model's
    probability if the Brier score of the fitting set would rise.

    The calibrator stores the score of every fitting sample, for ``"one_vs_rest"`` once per class.
    """

    takes_weights = False
    stored = declare(
        scores=Numbers(("m", "b+1"), ASCENDING),
        log_p1=Numbers(("m", "b+2"), LOG_PROBABILITIES),
        log_not_p0=Numbers(("m", "b+2"), LOG_PROBABILITIES),
    )

    scores: Tensor
    log_p1: Tensor
    log_not_p0: Tensor

    def __init__(
        self,
        mode: Mode,
        scores: Tensor,
        log_p1: Tensor,
        log_not_p0: Tensor,
        active: Tensor,
        *,
        n_classes: int,
    ) -> None:
        super().__init__(mode, active, n_classes=n_classes)
        self.register_buffers(scores=scores, log_p1=log_p1, log_not_p0=log_not_p0)

    @classmethod
    @sparing_threads
    def fit(
        cls,
        logits: ArrayLike | FittingSet,
        labels: ArrayLike | None = None,
        *,
        mode: Mode = "top_label",
        **rows: Unpack[Rows],
    ) -> Self:
        """Compute both isotonic fits for every position that a new score can have among the fitted ones.

        Weights of samples are refused: the promise holds because the new sample is one among equals.

        Args:
            logits: Scores of shape ``(n, k)``, or ``(n,)`` for the log-odds of class 1.
            labels: Integer classes of shape ``(n,)``.
            mode: ``"top_label"`` calibrates the confidence in the predicted class, ``"one_vs_rest"`` the
                probability of every class.
        """
        data = cls.data(logits, labels, **rows)
        questions = binary_questions(data, mode)
        groups = ScoreGroups.of(questions.scores, questions.answers, questions.counts)
        m = questions.answers.shape[1]
        bounds = np.searchsorted(groups.column, np.arange(m + 1))
        p1, not_p0 = [], []
        for start, stop in pairwise(bounds):
            count, hits = groups.count[start:stop], groups.hits[start:stop]
            p1.append(np.append(with_a_hit(count, hits), 1.0))
            # A miss among hits is a hit among misses, read backwards.
            not_p0.append(np.append(with_a_hit(count[::-1], (count - hits)[::-1]), 1.0)[::-1])
        columns = torch.from_numpy(groups.column)
        one_more = torch.arange(m).repeat_interleave(torch.from_numpy(np.diff(bounds)) + 1)
        fitted = cls(
            mode,
            ragged(columns, torch.from_numpy(groups.low), m, fill=torch.inf).to(data.labels.device),
            ragged(one_more, torch.from_numpy(np.log(np.concatenate(p1))), m, fill=0.0).to(
                data.labels.device
            ),
            ragged(one_more, torch.from_numpy(np.log(np.concatenate(not_p0))), m, fill=0.0).to(
                data.labels.device
            ),
            questions.both_answers,
            n_classes=data.n_classes,
        )
        return fitted.unless_worse(data, score="brier")

    def mapped(self, scores: Tensor) -> Tensor:
        """Return the log-odds of the merged probability at each score."""
        log_p1, log_not_p0 = self.log_bounds(scores)
        return log_p1 - log_not_p0

    def log_bounds(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logs of the upper probability and of one minus the lower one at scores ``(n, m)``.

        A hit between two fitted scores is always pooled with the one above, a miss with the one below.
        """
        place = count_below(scores, self.scores)
        met = take(self.scores.to(scores.dtype), place.clamp(max=self.scores.shape[1] - 1)) == scores
        above = take(self.log_p1.to(scores.dtype), place)
        return above, take(self.log_not_p0.to(scores.dtype), place + met)


def with_a_hit(count: Floats, hits: Floats) -> Floats:
    r"""Return the isotonic fit at each score after one more hit is added there.

    With running sums :math:`N_j, S_j` the fit is the largest, over starts :math:`i` up to the score, of
    :math:`\min_{j \ge i} (S_j - S_{i-1} + 1) / (N_j - N_{i-1} + 1)`: the slope from a point to the convex
    hull of the points after it. Only points where the rate rises can be corners of such a hull; each
    corner links to the next one, and the tangents of all points are found together by walking along these
    links in steps of powers of two.
    """
    if not len(count):
        return count
    rate = hits / count
    corner = np.flatnonzero(np.append(rate[:-1] < rate[1:], True))
    x, y = np.cumsum(count), np.cumsum(hits)
    from_x, from_y = x - count - 1, y - hits - 1
    x, y = x[corner], y[corner]
    follower, slope = _hull_links(x, y)
    at = np.searchsorted(corner, np.arange(len(count)))
    jumps = [follower]
    while (1 << len(jumps)) < len(corner):
        jumps.append(jumps[-1][jumps[-1]])

    def before_tangent(place: _Places) -> npt.NDArray[np.bool_]:
        return np.less(slope[place] * (x[place] - from_x), y[place] - from_y)

    for jump in reversed(jumps):
        trial = jump[at]
        at = np.where(before_tangent(trial), trial, at)
    at = np.where(before_tangent(at), follower[at], at)
    return np.maximum.accumulate((y[at] - from_y) / (x[at] - from_x))


def _hull_links(x: Floats, y: Floats) -> tuple[_Places, Floats]:
    """Return, for each point, the next corner of the lower convex hull from it on, and the slope to it."""
    follower = [len(x) - 1] * len(x)
    slope = [np.inf] * len(x)
    xs, ys = x.tolist(), y.tolist()
    for i in range(len(xs) - 2, -1, -1):
        j = i + 1
        rise = (ys[j] - ys[i]) / (xs[j] - xs[i])
        while slope[j] <= rise:
            j = follower[j]
            rise = (ys[j] - ys[i]) / (xs[j] - xs[i])
        follower[i], slope[i] = j, rise
    return np.array(follower), np.array(slope)
