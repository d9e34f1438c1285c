"""The map of the gap of an image: where a segmentation is more, or less, confident than it is right."""

import torch
from torch import Tensor

from calibrant.inputs import check_count
from calibrant.pixels.images import PixelImage
from calibrant.posthoc.score_maps import box_mean


def gap_map(image: PixelImage, *, radius: int = 4) -> Tensor:
    """Return confidence minus accuracy in the square around each pixel, shape ``(h, w)``.

    Above 0 the segmentation is overconfident there. Ignored pixels do not count; a square without others has
    NaN.

    Args:
        image: Scores and labels of an image.
        radius: The square around a pixel has ``2 * radius + 1`` pixels in each direction.

    Example:
        >>> scores = torch.tensor([[[0.75, 0.75]], [[0.25, 0.25]]])
        >>> gap_map(PixelImage.of("a", "probs", scores, torch.tensor([[0, 1]]))).tolist()
        [[0.25, 0.25]]
    """
    radius = check_count(radius, "radius", at_least=0, at_most=1000)
    labels = image.known_labels()
    p = torch.softmax(image.scores.double(), dim=0) if image.form == "logits" else image.scores.double()
    counted = labels != image.ignore_index
    gap = torch.where(counted, p.amax(dim=0) - (p.argmax(dim=0) == labels).double(), 0.0)
    near = box_mean(torch.stack([gap, counted.double()])[None], radius)[0]
    return near[0] / near[1]
