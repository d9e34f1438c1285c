"""Rankings of methods over many tasks: win rates, ELO ratings, mean ranks, and ratios to a reference.

As in CalArena (arXiv 2605.30188), each method is compared with every other one on every task, and the smaller
score (the Brier score by default) wins. The uncalibrated model takes part as a method.

Several tasks may have samples of the same file. They are not independent, so ranks and ratios are averaged
within each file first, and only files count for critical differences and intervals.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

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

#: Scores that agree to this many decimals are a tie: two methods that change nothing may differ by rounding.
SCORE_DIGITS = 10


def task_win_rates(scores: Scores) -> dict[str, float]:
    """Return for each method the share of the others that have a larger score on this task.

    Example:
        >>> task_win_rates({"a": 0.1, "b": 0.2, "c": 0.2})
        {'a': 1.0, 'b': 0.0, 'c': 0.0}
    """
    if len(scores) < 2:
        raise InputError(f"scores: expected at least two methods, got {len(scores)}")
    rounded = {name: round(float(value), SCORE_DIGITS) for name, value in scores.items()}
    return {
        name: sum(value < other for other in rounded.values()) / (len(scores) - 1)
        for name, value in rounded.items()
    }


def win_rates(tasks: Sequence[Scores]) -> dict[str, float]:
    """Return for each method the share of all comparisons with other methods that it wins; a tie is half.

    Example:
        >>> win_rates([{"a": 0.1, "b": 0.2}, {"a": 0.3, "b": 0.3}])
        {'a': 0.75, 'b': 0.25}
    """
    names, table = _table(tasks)
    shares = _wins(table).sum(axis=1) / (len(tasks) * (len(names) - 1))
    return dict(zip(names, shares.tolist(), strict=True))


def share_of_wins(tasks: Sequence[Scores], first: str, second: str) -> float:
    """Return the share of tasks on which one method beats another; a tie is half.

    Example:
        >>> share_of_wins([{"a": 1, "b": 2}, {"a": 1, "b": 1}, {"a": 1, "b": 0}, {"a": 1, "b": 3}], "a", "b")
        0.625
    """
    return win_rates([{"first": task[first], "second": task[second]} for task in tasks])["first"]


def mean_ranks(tasks: Sequence[Scores], files: Sequence[str]) -> dict[str, float]:
    """Return the mean rank of each method, from 1 for the smallest score; ties share their mean rank.

    Args:
        tasks: Scores of the methods on each task.
        files: The file of each task; ranks are averaged within files, then over files.

    Example:
        >>> mean_ranks([{"a": 1, "b": 2}, {"a": 1, "b": 2}, {"a": 2, "b": 1}], ["x", "x", "y"])
        {'a': 1.5, 'b': 1.5}
    """
    names, table = _table(tasks)
    ranks = _by_file(stats.rankdata(table, axis=1), files).mean(axis=0)
    return dict(zip(names, ranks.tolist(), strict=True))


def critical_difference(n_methods: int, n_files: int, *, level: float = 0.05) -> float:
    r"""Return the difference of mean ranks from which two methods differ significantly (Nemenyi).

    .. math:: \mathrm{CD} = q_\alpha \sqrt{\frac{k (k + 1)}{6 N}}

    Example:
        >>> round(critical_difference(5, 30), 3)
        1.114

    References:
        Demsar, "Statistical Comparisons of Classifiers over Multiple Data Sets", JMLR 2006.
    """
    q = float(stats.studentized_range.ppf(1 - level, n_methods, math.inf)) / math.sqrt(2)
    return q * math.sqrt(n_methods * (n_methods + 1) / (6 * n_files))


@dataclass(frozen=True)
class Ratio:
    """A geometric mean of ratios, and the 95 % interval of a bootstrap over files."""

    mean: float
    low: float
    high: float


def ratios_to(
    reference: str, tasks: Sequence[Scores], files: Sequence[str], *, n_resamples: int = 1000, seed: int = 0
) -> dict[str, Ratio]:
    """Return the ratio of each method's score to that of a reference, as a geometric mean over files.

    Example:
        >>> ratios_to("b", [{"a": 1, "b": 2}, {"a": 1, "b": 8}], ["x", "y"])["a"].mean
        0.25
    """
    names, table = _table(tasks)
    logs = np.log(np.maximum(table, 10.0**-SCORE_DIGITS))
    behind = _by_file(logs - logs[:, [names.index(reference)]], files)
    drawn = np.random.default_rng(seed).integers(len(behind), size=(n_resamples, len(behind)))
    # How often each file is drawn is all that counts, and takes less memory than the drawn values.
    counts = np.stack([np.bincount(each, minlength=len(behind)) for each in drawn])
    low, high = np.quantile(counts @ behind / len(behind), [0.025, 0.975], axis=0)
    columns = np.exp([behind.mean(axis=0), low, high]).T.tolist()
    return {name: Ratio(*column) for name, column in zip(names, columns, strict=True)}


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
    table = np.array([[round(float(scores[name]), SCORE_DIGITS) for name in names] for scores in tasks])
    if np.isnan(table).any():
        raise InputError("tasks: expected numbers as scores, got NaN")
    return names, table


def _by_file(table: Floats, files: Sequence[str]) -> Floats:
    """Average the rows of each file; return one row per file."""
    if len(files) != len(table):
        raise InputError(f"files: expected one for each of {len(table)} tasks, got {len(files)}")
    _, places = np.unique(np.asarray(files), return_inverse=True)
    sums = np.zeros((places.max() + 1, table.shape[1]))
    np.add.at(sums, places, table)
    return sums / np.bincount(places)[:, None]


def _wins(table: Floats) -> Floats:
    """Count how often the method of the row beats that of the column; a tie is half a win."""
    better = (table[:, :, None] < table[:, None, :]).sum(axis=0)
    ties = (table[:, :, None] == table[:, None, :]).sum(axis=0)
    wins: Floats = better + 0.5 * ties
    np.fill_diagonal(wins, 0.0)
    return wins
