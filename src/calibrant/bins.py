"""Bins of confidence: the one computation behind every binned measure, diagram and report."""

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias, Unpack

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from calibrant.errors import InputError
from calibrant.inputs import ArrayLike, Floats, check_count
from calibrant.outcomes import Outcomes, Pairs, check_outcomes
from calibrant.threads import over_rows

Binning: TypeAlias = Literal["width", "mass"]


# A block of confidences and its temporaries stay in the processor's cache, and memory stays flat.
_BLOCK = 1 << 17
# Torch counts pieces of up to this size without threads of its own, and lets ours run meanwhile.
_GRAIN = 1 << 15
_LANES = 4
_WORTH_THREADS = 1 << 20


@dataclass(frozen=True, eq=False)
class Bins:
    """How often predictions of about the same confidence were right.

    Bin ``b`` holds the confidences in ``(edges[b], edges[b + 1]]``; the first one also its lower edge.
    Tensors are on the CPU, sums are float64. The last dimension counts the bins; one before it may count
    classes or resamples, and every property and method keeps it.
    """

    edges: Tensor
    count: Tensor
    confidence_sum: Tensor
    correct_sum: Tensor

    @property
    def n(self) -> int:
        """Number of samples in all bins."""
        return int(self.count.sum())

    @property
    def weight(self) -> Tensor:
        """Share of the samples in each bin."""
        return self.count.double() / self.count.sum(dim=-1, keepdim=True)

    @property
    def confidence(self) -> Tensor:
        """Mean confidence in each bin; NaN where it is empty."""
        return self.confidence_sum / self.count

    @property
    def accuracy(self) -> Tensor:
        """Share of right predictions in each bin; NaN where it is empty."""
        return self.correct_sum.double() / self.count

    @property
    def gap(self) -> Tensor:
        """Accuracy minus mean confidence in each bin: negative is overconfident, an empty bin has none."""
        return (self.correct_sum - self.confidence_sum) / self.count.clamp(min=1)

    def expected_gap(self) -> Tensor:
        """Return the mean size of the gap over samples: the expected calibration error."""
        return (self.correct_sum - self.confidence_sum).abs().sum(dim=-1) / self.count.sum(dim=-1)

    def overconfident_part(self) -> Tensor:
        """Return the part of the expected gap from bins whose confidence exceeds their accuracy."""
        return (self.confidence_sum - self.correct_sum).clamp(min=0).sum(dim=-1) / self.count.sum(dim=-1)

    def underconfident_part(self) -> Tensor:
        """Return the part of the expected gap from bins whose accuracy exceeds their confidence."""
        return (self.correct_sum - self.confidence_sum).clamp(min=0).sum(dim=-1) / self.count.sum(dim=-1)

    def largest_gap(self) -> Tensor:
        """Return the largest size of the gap in any bin: the maximum calibration error."""
        return self.gap.abs().amax(dim=-1)

    def root_mean_square_gap(self) -> Tensor:
        """Return the root of the mean squared gap over samples."""
        return (self.weight * self.gap.square()).sum(dim=-1).sqrt()

    def average_gap(self) -> Tensor:
        """Return the mean size of the gap over bins that are not empty, however few samples they hold."""
        return self.gap.abs().sum(dim=-1) / (self.count > 0).sum(dim=-1)


def top_label_bins(
    probs: ArrayLike | None = None,
    labels: ArrayLike | None = None,
    *,
    n_bins: int = 15,
    binning: Binning = "width",
    **pairs: Unpack[Pairs],
) -> Bins:
    """Group predictions by the confidence in their predicted class.

    Args:
        probs: Class probabilities of shape ``(n, k)``, with ``labels``.
        labels: Integer classes of shape ``(n,)``.
        confidence: Confidences of shape ``(n,)``, with ``correct``, instead of ``probs``.
        correct: Whether each prediction was right, shape ``(n,)``.
        n_bins: Number of bins.
        binning: ``"width"`` for bins of equal width, ``"mass"`` for bins of equal count. Equal
            confidences are never parted: they share the lowest bin that reaches them, so with ties
            counts differ and the result does not depend on the order of the rows.

    Example:
        >>> bins = top_label_bins(confidence=[0.9, 0.8, 0.6], correct=[True, False, True], n_bins=2)
        >>> bins.count.tolist(), round(float(bins.accuracy[1]), 3)
        ([0, 3], 0.667)
    """
    outcomes = check_outcomes(probs, labels, **pairs)
    n_bins = check_count(n_bins, "n_bins")
    if binning == "width":
        return equal_width_bins(outcomes, n_bins)
    if binning == "mass":
        return equal_mass_bins(outcomes, n_bins)
    raise InputError(f"binning: expected 'width' or 'mass', got {binning!r}")


def equal_width_bins(outcomes: Outcomes, n_bins: int) -> Bins:
    """Fill right-closed bins of equal width over the unit interval."""
    values, hits = outcomes.confidence.cpu().numpy(), outcomes.correct.cpu().numpy().view(np.uint8)
    sums = over_rows(
        lambda rows: _width_sums(values[rows], hits[rows], n_bins),
        len(values),
        in_threads=len(values) >= _WORTH_THREADS,
    )
    count, total = (torch.stack(each).sum(dim=0) for each in zip(*sums, strict=True))
    edges = torch.arange(n_bins + 1, dtype=torch.float64) / n_bins
    return Bins(edges, count.sum(dim=0), total.sum(dim=0), count[1])


def _width_sums(
    values: npt.NDArray[np.floating], hits: npt.NDArray[np.uint8], n_bins: int
) -> tuple[Tensor, Tensor]:
    """Count samples and sum confidences for misses and hits of each bin, shape ``(2, n_bins)`` both."""
    shape = (_LANES, 2, n_bins + 1)
    size = math.prod(shape)
    kind = next(kind for kind in (np.uint8, np.int16, np.int64) if size <= np.iinfo(kind).max)
    block = min(_BLOCK, len(values))
    # Neighbours in memory go to tables of their own: adding to one place again and again has to wait.
    lane = (np.arange(block) % _LANES * (size // _LANES)).astype(kind)
    # Temporaries are made once: asking the system for fresh memory costs as much as the sums.
    widened, scaled = np.empty((2, block))
    place, row = np.empty((2, block), dtype=kind)
    count = torch.zeros(size, dtype=torch.int64)
    total = torch.zeros(size, dtype=torch.float64)
    for start in range(0, len(values), block):
        here = slice(min(block, len(values) - start))
        widened[here] = values[start : start + block]
        number = bin_number(widened[here], n_bins, exact=values.dtype != np.float64, out=scaled[here])
        np.multiply(hits[start : start + block], n_bins + 1, out=row[here], dtype=kind)
        np.add(row[here], lane[here], out=row[here])
        np.copyto(place[here], number, casting="unsafe")
        np.add(place[here], row[here], out=place[here])
        pieces = (torch.from_numpy(array[here]).split(_GRAIN) for array in (place, widened))
        for index, weights in zip(*pieces, strict=True):
            count += torch.bincount(index, minlength=size)
            total += torch.bincount(index, weights, minlength=size)
    return _join_zero(count.view(shape).sum(dim=0)), _join_zero(total.view(shape).sum(dim=0))


def _join_zero(table: Tensor) -> Tensor:
    """Let the first bin have the confidences of exactly zero, too."""
    table[:, 1] += table[:, 0]
    return table[:, 1:]


def equal_width_index(values: npt.NDArray[np.floating], n_bins: int) -> npt.NDArray[np.intp]:
    """Return the number, from 0, of the right-closed bin ``(b / n_bins, (b + 1) / n_bins]`` of each value.

    Exact: a value equal to an edge, in its own precision, lies below that edge.
    """
    number = bin_number(values.astype(np.float64), n_bins, exact=values.dtype != np.float64)
    return (number.clip(1, n_bins, out=number) - 1).astype(np.intp)


def bin_number(values: Floats, n_bins: int, *, exact: bool, out: Floats | None = None) -> Floats:
    """Return the bin numbers, from 1, as floats; a value of zero has the number 0.

    ``exact`` promises that multiplying by ``n_bins`` does not round, as with what was float32.
    """
    scaled = np.multiply(values, n_bins, out=out)
    if exact:
        return np.ceil(scaled, out=scaled)
    number = np.ceil(scaled)
    scaled -= number
    scaled += 0.5
    near_edge = np.abs(scaled, out=scaled) > 0.5 - 1e-9
    if near_edge.any():
        near, suspects = number[near_edge], values[near_edge]
        near += suspects > near / n_bins
        near -= suspects <= (near - 1) / n_bins
        number[near_edge] = near
    return number


def sorted_width_bins(ordered: Outcomes, n_bins: int) -> Bins:
    """Fill bins of equal width, as ``equal_width_bins`` does, from outcomes that ``sorted`` has returned."""
    edges = np.arange(n_bins + 1) / n_bins
    values = ordered.confidence.numpy()
    # An edge between two numbers of their type is moved down to the lower one.
    uppers = edges[1:].astype(values.dtype)
    uppers = np.where(uppers > edges[1:], np.nextafter(uppers, values.dtype.type(0)), uppers)
    stops = np.searchsorted(values, uppers, side="right")
    return _between(edges, values, ordered.correct.numpy(), stops)


def equal_mass_bins(outcomes: Outcomes, n_bins: int) -> Bins:
    """Fill bins of equal count from the sorted confidences; equal confidences are never parted."""
    ordered = outcomes.sorted()
    values, hits = ordered.confidence.numpy(), ordered.correct.numpy()
    n = len(values)
    uppers = values[-(-np.arange(1, n_bins + 1) * n // n_bins) - 1]
    stops = np.searchsorted(values, uppers, side="right")
    return _between(np.concatenate([values[:1], uppers]), values, hits, stops)


def _between(
    edges: npt.ArrayLike,
    values: npt.NDArray[np.floating],
    hits: npt.NDArray[np.bool_],
    stops: npt.NDArray[np.intp],
) -> Bins:
    """Make bins of sorted values, each of which ends before its stop."""
    starts = np.concatenate([[0], stops[:-1]])
    slices = [slice(a, b) for a, b in zip(starts, stops, strict=True)]
    return _bins(
        edges,
        stops - starts,
        [values[s].sum(dtype=np.float64) for s in slices],
        [np.count_nonzero(hits[s]) for s in slices],
    )


def _bins(
    edges: npt.ArrayLike, count: npt.ArrayLike, confidence_sum: npt.ArrayLike, correct_sum: npt.ArrayLike
) -> Bins:
    return Bins(
        torch.as_tensor(np.asarray(edges, dtype=np.float64)),
        torch.as_tensor(np.asarray(count, dtype=np.int64)),
        torch.as_tensor(np.asarray(confidence_sum, dtype=np.float64)),
        torch.as_tensor(np.asarray(correct_sum, dtype=np.int64)),
    )
