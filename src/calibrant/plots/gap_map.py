"""The map of the gap: where in an image a segmentation is overconfident, and where it is underconfident."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self, Unpack

from torch import Tensor

from calibrant.pixels.gap_map import gap_map
from calibrant.pixels.images import PixelImage
from calibrant.plots import layout
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
        drawn = ax.imshow(
            self.gaps.numpy(), cmap="RdBu_r", vmin=-100, vmax=100, interpolation="nearest", aspect="auto"
        )
        bar = layout.figure_of(ax).colorbar(drawn, ax=ax, fraction=0.05, pad=0.03)
        bar.set_label("confidence minus accuracy (%)")
        ax.set_xticks([])
        ax.set_yticks([])
