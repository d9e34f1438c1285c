"""Lines and bands of reliability diagrams without bins."""

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from calibrant.metrics.reliability_band import Band
from calibrant.plots import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_Floats = npt.NDArray[np.float64]


def draw_curve(
    ax: "Axes",
    confidence: _Floats,
    accuracy: _Floats,
    band: Band | None,
    *,
    label: str,
    band_at: _Floats | None = None,
) -> None:
    """Draw accuracy against confidence beside the diagonal, with its band below.

    Args:
        ax: Axes of the unit square.
        confidence: Places of the curve; the line breaks where they are NaN.
        accuracy: The curve.
        band: Its range, or none.
        label: Name of the curve in the legend.
        band_at: Places of the band, if they are not those of the curve.
    """
    ax.plot([0, 1], [0, 1], color=style.BLACK, linewidth=0.8, linestyle=(0, (4, 2)))
    if band is not None:
        ax.fill_between(
            confidence if band_at is None else band_at,
            band.low.numpy(),
            band.high.numpy(),
            facecolor=style.PALE_BLUE,
            edgecolor="none",
            linewidth=0,
            label=f"{100 * band.level:.0f} % bootstrap",
        )
    ax.plot(confidence, accuracy, color=style.BLUE, linewidth=1.5, label=label)
    style.unit_axes(ax)
    ax.set_aspect("equal")
    ax.set_xlabel("confidence (%)")
    ax.set_ylabel("accuracy (%)")
