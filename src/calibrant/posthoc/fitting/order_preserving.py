"""Maps of logits that keep the order of the classes, fitted by penalised likelihood from one temperature.

Intra-order-preserving maps (Rahimi et al., NeurIPS 2020) stretch the gaps between the sorted logits of a row
by positive factors. Both kinds here begin where every factor is 1, which is temperature scaling, and a ridge
pulls them back to it. How strong the ridge is, cross-validation decides.

Masked classes stand behind all others in the order, and there is no gap before them.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from calibrant.inputs import check_seed, masked_classes
from calibrant.outcomes import mean_of
from calibrant.posthoc.fitting.affine import strongest_within_error
from calibrant.posthoc.fitting.folds import each_fold
from calibrant.posthoc.fitting.masked import lowest_for_masked, mask_again
from calibrant.posthoc.fitting.sample_temperature import Layers
from calibrant.posthoc.fitting.tempered import log_sum_exp
from calibrant.posthoc.fitting.weighing import moments, rows_of, size_of, sum_of
from calibrant.posthoc.fitting_set import FittingSet
from calibrant.solvers import convex_minimum

# Factors of the ridge that are tried, the strongest first.
ORDER_STRENGTHS = (300.0, 100.0, 30.0, 10.0, 3.0, 1.0)

# Gaps are stretched and shrunk by no more than this.
_LOG_LIMIT = math.log(8)

# Where the slope of the monotone map may change, in nats below a probability of 1.
KNOTS = (0.0, 0.25, 0.5, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0)

# Entries of logits that a fit reads; more rows are thinned, because the maps have few parameters.
MOST_ENTRIES = 1 << 20

_FOLDS = 5

# Fits that only predict a fold stop this near to the optimum, a hundredth of the standard error.
_FOLD_TOLERANCE = 2e-5


def factor(scores: Tensor) -> Tensor:
    """Return positive factors, which are 1 at a score of 0 and lie between 1/8 and 8."""
    return torch.exp(_LOG_LIMIT * torch.tanh(scores / _LOG_LIMIT))


def monotone_scores(log_probs: Tensor, slopes: Tensor) -> Tensor:
    r"""Apply one increasing function, linear between :data:`KNOTS`, to each log-probability.

    .. math:: g(l) = -\sum_b s_b\,\mathrm{clip}(-l - a_b,\, 0,\, a_{b+1} - a_b), \quad s_b > 0

    The last piece has no end. Each operation keeps the order of the classes in floating point too: larger
    arguments never give smaller results, and equal ones give equal results; ``-inf`` stays what it is.
    """
    total = torch.zeros_like(log_probs)
    for b, piece in enumerate(_pieces(log_probs)):
        total = total + slopes[b].to(log_probs.dtype) * piece
    return -total


def stretched(logits: Tensor, layers: Layers, *, top: int) -> Tensor:
    r"""Multiply the gaps between the sorted logits of each row by factors that a network computes.

    .. math:: f(z) = S(z)^{-1} U w, \quad w_i = (y_i - y_{i+1})\,m_i(y), \quad y = S(z) z

    with the sorting permutation :math:`S` and the upper triangle of ones :math:`U`. The free number
    :math:`w_k` is such that the largest score is 0, because softmax ignores a common shift. Scores of masked
    classes are ``-inf``.

    Args:
        logits: Logits at the common temperature, shape ``(n, k)``.
        layers: The network that reads the largest log-probabilities in order.
        top: How many of them it reads.
    """
    y, order = logits.sort(dim=1, descending=True)
    m = factor(_network(_seen(y, top), layers))
    y = lowest_for_masked(y)
    gaps = y[:, :-1] - y[:, 1:]
    m = m[:, torch.arange(gaps.shape[1], device=m.device).clamp(max=m.shape[1] - 1)]
    # Summed from the largest downwards: gaps near the top would drown in sums from below.
    below = F.pad(torch.cumsum(gaps * m, dim=1), (1, 0))
    return mask_again(torch.zeros_like(y).scatter(1, order, -below), logits)


class OrderLikelihood(ABC):
    """The negative log-likelihood of each sample, as a function of a map's parameters.

    Attributes:
        weights: How much each sample counts, or None if all count the same.
    """

    weights: Tensor | None = None

    @abstractmethod
    def take(self, rows: Tensor) -> Self:
        """Return the likelihood of some samples."""

    @abstractmethod
    def __len__(self) -> int:
        """Number of samples."""

    @abstractmethod
    def nll(self, parameters: Tensor) -> Tensor:
        """Return the negative log-likelihood of each sample, shape ``(n,)``, with a gradient."""


class MonotoneLikelihood(OrderLikelihood):
    """The likelihood of :func:`monotone_scores`; the parameters are scores whose factors are the slopes."""

    def __init__(self, pieces: "Pieces", labels: Tensor, *, weights: Tensor | None = None) -> None:
        self._pieces, self._labels, self.weights = pieces, labels, weights

    @classmethod
    def of(cls, data: FittingSet) -> Self:
        """Prepare logits at the common temperature."""
        return cls(Pieces.of(torch.log_softmax(data.logits, dim=1)), data.labels, weights=data.weights)

    def take(self, rows: Tensor) -> Self:
        """Return the likelihood of some samples."""
        return type(self)(self._pieces.take(rows), self._labels[rows], weights=rows_of(self.weights, rows))

    def __len__(self) -> int:
        return len(self._labels)

    def nll(self, parameters: Tensor) -> Tensor:
        """Return the negative log-likelihood of each sample."""
        scores = self._pieces.scores(factor(parameters))
        return F.cross_entropy(scores, self._labels, reduction="none").double()


class Pieces(NamedTuple):
    """The length of each piece between a log-probability and 0, for :func:`monotone_scores` of any slopes.

    Attributes:
        lengths: Lengths of shape ``(n, k, b)``; 0 for masked classes, whose own would be infinite.
        masked: Which classes are masked, shape ``(n, k)``; None if none is.
    """

    lengths: Tensor
    masked: Tensor | None

    @classmethod
    def of(cls, log_probs: Tensor) -> Self:
        """Cut log-probabilities of shape ``(n, k)`` into pieces."""
        masked = masked_classes(log_probs)
        inside = log_probs if masked is None else log_probs.masked_fill(masked, 0.0)
        return cls(torch.stack(list(_pieces(inside)), dim=-1), masked)

    def take(self, rows: Tensor) -> Self:
        """Return the pieces of some samples."""
        return type(self)(self.lengths[rows], None if self.masked is None else self.masked[rows])

    def scores(self, slopes: Tensor) -> Tensor:
        """Return the scores of all classes, shape ``(n, k)``, with a gradient in the slopes."""
        scores = -(self.lengths @ slopes.to(self.lengths.dtype))
        return scores if self.masked is None else scores.masked_fill(self.masked, -torch.inf)


def _pieces(log_probs: Tensor) -> Iterator[Tensor]:
    for first, last in pairwise(KNOTS):
        yield (-log_probs - first).clamp(0.0, last - first)
    yield (-log_probs - KNOTS[-1]).clamp(min=0)


class StretchLikelihood(OrderLikelihood):
    r"""The likelihood of :func:`stretched`; the parameters are those of the network, one after another.

    Only the first gaps have factors of their own. All classes behind them, which share a factor
    :math:`m`, enter as one function of it, :math:`\log \sum_c e^{m (y_c - \max y)}`, so that a step does not
    pass over all classes.
    """

    def __init__(self, data: FittingSet, *, widths: Sequence[int], top: int) -> None:
        labels, self.weights = data.labels, data.weights
        y, order = data.logits.double().sort(dim=1, descending=True)
        last = widths[-1] - 1
        self._widths = widths
        self._inputs = _seen(y, top)
        masked = masked_classes(y)
        self._masked = None if masked is None else masked[:, : last + 1]
        tail = y[:, last:] if masked is None else y[:, last:].masked_fill(masked[:, last : last + 1], 0.0)
        self._tail = log_sum_exp(tail)
        y = lowest_for_masked(y)
        self._gaps = y[:, :last] - y[:, 1 : last + 1]
        self._rank = (order == labels[:, None]).int().argmax(dim=1)
        self._deficit = (y.gather(1, self._rank[:, None]).squeeze(1) - y[:, last]).clamp(max=0)
        self._rows = torch.arange(len(y), device=y.device)

    def standardise(self) -> tuple[Tensor, Tensor]:
        """Give the network inputs of mean 0 and deviation 1, and return the means and deviations."""
        mean, deviation = moments(self._inputs, self.weights)
        deviation = torch.where(deviation <= 1e-9 * mean.abs(), torch.ones_like(deviation), deviation)
        self._inputs = (self._inputs - mean) / deviation
        return mean, deviation

    def take(self, rows: Tensor) -> Self:
        """Return the likelihood of some samples, which shares the function of the last classes."""
        part = type(self).__new__(type(self))
        part._widths, part._tail = self._widths, self._tail
        part.weights = rows_of(self.weights, rows)
        part._inputs, part._gaps = self._inputs[rows], self._gaps[rows]
        part._masked = rows_of(self._masked, rows)
        part._rank, part._deficit, part._rows = self._rank[rows], self._deficit[rows], self._rows[rows]
        return part

    def __len__(self) -> int:
        return len(self._rank)

    def nll(self, parameters: Tensor) -> Tensor:
        """Return the negative log-likelihood of each sample."""
        m = factor(_network(self._inputs, unpacked(parameters, self._widths)))
        last = m.shape[1] - 1
        scores = F.pad(-torch.cumsum(self._gaps * m[:, :-1], dim=1), (1, 0))
        at_last = scores[:, -1] + self._tail(m[:, -1].log(), self._rows)
        every = torch.cat([scores[:, :-1], at_last[:, None]], dim=1)
        every = every if self._masked is None else every.masked_fill(self._masked, -torch.inf)
        norm = torch.logsumexp(every, dim=1)
        of_label = scores.gather(1, self._rank.clamp(max=last)[:, None]).squeeze(1)
        return norm - of_label - m[:, -1] * self._deficit


def unpacked(parameters: Tensor, widths: Sequence[int]) -> Layers:
    """Return the weight and bias of each layer from one vector."""
    shapes = [shape for into, out in pairwise(widths) for shape in ((out, into), (out,))]
    parts = parameters.split([math.prod(shape) for shape in shapes])
    tensors = [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]
    return list(zip(tensors[::2], tensors[1::2], strict=True))


def first_parameters(widths: Sequence[int], *, seed: int) -> Tensor:
    """Return random weights of the hidden layers, and an output layer of zeros."""
    generator = torch.Generator().manual_seed(check_seed(seed))
    parts = []
    for into, out in pairwise(widths[:-1]):
        parts.append(torch.randn(out * into, generator=generator, dtype=torch.float64) / math.sqrt(into))
        parts.append(torch.randn(out, generator=generator, dtype=torch.float64))
    return torch.cat([*parts, torch.zeros((widths[-2] + 1) * widths[-1], dtype=torch.float64)])


def _network(inputs: Tensor, layers: Layers) -> Tensor:
    hidden = inputs
    for weight, bias in layers[:-1]:
        hidden = torch.tanh(F.linear(hidden, weight, bias))
    return F.linear(hidden, *layers[-1])


def _seen(y: Tensor, top: int) -> Tensor:
    """Return the largest log-probabilities; the lowest of a row stands for those that are missing."""
    return lowest_for_masked(torch.log_softmax(y, dim=1)[:, :top])


def thinned(data: FittingSet) -> FittingSet:
    """Return all samples, or as many at random as :data:`MOST_ENTRIES` allows."""
    return data.thinned(max(1, MOST_ENTRIES // data.n_classes))


def fit_order(
    likelihood: OrderLikelihood, start: Tensor, data: FittingSet, *, strength: float | None
) -> tuple[Tensor, float]:
    """Minimise the likelihood with a ridge around the start, which is temperature scaling.

    Returns:
        The parameters and the strength of the ridge: the given one, or the one that cross-validation
        chooses. It is infinite if the start is best.
    """
    if strength is None:
        strength = _choose_strength(likelihood, start, data)
    if strength == math.inf:
        return start, strength
    found = _minimum(likelihood, start, start, strength)
    with torch.no_grad():
        w = likelihood.weights
        better = float(mean_of(likelihood.nll(found), w)) < float(mean_of(likelihood.nll(start), w))
    return (found, strength) if better else (start, math.inf)


def _choose_strength(likelihood: OrderLikelihood, start: Tensor, data: FittingSet) -> float:
    if data.n_units < 2 * _FOLDS:
        return math.inf
    n = _size(likelihood)
    parts = list(each_fold(data.dealt(_FOLDS)))
    rows = torch.cat([held_out for _, held_out in parts])
    weights, units = rows_of(likelihood.weights, rows), rows_of(data.units, rows)
    fits = [(likelihood.take(rest), likelihood.take(held_out)) for rest, held_out in parts]
    losses, points = [_held_out(fits, [start] * _FOLDS)], [start] * _FOLDS
    for strength in ORDER_STRENGTHS:
        points = [
            _minimum(fitted, start, begin, strength * _size(fitted) / n, tolerance=_FOLD_TOLERANCE)
            for (fitted, _), begin in zip(fits, points, strict=True)
        ]
        losses.append(_held_out(fits, points))
        if sum_of(losses[-1], weights) > sum_of(losses[-2], weights):
            break
    chosen = strongest_within_error(torch.stack(losses), weights, units)
    return (math.inf, *ORDER_STRENGTHS)[chosen]


def _size(likelihood: OrderLikelihood) -> float:
    """Return the number of samples, or the effective number."""
    return size_of(likelihood, likelihood.weights)


@torch.no_grad()
def _held_out(fits: Sequence[tuple[OrderLikelihood, OrderLikelihood]], points: Sequence[Tensor]) -> Tensor:
    return torch.cat([held_out.nll(point) for (_, held_out), point in zip(fits, points, strict=True)])


def _minimum(
    likelihood: OrderLikelihood, start: Tensor, begin: Tensor, strength: float, *, tolerance: float = 1e-6
) -> Tensor:
    def objective(point: Tensor) -> tuple[float, Tensor]:
        with torch.enable_grad():
            parameters = point.detach().requires_grad_()
            ridge = strength / 2 / _size(likelihood) * (parameters - start).square().sum()
            loss = mean_of(likelihood.nll(parameters), likelihood.weights) + ridge
            (gradient,) = torch.autograd.grad(loss, parameters)
        return float(loss.detach()), gradient

    return convex_minimum(objective, begin, tolerance=tolerance, max_steps=60)
