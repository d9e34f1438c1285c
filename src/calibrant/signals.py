"""Signals: confidences made from what a black box gives beside its answer.

Repeated answers, log-probabilities of tokens and scores of options become one number for each question. None
of them is honest by itself: ``docs/black_boxes.md`` shows how to repair one and how to combine several.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from calibrant.errors import InputError
from calibrant.inputs import ArrayLike, Floats, check_choice, check_number, same_kind, to_tensor

#: Rows of numbers, one for each question; rows may differ in length.
SignalRows: TypeAlias = Tensor | npt.NDArray[Any] | Sequence[ArrayLike]
TokenSummary: TypeAlias = Literal["mean", "min", "sum"]
OptionKind: TypeAlias = Literal["log_probs", "masses"]

# Log-probabilities may be this far above 0 by rounding.
_ROUNDING = 1e-4

# The largest margin, minus the logarithm of the smallest positive number: an option may have no mass at all.
_LARGEST_MARGIN = 745.0


class Votes(NamedTuple):
    """The most frequent answer to each question, and the confidence in it."""

    answer: list[Any]
    confidence: ArrayLike


class BestOption(NamedTuple):
    """The place of the best option of each question, the confidence in it, and its lead over the second."""

    option: ArrayLike
    confidence: ArrayLike
    margin: ArrayLike


def vote_share(answers: Iterable[Any], *, prior: tuple[float, float] = (1.0, 1.0)) -> Votes:
    r"""Return the most frequent of several answers to each question, and its share as a confidence.

    .. math:: \frac{v + a}{n + a + b}

    for :math:`v` of :math:`n` answers: the mean of the share's posterior distribution under a Beta prior. The
    default, the uniform distribution, makes 5 of 5 answers a stronger sign than 1 of 1, and leaves nobody
    sure. ``(0, 0)`` is the plain share.

    Args:
        answers: For each question its answers, texts or numbers. Answers count as the same if they are equal,
            so remove differences such as spaces and case before.
        prior: The numbers :math:`a` and :math:`b` of answers for and against that are added.

    Returns:
        The answers, the first one if several are as frequent, and the confidences.

    Example:
        >>> votes = vote_share([["B", "B", "C", "B"], ["7"]])
        >>> votes.answer, [round(each, 3) for each in votes.confidence]
        (['B', '7'], [0.667, 0.667])
    """
    if len(prior) != 2:
        raise InputError(f"prior: expected two numbers, got {prior}")
    a, b = (check_number(each, "prior", at_least=0) for each in prior)
    chosen: list[Any] = []
    counts = []
    for row, given in enumerate(answers):
        answer, votes, n = _most_frequent(given, row)
        chosen.append(answer)
        counts.append((votes, n))
    _check_some(counts, "answers")
    votes_of, number_of = torch.tensor(counts, dtype=torch.float64).unbind(dim=1)
    like = chosen if isinstance(answers, (list, tuple)) else np.empty(0)
    return Votes(chosen, same_kind((votes_of + a) / (number_of + a + b), like=like))


def token_confidence(log_probs: SignalRows, *, how: TokenSummary = "mean") -> ArrayLike:
    r"""Return a confidence for each answer from the log-probabilities of its tokens, shape ``(n,)``.

    Args:
        log_probs: For each answer the natural logarithms of its tokens' probabilities; answers may differ in
            length.
        how: ``"mean"`` for the geometric mean of the probabilities, which does not depend on the length;
            ``"min"`` for the probability of the least certain token; ``"sum"`` for that of the whole answer,
            which falls with every token.

    Example:
        >>> answers = [[-0.1, -0.3], [0.0, -2.0, -0.1]]
        >>> [round(each, 3) for each in token_confidence(answers)]
        [0.819, 0.497]
        >>> [round(each, 3) for each in token_confidence(answers, how="min")]
        [0.741, 0.135]
    """
    check_choice(how, "how", get_args(TokenSummary))
    rows = _Ragged(log_probs, "log_probs", "token")
    rows.refuse(
        rows.values > _ROUNDING, "log-probabilities of at most 0", "take the logarithm of probabilities"
    )
    summed = (np.minimum if how == "min" else np.add).reduceat(np.minimum(rows.values, 0), rows.starts)
    result = np.exp(summed / rows.lengths if how == "mean" else summed)
    return same_kind(torch.from_numpy(result), like=rows.like)


def option_scores(scores: SignalRows, *, kind: OptionKind = "log_probs") -> BestOption:
    """Return the best option of each multiple-choice question, the confidence in it, and its margin.

    The confidence is the option's share in the mass of all options, which need not be one. The margin is the
    log-odds of the best option against the second, at most 745.

    Args:
        scores: For each question a score of each option, at least two; questions may differ in their number.
        kind: ``"log_probs"`` for natural logarithms of probabilities, minus infinity for an impossible
            option; ``"masses"`` for probabilities or other masses.

    Example:
        >>> best = option_scores([[0.6, 0.2], [0.1, 0.1, 0.3]], kind="masses")
        >>> best.option, [round(each, 2) for each in best.confidence]
        ([0, 2], [0.75, 0.6])
        >>> [round(each, 2) for each in best.margin]
        [1.1, 1.1]
    """
    check_choice(kind, "kind", get_args(OptionKind))
    rows = _Ragged(scores, "scores", "option", at_least=2)
    if kind == "masses":
        rows.refuse(rows.values < 0, "masses of at least 0", "pass log-probabilities with kind='log_probs'")
        with np.errstate(divide="ignore"):
            logs = np.log(rows.values)
    else:
        rows.refuse(
            rows.values > _ROUNDING, "log-probabilities of at most 0", "pass masses with kind='masses'"
        )
        logs = rows.values
    table = rows.table(logs)
    impossible = np.isneginf(table).all(axis=1)
    if impossible.any():
        raise InputError(
            f"scores: expected an option with some mass in each row, got none in row {impossible.argmax()}"
        )
    index = table.argmax(axis=1)
    confidence = np.exp(table.max(axis=1) - np.logaddexp.reduce(table, axis=1))
    second, first = np.sort(table, axis=1)[:, -2:].T
    margin = np.minimum(first - second, _LARGEST_MARGIN)
    confidences, margins = (
        same_kind(torch.from_numpy(each), like=rows.like) for each in (confidence, margin)
    )
    # Places are whole numbers, whatever the type of the scores.
    like = rows.like.long() if isinstance(rows.like, Tensor) else rows.like
    places = index if isinstance(like, np.ndarray) else same_kind(torch.from_numpy(index), like=like)
    return BestOption(places, confidences, margins)


class _Ragged:
    """Rows of numbers of different lengths, one after another.

    Attributes:
        values: All numbers.
        lengths: How many of them each row has.
        starts: Where each row begins.
        like: An array, or a list, of the caller's kind.
    """

    def __init__(self, rows: SignalRows, name: str, item: str, *, at_least: int = 1) -> None:
        self._name = name
        self.like: ArrayLike = [] if isinstance(rows, (list, tuple)) else np.empty(0)
        if isinstance(rows, Tensor) or (isinstance(rows, np.ndarray) and rows.dtype.kind == "f"):
            self.like = rows
        given = [_numbers(row, name, place) for place, row in enumerate(rows)]
        _check_some(given, name)
        self.lengths: npt.NDArray[np.int64] = np.array([len(row) for row in given])
        short = self.lengths < at_least
        if short.any():
            row = int(short.argmax())
            raise InputError(
                f"{name}: expected at least {at_least} {item}{'s' * (at_least > 1)} in each row, got "
                f"{self.lengths[row]} in row {row}"
            )
        self.values: Floats = np.concatenate(given)
        self.starts = np.cumsum(self.lengths) - self.lengths
        self.refuse(np.isnan(self.values) | np.isposinf(self.values), "finite numbers", "leave such rows out")

    def refuse(self, bad: npt.NDArray[np.bool_], expected: str, advice: str) -> None:
        """Refuse numbers, naming the row of the first one."""
        if bad.any():
            place = int(bad.argmax())
            row = int(np.searchsorted(self.starts, place, side="right")) - 1
            raise InputError(
                f"{self._name}: expected {expected}, got {self.values[place]:.6g} in row {row}; {advice}"
            )

    def table(self, values: Floats) -> Floats:
        """Return values as one row each, shape ``(n, longest)``, filled up with minus infinity."""
        table = np.full((len(self.lengths), self.lengths.max()), -math.inf)
        table[np.arange(table.shape[1]) < self.lengths[:, None]] = values
        return table


def _numbers(row: ArrayLike, name: str, place: int) -> Floats:
    values = to_tensor(row, f"{name} in row {place}")
    if values.ndim != 1:
        raise InputError(f"{name}: expected a list of numbers in each row, got {row!r:.40} in row {place}")
    return np.asarray(values.double().cpu())


def _check_some(rows: Sequence[Any], name: str) -> None:
    if not rows:
        raise InputError(f"{name}: expected at least one row, got none")


def _most_frequent(given: object, row: int) -> tuple[Any, int, int]:
    """Return the most frequent of some answers, how often it was given, and how many there are."""
    listed = given.tolist() if isinstance(given, (np.ndarray, Tensor)) else given
    if isinstance(listed, str) or not isinstance(listed, Sequence):
        raise InputError(f"answers: expected a list of answers in each row, got {given!r:.40} in row {row}")
    if not len(listed):
        raise InputError(f"answers: expected at least one answer in each row, got none in row {row}")
    unreadable = [each for each in listed if each is None or each != each]
    if unreadable:
        raise InputError(
            f"answers: expected texts or numbers, got {unreadable[0]} in row {row}; leave out what could not "
            "be read"
        )
    try:
        answer, votes = Counter(listed).most_common(1)[0]
    except TypeError:
        raise InputError(
            f"answers: expected texts or numbers, got {listed[0]!r:.40} in row {row}; turn them into texts"
        ) from None
    return answer, votes, len(listed)
