"""Score maps: class scores and labels of the pixels of images, checked, and a random sample of the pixels."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from calibrant.errors import InputError
from calibrant.inputs import ArrayLike, at_least_float32, check_count, check_seed, to_tensor
from calibrant.posthoc.fitting_set import FittingSet

#: The label of pixels that do not count, as in Cityscapes, ADE20K and Pascal VOC.
IGNORED_PIXEL = 255

#: What :func:`neighbourhood` says about each pixel.
SIGNALS = ("entropy", "doubt", "disagreement")

_KINDS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


def check_maps(scores: ArrayLike, *, name: str = "logits") -> Tensor:
    """Return score maps of shape ``(n, k, h, w)`` in at least single precision, or refuse them."""
    maps = to_tensor(scores, name)
    if maps.ndim != 4 or maps.shape[1] < 2 or 0 in maps.shape:
        raise InputError(
            f"{name}: expected maps of shape (n, k, h, w) with at least two classes, got shape "
            f"{tuple(maps.shape)}; a single image has shape (1, k, h, w)"
        )
    if not maps.is_floating_point():
        raise InputError(f"{name}: expected floating-point scores, got {maps.dtype}; classes are labels")
    return at_least_float32(maps)


def check_masks(labels: ArrayLike, like: Tensor, *, ignore_index: int = IGNORED_PIXEL) -> Tensor:
    """Return the classes of the pixels of score maps, shape ``(n, h, w)``, or refuse them."""
    masks = to_tensor(labels, "labels")
    due = (like.shape[0], *like.shape[2:])
    if masks.shape != due:
        raise InputError(
            f"labels: expected masks of shape {tuple(due)} for scores of shape {tuple(like.shape)}, got "
            f"{tuple(masks.shape)}; resize the scores to the masks, with align_corners=False, or the masks "
            "with nearest neighbours"
        )
    if masks.dtype not in _KINDS:
        raise InputError(f"labels: expected whole numbers, got {masks.dtype}; use .astype(int)")
    return check_classes(masks, like.shape[1], ignore_index)


def check_classes(masks: Tensor, k: int, ignore_index: int) -> Tensor:
    """Return labels of pixels as they are, or refuse those that are no class of ``k``."""
    low, high = (int(end) for end in torch.aminmax(masks))
    if low >= 0 and high < k:
        return masks
    wrong = masks[(masks != ignore_index) & ((masks < 0) | (masks >= k))]
    if len(wrong):
        raise InputError(
            f"labels: expected classes from 0 to {k - 1} (or {ignore_index}, which is ignored), got "
            f"{int(wrong[0])}; name another label to ignore with ignore_index"
        )
    return masks


def rows_of_maps(maps: Tensor) -> Tensor:
    """Return the pixels of maps of shape ``(n, k, ...)`` as rows of shape ``(m, k)``.

    Example:
        >>> rows_of_maps(torch.arange(8.0).view(1, 2, 2, 2)).tolist()
        [[0.0, 4.0], [1.0, 5.0], [2.0, 6.0], [3.0, 7.0]]
    """
    return maps.movedim(1, -1).flatten(0, -2)


def neighbourhood(logits: Tensor, radius: int) -> Tensor:
    r"""Return what the pixels around each pixel are like, shape ``(n, 3, h, w)``, each number from 0 to 1.

    These are means over the ``(2 r + 1)^2`` pixels around a pixel, as far as they lie in the image, so that
    they change smoothly over it: the entropy of the softmax as a share of the largest possible one; the
    doubt, one minus the confidence; and the disagreement, the Gini index of the mean softmax, which is high
    along the border of two regions.

    Args:
        logits: Maps of shape ``(n, k, h, w)``.
        radius: The radius ``r`` of the neighbourhood; 0 for the pixel alone.
    """
    log_p = torch.log_softmax(logits, dim=1)
    p = log_p.exp()
    entropy = -(p * log_p.clamp_min(torch.finfo(p.dtype).min)).sum(dim=1, keepdim=True)
    doubt = 1 - p.amax(dim=1, keepdim=True)
    near = box_mean(torch.cat([entropy / math.log(logits.shape[1]), doubt, p], dim=1), radius)
    disagreement = 1 - near[:, 2:].square().sum(dim=1, keepdim=True)
    return torch.cat([near[:, :2], disagreement], dim=1)


def box_mean(maps: Tensor, radius: int) -> Tensor:
    """Return the mean over a square around each pixel, cut at the border of the image."""
    if radius == 0:
        return maps
    # Two passes, along rows and along columns, are a square.
    along = {"stride": 1, "count_include_pad": False}
    rows = F.avg_pool2d(maps, (1, 2 * radius + 1), padding=(0, radius), **along)  # type: ignore[arg-type]
    return F.avg_pool2d(rows, (2 * radius + 1, 1), padding=(radius, 0), **along)  # type: ignore[arg-type]


class PixelSample:
    """A random sample of the pixels of each image, to fit a calibrator on; images come one batch at a time.

    The pixels of an image depend on each other, so the image is the unit: folds never split one. Every image
    gives the same number of pixels, if it has as many that count. Equal images and seeds give equal samples,
    however the images are divided into batches.

    Args:
        pixels_per_image: How many pixels of each image are drawn.
        ignore_index: The label of pixels that do not count.
        radius: The radius of the neighbourhood whose signals become the features of a pixel; None for none.
        seed: Seed of the draws.
    """

    def __init__(
        self,
        *,
        pixels_per_image: int = 500,
        ignore_index: int = IGNORED_PIXEL,
        radius: int | None = None,
        seed: int = 0,
    ) -> None:
        self.pixels_per_image = check_count(pixels_per_image, "pixels_per_image")
        self.ignore_index = ignore_index
        self.radius = None if radius is None else check_count(radius, "radius", at_least=0, at_most=1000)
        self.seed = check_seed(seed)
        self.n_images = 0
        self._logits: list[Tensor] = []
        self._labels: list[Tensor] = []
        self._features: list[Tensor] = []
        self._images: list[Tensor] = []

    @torch.no_grad()
    def add(self, logits: ArrayLike, labels: ArrayLike) -> None:
        """Draw pixels of some images.

        Args:
            logits: Maps of shape ``(n, k, h, w)``.
            labels: Integer classes of shape ``(n, h, w)``.
        """
        maps = check_maps(logits)
        masks = check_masks(labels, maps, ignore_index=self.ignore_index).to(maps.device)
        for scores, mask in zip(maps.split(1), masks, strict=True):
            number, self.n_images = self.n_images, self.n_images + 1
            drawn = self._drawn(mask, number)
            if not len(drawn):
                continue
            self._logits.append(rows_of_maps(scores)[drawn].cpu())
            self._labels.append(mask.flatten()[drawn].long().cpu())
            self._images.append(torch.full((len(drawn),), number))
            if self.radius is not None:
                self._features.append(rows_of_maps(neighbourhood(scores, self.radius))[drawn].cpu())

    def _drawn(self, mask: Tensor, number: int) -> Tensor:
        """Return the places of the pixels of an image that are drawn, in rising order."""
        counted = (mask.flatten() != self.ignore_index).nonzero().squeeze(1)
        if len(counted) <= self.pixels_per_image:
            return counted
        generator = torch.Generator().manual_seed((self.seed << 32) % (1 << 62) + number)
        order = torch.randperm(len(counted), generator=generator)[: self.pixels_per_image]
        return counted[order.sort().values.to(counted.device)]

    def fitting_set(self) -> FittingSet:
        """Return all pixels that were drawn, with the image of each as its unit."""
        if not self._logits:
            raise InputError(
                f"labels: expected pixels of some class, got {self.n_images:,} images in which every label "
                f"is {self.ignore_index}, which is ignored; name another label with ignore_index"
            )
        return FittingSet.of(
            torch.cat(self._logits),
            torch.cat(self._labels),
            features=torch.cat(self._features) if self._features else None,
            units=torch.cat(self._images),
            seed=self.seed,
        )
