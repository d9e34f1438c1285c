"""SCIR: isotonic regression on the simplex.

Arad and Rosset, "Improving Multi-Class Calibration through Normalization-Aware Isotonic Techniques", ICML
2025.
"""

from typing import Self, Unpack

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from calibrant.files import Allowed
from calibrant.inputs import ArrayLike, Floats, at_least_float32, check_count
from calibrant.posthoc.calibrator import Calibrator
from calibrant.posthoc.fitting.folds import cross_fit
from calibrant.posthoc.fitting.order_preserving import thinned
from calibrant.posthoc.fitting.score_map import interpolate
from calibrant.posthoc.fitting.stored import POSITIVE, PROBABILITIES, RISING, Numbers, declare, one_number
from calibrant.posthoc.fitting.temperature_search import likeliest_temperature
from calibrant.posthoc.fitting_set import FittingSet, Rows, sparing_threads
from calibrant.solvers import likeliest_shares

# Cumulative probabilities of a fit are merged into at most this many values.
_MOST_COLUMNS = 4096

# A split that improves the squared error by less than this share of the total weight is rounding.
_ROUNDING = 1e-12

# Held-out labels count as at least this probable.
_LEAST = 1e-300

_SHARE = Allowed("a number above 0, at most 1", lambda x: bool(((x > 0) & (x <= 1)).all()))


class SimplexIsotonicCalibration(Calibrator):
    r"""Replace cumulative probabilities of the ranked classes by the best-fitting surface that rises in both.

    .. math:: q_{(r)} = G(r, s_r) - G(r - 1, s_{r-1}), \quad s_r = p_{(1)} + \dots + p_{(r)}

    with the probabilities in descending order and :math:`G(0, \cdot) = 0`. :math:`G` is the isotonic
    regression of whether the true class is among the first :math:`r`, on rank and cumulative probability: it
    rises in each, so the differences are probabilities that need no normalisation. The predicted class may
    change.

    Ours are: the probabilities are those of temperature scaling; classes behind the first ``top`` share what
    is left in proportion to theirs; between neighbouring cumulative probabilities the surface is linear in
    the log-odds of these. A difference can be 0, so the result is a mixture with temperature scaling. Its
    share is the one that makes held-out labels likeliest.
    """

    masks = True
    stored = declare(
        temperature=one_number(POSITIVE),
        knots=Numbers(("b",), RISING),
        surface=Numbers(("r", "b"), PROBABILITIES),
        share=one_number(_SHARE),
    )

    temperature: Tensor
    knots: Tensor
    surface: Tensor
    share: Tensor

    def __init__(
        self, temperature: float, knots: Tensor, surface: Tensor, share: float, *, n_classes: int
    ) -> None:
        super().__init__(n_classes=n_classes)
        numbers = (torch.tensor(each, dtype=torch.float64) for each in (temperature, share))
        self.register_buffers(
            **dict(zip(("temperature", "share"), numbers, strict=True)), knots=knots, surface=surface
        )

    @classmethod
    @sparing_threads
    def fit(
        cls,
        logits: ArrayLike | FittingSet,
        labels: ArrayLike | None = None,
        *,
        top: int = 10,
        **rows: Unpack[Rows],
    ) -> Self:
        """Find the surface nearest to the answers, exactly, by splitting blocks of it in two.

        Of more than 4,096 different cumulative probabilities, neighbours are merged, the same number of
        answers each. More than a million logits are thinned at random.

        Args:
            logits: Scores of shape ``(n, k)``, or ``(n,)`` for the log-odds of class 1.
            labels: Integer classes of shape ``(n,)``.
            top: How many ranks the surface has.
        """
        data = cls.data(logits, labels, **rows)
        data.check_can_hold_out()
        most = int((data.logits > -torch.inf).sum(dim=1).max())
        top = min(check_count(top, "top"), most - 1)
        temperature = likeliest_temperature(data)
        some = thinned(data)
        some = some.with_logits(some.logits.double() / temperature)

        def of_labels(rest: Tensor, held_out: Tensor) -> Tensor:
            fitted = cls._of_scaled(some.take(rest), temperature, top=top, share=1.0)
            z, y = some.logits[held_out], some.labels[held_out, None]
            return torch.cat([fitted.of_surface(z).gather(1, y), torch.softmax(z, dim=1).gather(1, y)], dim=1)

        weights = None if some.weights is None else some.weights.cpu().numpy()
        likelihoods = cross_fit(some.folds, of_labels).clamp(min=_LEAST).cpu().numpy()
        share = float(likeliest_shares(likelihoods, weights=weights)[1])
        # Labels that were all likelier under the surface say nothing about the next one.
        return cls._of_scaled(some, temperature, top=top, share=max(share, 1 / (1 + some.size)))

    @classmethod
    def _of_scaled(cls, data: FittingSet, temperature: float, *, top: int, share: float) -> Self:
        """Fit the surface to logits at the common temperature."""
        knots, surface = (
            torch.from_numpy(each).to(data.labels.device) for each in _rising_surface(data, top)
        )
        return cls(temperature, knots, surface, share, n_classes=data.n_classes)

    def forward(self, logits: Tensor, features: Tensor | None = None) -> Tensor:
        """Return calibrated log-probabilities of shape ``(n, k)``."""
        z = at_least_float32(logits)
        scaled = (z - z.amax(dim=1, keepdim=True)) / self.temperature.to(z.dtype)
        of_surface, share = self.of_surface(scaled), self.share.to(z.dtype)
        tempered = torch.log_softmax(scaled, dim=1) + share.log()
        # Where both are too small for a probability, temperature scaling alone decides.
        return torch.logaddexp(((1 - share) * of_surface).log(), tempered)

    def of_surface(self, scaled: Tensor) -> Tensor:
        """Return the probabilities that the surface gives for logits at the common temperature."""
        p, order = torch.softmax(scaled, dim=1).sort(dim=1, descending=True, stable=True)
        top = len(self.surface)
        position = _log_odds(p, top)
        exists = (scaled > -torch.inf).gather(1, order)
        surface = interpolate(position, self.knots.expand(top, -1).contiguous(), self.surface)
        # The last class that exists completes the distribution.
        reached = torch.where(exists[:, 1 : top + 1], surface, 1.0)
        ranked = torch.diff(reached, dim=1, prepend=torch.zeros_like(reached[:, :1])).clamp(min=0)
        tiny = torch.finfo(p.dtype).tiny
        behind = (p[:, top:] + tiny) * exists[:, top:]
        left = (1 - reached[:, -1:]) * behind / behind.sum(dim=1, keepdim=True).clamp(min=tiny)
        return torch.zeros_like(p).scatter(1, order, torch.cat([ranked, left], dim=1))


def _log_odds(p: Tensor, top: int) -> Tensor:
    """Return the log-odds of the first 1, 2, ..., ``top`` of probabilities in descending order."""
    tiny = torch.finfo(p.dtype).tiny
    first = p.cumsum(dim=1)[:, :top]
    # Summed from the smallest: next to 1, the rest would drown in rounding.
    rest = p.flip(1).cumsum(dim=1).flip(1)[:, 1 : top + 1]
    return first.clamp(min=tiny).log() - rest.clamp(min=tiny).log()


def _rising_surface(data: FittingSet, top: int) -> tuple[Floats, Floats]:
    """Return the positions of the columns of the surface and its values, shape ``(top, columns)``."""
    p, order = torch.softmax(data.logits.double(), dim=1).sort(dim=1, descending=True, stable=True)
    rank = (order == data.labels[:, None]).int().argmax(dim=1)
    ranks = torch.arange(top, device=rank.device)
    # Where all classes that exist are among the first, the truth is too, which says nothing.
    says = ((data.logits > -torch.inf).sum(dim=1, keepdim=True) > 1 + ranks).cpu().numpy()
    weights = np.ones(len(rank)) if data.weights is None else data.weights.cpu().numpy()
    count = np.broadcast_to(weights[:, None], says.shape)[says]
    hits = count * (rank[:, None] <= ranks).cpu().numpy()[says]
    columns, place = _columns(_log_odds(p, top).cpu().numpy()[says], count)
    place = place + len(columns) * np.broadcast_to(np.arange(top), says.shape)[says]
    sums = (np.bincount(place, each, minlength=top * len(columns)) for each in (hits, count))
    surface = isotonic_surface(*(each.astype(np.float64).reshape(top, -1) for each in sums))
    changes = (np.diff(surface, axis=1) != 0).any(axis=0)
    used = np.append(True, changes) | np.append(changes, True)
    used[[0, -1]] = True
    return columns[used], surface[:, used]


def _columns(position: Floats, count: Floats) -> tuple[Floats, npt.NDArray[np.int64]]:
    """Return at most 4,096 rising positions, and the place of each entry among them."""
    values, place = np.unique(position, return_inverse=True)
    if len(values) < 2:
        return np.array([values[0], values[0] + 1.0]), place
    if len(values) <= _MOST_COLUMNS:
        return values, place
    size = np.bincount(place, count)
    ends = np.cumsum(size)
    cell = ((ends - size / 2) / ends[-1] * _MOST_COLUMNS).astype(np.int64)
    _, cell = np.unique(cell, return_inverse=True)
    return np.bincount(cell, size * values) / np.bincount(cell, size), cell[place]


def isotonic_surface(hits: Floats, count: Floats) -> Floats:
    r"""Return the table nearest to ``hits / count`` that rises along rows and along columns.

    The distance is squared and weighted by the counts, some of which may be 0. A block of equal values is
    split into the two parts that improve it most, of which the upper one reaches into later columns and rows
    only; this ends at the exact solution (Spouge, Wan and Wilbur, 2003).

    Args:
        hits: Weighted sums of the answers, shape ``(r, c)``.
        count: Sums of the weights.

    Example:
        >>> isotonic_surface(np.array([[0.0, 1.0, 0.0]]), np.ones((1, 3)))
        array([[0. , 0.5, 0.5]])
    """
    surface = np.zeros_like(hits)
    least = _ROUNDING * float(count.sum())
    # A block holds, in each row, the columns from its start to before its stop.
    waiting = [(np.zeros(len(hits), np.int64), np.full(len(hits), hits.shape[1]))]
    place = np.arange(hits.shape[1])
    while waiting:
        start, stop = waiting.pop()
        low, high = int(start.min()), int(stop.max())
        inside = (place[low:high] >= start[:, None]) & (place[low:high] < stop[:, None])
        some, all_of = (np.where(inside, each[:, low:high], 0.0) for each in (hits, count))
        mean = some.sum() / all_of.sum()
        cut, gain = _best_cut(some - mean * all_of)
        if gain <= least:
            surface[:, low:high][inside] = mean
            continue
        cut = np.clip(cut + low, start, stop)
        waiting += [(start, cut), (cut, stop)]
    return surface


def _best_cut(gains: Floats) -> tuple[npt.NDArray[np.int64], float]:
    """Return the column in each row from which on the gains are summed, never later than in the row before.

    The sum is the largest possible.
    """
    rows, columns = gains.shape
    best = np.zeros(columns + 1)
    choices = np.empty((rows, columns + 1), np.int64)
    place = np.arange(columns + 1)
    for r in range(rows):
        from_here = np.append(np.cumsum(gains[r, ::-1])[::-1], 0.0)
        # The best of the rows before, with a cut at this column or later.
        later = np.maximum.accumulate(best[::-1])[::-1]
        is_best = best == later
        choices[r] = np.minimum.accumulate(np.where(is_best, place, columns)[::-1])[::-1]
        best = from_here + later
    cut = np.empty(rows, np.int64)
    cut[-1] = int(best.argmax())
    for r in range(rows - 1, 0, -1):
        cut[r - 1] = choices[r][cut[r]]
    return cut, float(best.max())
