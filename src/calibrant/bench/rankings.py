"""Rankings of methods over many tasks: win rates and ELO ratings.

As in CalArena (arXiv 2605.30188), each method is compared with every other one on every task, and the smaller
score (the Brier score by default) wins. The uncalibrated model takes part as a method.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from calibrant.errors import InputError
from calibrant.inputs import Floats

# Scores of the methods on one task; smaller is better.
Scores = Mapping[str, float]

# Points that make the odds of winning ten times better, and the mean of all ratings.
POINTS_PER_TENFOLD = 400.0
MEAN_RATING = 1000.0

# Weight of a prior that keeps ratings close together; without it a method that never loses would have no
# finite rating. It counts as a hundredth of a game per method, which hardly changes other ratings.
_PRIOR = 0.01

# Scores that agree to this many decimals are a tie: two methods that change nothing may differ by rounding.
_DIGITS = 10


def task_win_rates(scores: Scores) -> dict[str, float]:
    """Return for each method the share of the others that have a larger score on this task.

    Example:
        >>> task_win_rates({"a": 0.1, "b": 0.2, "c": 0.2})
        {'a': 1.0, 'b': 0.0, 'c': 0.0}
    """
    if len(scores) < 2:
        raise InputError(f"scores: expected at least two methods, got {len(scores)}")
    rounded = {name: round(float(value), _DIGITS) for name, value in scores.items()}
    return {
        name: sum(value < other for other in rounded.values()) / (len(scores) - 1)
        for name, value in rounded.items()
    }


def elo_ratings(tasks: Sequence[Scores]) -> dict[str, float]:
    r"""Rate the methods by the Bradley-Terry model: rating differences explain the frequency of wins.

    .. math:: P(a \text{ beats } b) = \frac{1}{1 + 10^{(R_b - R_a) / 400}}

    The ratings maximise the likelihood of all pairs on all tasks; a tie counts as half a win for both, and
    the mean rating is 1000. The order of tasks and methods does not matter. A weak normal prior keeps the
    rating of a method that always wins finite.

    Example:
        >>> ratings = elo_ratings([{"a": 0.1, "b": 0.2}] * 3 + [{"a": 0.2, "b": 0.1}])
        >>> round(ratings["a"] - ratings["b"])  # odds of 3 to 1, so 400 log10(3)
        190
    """
    names, table = _table(tasks)
    wins = _wins(table)
    games = wins + wins.T
    strength = np.zeros(len(names))
    for _ in range(200):
        expected = 1 / (1 + np.exp(strength[None, :] - strength[:, None]))
        slope = (wins - games * expected).sum(axis=1) - _PRIOR * strength
        spread = games * expected * (1 - expected)
        curvature = np.diag(spread.sum(axis=1) + _PRIOR) - spread
        step = np.linalg.solve(curvature, slope)
        # A full Newton step may be too long if one method wins everything, so steps are at most half a unit.
        strength = strength + step * min(1.0, 0.5 / max(float(np.abs(step).max()), 1e-300))
        if float(np.abs(step).max()) < 1e-12:
            break
    strength = strength - strength.mean()
    points = MEAN_RATING + strength * POINTS_PER_TENFOLD / math.log(10)
    return {name: float(points[i]) for i, name in enumerate(names)}


def _table(tasks: Sequence[Scores]) -> tuple[list[str], Floats]:
    """Return the names of the methods, sorted, and their scores, one row per task."""
    if not tasks:
        raise InputError("tasks: expected at least one task, got none")
    names = sorted(tasks[0])
    if len(names) < 2:
        raise InputError(f"tasks: expected at least two methods, got {len(names)}")
    for number, scores in enumerate(tasks):
        if sorted(scores) != names:
            other = sorted(set(scores) ^ set(names))[0]
            raise InputError(
                f"tasks: expected every method on every task, got {other!r} on some only (task {number})"
            )
    table = np.array([[round(float(scores[name]), _DIGITS) for name in names] for scores in tasks])
    if np.isnan(table).any():
        raise InputError("tasks: expected numbers as scores, got NaN")
    return names, table


def _wins(table: Floats) -> Floats:
    """Count how often the method of the row beats that of the column; a tie is half a win."""
    better = (table[:, :, None] < table[:, None, :]).sum(axis=0)
    ties = (table[:, :, None] == table[:, None, :]).sum(axis=0)
    wins: Floats = better + 0.5 * ties
    np.fill_diagonal(wins, 0.0)
    return wins
