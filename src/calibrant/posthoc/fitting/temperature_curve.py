"""A temperature that is a function of one number per sample, linear between a few knots.

It is fitted in two steps. The first finds the likeliest curve; how much it may bend is chosen by
cross-validation. The second bends it further to close the gap between confidence and accuracy, and goes back
in proportion to what chance alone would show. ``docs/results/smart_stopping.md`` tells how both were chosen.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from calibrant.outcomes import mean_of
from calibrant.posthoc.fitting.folds import each_fold
from calibrant.posthoc.fitting.sample_temperature import LOWEST_TEMPERATURE, Layers
from calibrant.posthoc.fitting.temperature_search import walk_over_temperature
from calibrant.posthoc.fitting.temperature_training import (
    GAPS,
    Adam,
    Plan,
    height_of,
    likelihood_suffers,
    simplest_temperature,
    times_chance,
)
from calibrant.posthoc.fitting.tempered import TemperedForecasts, TemperedSamples, tempered
from calibrant.posthoc.fitting.weighing import quantiles, rows_of, size_of, sum_of
from calibrant.posthoc.fitting_set import FittingSet
from calibrant.solvers import convex_minimum
from calibrant.surrogates import N_BINS, objective_value

# Prices of bending that are tried, the highest first; infinity is one temperature for all samples.
BENDING_PRICES = (math.inf, 300.0, 30.0, 3.0)

# Fewer samples than this cannot show how a curve should bend.
_FEWEST = 100

_KNOTS = 6

# Knots are further apart than this share of their size. Between nearer ones, as of clipped probabilities, the
# curve would be too steep for single precision.
_NEAREST = 0.01
_FOLDS = 5

# Share of the predicted class, against that of the true class, in the likelihood of the first step.
_QUESTION = 0.7

# Share of the likelihood in the second step, so that closing gaps costs no more of it than it must:
# beside squared gaps in units of their noise, and beside the objective.
_BESIDE_SQUARES = 0.2
_LIKELIHOOD = 0.1

# A step of the search that gains less than this, in nats per sample, is the last one.
_TOLERANCE = 1e-5
_LEARNING_RATE = 2e-2

# Price of a change of slope in the second step, and the most steps of its search.
_SMOOTHNESS = 30.0
_MOST_STEPS = 30

# By chance alone the second step seldom lowers the statistic of Hosmer and Lemeshow further than this.
_FALL_BY_CHANCE = 1.5

# A probability nearer to 1 than this has lost its digits.
_NEAR_ONE = 1e-12


@dataclass(frozen=True, eq=False)
class Curve:
    """A curve through a few points: ``softplus`` of its heights, plus 0.1, is the temperature.

    Attributes:
        knots: Ascending numbers, shape ``(m,)``; beyond the outermost the curve is constant.
        heights: Heights at the knots, shape ``(m,)``.
    """

    knots: Tensor
    heights: Tensor

    def layers(self) -> Layers:
        """Return the curve as a network with one hidden unit per knot, where its slope changes."""
        slopes = torch.diff(self.heights) / torch.diff(self.knots)
        bends = torch.diff(slopes, prepend=slopes.new_zeros(1), append=slopes.new_zeros(1))
        return [
            (torch.ones_like(self.knots)[:, None], -self.knots),
            (bends[None], self.heights[:1].clone()),
        ]


def fit_curve(x: Tensor, data: FittingSet, plan: Plan, strength: float | None) -> tuple[Curve, float]:
    """Fit a curve from one number per sample to a temperature.

    Args:
        x: The number that the temperature depends on, shape ``(n,)``.
        data: The samples.
        plan: Options of the second step.
        strength: The price of bending; chosen by cross-validation from :data:`BENDING_PRICES` if None.

    Returns:
        The curve, and the price of bending that was used.
    """
    samples = tempered(data)
    plan, problem = plan.for_units(samples, data.units), _Problem(x.double(), samples)
    unchanged = problem.flat(1.0)
    # If all predictions are right or all are wrong, the data do not show which confidence is too high.
    if plan.epochs == 0 or bool(samples.correct.min() == samples.correct.max()):
        return problem.curve(unchanged), math.inf
    if strength is None:
        strength = _chosen_strength(problem, data)
    if strength == math.inf:
        first = problem.flat(simplest_temperature(samples, plan)[0])
    else:
        first = problem.likeliest(strength)
    for heights in (_bent(problem, first, plan), first):
        if not likelihood_suffers(samples, problem.temperature(heights), data.units):
            return problem.curve(heights), strength
    return problem.curve(unchanged), strength


class _Problem:
    """The samples that a curve is fitted to, and the curve's knots: quantiles of what it depends on."""

    def __init__(self, x: Tensor, samples: TemperedSamples) -> None:
        self.samples = samples
        levels = torch.linspace(0, 1, _KNOTS, dtype=x.dtype, device=x.device)
        knots = _apart(quantiles(x, levels, samples.weights))
        self.knots = knots if len(knots) > 1 else torch.cat([knots, knots + 1])
        self._parts = _parts(x, self.knots)

    @property
    def size(self) -> float:
        """The number of samples, or with weights the number that they are worth."""
        return size_of(self.samples.correct, self.samples.weights)

    def curve(self, heights: Tensor) -> Curve:
        """Return the curve with these heights."""
        return Curve(self.knots, heights)

    def flat(self, temperature: float) -> Tensor:
        """Return the heights of a curve that is the same temperature everywhere."""
        return torch.full_like(self.knots, height_of(temperature))

    def temperature(self, heights: Tensor, rows: Tensor | None = None) -> Tensor:
        """Return the temperature of each sample, or of some rows."""
        parts = self._parts if rows is None else self._parts[rows]
        return _temperature(parts @ heights)

    def loss(self, heights: Tensor, rows: Tensor | None = None) -> Tensor:
        """Return the likelihood loss of each sample, or of some rows."""
        return _likelihood_losses(self.samples.at(self.temperature(heights, rows), rows))

    def weights(self, rows: Tensor | None = None) -> Tensor | None:
        """Return how much each sample counts, or each of some rows."""
        every = self.samples.weights
        return every if rows is None else rows_of(every, rows)

    def likeliest(
        self,
        strength: float,
        rows: Tensor | None = None,
        *,
        flat: Tensor | None = None,
        start: Tensor | None = None,
    ) -> Tensor:
        r"""Return the heights with the smallest likelihood loss plus the price of bending.

        The price is :math:`\tfrac \lambda 2 \sum_j (h_{j+1} - h_j)^2 / T^2` for the whole fitting set, with
        the best single temperature :math:`T`.

        Args:
            strength: The price :math:`\lambda`; infinity is one temperature.
            rows: The samples to use; all by default.
            flat: The heights of that temperature, if they are known.
            start: Where the search starts; at one temperature by default.
        """
        flat = self._likeliest_flat(rows) if flat is None else flat
        if strength == math.inf:
            return flat
        weights = self.weights(rows)
        n = size_of(self.samples.correct if rows is None else rows, weights)
        scale = _temperature(flat[0])

        def objective(point: Tensor) -> tuple[float, Tensor]:
            heights = (scale * point).requires_grad_()
            bends = torch.diff(heights) / scale
            value = mean_of(self.loss(heights, rows), weights) + strength / (2 * n) * bends.square().sum()
            (gradient,) = torch.autograd.grad(value, heights)
            return float(value.detach()), scale * gradient

        begin = flat if start is None else start
        with torch.enable_grad():
            return scale * convex_minimum(objective, begin / scale, tolerance=_TOLERANCE, max_steps=20)

    def misfit(self, forecasts: TemperedForecasts) -> Tensor:
        r"""Return half the statistic of Hosmer and Lemeshow over soft bins, per sample.

        .. math:: \frac12 \sum_b \frac{w_b\,\mathrm{gap}_b^2}{c_b (1 - c_b)}

        These are squared gaps in units of their noise, with the centers :math:`c_b` of the bins. Where it is
        smallest varies less between fitting sets than where the mean absolute gap is.
        """
        bins = forecasts.bins
        centers = (torch.arange(N_BINS, device=bins.gap.device, dtype=bins.gap.dtype) + 0.5) / N_BINS
        return (bins.weight * bins.gap.square() / (centers * (1 - centers))).sum() / 2

    def closed(self, first: Tensor, *, max_steps: int) -> Tensor:
        r"""Return the heights with the smallest gaps between confidence and accuracy, starting from others.

        What is minimised is :meth:`misfit`, a share of the log-loss, and a price of changes of slope,
        :math:`\tfrac \mu {2n} \sum_j (h_{j+1} - 2 h_j + h_{j-1})^2 / T^2` with the mean temperature :math:`T`
        at first.
        """
        scale = _temperature(first.mean())

        def objective(point: Tensor) -> tuple[float, Tensor]:
            heights = (scale * point).requires_grad_()
            forecasts = self.samples.at(self.temperature(heights))
            bends = torch.diff(heights, n=2) / scale
            value = self.misfit(forecasts) - _BESIDE_SQUARES * forecasts.mean(forecasts.true_log_prob)
            value = value + _SMOOTHNESS / (2 * self.size) * bends.square().sum()
            (gradient,) = torch.autograd.grad(value, heights)
            return float(value.detach()), scale * gradient

        with torch.enable_grad():
            return scale * convex_minimum(
                objective, first / scale, tolerance=_TOLERANCE / 10, max_steps=max_steps
            )

    def _likeliest_flat(self, rows: Tensor | None) -> Tensor:
        def loss(temperature: float) -> float:
            return float(mean_of(self.loss(self.flat(temperature), rows), self.weights(rows)))

        return self.flat(walk_over_temperature(loss, lowest=1.01 * LOWEST_TEMPERATURE))


def _temperature(heights: Tensor) -> Tensor:
    return F.softplus(heights) + LOWEST_TEMPERATURE


def _apart(ascending: Tensor) -> Tensor:
    """Return the numbers that are not too close to the one before, of those that are returned."""
    kept = ascending[:1].tolist()
    for number in ascending[1:].tolist():
        if number - kept[-1] > _NEAREST * abs(number):
            kept.append(number)
    return ascending.new_tensor(kept)


def _parts(x: Tensor, knots: Tensor) -> Tensor:
    """Return the share of each knot in the height at each number, shape ``(n, m)``."""
    right = torch.searchsorted(knots, x).clamp(1, len(knots) - 1)
    part = ((x - knots[right - 1]) / (knots[right] - knots[right - 1])).clamp(0, 1)
    shares = x.new_zeros((len(x), len(knots)))
    shares.scatter_(1, right[:, None] - 1, 1 - part[:, None])
    return shares.scatter_(1, right[:, None], part[:, None])


def _likelihood_losses(forecasts: TemperedForecasts) -> Tensor:
    """Return the log-loss of the true class, mixed with that of the question whether the prediction is right.

    The first is the likelihood that users measure; the second sees only what calibration errors see.
    """
    c, right = forecasts.confidence.clamp(_NEAR_ONE, 1 - _NEAR_ONE), forecasts.correct
    of_question = right * torch.log(c) + (1 - right) * torch.log1p(-c)
    return -torch.lerp(forecasts.true_log_prob, of_question, _QUESTION)


@torch.no_grad()
def _chosen_strength(problem: _Problem, data: FittingSet) -> float:
    """Return the price of bending with the smallest loss of held-out samples, the highest of equals."""
    if data.n_units < _FEWEST:
        return math.inf
    losses = dict.fromkeys(BENDING_PRICES, 0.0)
    for rest, held_out in each_fold(data.dealt(_FOLDS)):
        flat = heights = problem.likeliest(math.inf, rest)
        for strength in BENDING_PRICES:
            heights = problem.likeliest(strength, rest, flat=flat, start=heights)
            losses[strength] += float(sum_of(problem.loss(heights, held_out), problem.weights(held_out)))
    return min(BENDING_PRICES, key=lambda strength: losses[strength])


def _bent(problem: _Problem, first: Tensor, plan: Plan) -> Tensor:
    r"""Bend a curve to close gaps, and return heights between the first and the bent ones.

    If the statistic of the gaps falls by :math:`r` times what it seldom falls by chance, the share of the
    way is :math:`1 - (s / r)^2` with ``settled`` :math:`s`. The fall shows what a curve can repair, which the
    error of all bins together hides when samples are few. With :math:`s = 0`, and for objectives that are not
    gaps, the objective itself is followed all the way.
    """
    if plan.objective not in GAPS or plan.settled == 0:
        return _descended(problem, first, plan)
    with torch.no_grad():
        excess = times_chance(problem.samples.at(problem.temperature(first)))
    if excess <= plan.settled:
        return first
    closed = problem.closed(first, max_steps=min(plan.epochs, _MOST_STEPS))
    with torch.no_grad():
        before, after = (problem.misfit(problem.samples.at(problem.temperature(h))) for h in (first, closed))
    fall = 2 * problem.size * float(before - after) / _FALL_BY_CHANCE
    way = 1 - (plan.settled / fall) ** 2 if fall > plan.settled else 0.0
    return first + way * (closed - first)


def _descended(problem: _Problem, first: Tensor, plan: Plan) -> Tensor:
    """Train the heights with Adam for all epochs and return those with the lowest value."""
    scale = _temperature(first.mean())
    point = (first / scale).requires_grad_()
    adam = Adam([point], learning_rate=_LEARNING_RATE)
    best, lowest = first, math.inf
    for _ in range(plan.epochs + 1):
        forecasts = problem.samples.at(problem.temperature(scale * point))
        value = objective_value(plan.objective, forecasts)
        if plan.objective in GAPS:
            value = value - _LIKELIHOOD * forecasts.mean(forecasts.true_log_prob)
        if float(value.detach()) < lowest:
            best, lowest = scale * point.detach().clone(), float(value.detach())
        adam.step(torch.autograd.grad(value, [point]))
    return best
