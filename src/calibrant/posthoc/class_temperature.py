"""Class-based temperature scaling (Frenkel & Goldberger, EUSIPCO 2021)."""

from typing import Self, Unpack

import numpy as np
import torch
from torch import Tensor

from calibrant.bins import equal_width_index
from calibrant.inputs import ArrayLike, at_least_float32, check_count, check_flag
from calibrant.posthoc.calibrator import Calibrator
from calibrant.posthoc.fitting.stored import POSITIVE, Numbers, declare
from calibrant.posthoc.fitting.temperature_search import ECE_GRID, best_calibrated_temperature
from calibrant.posthoc.fitting_set import FittingSet, Rows, sparing_threads

# Errors closer than this are equal: rounding must not choose between temperatures.
_EQUAL = 1e-12
# Confidences handled at once: a block of them and its temporaries stay small beside the logits.
_BLOCK_ENTRIES = 1 << 20


class ClassTemperatureScaling(Calibrator):
    r"""Divide the logit of each class by a temperature of its own: :math:`p = \mathrm{softmax}(z_c / T_c)`.

    The predicted class may change where classes get different temperatures. It depends on where the logits
    have their zero, unlike methods that see only the probabilities.
    """

    masks = True
    stored = declare(temperature=Numbers(("k",), POSITIVE))

    temperature: Tensor

    def __init__(self, temperature: Tensor) -> None:
        super().__init__(n_classes=len(temperature))
        self.register_buffers(temperature=temperature)

    @classmethod
    @sparing_threads
    def fit(
        cls,
        logits: ArrayLike | FittingSet,
        labels: ArrayLike | None = None,
        *,
        n_bins: int = 15,
        max_sweeps: int = 1,
        keep_accuracy: bool = True,
        **rows: Unpack[Rows],
    ) -> Self:
        """Lower the top-label calibration error greedily, one class after the other.

        All classes begin at the common temperature of 0.1, 0.2, ..., 10 with the smallest error. Then each
        class in turn takes the temperature of this grid that lowers the error most, all others held fixed,
        until a sweep over the classes changes nothing. The error on the fitting set is never above that of
        the common temperature, nor of the model itself.

        Args:
            logits: Scores of shape ``(n, k)``, or ``(n,)`` for the log-odds of class 1.
            labels: Integer classes of shape ``(n,)``.
            n_bins: Number of equal-width bins of the calibration error.
            max_sweeps: Stop after this many sweeps over the classes; the SMART paper makes five. More than
                one fit more closely and helped as often as they harmed on held-out CIFAR-10, CLINC150 and
                digits predictions.
            keep_accuracy: Whether temperatures that lower the accuracy on the fitting set are skipped, which
                the papers do not do.
                Held-out accuracy fell by up to 1.3 points with it there, and by up to 4.5 without.
        """
        data = cls.data(logits, labels, **rows)
        z, y, w = data.logits, data.labels, data.weights
        n_bins, max_sweeps = check_count(n_bins, "n_bins"), check_count(max_sweeps, "max_sweeps")
        check_flag(keep_accuracy, "keep_accuracy")
        common = best_calibrated_temperature(data, n_bins=n_bins)
        search = _Search(z.double(), y, common, n_bins=n_bins, keep_accuracy=keep_accuracy, weights=w)
        for _ in range(max_sweeps):
            if not search.sweep():
                break
        return cls(search.temperature)

    def forward(self, logits: Tensor, features: Tensor | None = None) -> Tensor:
        """Return calibrated log-probabilities of shape ``(n, k)``."""
        z = at_least_float32(logits)
        return torch.log_softmax(z / self.temperature.to(z.dtype), dim=1)


class _Search:
    """The greedy search, and what it stores for each row between classes.

    Per row: its scaled logits, the two largest of them (value and class), and the sum of exponentials
    relative to the largest. When one class changes, the rest of the sum stays, so a candidate temperature
    costs one exponential per row.
    """

    def __init__(
        self,
        z: Tensor,
        y: Tensor,
        common: float,
        *,
        n_bins: int,
        keep_accuracy: bool,
        weights: Tensor | None,
    ) -> None:
        n, k = z.shape
        # Weights of mean 1, so that all counts are sums of them.
        self._weights = None if weights is None else weights / weights.mean()
        self.temperature = torch.full((k,), common, dtype=torch.float64, device=z.device)
        self._z, self._y, self._n_bins = z, y, n_bins
        self._grid = torch.tensor(ECE_GRID, dtype=torch.float64, device=z.device)
        self._scaled = z / common
        self._values = torch.empty((n, 2), dtype=torch.float64, device=z.device)
        self._classes = torch.empty((n, 2), dtype=torch.int64, device=z.device)
        self._sum = torch.empty(n, dtype=torch.float64, device=z.device)
        self._look_at(torch.arange(n, device=z.device))
        hit = self._classes[:, 0] == y
        # The rounding of sums of weights must not count as a miss.
        self._fewest_hits = (1 - _EQUAL) * float(self._counted(hit)) if keep_accuracy else 0.0
        self._error = float(self._errors(self._sum[None].reciprocal(), hit[None])[0])

    def sweep(self) -> bool:
        """Give every class the best temperature in turn; return whether any changed."""
        return sum(self._improve(c) for c in range(len(self.temperature))) > 0

    def _improve(self, c: int) -> bool:
        rest, value, rival = self._without(c)
        chunk = max(1, _BLOCK_ENTRIES // len(rest))
        parts = [self._try(c, grid, rest, value, rival) for grid in self._grid.split(chunk)]
        errors, hits = (torch.cat(part) for part in zip(*parts, strict=True))
        errors[hits < self._fewest_hits] = torch.inf
        lowest = float(errors.min())
        if lowest >= self._error - _EQUAL:
            return False
        chosen = int((errors <= lowest + _EQUAL).int().argmax())
        self._error, self.temperature[c] = float(errors[chosen]), self._grid[chosen]
        self._change(c, rest)
        return True

    def _without(self, c: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return, of all classes but one, the sum relative to the largest, that largest and its class."""
        first = self._classes[:, 0] == c
        value = torch.where(first, self._values[:, 1], self._values[:, 0])
        rival = torch.where(first, self._classes[:, 1], self._classes[:, 0])
        rest = self._sum - torch.exp(self._scaled[:, c] - self._values[:, 0])
        # Where the class leads, taking its share away would leave rounding errors: add up the others.
        rows = first.nonzero().squeeze(1)
        others = torch.exp(self._scaled[rows] - value[rows, None])
        others[:, c] = 0
        rest[rows] = others.sum(dim=1)
        return rest, value, rival

    def _try(self, c: int, grid: Tensor, rest: Tensor, value: Tensor, rival: Tensor) -> tuple[Tensor, Tensor]:
        """Return the calibration error and the number of hits for each temperature of a class."""
        ahead = self._z[:, c] / grid[:, None] - value
        leads = (ahead > 0) | ((ahead == 0) & (rival > c))
        share = torch.exp(-ahead.abs())
        confidence = torch.where(leads, 1 + rest * share, rest + share).reciprocal_()
        hit = torch.where(leads, self._y == c, self._y == rival)
        return self._errors(confidence, hit), self._counted(hit)

    def _counted(self, hit: Tensor) -> Tensor:
        """Return the number of hits in each row, in which samples with weights count as much as these."""
        return hit.sum(dim=-1) if self._weights is None else hit.double() @ self._weights

    def _errors(self, confidence: Tensor, hit: Tensor) -> Tensor:
        """Return the expected calibration error of each row of confidences and hits."""
        m, n = confidence.shape
        number = equal_width_index(confidence.clamp(max=1).flatten().cpu().numpy(), self._n_bins)
        number += np.repeat(np.arange(m) * self._n_bins, n)
        surplus = hit.double() - confidence
        surplus = (surplus if self._weights is None else self._weights * surplus).flatten().cpu()
        gaps = torch.bincount(torch.from_numpy(number), surplus, minlength=m * self._n_bins)
        return gaps.view(m, self._n_bins).abs().sum(dim=1) / n

    def _change(self, c: int, rest: Tensor) -> None:
        """Update what is stored for the rows after a class gets a new temperature."""
        was_near_top = (self._classes == c).any(dim=1)
        self._scaled[:, c] = self._z[:, c] / self.temperature[c]
        near_top = was_near_top | (self._scaled[:, c] >= self._values[:, 1])
        self._sum = rest + torch.exp(self._scaled[:, c] - self._values[:, 0])
        self._look_at(near_top.nonzero().squeeze(1))

    def _look_at(self, rows: Tensor) -> None:
        """Find the two largest scaled logits of these rows, the first of equals, and the sum."""
        scaled = self._scaled[rows]
        for place in (0, 1):
            winner = scaled.argmax(dim=1, keepdim=True)
            self._classes[rows, place] = winner.squeeze(1)
            self._values[rows, place] = scaled.gather(1, winner).squeeze(1)
            scaled.scatter_(1, winner, -torch.inf)
        self._sum[rows] = torch.exp(self._scaled[rows] - self._values[rows, :1]).sum(dim=1)
