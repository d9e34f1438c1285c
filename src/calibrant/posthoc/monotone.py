"""MCCT (Zhang et al., "Instance-Wise Monotonic Calibration by Constrained Transformation", UAI 2025)."""

from typing import Self, Unpack

import numpy as np
import torch
from torch import Tensor

from calibrant.files import Allowed
from calibrant.inputs import ArrayLike, Floats, at_least_float32, check_count, check_number
from calibrant.posthoc.calibrator import Calibrator
from calibrant.posthoc.fitting.masked import lowest_for_masked, mask_again
from calibrant.posthoc.fitting.order_preserving import thinned
from calibrant.posthoc.fitting.stored import POSITIVE, Numbers, declare, one_number
from calibrant.posthoc.fitting.temperature_search import likeliest_temperature
from calibrant.posthoc.fitting_set import FittingSet, Rows, sparing_threads
from calibrant.solvers import lowest_from_zero

# Logits count from that of the last rank, but from no lower than this many nats below the largest: a class
# that is practically excluded, by a logit of -1e20, must not decide what the others are.
_REACH = 50.0

# The smallest scale, as a multiple of that of temperature scaling: excluded classes stay excluded.
_LEAST = 0.01

_MAX_STEPS = 100
_TOLERANCE = 1e-9

_NEVER_RISES = Allowed(
    "numbers of at least 0 that never rise",
    lambda x: bool(((x >= 0) & (x < torch.inf)).all()) and bool((x[1:] <= x[:-1]).all()),
)


class MonotoneScaling(Calibrator):
    r"""Give each rank of the sorted logits a scale and an intercept; the order of the classes never changes.

    .. math:: p = \mathrm{softmax}(w \circ (z_{(\cdot)} - z_{(t)}) / T + b), \quad
        w_1 \ge w_2 \ge \dots \ge w_t > 0, \quad b_1 \ge b_2 \ge \dots \ge b_t = 0

    with the logits in descending order, :math:`z_{(1)} \ge z_{(2)} \ge \dots`; classes behind the first
    :math:`t` share the scale and the intercept of rank :math:`t`. The paper multiplies the logits themselves,
    which keeps their order only where none is negative, and depends on an offset that all share. So logits
    count from that of rank :math:`t` here, or from 50 nats below the largest if that is higher; those below
    have the last scale.

    Of equal logits the first has the higher rank, as it is the predicted one. So they may get unequal
    probabilities, and the predicted class never changes.
    """

    preserves_accuracy = True
    masks = True
    stored = declare(
        temperature=one_number(POSITIVE),
        scale=Numbers(("t",), _NEVER_RISES),
        intercept=Numbers(("t",), _NEVER_RISES),
    )

    temperature: Tensor
    scale: Tensor
    intercept: Tensor

    def __init__(self, temperature: float, scale: Tensor, intercept: Tensor, *, n_classes: int) -> None:
        super().__init__(n_classes=n_classes)
        self.register_buffers(
            temperature=torch.tensor(temperature, dtype=torch.float64), scale=scale, intercept=intercept
        )

    @classmethod
    @sparing_threads
    def fit(
        cls,
        logits: ArrayLike | FittingSet,
        labels: ArrayLike | None = None,
        *,
        top: int = 10,
        ridge: float = 1.0,
        **rows: Unpack[Rows],
    ) -> Self:
        r"""Minimise the negative log-likelihood with a weak pull towards temperature scaling.

        The problem is convex in the steps from rank to rank, :math:`u_r = w_r - w_{r+1}` and
        :math:`v_r = b_r - b_{r+1}`, which are at least 0. Added to the log-likelihood of the whole set is
        :math:`r\,((w_t - 1)^2 + \sum_r u_r^2 + v_r^2)`. So the fit is finite with a rank that is never the
        truth, and on the fitting set it is never less likely than temperature scaling. More than a million
        logits are thinned at random, because the map has few parameters.

        Args:
            logits: Scores of shape ``(n, k)``, or ``(n,)`` for the log-odds of class 1.
            labels: Integer classes of shape ``(n,)``.
            top: How many ranks :math:`t` have a scale and an intercept of their own.
            ridge: The factor :math:`r` in nats.
        """
        data = cls.data(logits, labels, **rows)
        top = min(check_count(top, "top", at_least=2), data.n_classes)
        ridge = check_number(ridge, "ridge")
        temperature = likeliest_temperature(data)
        some = thinned(data)
        steps = _likeliest_steps(some.with_logits(some.logits.double() / temperature), top, ridge)
        scale, intercept = (torch.from_numpy(each).to(data.labels.device) for each in _levels(steps, top))
        return cls(temperature, scale, intercept, n_classes=data.n_classes)

    def forward(self, logits: Tensor, features: Tensor | None = None) -> Tensor:
        """Return calibrated log-probabilities of shape ``(n, k)``."""
        z = at_least_float32(logits)
        # A common offset of a row would cost digits of the differences.
        scaled = (z - z.amax(dim=1, keepdim=True)) / self.temperature.to(z.dtype)
        above, order = _above(scaled, len(self.scale))
        mapped = _mapped(above, self.scale.to(z.dtype), self.intercept.to(z.dtype))
        return torch.log_softmax(mask_again(torch.zeros_like(z).scatter(1, order, mapped), z), dim=1)


def _above(scaled: Tensor, top: int) -> tuple[Tensor, Tensor]:
    """Return how far logits in descending order lie above that of the last rank, and the order.

    Masked classes count as the lowest that exists.
    """
    y, order = scaled.sort(dim=1, descending=True, stable=True)
    y = lowest_for_masked(y)
    return y - torch.maximum(y[:, top - 1 : top], y[:, :1] - _REACH), order


def _mapped(above: Tensor, scale: Tensor, intercept: Tensor) -> Tensor:
    """Return scores that never rise from rank to rank, in floating point too."""
    rank = torch.arange(above.shape[1], device=above.device).clamp(max=len(scale) - 1)
    return scale[rank] * above.clamp(min=0) + scale[-1] * above.clamp(max=0) + intercept[rank]


def _levels(steps: Floats, top: int) -> tuple[Floats, Floats]:
    """Return the scales and the intercepts of the ranks: sums of steps from the last rank upwards."""
    scale, intercept = steps[:top], np.append(steps[top:], 0.0)
    return np.cumsum(scale[::-1])[::-1].copy(), np.cumsum(intercept[::-1])[::-1].copy()


def _likeliest_steps(data: FittingSet, top: int, ridge: float) -> Floats:
    """Return steps of the scales, then of the intercepts, by Newton's method within their bounds."""
    likelihood = _Likelihood(data, top)
    start, least = np.zeros((2, 2 * top - 1))
    start[top - 1], least[top - 1] = 1.0, _LEAST
    pull = 2 * ridge / data.size

    def objective(steps: Floats) -> float:
        return likelihood.nll(steps) + pull / 2 * float(np.square(steps - start).sum())

    steps, value = start, objective(start)
    for _ in range(_MAX_STEPS):
        slope, curvature = likelihood.derivatives(steps)
        slope, curvature = slope + pull * (steps - start), curvature + pull * np.eye(len(steps))
        way = least + lowest_from_zero(curvature, curvature @ (steps - least) - slope) - steps
        length, new = 1.0, objective(steps + way)
        while new > value and length > _TOLERANCE:
            length /= 2
            new = objective(steps + length * way)
        if value - new < _TOLERANCE:
            break
        steps, value = steps + length * way, new
    return steps


class _Likelihood:
    """The mean negative log-likelihood as a function of steps, with its derivatives."""

    def __init__(self, data: FittingSet, top: int) -> None:
        self._top, z = top, data.logits
        self._above, order = _above(z, top)
        self._exists = (z > -torch.inf).gather(1, order)
        self._rank = (order == data.labels[:, None]).int().argmax(dim=1, keepdim=True)
        weights = torch.ones_like(z[:, 0]) if data.weights is None else data.weights.to(z)
        self._shares = weights / weights.sum()

    def nll(self, steps: Floats) -> float:
        """Return the mean negative log-likelihood."""
        return -float(self._shares @ self._log_probs(steps).gather(1, self._rank)[:, 0])

    def derivatives(self, steps: Floats) -> tuple[Floats, Floats]:
        """Return its slope and curvature."""
        p = self._log_probs(steps).exp()
        label = torch.zeros_like(p).scatter(1, self._rank, 1.0)
        expected = self._moved(p)
        slope = self._shares @ (expected - self._moved(label))
        curvature = self._products(p) - (expected.T * self._shares) @ expected
        return slope.cpu().numpy(), curvature.cpu().numpy()

    def _log_probs(self, steps: Floats) -> Tensor:
        scale, intercept = (torch.from_numpy(each).to(self._above) for each in _levels(steps, self._top))
        mapped = _mapped(self._above, scale, intercept)
        return torch.log_softmax(mapped.masked_fill(~self._exists, -torch.inf), dim=1)

    def _moved(self, p: Tensor) -> Tensor:
        """Return the expected derivative of the score in each step, shape ``(n, 2 t - 1)``.

        The step behind a rank moves this rank and all before it; the last step of the scales moves all.
        """
        inner = self._top - 1
        positive = self._above[:, :inner].clamp(min=0)
        scales = (p[:, :inner] * positive).cumsum(dim=1)
        last = (p * self._above).sum(dim=1, keepdim=True)
        return torch.cat([scales, last, p[:, :inner].cumsum(dim=1)], dim=1)

    def _products(self, p: Tensor) -> Tensor:
        """Return the mean expected products of these derivatives: over the ranks that both steps move."""
        inner = self._top - 1
        far = self._above[:, :inner]
        near = far.clamp(min=0)
        mean = self._shares @ torch.cat(
            [p[:, :inner] * each for each in (near**2, near, far, p.new_ones(()))], 1
        )
        squares, firsts, lasts, counts = mean.view(4, inner).cumsum(dim=1)
        rank = torch.arange(inner, device=p.device)
        lower = torch.minimum(rank[:, None], rank)
        last = (self._shares @ (p * self._above**2).sum(dim=1))[None]
        rows = [
            torch.cat([squares[lower], squares[:, None], firsts[lower]], dim=1),
            torch.cat([squares, last, lasts])[None],
            torch.cat([firsts[lower], lasts[:, None], counts[lower]], dim=1),
        ]
        return torch.cat(rows)
