"""Combination of signals: one confidence from everything that a black box says about its answers."""

from typing import NamedTuple, Self, Unpack

import torch
from torch import Tensor

from calibrant.errors import FitError, InputError
from calibrant.inputs import ArrayLike, at_least_float32, check_features, check_flag, check_number
from calibrant.outcomes import mean_of
from calibrant.posthoc.calibrator import Calibrator, required_features
from calibrant.posthoc.fitting.binary import both_answers, class_log_odds, join_top, normalised, split_top
from calibrant.posthoc.fitting.logistic import fit_likeliest_ridge, fit_ridge
from calibrant.posthoc.fitting.natural_splines import mixed_splines, natural_splines, smoothest_mixture
from calibrant.posthoc.fitting.score_map import interpolate
from calibrant.posthoc.fitting.stored import ANY, ASCENDING, RISING, Numbers, declare, one_number
from calibrant.posthoc.fitting.weighing import rows_of, size_of, spread_of
from calibrant.posthoc.fitting_set import FittingSet, Rows, sparing_threads

_KNOTS = 5
# The outermost knots leave this share of a normal distribution outside.
_TAIL = 0.02

# A signal is stored by at most this many of its values.
_VALUES = 256

# With more signals there are more pairs of them than most fitting sets can tell apart.
_MOST_WITH_PRODUCTS = 8
_MOST_SIGNALS = 64

# The confidence is one of the signals if the mean distance of their ranks is below this share of the samples.
_SAME = 1e-3


class Combination(Calibrator):
    r"""Combine several signals, such as stated confidence, token probabilities and length, into one.

    .. math:: \log\frac{q}{1 - q} = b + \sum_j f_j(x_j) + \sum_{i < j} w_{ij}\, x_i x_j

    The signals are the features, one column each, NaN where one is missing, and the log-odds of the model's
    own confidence unless a column has the same order. Only the order of a signal's values counts, so it may
    have any scale: :math:`x_j` is the normal quantile of its rank among the fitting set, with mean 0 and
    variance 1. Values beyond those of the fitting set count as the outermost ones. The :math:`f_j` are
    natural cubic splines, or one number where the signal is missing; they may fall. A signal with two
    values, such as an indicator of a group, shifts the log-odds and is not multiplied with others.

    With two classes, :math:`q` is the probability of class 1: that the answer is right. With more it is the
    confidence in the predicted class, which then never changes. The model stays uncalibrated if all answers
    are the same, or if the likelihood of the fitting set would fall.

    Attributes:
        reads_logits: Whether the model's own confidence is a signal beside the features.
    """

    needs_features = True
    masks = True
    options = ("reads_logits",)

    stored = declare(
        values=Numbers(("s+1", "b+2"), ASCENDING),
        ranks=Numbers(("s+1", "b+2")),
        curved=Numbers(("c", "s+1")),
        knots=Numbers(("c+2",), RISING),
        **{name: Numbers(("s+1",)) for name in ("straight", "offset", "absent")},
        products=Numbers(("s+1", "s+1")),
        intercept=one_number(),
        active=Numbers((), ANY, "flag"),
    )

    reads_logits: bool
    values: Tensor
    ranks: Tensor
    knots: Tensor
    straight: Tensor
    curved: Tensor
    offset: Tensor
    absent: Tensor
    products: Tensor
    intercept: Tensor
    active: Tensor

    def __init__(
        self, scale: "_Scale", curves: "_Curves", active: Tensor, *, reads_logits: bool, n_classes: int
    ) -> None:
        super().__init__(n_classes=n_classes)
        self.reads_logits = reads_logits
        self.register_buffers(**scale._asdict(), **curves._asdict(), active=active)

    @property
    def missing_features(self) -> bool:
        """Whether NaN is allowed for a missing signal: yes."""
        return True

    @property
    def n_features(self) -> int:
        """Number of signals among the features."""
        return len(self.values) - self.reads_logits

    @classmethod
    @sparing_threads
    def fit(
        cls,
        logits: ArrayLike | FittingSet,
        labels: ArrayLike | None = None,
        *,
        ridge: float | None = None,
        interactions: bool | None = None,
        **rows: Unpack[Rows],
    ) -> Self:
        """Fit a logistic regression on splines of the signals and on products of two signals.

        Args:
            logits: Scores of shape ``(n, k)``, or ``(n,)`` for the log-odds of class 1: of being right.
            labels: Integer classes of shape ``(n,)``.
            ridge: How strongly all coefficients but the intercept are pulled to 0, in samples. By default
                each signal, each product, and all signals of two values together have a ridge of their own:
                those that make the answers likeliest (empirical Bayes), so that a signal which is noise is
                left out. Samples that depend on each other are less evidence.
            interactions: Whether products of two signals are used: by default with at most eight signals
                that have more than two values.

        Raises:
            FitError: There are more than 64 signals.
        """
        data = cls.data(logits, labels, **rows)
        z, y, w = data.logits, data.labels, data.weights
        signals = required_features(data.features, cls.__name__, what="signals of shape (n, s)")
        h = check_features(signals, n=len(z), missing=True).to(z.device).double()
        if h.shape[1] > _MOST_SIGNALS:
            raise FitError(
                f"combination: expected at most {_MOST_SIGNALS} signals as features, got {h.shape[1]}; pass "
                "numbers that say something about the answer, such as its length"
            )
        own, answers = _question(z, y)
        reads_logits = not _among(own, h, w)
        h = torch.cat([own[:, None], h], dim=1) if reads_logits else h
        if interactions is not None:
            check_flag(interactions, "interactions")
        inputs = _Inputs(h, interactions, w)
        if ridge is None:
            counts = data.evidence(answers - torch.sigmoid(own))
            theta, _ = fit_likeliest_ridge(inputs.table, answers, inputs.blocks, weights=counts)
        else:
            strength = torch.full_like(inputs.table[0], check_number(ridge, "ridge"))
            theta = fit_ridge(inputs.table, answers, strength, weights=w)
        active = both_answers(answers[:, None] > 0).any()
        curves = inputs.curves(theta)
        fitted = cls(inputs.scale, curves, active, reads_logits=reads_logits, n_classes=z.shape[1])
        return fitted._unless_worse(own, h, answers, w)

    @torch.no_grad()
    def _unless_worse(self, own: Tensor, signals: Tensor, answers: Tensor, weights: Tensor | None) -> Self:
        """Keep the model's own log-odds if the answers are likelier with them."""
        loss = torch.nn.functional.binary_cross_entropy_with_logits
        before, after = (
            float(mean_of(loss(each, answers, reduction="none"), weights))
            for each in (own, self.log_odds(signals))
        )
        if not after <= before:
            self.active.zero_()
        return self

    def log_odds(self, signals: Tensor) -> Tensor:
        """Return the log-odds of the combination for all signals, shape ``(n, s)``."""
        if signals.shape[1] != len(self.values):
            raise InputError(
                f"features: expected the {self.n_features} signals that Combination was fitted on, got "
                f"{signals.shape[1] - self.reads_logits}"
            )
        missing, x = _ranked(signals, self.values, self.ranks)
        _, *curved = natural_splines(x, self.knots)
        height = self.straight.to(x) * x + self.offset.to(x)
        for each, factor in zip(curved, self.curved.to(x), strict=True):
            height = height + factor * each
        height = torch.where(missing, self.absent.to(x), height)
        return height.sum(dim=1) + ((x @ self.products.to(x)) * x).sum(dim=1) + self.intercept.to(x)

    def forward(self, logits: Tensor, features: Tensor | None = None) -> Tensor:
        """Return calibrated log-probabilities of shape ``(n, k)``."""
        z = at_least_float32(logits)
        h = torch.as_tensor(required_features(features, type(self).__name__)).to(z.dtype)
        top = None if z.shape[1] == 2 else split_top(z)
        own = class_log_odds(z)[:, 0] if top is None else top.log_odds
        combined = self.log_odds(torch.cat([own[:, None], h], dim=1) if self.reads_logits else h)
        # With one of two classes masked, the own log-odds are infinite and stay so.
        combined = torch.where(self.active & ~torch.isinf(own), combined, own)
        return normalised(combined[:, None]) if top is None else join_top(top, combined)


class _Scale(NamedTuple):
    """How ranks of signals follow from their values, interpolated between some of them.

    Attributes:
        values: Ascending values of each signal, shape ``(s, b)``; shorter rows are filled up with infinity.
        ranks: The normal quantiles of their ranks, with mean 0 and variance 1 over the fitting set.
    """

    values: Tensor
    ranks: Tensor

    @classmethod
    def of(cls, signals: Tensor, weights: Tensor | None) -> Self:
        present = ~signals.isnan()
        columns = [
            _column_scale(column[rows], rows_of(weights, rows))
            for column, rows in zip(signals.T, present.T, strict=True)
        ]
        size = max(2, *(len(values) for values, _ in columns))
        values = signals.new_full((len(columns), size), torch.inf)
        ranks = signals.new_zeros(len(columns), size)
        for row, column in enumerate(columns):
            values[row, : len(column[0])], ranks[row, : len(column[0])] = column
        return cls(values, ranks)


class _Curves(NamedTuple):
    """What was learned about the ranks of signals.

    Attributes:
        knots: Knots of all splines.
        straight: The slope of each signal, shape ``(s,)``.
        curved: Coefficients of the curved splines, shape ``(knots - 2, s)``.
        offset: What is added where the signal is present.
        absent: What is added where it is missing.
        products: Coefficients of products of two signals, shape ``(s, s)``, above the diagonal.
        intercept: What is added to all.
    """

    knots: Tensor
    straight: Tensor
    curved: Tensor
    offset: Tensor
    absent: Tensor
    products: Tensor
    intercept: Tensor


class _Inputs:
    """The inputs of the regression.

    Attributes:
        scale: How ranks follow from the values of the signals.
        table: All inputs that are not constant, shape ``(n, d)``.
        blocks: The number of the signal or of the product that each input belongs to; signals of two values
            count as one.
    """

    def __init__(self, signals: Tensor, interactions: bool | None, weights: Tensor | None) -> None:
        self.scale = _Scale.of(signals, weights)
        several = torch.isfinite(self.scale.values).sum(dim=1) > 2
        if interactions is None:
            interactions = int(several.sum()) <= _MOST_WITH_PRODUCTS
        missing, x = _ranked(signals, *self.scale)
        levels = torch.linspace(_TAIL, 1 - _TAIL, _KNOTS, dtype=x.dtype, device=x.device)
        self._knots = torch.special.ndtri(levels)
        self._mixture = smoothest_mixture(self._knots)
        self._n_signals = x.shape[1]
        present = (~missing).to(x.dtype)
        _, *curved = mixed_splines(x, self._knots, self._mixture)
        bends = torch.stack(curved) * several
        # Without their straight parts, bends say the same of a signal and of its negative.
        each = present if weights is None else present * weights[:, None]
        count = torch.where(each.any(dim=0), each.sum(dim=0), 1.0)
        self._centres = (bends * each).sum(dim=1) / count
        self._slopes = (bends * x * each).sum(dim=1) / count
        bends = (bends - self._centres[:, None] - self._slopes[:, None] * x) * present
        allowed = several[:, None] & several if interactions else torch.zeros_like(several.diag())
        self._pairs = allowed.triu(diagonal=1).nonzero()
        every = [x, *bends, missing.to(x.dtype), x[:, self._pairs[:, 0]] * x[:, self._pairs[:, 1]]]
        table = torch.cat(every, dim=1)
        self._used = table.std(dim=0, correction=0) > 0
        self.table = table[:, self._used]
        signal = torch.where(several, torch.arange(len(several), device=x.device), -1)
        product = len(signal) + torch.arange(len(self._pairs), device=x.device)
        self.blocks = torch.cat([signal.repeat(len(bends) + 2), product])[self._used]

    def curves(self, theta: Tensor) -> _Curves:
        """Return the curves that coefficients of the inputs describe, the intercept last."""
        s, n_bends = self._n_signals, len(self._mixture)
        every = theta.new_zeros(len(self._used))
        every[self._used] = theta[:-1]
        straight, bends, absent, products = every.split([s, n_bends * s, s, len(self._pairs)])
        bends = bends.view(n_bends, s)
        square = theta.new_zeros(s, s)
        square[self._pairs[:, 0], self._pairs[:, 1]] = products
        return _Curves(
            self._knots,
            straight - (bends * self._slopes).sum(dim=0),
            self._mixture @ bends,
            -(bends * self._centres).sum(dim=0),
            absent.clone(),
            square,
            theta[-1].clone(),
        )


def _question(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return the log-odds that the answer is right, and whether it is, as 0 or 1, both of shape ``(n,)``."""
    z = logits.double()
    if z.shape[1] == 2:
        return class_log_odds(z)[:, 0], labels.double()
    return split_top(z).log_odds, (z.argmax(dim=1) == labels).double()


def _among(own: Tensor, signals: Tensor, weights: Tensor | None) -> bool:
    """Whether one of the signals has the same order as the model's confidence, where it is not missing."""
    for column in signals.T:
        present = ~column.isnan()
        if bool(present.any()):
            counts = rows_of(weights, present)
            apart = _rank_shares(own[present], counts) - _rank_shares(column[present], counts)
            if float(mean_of(apart.abs(), counts)) < _SAME:
                return True
    return False


def _rank_shares(values: Tensor, weights: Tensor | None) -> Tensor:
    """Return the rank of each value, that of equal ones in the middle, as a share between 0 and 1."""
    unique, place, count = torch.unique(values, return_inverse=True, return_counts=True)
    if weights is not None:
        count = weights.new_zeros(len(unique)).index_add(0, place, weights)
    shares: Tensor = ((count.cumsum(0) - count / 2) / size_of(values, weights)).double()
    return shares[place]


def _column_scale(present: Tensor, weights: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return all values of a signal, or some at equal steps of rank, and normal quantiles of their ranks."""
    if not len(present):
        present, weights = present.new_zeros(1), None  # a signal that is always missing counts as constant
    ordered, order = present.sort()
    w = rows_of(weights, order)
    ranks = torch.special.ndtri(_rank_shares(ordered, w))
    ranks = (ranks - mean_of(ranks, w)) / spread_of(ranks, w).clamp(min=1e-9)
    values, counts = torch.unique_consecutive(ordered, return_counts=True)
    last = counts.cumsum(0) - 1
    if len(values) > _VALUES:
        last = torch.unique_consecutive(last[_equal_steps(last, w)])
    return ordered[last], ranks[last]


def _equal_steps(last: Tensor, weights: Tensor | None) -> Tensor:
    """Return places of values at equal steps of rank, from the last sample of each value."""
    if weights is None:
        steps = torch.linspace(0, int(last[-1]), _VALUES, dtype=torch.float64, device=last.device)
        return torch.searchsorted(last, steps.long())
    reached = weights.cumsum(0)[last]
    # The tolerance makes a step that ends with a value end there whatever the rounding of the sum.
    steps = torch.linspace(0, 1 - 1e-9, _VALUES, dtype=torch.float64, device=last.device) * reached[-1]
    return torch.searchsorted(reached, steps).clamp(max=len(last) - 1)


def _ranked(signals: Tensor, values: Tensor, ranks: Tensor) -> tuple[Tensor, Tensor]:
    """Return which signals are missing, and the ranks of all, 0 where missing, both of shape ``(n, s)``."""
    missing = torch.isnan(signals)
    x = interpolate(torch.where(missing, 0.0, signals), values, ranks)
    return missing, torch.where(missing, 0.0, x)
