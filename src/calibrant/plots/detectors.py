"""Figures of a detector: where in the image its scores promise too much, and what a threshold keeps."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self, Unpack

import numpy as np

from calibrant.boxes.pairs import BoxPairs
from calibrant.boxes.pictured import ByThreshold, GapsByPlace, by_threshold, gaps_by_place
from calibrant.inputs import check_count
from calibrant.plots import layout, style
from calibrant.plots.display import Display, Place

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Gaps of cells with fewer boxes are pale.
_FEW = 10


@dataclass(eq=False)
class BoxMapDisplay(Display):
    """Mean score minus precision in parts of the image: red is overconfident, blue underconfident.

    Args:
        gaps: The gap and the number of boxes of each part.
    """

    gaps: GapsByPlace

    ratio = 0.75

    @classmethod
    def from_pairs(cls, pairs: BoxPairs, *, cells: int = 6, **place: Unpack[Place]) -> Self:
        """Sort boxes by their centre and draw the gaps.

        Args:
            pairs: Boxes that are right or wrong, by :func:`calibrant.boxes.match_pairs`.
            cells: Number of parts in each direction.
            **place: ``ax``, ``width`` and ``title`` of :meth:`plot`.
        """
        return cls(gaps_by_place(pairs, cells=check_count(cells, "cells"))).plot(**place)

    def draw(self, ax: "Axes") -> None:
        """Draw the parts, their gaps in percent, and what the colours mean."""
        gap = 100 * self.gaps.gap
        pale = (self.gaps.n >= _FEW) * 0.8 + 0.2
        ax.imshow(gap, cmap="RdBu_r", vmin=-50, vmax=50, aspect="auto", alpha=pale)
        for (down, across), n in np.ndenumerate(self.gaps.n):
            if n:
                ax.text(across, down, f"{gap[down, across]:+.0f}", ha="center", va="center", fontsize=7)
        ax.set_xlabel(f"score minus precision (%); pale: fewer than {_FEW} boxes")
        ax.set_xticks([])
        ax.set_yticks([])


@dataclass(eq=False)
class BoxThresholdsDisplay(Display):
    """Precision of the boxes from a score on, and the share of all objects that they find.

    Args:
        curve: Both at some thresholds.
    """

    curve: ByThreshold

    @classmethod
    def from_pairs(cls, pairs: BoxPairs, **place: Unpack[Place]) -> Self:
        """Count boxes and objects at each threshold and draw the shares.

        Args:
            pairs: Boxes that are right or wrong, by :func:`calibrant.boxes.match_pairs`.
            **place: ``ax``, ``width`` and ``title`` of :meth:`plot`.
        """
        return cls(by_threshold(pairs)).plot(**place)

    def draw(self, ax: "Axes") -> None:
        """Draw both curves."""
        for number, (name, share) in enumerate(
            (("precision", self.curve.precision), ("objects found", self.curve.found))
        ):
            ax.plot(self.curve.threshold, 100 * share, label=name, **style.curve(number))
        ax.set_xlim(0, 1)
        ax.set_ylim(0, 100)
        ax.set_xlabel("score at least")
        ax.set_ylabel("share (%)")
        layout.legend_below(ax)
