"""The base of every method that maps the log-odds of binary questions, and the piecewise maps they learn.

The maps export to ONNX and compile with any batch size: for ONNX, which cannot search in sorted numbers,
they are built from gathers and comparisons only. A table has one row per column of the input; shorter rows
are filled up with ``+inf``, which no input reaches.
"""

import sys
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import ClassVar, Literal, NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from calibrant.posthoc.calibrator import Calibrator
from calibrant.posthoc.fitting.binary import (
    Mode,
    Questions,
    TopLabel,
    binary_questions,
    class_log_odds,
    join_top,
    normalised,
    split_top,
)
from calibrant.posthoc.fitting.stored import ANY, ASCENDING, Numbers, declare
from calibrant.posthoc.fitting.weighing import sum_of
from calibrant.posthoc.fitting_set import FittingSet

# Logits that are mapped at a time.
_BLOCK_ENTRIES = 1 << 22


class ScoreMap(Calibrator):
    """Calibrate the answers to binary questions by one map of the log-odds per question.

    With ``mode="top_label"`` the only question is whether the predicted class is right, and that class never
    changes; with ``"one_vs_rest"`` there is one question per class, and the predicted class may change. A
    question with the same answer for all samples of the fitting set keeps the model's own probability. The
    map of a class is fitted to the samples in which it is not masked.

    Attributes:
        mode: Which questions are asked, see :mod:`calibrant.posthoc.fitting.binary`.
        active: Which maps are used; the other questions keep the model's log-odds.
    """

    masks = True
    options: ClassVar[tuple[str, ...]] = ("mode",)

    stored = declare(active=Numbers((), ANY, "flag", also=("m",)))

    mode: Mode
    active: Tensor

    def __init__(self, mode: Mode, active: Tensor, *, n_classes: int) -> None:
        super().__init__(n_classes=n_classes)
        self.mode = mode
        self.register_buffers(active=active)

    @property
    def sizes(self) -> dict[str, int]:
        """The number of classes, and that of questions; two classes are one question."""
        k = self.n_classes
        one = self.mode == "top_label" or k == 2
        return super().sizes | ({"m": 1} if one else {"m": k} if k else {})

    @abstractmethod
    def mapped(self, scores: Tensor) -> Tensor:
        """Return calibrated log-odds of shape ``(n, m)`` for the model's log-odds of the same shape."""

    def forward(self, logits: Tensor, features: Tensor | None = None) -> Tensor:
        """Return calibrated log-probabilities of shape ``(n, k)``."""
        return self.from_answers(own_answers(logits, self.mode))

    def from_answers(self, own: "OwnAnswers") -> Tensor:
        """Return calibrated log-probabilities of shape ``(n, k)`` from the model's answers."""
        mapped = self.mapped(own.scores)
        if own.top is not None:
            return join_top(own.top, torch.where(self.active, mapped, own.scores)[:, 0])
        return normalised(torch.where(self.active & own.exists, mapped, own.log_odds))

    @torch.no_grad()
    def unless_worse(self, data: FittingSet, *, score: Literal["nll", "brier"]) -> Self:
        """Switch all maps off if they score worse than the model itself on the fitting set.

        Args:
            data: The samples that the maps were fitted on.
            score: What the method minimises: the negative log-likelihood, or the Brier score.
        """
        loss = _nll if score == "nll" else _brier
        rows = max(1, _BLOCK_ENTRIES // data.n_classes)
        blocks = data.logits.split(rows), data.labels.split(rows)
        counts = [None] * len(blocks[0]) if data.weights is None else data.weights.split(rows)
        parts = list(zip(*blocks, counts, strict=True))
        mapped = sum(loss(self(z), y, w) for z, y, w in parts)
        if not mapped <= sum(loss(torch.log_softmax(z, dim=1), y, w) for z, y, w in parts):
            self.active.zero_()
        return self


class OwnAnswers(NamedTuple):
    """The model's own answers to the questions of a mode, which all maps of these questions share.

    Attributes:
        scores: Log-odds of shape ``(n, m)``; 0 for masked classes.
        log_odds: The same, infinite for masked classes.
        exists: Which classes are not masked; True if the questions are about no class.
        top: The predicted class, if the questions are about that.
    """

    scores: Tensor
    log_odds: Tensor
    exists: Tensor | Literal[True]
    top: TopLabel | None


def own_answers(logits: Tensor, mode: Mode) -> OwnAnswers:
    """Return a model's answers to the questions of a mode, from logits of shape ``(n, k)``."""
    if mode == "top_label":
        top = split_top(logits)
        s = top.log_odds[:, None]
        return OwnAnswers(s, s, True, top)
    s = class_log_odds(logits)
    masked = torch.isinf(s)
    return OwnAnswers(s.masked_fill(masked, 0.0), s, ~masked, None)


class StepMap(ScoreMap):
    """Map log-odds by step functions: ``values[c, i]`` above the ``i``-th threshold of question ``c``."""

    stored = declare(thresholds=Numbers(("m", "b"), ASCENDING), values=Numbers(("m", "b+1")))

    thresholds: Tensor
    values: Tensor

    def __init__(
        self, mode: Mode, thresholds: Tensor, values: Tensor, active: Tensor, *, n_classes: int
    ) -> None:
        super().__init__(mode, active, n_classes=n_classes)
        self.register_buffers(thresholds=thresholds, values=values)

    @classmethod
    def of_steps(
        cls, find: Callable[[Questions], tuple[Tensor, Tensor]], data: FittingSet, mode: Mode
    ) -> Self:
        """Return the map of steps that are found for questions of the same samples, unless it is worse.

        Args:
            find: Returns thresholds ``(m, b)`` and values ``(m, b + 1)``; it is not asked without samples.
            data: The samples.
            mode: The questions about them.
        """
        questions = binary_questions(data, mode)
        one = data.logits.new_zeros(1, 1, dtype=torch.float64)
        found = [
            find(each) if len(each.scores) else (one[:, :0], one) for each in questions.of_same_samples()
        ]
        thresholds, values = zip(*found, strict=True)
        steps = stacked(thresholds, fill=torch.inf), stacked(values, fill=0.0)
        fitted = cls(mode, *steps, questions.both_answers, n_classes=data.n_classes)
        return fitted.unless_worse(data, score="brier")

    def mapped(self, scores: Tensor) -> Tensor:
        """Return the value of the step that each score falls on."""
        return step(scores, self.thresholds, self.values)


def count_below(x: Tensor, thresholds: Tensor) -> Tensor:
    """Count, for each input of shape ``(n, m)``, the thresholds of its column that lie below it.

    Args:
        x: Inputs of shape ``(n, m)``.
        thresholds: Ascending rows of shape ``(m, b)``.
    """
    table = thresholds.to(x.dtype)
    # Asked for by its attribute, the exporter would be imported, which takes a quarter of a second.
    if "torch.onnx" not in sys.modules or not torch.onnx.is_in_onnx_export():
        if len(table) == 1:
            return torch.searchsorted(table[0], x)
        return torch.searchsorted(table, x.T.contiguous()).T
    bits = table.shape[1].bit_length()
    # Filled up, the halves of a search never end outside of the table.
    size = (1 << bits) - 1
    flat = F.pad(table, (0, size - table.shape[1]), value=torch.inf).reshape(-1)
    start = size * torch.arange(len(table), device=table.device)
    place = torch.zeros_like(x, dtype=torch.int64) + start
    for bit in reversed(range(bits)):
        place = place + (flat[place + ((1 << bit) - 1)] < x) * (1 << bit)
    return place - start


def take(table: Tensor, index: Tensor) -> Tensor:
    """Read row ``c`` of a table of shape ``(m, b)`` at the indices in column ``c``, shape ``(n, m)``."""
    rows, size = table.shape
    if rows > 1:
        index = index + size * torch.arange(rows, device=table.device)
    return torch.take(table, index)


def step(x: Tensor, thresholds: Tensor, values: Tensor) -> Tensor:
    """Evaluate step functions: ``values[c, i]`` where ``i`` thresholds of column ``c`` lie below the input.

    Args:
        x: Inputs of shape ``(n, m)``.
        thresholds: Ascending rows of shape ``(m, b)``.
        values: Shape ``(m, b + 1)``.
    """
    return take(values.to(x.dtype), count_below(x, thresholds))


def interpolate(x: Tensor, knots: Tensor, values: Tensor) -> Tensor:
    """Evaluate functions that are linear between knots and constant beyond them.

    Args:
        x: Inputs of shape ``(n, m)``.
        knots: Ascending rows of shape ``(m, b)`` with at least two entries.
        values: Shape ``(m, b)``.
    """
    knots, values = knots.to(x.dtype), values.to(x.dtype)
    right = count_below(x, knots).clamp(1, knots.shape[1] - 1)
    left = right - 1
    start = take(knots, left)
    width = (take(knots, right) - start).clamp(min=torch.finfo(x.dtype).tiny)
    part = ((x - start) / width).clamp(0.0, 1.0)
    return torch.lerp(take(values, left), take(values, right), part)


def ragged(rows: Tensor, entries: Tensor, n_rows: int, *, fill: float) -> Tensor:
    """Arrange entries, sorted by the row that each belongs to, as a table of shape ``(n_rows, longest)``."""
    counts = torch.bincount(rows, minlength=n_rows)
    place = torch.arange(len(rows), device=rows.device) - (counts.cumsum(0) - counts)[rows]
    table = entries.new_full((n_rows, int(counts.max())), fill)
    table[rows, place] = entries
    return table


def stacked(tables: Sequence[Tensor], *, fill: float) -> Tensor:
    """Put tables with any number of columns one below the other; shorter rows are filled up."""
    longest = max(table.shape[1] for table in tables)
    return torch.cat([F.pad(table, (0, longest - table.shape[1]), value=fill) for table in tables])


def _nll(log_probs: Tensor, labels: Tensor, weights: Tensor | None) -> float:
    return -float(sum_of(log_probs.gather(1, labels[:, None]).squeeze(1), weights))


def _brier(log_probs: Tensor, labels: Tensor, weights: Tensor | None) -> float:
    """Return the sum of squared errors, without the constant 1 per sample."""
    p = log_probs.exp()
    of_labels = sum_of(p.gather(1, labels[:, None]).squeeze(1), weights)
    squares = p.square()
    each = None if weights is None else weights[:, None]
    return float(sum_of(squares, each) - 2 * of_labels)
