"""The one summation of an image: counts, confidences and scores of its pixels in one pass over the maps.

Maps have one row per class, so that maxima and sums over classes run along memory. Every pixel falls into one
cell: its predicted class, its bin of confidence, its band of distance, and whether it is right. The measures
of classes and of bands follow from the counts and the confidences of the cells.
"""

from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from calibrant.bins import bin_number
from calibrant.errors import InputError
from calibrant.inputs import Floats
from calibrant.outcomes import LEAST_PROB, Outcomes
from calibrant.pixels.borders import BANDS, border_bands
from calibrant.pixels.images import MapForm, PixelImage

N_BANDS = len(BANDS) + 1
_ROUNDING = 1e-3
# Below this a probability in single precision says little about its logarithm.
_LOST = 1e-30
# Scores that are summed at a time. Their temporaries stay in the processor's cache, and steps are few.
_TILE = 1 << 19
# Squares that are summed in the precision of the scores.
_FEW = 512

Array: TypeAlias = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class ImageSums:
    """Sums over the pixels of an image.

    Attributes:
        cells: For each predicted class, band and bin: the number of pixels, the sum of their confidences,
            and the number of those that are right, shape ``(3, k, bands, bins)``.
        scores: The sums of the negative log-likelihoods and of the Brier scores, shape ``(2,)``.
        labels: Number of pixels of each class, shape ``(k,)``.
        outcomes: The confidences in ascending order, and whether they are right, if ranks are wanted.
    """

    cells: Floats
    scores: Floats
    labels: npt.NDArray[np.int64]
    outcomes: Outcomes | None = None

    @property
    def n(self) -> int:
        """Number of pixels that count."""
        return int(self.labels.sum())


def image_sums(image: PixelImage, *, n_bins: int, ranks: bool = False) -> ImageSums:
    """Sum the pixels of an image; one in which every pixel is ignored has sums of 0.

    Args:
        image: The image.
        n_bins: Number of bins of the confidence.
        ranks: Whether the confidences are returned in order, too.
    """
    given, k = image.known_labels().numpy(), image.k
    small = np.uint8 if k < 254 else np.int32
    ignored = given == image.ignore_index
    counted = ~ignored if ignored.any() else None
    y = given.astype(small, copy=False) if counted is None else np.where(ignored, 0, given).astype(small)
    scores, own, band = image.scores.flatten(1), y.ravel(), border_bands(y, counted).ravel()
    cells, sums = np.zeros((2, k * n_bins * N_BANDS * 2)), np.zeros(2)
    step, outcomes = max(1, _TILE // k), []
    for start in range(0, len(own), step):
        at = slice(start, start + step)
        few = None if counted is None else counted.ravel()[at]
        tile, scored, each = _tile_sums(image, scores[:, at], own[at], band[at], few, n_bins)
        cells += tile
        sums += scored
        if ranks:
            outcomes.append(each if few is None else (each[0][few], each[1][few]))
    split = cells.reshape(2, k, n_bins, N_BANDS, 2).transpose(0, 1, 3, 2, 4)
    labels = np.array([np.count_nonzero(own == number) for number in range(k)])
    labels[0] -= np.count_nonzero(ignored)
    table = np.concatenate([split[..., 0] + split[..., 1], split[:1, ..., 1]])
    return ImageSums(table, sums, labels, _in_order(outcomes) if ranks else None)


def _in_order(tiles: list[tuple[Array, Array]]) -> Outcomes:
    confidence, right = (torch.from_numpy(np.concatenate(each)) for each in zip(*tiles, strict=True))
    return Outcomes(confidence, right).sorted()


def _tile_sums(
    image: PixelImage, scores: Tensor, own: Array, band: Array, counted: Array | None, n_bins: int
) -> tuple[Floats, tuple[float, float], tuple[Array, Array]]:
    """Return counts and confidences of some pixels in each cell, sums of scores, and confidences with hits.

    Args:
        image: The image, for what its scores are and for error messages.
        scores: Their scores, shape ``(k, m)``.
        own: Their classes; 0 where they are ignored.
        band: Their bands of distance.
        counted: Which of them count; all if None.
        n_bins: Number of bins of the confidence.
    """
    probs = _probs(image, scores)
    p = probs.numpy()
    k, m = p.shape
    n_cells = k * n_bins * 2 * N_BANDS
    narrow = np.int16 if n_cells < 1 << 15 else np.int32
    predicted, highest = _most_probable(p)
    if image.form == "probs":
        np.minimum(highest, 1, out=highest)
    confidence, right = highest.astype(np.float64), predicted == own
    cell: Array = predicted.astype(narrow)
    cell *= n_bins
    cell += bin_number(confidence, n_bins, exact=highest.dtype != np.float64).astype(narrow)
    cell -= 1
    cell *= 2 * N_BANDS
    cell += 2 * band + right
    place = own.astype(np.int32)
    place *= m
    place += _counting(m)
    of_class = probs.view(-1).index_select(0, torch.from_numpy(place)).numpy().astype(np.float64)
    losses, n = _losses(image.form, scores, of_class, own), m
    if counted is not None:
        # What is ignored falls into a cell of its own, which is dropped.
        cell[~counted] = n_cells
        losses, of_class, p = losses * counted, of_class * counted, p * counted
        n = np.count_nonzero(counted)
    index = torch.from_numpy(cell)
    count = torch.bincount(index, minlength=n_cells + 1)
    sums = torch.bincount(index, torch.from_numpy(confidence), minlength=n_cells + 1)
    brier = _sum_of_squares(p.ravel()) - 2 * of_class.sum() + n
    cells = np.stack([count.numpy(), sums.numpy()])[:, :n_cells]
    return cells, (losses.sum(), brier), (highest, right)


@cache
def _counting(m: int) -> Array:
    return np.arange(m, dtype=np.int32)


def _sum_of_squares(values: Array) -> float:
    """Return the sum in double precision of products of few values each, which lose little in single."""
    whole = len(values) // _FEW * _FEW
    rows, rest = values[:whole].reshape(-1, _FEW), values[whole:].astype(np.float64)
    return float((rows[:, None, :] @ rows[:, :, None]).sum(dtype=np.float64) + (rest @ rest))


def _probs(image: PixelImage, scores: Tensor) -> Tensor:
    """Return checked probabilities of shape ``(k, m)``."""
    p = torch.softmax(scores, dim=0) if image.form == "logits" else scores.contiguous()
    # A softmax that contains NaN or infinity is NaN in the whole pixel.
    total = p.sum(dim=0) if image.form == "probs" else p[0]
    if bool(total.sum().isnan()):
        raise InputError(
            f"{image.name}: {image.form}: expected numbers, got NaN or infinity; find out where the network "
            "made it"
        )
    if image.form == "probs" and (bool(((total - 1).abs() > _ROUNDING).any()) or float(p.min()) < 0):
        raise InputError(
            f"{image.name}: probs: expected probabilities that sum to one over the classes of each pixel, "
            f"got sums from {float(total.min()):.6g} to {float(total.max()):.6g}; save logits under that name"
        )
    return p


def _most_probable(p: Array) -> tuple[Array, Array]:
    """Return the most probable class of each pixel, the first of equal ones, and its probability.

    This is much faster than an argmax over the first dimension.
    """
    k = len(p)
    best = np.maximum.reduce(p, axis=0)
    # The first of equal classes has the highest rank.
    small = np.uint8 if k < 254 else np.int32
    ranks: Array = np.equal(p, best).view(np.uint8).astype(small, copy=False)
    ranks *= np.arange(k, 0, -1, dtype=ranks.dtype)[:, None]
    return k - np.maximum.reduce(ranks, axis=0), best


def _losses(form: MapForm, scores: Tensor, of_class: Floats, own: Array) -> Floats:
    """Return the negative log-likelihood of each pixel, from the probability of its class."""
    least = LEAST_PROB if form == "probs" else _LOST
    lost = np.flatnonzero(of_class < least) if of_class.min() < least else np.zeros(0, dtype=np.intp)
    losses: Floats = np.log(np.maximum(of_class, least) if len(lost) else of_class)
    np.negative(losses, out=losses)
    if form == "logits" and len(lost):
        z = scores[:, torch.from_numpy(lost)].double()
        of_label = z.gather(0, torch.from_numpy(own[lost].astype(np.int64))[None])[0]
        losses[lost] = (torch.logsumexp(z, dim=0) - of_label).numpy()
    return losses
