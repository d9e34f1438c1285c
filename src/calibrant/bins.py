"""Bins of confidence: the one computation behind every binned measure, diagram and report."""

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias, TypeVar, Unpack, get_args

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from calibrant.inputs import ArrayLike, Floats, check_choice, check_count
from calibrant.outcomes import Outcomes, Pairs, check_outcomes
from calibrant.threads import over_rows

Binning: TypeAlias = Literal["width", "mass"]
_Number = TypeVar("_Number", bound=np.floating)

# A block of confidences and its temporaries fit into the processor's cache, and memory use is constant.
_BLOCK = 1 << 17
# Torch counts pieces of up to this size without threads of its own, so that ours can run in parallel.
_GRAIN = 1 << 15
_LANES = 4
_WORTH_THREADS = 1 << 20
# More bins than this have no use, and all of them for many classes would fill the memory.
_MOST_BINS = 1_000_000
# Cumulative weights that differ by less than this share are the same.
SAME = 1e-9


@dataclass(frozen=True, eq=False)
class Bins:
    """Counts, confidences and hits of predictions with about the same confidence.

    Bin ``b`` holds the confidences in ``(edges[b], edges[b + 1]]``; the first bin also holds its lower edge.
    Tensors are on the CPU, sums are float64. The last dimension is the bins. A leading dimension may be
    classes or resamples; every property and method preserves it. Of samples with weights, the count of a bin
    is their sum, and the other sums are weighted.
    """

    edges: Tensor
    count: Tensor
    confidence_sum: Tensor
    correct_sum: Tensor

    @property
    def n(self) -> int:
        """Number of samples in all bins; of weighted samples, the effective number."""
        return round(float(self.count.sum()))

    @property
    def weight(self) -> Tensor:
        """Share of the samples in each bin."""
        return self.count.double() / self.count.sum(dim=-1, keepdim=True)

    @property
    def confidence(self) -> Tensor:
        """Mean confidence in each bin; NaN in an empty bin."""
        return self.confidence_sum / self.count

    @property
    def accuracy(self) -> Tensor:
        """Share of right predictions in each bin; NaN in an empty bin."""
        return self.correct_sum.double() / self.count

    @property
    def gap(self) -> Tensor:
        """Accuracy minus mean confidence in each bin: negative is overconfident; 0 in an empty bin."""
        return (self.correct_sum - self.confidence_sum) / torch.where(self.count > 0, self.count, 1)

    def expected_gap(self) -> Tensor:
        """Return the mean absolute gap over samples: the expected calibration error."""
        return (self.correct_sum - self.confidence_sum).abs().sum(dim=-1) / self.count.sum(dim=-1)

    def overconfident_part(self) -> Tensor:
        """Return the part of the expected gap from bins whose confidence exceeds their accuracy."""
        return (self.confidence_sum - self.correct_sum).clamp(min=0).sum(dim=-1) / self.count.sum(dim=-1)

    def underconfident_part(self) -> Tensor:
        """Return the part of the expected gap from bins whose accuracy exceeds their confidence."""
        return (self.correct_sum - self.confidence_sum).clamp(min=0).sum(dim=-1) / self.count.sum(dim=-1)

    def largest_gap(self) -> Tensor:
        """Return the largest absolute gap of any bin: the maximum calibration error."""
        return self.gap.abs().amax(dim=-1)

    def root_mean_square_gap(self) -> Tensor:
        """Return the root mean square gap over samples."""
        return (self.weight * self.gap.square()).sum(dim=-1).sqrt()

    def average_gap(self) -> Tensor:
        """Return the mean absolute gap over non-empty bins, each with the same weight."""
        return self.gap.abs().sum(dim=-1) / (self.count > 0).sum(dim=-1)


class BinOptions(Pairs, total=False):
    """Keyword arguments of :func:`top_label_bins`, for measures that pass them on."""

    n_bins: int
    binning: Binning


def top_label_bins(
    probs: ArrayLike | None = None,
    labels: ArrayLike | None = None,
    *,
    n_bins: int = 15,
    binning: Binning = "width",
    **pairs: Unpack[Pairs],
) -> Bins:
    """Group predictions into bins by the confidence in their predicted class.

    Args:
        probs: Class probabilities of shape ``(n, k)``, with ``labels``.
        labels: Integer classes of shape ``(n,)``.
        confidence: Confidences of shape ``(n,)``, with ``correct``, instead of ``probs``.
        correct: Whether each prediction was right, shape ``(n,)``.
        weights: How much each sample counts, shape ``(n,)``; only their ratios matter.
        n_bins: Number of bins.
        binning: ``"width"`` for bins of equal width, ``"mass"`` for bins of equal count. Equal
            confidences always share a bin, the lowest one that reaches them. So ties make counts
            unequal, and the order of the rows does not matter.

    Example:
        >>> bins = top_label_bins(confidence=[0.9, 0.8, 0.6], correct=[True, False, True], n_bins=2)
        >>> bins.count.tolist(), round(float(bins.accuracy[1]), 3)
        ([0, 3], 0.667)
    """
    outcomes = check_outcomes(probs, labels, **pairs)
    n_bins = check_bins(n_bins)
    if check_choice(binning, "binning", get_args(Binning)) == "width":
        return equal_width_bins(outcomes, n_bins)
    return equal_mass_bins(outcomes, n_bins)


def check_bins(n_bins: int) -> int:
    """Check a number of bins."""
    return check_count(n_bins, "n_bins", at_most=_MOST_BINS)


def equal_width_bins(outcomes: Outcomes, n_bins: int) -> Bins:
    """Fill right-closed bins of equal width over the unit interval."""
    if outcomes.weights is not None:
        return _weighted_width_bins(outcomes, n_bins)
    values, hits = outcomes.confidence.cpu().numpy(), outcomes.correct.cpu().numpy().view(np.uint8)
    sums = over_rows(
        lambda rows: _width_sums(values[rows], hits[rows], n_bins),
        len(values),
        in_threads=len(values) >= _WORTH_THREADS,
    )
    count, total = (torch.stack(each).sum(dim=0) for each in zip(*sums, strict=True))
    edges = torch.arange(n_bins + 1, dtype=torch.float64) / n_bins
    return Bins(edges, count.sum(dim=0), total.sum(dim=0), count[1])


def _weighted_width_bins(outcomes: Outcomes, n_bins: int) -> Bins:
    values, hits, weights = _as_arrays(outcomes)
    place = equal_width_index(values, n_bins)
    sums = (
        torch.from_numpy(np.bincount(place, weights=each, minlength=n_bins))
        for each in (weights, weights * values, weights * hits)
    )
    return Bins(torch.arange(n_bins + 1, dtype=torch.float64) / n_bins, *sums)


def _as_arrays(outcomes: Outcomes) -> tuple[npt.NDArray[np.floating], npt.NDArray[np.bool_], Floats]:
    """Return confidences, hits and weights as NumPy arrays."""
    assert outcomes.weights is not None
    confidence, correct, weights = outcomes.confidence, outcomes.correct, outcomes.weights
    return confidence.cpu().numpy(), correct.cpu().numpy(), weights.cpu().numpy()


def _width_sums(
    values: npt.NDArray[np.floating], hits: npt.NDArray[np.uint8], n_bins: int
) -> tuple[Tensor, Tensor]:
    """Return counts and summed confidences of the misses and hits in each bin, shape ``(2, n_bins)`` each."""
    shape = (_LANES, 2, n_bins + 1)
    size = math.prod(shape)
    kind = next(kind for kind in (np.uint8, np.int16, np.int64) if size <= np.iinfo(kind).max)
    block = min(_BLOCK, len(values))
    # Neighbouring samples add to different tables: additions to the same address would wait for each other.
    lane = (np.arange(block) % _LANES * (size // _LANES)).astype(kind)
    # Temporaries are allocated once: allocating memory in each block would cost as much as the sums.
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
    """Add the confidences of exactly zero to the first bin."""
    table[:, 1] += table[:, 0]
    return table[:, 1:]


def equal_width_index(values: npt.NDArray[np.floating], n_bins: int) -> npt.NDArray[np.intp]:
    """Return for each value the index ``b`` of its right-closed bin ``(b / n_bins, (b + 1) / n_bins]``.

    This is exact: a value that equals an edge in its own precision belongs to the bin below that edge.
    """
    number = bin_number(values.astype(np.float64), n_bins, exact=values.dtype != np.float64)
    return (number.clip(1, n_bins, out=number) - 1).astype(np.intp)


def bin_number(values: Floats, n_bins: int, *, exact: bool, out: Floats | None = None) -> Floats:
    """Return the bin numbers as floats, counted from 1; a value of zero has the number 0.

    ``exact`` means that multiplying by ``n_bins`` does not round, which holds for values that were float32.
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
    """Fill the bins of ``equal_width_bins`` from outcomes that are already sorted by confidence."""
    edges = np.arange(n_bins + 1) / n_bins
    values = ordered.confidence.numpy()
    stops = np.searchsorted(values, rounded_down(edges[1:], values.dtype), side="right")
    return _between(edges, values, ordered.correct.numpy(), stops)


def rounded_down(edges: Floats, dtype: np.dtype[_Number]) -> npt.NDArray[_Number]:
    """Return the largest numbers of a type that do not exceed the edges, so that comparisons are exact."""
    rounded = edges.astype(dtype)
    return np.where(rounded > edges, np.nextafter(rounded, dtype.type(0)), rounded)


def equal_mass_bins(outcomes: Outcomes, n_bins: int) -> Bins:
    """Fill bins of equal count; equal confidences always share a bin."""
    if outcomes.weights is not None:
        return _weighted_mass_bins(outcomes, n_bins)
    ordered = outcomes.sorted()
    values, hits = ordered.confidence.numpy(), ordered.correct.numpy()
    uppers = equal_mass_uppers(values, n_bins)
    stops = np.searchsorted(values, uppers, side="right")
    return _between(np.concatenate([values[:1], uppers]), values, hits, stops)


def _weighted_mass_bins(outcomes: Outcomes, n_bins: int) -> Bins:
    values, hits, weights = _as_arrays(outcomes)
    order = np.argsort(values)
    order = order[weights[order] > 0]
    values, hits, weights = values[order], hits[order], weights[order]
    last = mass_ends(np.cumsum(weights), n_bins)
    stops = np.append(0, np.searchsorted(values, values[last], side="right"))
    sums = (
        torch.from_numpy(np.diff(np.append(0.0, np.cumsum(each))[stops]))
        for each in (weights, weights * values, weights * hits)
    )
    edges = np.concatenate([values[:1], values[last]]).astype(np.float64)
    return Bins(torch.from_numpy(edges), *sums)


def mass_ends(up_to: Floats, n_bins: int) -> npt.NDArray[np.intp]:
    """Return where each of ``n_bins`` bins of equal weight ends, from cumulative weights in order.

    A bin ends with the sample that brings the weight up to its share of the total. For whole numbers this is
    the rule of :func:`equal_mass_uppers`; the tolerance makes that true for multiples of whole numbers too.
    """
    wanted = np.arange(1, n_bins + 1) * (up_to[-1] / n_bins)
    return np.asarray(np.searchsorted(up_to, wanted * (1 - SAME)).clip(max=len(up_to) - 1))


def equal_mass_uppers(ordered: npt.NDArray[_Number], n_bins: int) -> npt.NDArray[_Number]:
    """Return the largest value of each of ``n_bins`` groups of equal count, from sorted values."""
    return ordered[-(-np.arange(1, n_bins + 1) * len(ordered) // n_bins) - 1]


def _between(
    edges: npt.NDArray[np.floating],
    values: npt.NDArray[np.floating],
    hits: npt.NDArray[np.bool_],
    stops: npt.NDArray[np.intp],
) -> Bins:
    """Return bins of sorted values; each bin ends before its stop."""
    starts = np.concatenate([[0], stops[:-1]])
    slices = [slice(a, b) for a, b in zip(starts, stops, strict=True)]
    return Bins(
        torch.from_numpy(edges.astype(np.float64)),
        torch.from_numpy(stops - starts),
        torch.tensor([values[s].sum(dtype=np.float64) for s in slices], dtype=torch.float64),
        torch.tensor([np.count_nonzero(hits[s]) for s in slices]),
    )
