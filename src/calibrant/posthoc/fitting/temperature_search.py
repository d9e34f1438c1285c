"""Searches for one temperature: by likelihood, by calibration error, or by any loss.

All that a temperature acts on is how far each logit lies below the largest one of its row.
"""

import itertools
import math
from collections.abc import Callable, Iterator
from functools import cached_property

import torch
from torch import Tensor

from calibrant.bins import Binning, equal_mass_bins, equal_width_bins
from calibrant.errors import FitError
from calibrant.outcomes import Outcomes, mean_of
from calibrant.posthoc.fitting.masked import finite, mean_of_existing
from calibrant.posthoc.fitting.weighing import rows_of, sum_of
from calibrant.posthoc.fitting_set import FittingSet, remembered
from calibrant.solvers import increasing_root, minimum_between

# Temperatures tried for the calibration error, as in Mukhoti et al. (2020) and Ghosh et al. (2022).
ECE_GRID = tuple(step / 10 for step in range(1, 101))

# Entries handled at once: two blocks of them stay in the processor's cache, and calls are few.
_BLOCK_ENTRIES = 1 << 18

# Weight of the prior where the likelihood has no optimum: log T is normal around 0 with deviation 2, so that
# T lies between 1/50 and 50.
PRIOR = 0.25

# Subsets of about this many rows locate the optimum, the second to within a few per cent.
_SAMPLE_ROWS = (250, 2000)


@remembered
def likeliest_temperature(data: FittingSet, *, start: float = 1.0, prior: float = PRIOR) -> float:
    r"""Return the temperature under which the labels are likeliest.

    The negative log-likelihood is convex in the inverse temperature. At its optimum :math:`\beta = 1/T` the
    mean logit under the model's distribution equals the mean logit of the labels,
    :math:`\sum_i \mathbb{E}_{c \sim p_i(\beta)}[z_{ic}] = \sum_i z_{i y_i}`; the left side increases with
    :math:`\beta`, so Newton steps within a bracket find it from any start.

    There is no optimum if every label has the largest logit (the likelihood grows as the temperature falls to
    0), or if the logits predict labels no better than chance (it grows as the temperature rises without end).
    Then a weak prior decides, which adds :math:`\tfrac w2 (\log T)^2`.

    Args:
        data: The samples.
        start: Temperature at which the search begins.
        prior: Weight :math:`w` of the prior.

    Raises:
        FitError: The likelihood has no optimum, and the prior has no weight.
    """
    z, y, weights = data.logits, data.labels, data.weights
    deficits = Deficits(z, y, weights)
    reason = _why_no_optimum(deficits)
    if reason and prior == 0:
        raise FitError(f"temperature scaling: no optimum, {reason}")
    log_beta, tolerance = -math.log(start), 1e-6
    for rows in _SAMPLE_ROWS:
        stride = len(z) // rows
        few = slice(None, None, stride)
        part = Deficits(z[few], y[few], rows_of(weights, few)) if stride > 3 and not reason else None
        if part and part.mean < part.label < 0:  # else its likelihood has no optimum
            # Newton's error is about the square of its last step: from here two passes over all rows suffice.
            log_beta, tolerance = increasing_root(part.slope, start=log_beta, tolerance=1e-3), 3e-4
    weight = prior / data.size if reason else 0.0

    def slope(x: float) -> tuple[float, float]:
        value, rise = deficits.slope(x)
        pull = weight * math.exp(-x)
        return value + pull * x, rise + pull * (1 - x)

    return math.exp(-increasing_root(slope, start=log_beta, tolerance=tolerance))


def _why_no_optimum(deficits: "Deficits") -> str:
    """Return why the likelihood has no optimum; an empty string if it has one."""
    if deficits.label == 0 and deficits.mean < 0:
        return (
            "every label has the largest logit, so the likelihood grows as the temperature falls to 0; fit "
            "on data that the model was not trained on"
        )
    if deficits.label <= deficits.mean:
        return (
            "the logits predict the labels no better than chance, so the likelihood grows as the temperature "
            "rises without end; check the order of the classes"
        )
    return ""


def best_calibrated_temperature(data: FittingSet, *, n_bins: int, binning: Binning = "width") -> float:
    """Return the temperature of 0.1, 0.2, ..., 10 with the smallest top-label calibration error."""
    deficits = Deficits(data.logits, data.labels, data.weights)
    correct = data.logits.argmax(dim=1) == data.labels
    bins = equal_width_bins if binning == "width" else equal_mass_bins

    def error(temperature: float) -> float:
        outcomes = Outcomes(deficits.confidence(1 / temperature), correct, data.weights)
        return float(bins(outcomes, n_bins).expected_gap())

    return min(ECE_GRID, key=lambda t: (error(t), abs(math.log(t))))


def minimise_over_temperature(loss: Callable[[float], float]) -> float:
    """Return the temperature from 0.05 to 20 with the smallest loss, which may have several valleys.

    A geometric grid finds the valley, Brent's method its floor. A temperature of 1 is one of the candidates,
    so the result is never worse than doing nothing.

    Example:
        >>> round(minimise_over_temperature(lambda t: (t - 2.5) ** 2), 4)
        2.5
    """
    step = math.log(20 / 0.05) / 32
    grid = [math.log(0.05) + step * i for i in range(33)]
    losses = {x: loss(math.exp(x)) for x in [0.0, *grid]}
    best = min(losses, key=lambda x: (losses[x], abs(x)))
    return _floor(loss, (best, losses[best]), (best - step, best + step), tolerance=1e-6)


def walk_over_temperature(loss: Callable[[float], float], *, lowest: float) -> float:
    """Return the temperature up to 1e6 with the smallest loss in the valley that lies downhill from 1.

    Cheaper than :func:`minimise_over_temperature`.

    Example:
        >>> round(walk_over_temperature(lambda t: (t - 2.5) ** 2, lowest=0.1), 2)
        2.5
    """
    first, last = math.log(lowest), math.log(1e6)
    here, value, step = 0.0, loss(1.0), 0.1
    direction = 1 if loss(math.exp(0.01)) < value else -1
    while first < here + direction * step < last:
        following = loss(math.exp(here + direction * step))
        if following >= value:
            break
        here, value, step = here + direction * step, following, 1.3 * step
    return _floor(loss, (here, value), (max(here - step, first), min(here + step, last)), tolerance=1e-3)


def _floor(
    loss: Callable[[float], float],
    best: tuple[float, float],
    bounds: tuple[float, float],
    *,
    tolerance: float,
) -> float:
    """Refine the best point so far (log-temperature and loss) within bounds, and return its temperature."""
    x, value = minimum_between(lambda x: loss(math.exp(x)), *bounds, tolerance=tolerance)
    return math.exp(x if value < best[1] else best[0])


class Deficits:
    """Logits minus the largest of their row, computed block by block and never stored.

    Attributes:
        logits: The logits, of shape ``(n, k)``.
        top: The largest logit of each row, of shape ``(n, 1)``.
        label: Mean deficit of the labelled classes.
    """

    def __init__(self, logits: Tensor, labels: Tensor, weights: Tensor | None = None) -> None:
        self.logits = logits
        self.top = logits.amax(dim=1, keepdim=True)
        self._shares = None if weights is None else weights / weights.mean()
        of_labels = logits.gather(1, labels[:, None]) - self.top
        if weights is None:
            self.label = float(of_labels.mean(dtype=torch.float64))
        else:
            self.label = float(mean_of(of_labels[:, 0], weights))

    @cached_property
    def mean(self) -> float:
        """Mean deficit over all entries."""
        # Deficits, not logits, are summed: a common offset of a row would drown their differences.
        blocks = zip(self._blocks(), self._share_blocks(), strict=True)
        sums = [sum_of(mean_of_existing(deficit), share) for deficit, share in blocks]
        return float(torch.stack(sums).sum()) / len(self.logits)

    def slope(self, log_beta: float) -> tuple[float, float]:
        """Return the slope in ``beta`` of the mean NLL of ``softmax(beta z)``, and its own in ``log(beta)``.

        The first is the mean deficit under the model's distribution minus that of the labels; its derivative
        in ``beta`` is the variance under the model's distribution.
        """
        beta = math.exp(log_beta)
        total = torch.zeros(2, dtype=torch.float64, device=self.logits.device)
        for (deficit, weight), share in zip(self._weighted(beta), self._share_blocks(), strict=True):
            norm = weight.sum(dim=1).double()
            first = weight.mul_(deficit).sum(dim=1).double() / norm
            second = weight.mul_(deficit).sum(dim=1).double() / norm
            variance = (second - first.square()).clamp(min=0)
            total += torch.stack([sum_of(first, share), sum_of(variance, share)])
        expected, spread = (total / len(self.logits)).tolist()
        return expected - self.label, beta * spread

    def confidence(self, beta: float) -> Tensor:
        """Return the largest probability of ``softmax(beta z)`` of each row, in float64."""
        sums = [weight.sum(dim=1).double() for _, weight in self._weighted(beta)]
        return torch.cat(sums).reciprocal_()

    def _weighted(self, beta: float) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield blocks of deficits and of ``exp(beta * deficit)``, overwritten by the next ones."""
        room = torch.empty_like(next(self._blocks()))
        for deficit in self._blocks():
            yield deficit, torch.mul(deficit, beta, out=room[: len(deficit)]).exp_()

    @property
    def _rows_at_once(self) -> int:
        n, k = self.logits.shape
        return min(n, max(1, _BLOCK_ENTRIES // k))

    def _share_blocks(self) -> Iterator[Tensor | None]:
        """Yield the weights of each block, whose mean over all samples is 1; None if there are none."""
        if self._shares is not None:
            yield from self._shares.split(self._rows_at_once)
        else:
            yield from itertools.repeat(None, math.ceil(len(self.logits) / self._rows_at_once))

    def _blocks(self) -> Iterator[Tensor]:
        """Yield blocks of deficits, each overwritten by the next one."""
        rows, k = self._rows_at_once, self.logits.shape[1]
        room = torch.empty((rows, k), dtype=self.logits.dtype, device=self.logits.device)
        for z, top in zip(self.logits.split(rows), self.top.split(rows), strict=True):
            yield finite(torch.sub(z, top, out=room[: len(z)]))
