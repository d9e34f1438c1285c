"""Who beats whom: win rates and ELO ratings of methods over many tasks.

As CalArena (arXiv 2605.30188) does it: on every task each method meets every other one, and the smaller
score, the Brier score unless told otherwise, wins. The model as it is takes part as a method.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from calibrant.errors import InputError

_Floats = npt.NDArray[np.float64]

# Scores of the methods on one task; smaller is better.
Scores = Mapping[str, float]

# Points that make the odds of winning ten times better, and the mean of all ratings.
POINTS_PER_TENFOLD = 400.0
MEAN_RATING = 1000.0

# Weight of a prior belief that ratings are close together, without which a method that never loses would have
# no finite rating: a hundredth of one game per method, too little to be seen anywhere else.
_PRIOR = 0.01


# Scores that agree to so many digits after the point are a tie: two methods that leave a model as it is may
# differ by rounding.
_DIGITS = 10


@dataclass(frozen=True)
class Standing:
    """Where a method stands after all tasks.

    Attributes:
        method: Its name.
        win_rate: Mean share of the other methods that it beats on a task; ties are not wins.
        elo: Its rating by :func:`elo_ratings`.
        mean_rank: Mean place on a task, from 1; methods that tie share the mean of their places.
    """

    method: str
    win_rate: float
    elo: float
    mean_rank: float


def standings(tasks: Sequence[Scores]) -> list[Standing]:
    """Rank the methods over all tasks, the highest rating first.

    Args:
        tasks: For each task the score of every method, smaller is better.

    Example:
        >>> [each.method for each in standings([{"a": 0.1, "b": 0.2}, {"a": 0.3, "b": 0.4}])]
        ['a', 'b']
    """
    names, table = _table(tasks)
    elo, rates = elo_ratings(tasks), win_rates(tasks)
    ranks = np.mean([_ranks(row) for row in table], axis=0)
    found = [Standing(name, rates[name], elo[name], float(ranks[i])) for i, name in enumerate(names)]
    return sorted(found, key=lambda each: (-each.elo, each.method))


def standings_from_rows(
    records: Sequence[Mapping[str, Any]], *, task: Sequence[str], score: str = "brier", method: str = "method"
) -> list[Standing]:
    """Rank the methods by what :func:`calibrant.bench.rows.flat` returns for a benchmark's rows.

    Args:
        records: Flat mappings with labels and ``values``.
        task: Labels that tell one task from another, such as ``("source", "seed")``.
        score: The value that decides; smaller is better.
        method: The label that names the method.
    """
    tasks: dict[tuple[Any, ...], dict[str, float]] = {}
    for record in records:
        value = record["values"].get(score)
        if value is not None:
            tasks.setdefault(tuple(record[name] for name in task), {})[record[method]] = float(value)
    return standings(list(tasks.values()))


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


def win_rates(tasks: Sequence[Scores]) -> dict[str, float]:
    """Return for each method the mean of :func:`task_win_rates` over the tasks."""
    names, _ = _table(tasks)
    each = [task_win_rates(scores) for scores in tasks]
    return {name: float(np.mean([rates[name] for rates in each])) for name in names}


def elo_ratings(tasks: Sequence[Scores]) -> dict[str, float]:
    r"""Rate the methods so that rating differences explain who won how often (Bradley and Terry).

    .. math:: P(a \text{ beats } b) = \frac{1}{1 + 10^{(R_b - R_a) / 400}}

    The ratings are the most likely ones given all pairs on all tasks, with a tie as half a win for both;
    their mean is 1000. They do not depend on the order of tasks or methods. A very weak normal prior keeps
    the rating of a method that always wins finite.

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
        # A whole Newton step may jump too far where one method wins all; half a unit of log-odds cannot.
        strength = strength + step * min(1.0, 0.5 / max(float(np.abs(step).max()), 1e-300))
        if float(np.abs(step).max()) < 1e-12:
            break
    strength = strength - strength.mean()
    points = MEAN_RATING + strength * POINTS_PER_TENFOLD / math.log(10)
    return {name: float(points[i]) for i, name in enumerate(names)}


def _table(tasks: Sequence[Scores]) -> tuple[list[str], _Floats]:
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


def _wins(table: _Floats) -> _Floats:
    """Count how often the method of the row beats that of the column; a tie is half a win."""
    better = (table[:, :, None] < table[:, None, :]).sum(axis=0)
    ties = (table[:, :, None] == table[:, None, :]).sum(axis=0)
    wins: _Floats = better + 0.5 * ties
    np.fill_diagonal(wins, 0.0)
    return wins


def _ranks(row: _Floats) -> _Floats:
    below = (row[None, :] < row[:, None]).sum(axis=1)
    same = (row[None, :] == row[:, None]).sum(axis=1)
    ranks: _Floats = below + (same + 1) / 2
    return ranks
