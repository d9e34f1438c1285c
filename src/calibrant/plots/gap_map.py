"""The map of the gap: where in an image a segmentation is overconfident, and where it is underconfident."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self, Unpack

import numpy as np
from torch import Tensor

from calibrant.pixels.gap_map import gap_map
from calibrant.pixels.images import PixelImage
from calibrant.plots.display import Display, Place

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(eq=False)
class GapMapDisplay(Display):
    """Confidence minus accuracy around each pixel of an image: red is overconfident, blue underconfident.

    Args:
        gaps: The gap around each pixel in percent, shape ``(h, w)``; NaN where no pixel counts.
    """

    gaps: Tensor

    @classmethod
    def from_image(cls, image: PixelImage, *, radius: int = 4, **place: Unpack[Place]) -> Self:
        """Average the gap around each pixel and draw it.

        Args:
            image: Scores and labels of an image.
            radius: The square around a pixel has ``2 * radius + 1`` pixels in each direction.
            **place: ``ax``, ``width`` and ``title`` of :meth:`plot`.
        """
        return cls(100 * gap_map(image, radius=radius)).plot(**place)

    def proportion(self, ax: "Axes") -> float:  # noqa: ARG002  # of all displays
        """Return the height of the image as a share of its width."""
        height, width = self.gaps.shape
        return height / width

    def draw(self, ax: "Axes") -> None:
        """Draw the image of gaps, and what its colours mean."""
        gaps = self.gaps.numpy()
        known = np.abs(gaps[np.isfinite(gaps)])
        most = 10 * math.ceil(max(float(known.max(initial=0.0)), 1.0) / 10)
        ax.imshow(gaps, cmap="RdBu_r", vmin=-most, vmax=most, interpolation="nearest", aspect="auto")
        ax.set_xlabel(f"confidence minus accuracy:\nred to +{most} %, blue to \N{MINUS SIGN}{most} %")
        ax.set_xticks([])
        ax.set_yticks([])
