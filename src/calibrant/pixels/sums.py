"""The one summation of an image: counts, confidences and scores of its pixels in one pass over the maps.

Maps have one row per class, so that maxima and sums over classes run along memory. Every pixel falls into one
cell: its predicted class, its band of distance, its bin of confidence, and whether it is right. All measures,
those of classes and of bands too, follow from five numbers per cell.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from calibrant.bins import equal_width_index
from calibrant.errors import InputError
from calibrant.inputs import Floats
from calibrant.outcomes import LEAST_PROB
from calibrant.pixels.borders import BANDS, border_bands
from calibrant.pixels.images import MapForm, PixelImage

N_BANDS = len(BANDS) + 1
_ROUNDING = 1e-3
# Below this a probability in single precision says little about its logarithm.
_LOST = 1e-30
# Pixels that are summed at a time: their temporaries stay in the processor's cache.
_TILE = 1 << 14

Array = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class ImageSums:
    """Sums over the pixels of an image.

    Attributes:
        cells: For each predicted class, band, bin, and whether it is wrong or right: the number of pixels,
            and the sums of the confidences, of the negative log-likelihoods and of the Brier scores, shape
            ``(4, k, bands, bins, 2)``.
        labels: Number of pixels of each class, shape ``(k,)``.
    """

    cells: Floats
    labels: npt.NDArray[np.int64]

    @property
    def n(self) -> int:
        """Number of pixels that count."""
        return int(self.labels.sum())


def image_sums(image: PixelImage, *, n_bins: int) -> ImageSums:
    """Sum the pixels of an image; one in which every pixel is ignored has sums of 0."""
    given, k = image.known_labels().numpy(), image.k
    small = np.uint8 if k < 254 else np.int32
    ignored = given == image.ignore_index
    counted = None if not ignored.any() else ~ignored.ravel()
    y = given.astype(small, copy=False) if counted is None else np.where(ignored, 0, given).astype(small)
    band = border_bands(y, None if counted is None else ignored).ravel()
    scores, own = image.scores.flatten(1), y.ravel()
    cells = np.zeros((4, k * N_BANDS * n_bins * 2))
    for start in range(0, len(own), _TILE):
        at = slice(start, start + _TILE)
        few = None if counted is None else counted[at]
        cells += _tile_sums(image, scores[:, at], own[at], band[at], few, n_bins)
    labels = np.bincount((own if counted is None else own[counted]).astype(np.intp), minlength=k)
    return ImageSums(cells.reshape(4, k, N_BANDS, n_bins, 2), labels)


def _tile_sums(
    image: PixelImage, scores: Tensor, own: Array, band: Array, counted: Array | None, n_bins: int
) -> Floats:
    """Return the sums of some pixels in each cell, shape ``(4, cells)``.

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
    of_class = p.ravel().take(own * np.intp(len(own)) + np.arange(len(own)))
    predicted, confidence = _most_probable(p, own.dtype.type)
    n_cells = len(p) * N_BANDS * n_bins * 2
    cell = predicted.astype(np.int32)
    cell *= N_BANDS
    cell += band
    cell *= n_bins
    cell += equal_width_index(confidence, n_bins)
    cell *= 2
    cell += predicted == own
    if counted is not None:
        # What is ignored falls into a cell of its own, which is dropped.
        cell[~counted] = n_cells
    place = cell.astype(np.intp)
    brier = probs.square().sum(dim=0).numpy() - 2 * of_class + 1
    terms = (None, confidence, _losses(image.form, scores, of_class, own), brier)
    return np.stack([np.bincount(place, weights=each, minlength=n_cells + 1)[:n_cells] for each in terms])


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


def _most_probable(p: Array, small: type[np.integer]) -> tuple[Array, Array]:
    """Return the most probable class of each pixel, the first of equal ones, and its probability.

    This is ten times as fast as an argmax over the first dimension.
    """
    best, place = p[0].copy(), np.zeros(p.shape[1], dtype=small)
    for number, row in enumerate(p[1:], start=1):
        np.maximum(place, (row > best) * small(number), out=place)
        np.maximum(best, row, out=best)
    return place, np.minimum(best, 1, out=best)


def _losses(form: MapForm, scores: Tensor, of_class: Array, own: Array) -> Floats:
    """Return the negative log-likelihood of each pixel, from the probability of its class."""
    with np.errstate(divide="ignore"):
        losses: Floats = -np.log(of_class.astype(np.float64))
    if form == "probs":
        return np.minimum(losses, -math.log(LEAST_PROB), out=losses)
    lost = np.flatnonzero(of_class < _LOST)
    if len(lost):
        z = scores[:, torch.from_numpy(lost)].double()
        of_label = z.gather(0, torch.from_numpy(own[lost].astype(np.int64))[None])[0]
        losses[lost] = (torch.logsumexp(z, dim=0) - of_label).numpy()
    return losses
