"""A strip above a diagram that says how many samples stand behind each part of it."""

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from calibrant.bins import Bins
from calibrant.plots import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def marginal_counts(ax: "Axes", bins: Bins) -> "Axes":
    """Draw the number of samples in each bin above the axes, on a log scale."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    strip = _strip(ax)
    left, width = bins.edges[:-1].numpy(), bins.edges.diff().numpy()
    strip.bar(
        left,
        bins.count.numpy(),
        width,
        align="edge",
        facecolor="#9A9A9A",
        edgecolor="white",
        linewidth=0.5,
    )
    # On a linear scale the few samples of most bins would look like none beside the surest.
    strip.set_yscale("log")
    strip.set_ylim(0.7, 1.5 * max(10, int(bins.count.max())))
    strip.yaxis.set_major_locator(LogLocator(numticks=4))
    strip.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    strip.yaxis.set_minor_locator(NullLocator())
    strip.set_ylabel("samples", fontsize=6.5)
    return strip


def marginal_density(
    ax: "Axes", confidence: npt.NDArray[np.float64], density: npt.NDArray[np.float64]
) -> "Axes":
    """Draw the density of the confidences above the axes."""
    strip = _strip(ax)
    strip.fill_between(confidence, density, color="#BDBDBD", linewidth=0)
    strip.plot(confidence, density, color=style.GREY, linewidth=0.7)
    strip.set_ylim(0, None)
    strip.set_yticks([])
    strip.set_ylabel("density", fontsize=6.5)
    return strip


def _strip(ax: "Axes") -> "Axes":
    strip = ax.inset_axes((0, 1.04, 1, 0.16), sharex=ax)
    strip.tick_params(axis="x", labelbottom=False, length=0)
    return strip
