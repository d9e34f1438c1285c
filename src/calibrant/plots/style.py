"""The look of figures: colours safe for colour blindness and grey print, sizes of a paper, shared parts."""

import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from calibrant.errors import CalibrantError
from calibrant.extras import optional
from calibrant.plots import layout, words

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Width in inches of one column, and of the whole page, of a two-column paper.
COLUMN, PAGE = 3.3, 6.8

#: The strip above axes with the space below it, and this space, as shares of the height of the axes.
STRIP, _GAP = 0.2, 0.04

# Okabe and Ito's colours, which differ for all kinds of colour vision.
BLUE, VERMILION, GREEN, PURPLE = "#0072B2", "#D55E00", "#009E73", "#A4528A"
ORANGE, SKY, BLACK, GREY = "#E69F00", "#56B4E9", "#000000", "#666666"

# Pale tints, for areas: in grey they are clearly lighter than the colours themselves.
PALE_BLUE, PALE_VERMILION, PALE_GREEN, PALE_GREY = "#B9D7EA", "#F9D5BF", "#C4E8DD", "#E6E6E6"

# Areas that hatches tell apart without colour.
OVER: dict[str, Any] = {
    "facecolor": PALE_VERMILION,
    "edgecolor": VERMILION,
    "hatch": "//////",
    "linewidth": 0.6,
}
UNDER: dict[str, Any] = {
    "facecolor": PALE_GREEN,
    "edgecolor": GREEN,
    "hatch": "------",
    "linewidth": 0.6,
}
# Light enough that black marks on it can be seen in grey print.
SOLID: dict[str, Any] = {"facecolor": "#4D9CC9", "edgecolor": "white", "linewidth": 0.5}

_SETTINGS: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 7.5,
    "axes.labelsize": 7.5,
    "axes.titlesize": 8,
    "xtick.labelsize": 6.5,
    "ytick.labelsize": 6.5,
    "legend.fontsize": 6.5,
    "legend.edgecolor": "none",
    "legend.facecolor": "white",
    "legend.framealpha": 0.85,
    "legend.fancybox": False,
    "legend.handlelength": 2.8,
    "legend.borderaxespad": 0.2,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "axes.axisbelow": True,
    "axes.labelpad": 2.5,
    "axes.titlepad": 4,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "xtick.minor.size": 1.5,
    "xtick.minor.width": 0.5,
    "grid.color": "#E3E3E3",
    "grid.linewidth": 0.5,
    "lines.linewidth": 1.3,
    "lines.markersize": 3.5,
    "hatch.linewidth": 0.6,
    "figure.facecolor": "white",
    "axes.facecolor": "white",
    "savefig.facecolor": "white",
    "savefig.dpi": 300,
    # Text stays text: it can be searched, copied and edited.
    "svg.fonttype": "none",
    "pdf.fonttype": 42,
    # Equal figures give equal files.
    "svg.hashsalt": "calibrant",
    # A dollar in a name is a dollar.
    "text.parse_math": False,
}


# A line to compare the others with.
REFERENCE: dict[str, Any] = {"color": GREY, "linewidth": 0.9, "linestyle": (0, (1, 1.2))}

_LINES: tuple[tuple[str, Any, str], ...] = (
    (BLUE, "-", "o"),
    (VERMILION, (0, (5, 1.6)), "s"),
    (GREEN, (0, (5, 1.4, 1, 1.4)), "^"),
    (PURPLE, (0, (1.2, 1.2)), "D"),
    (ORANGE, (0, (3, 1, 1, 1, 1, 1)), "v"),
    (BLACK, (0, (8, 2)), "P"),
    (SKY, "-", "X"),
)


def line(number: int) -> dict[str, Any]:
    """Return colour, dashes and marker of the line with this number, from 0; they repeat after seven."""
    color, dashes, marker = _LINES[number % len(_LINES)]
    return {"color": color, "linestyle": dashes, "marker": marker}


def curve(number: int) -> dict[str, Any]:
    """Return :func:`line` without markers, for curves of many points."""
    return line(number) | {"marker": ""}


def shared_legend(panels: Sequence["Axes"]) -> dict[str, Any]:
    """Return the handles and labels of one legend for several panels, each label once."""
    legend: dict[str, Any] = {}
    for panel in panels:
        handles, labels = panel.get_legend_handles_labels()
        legend |= {label: handle for label, handle in zip(labels, handles, strict=True) if label}
    return {"handles": list(legend.values()), "labels": list(legend)}


@contextmanager
def applied() -> Iterator[None]:
    """Apply Calibrant's matplotlib settings inside the block, and restore the user's settings afterwards.

    Letters that the font lacks, such as Chinese ones, are boxes in ``.png`` and ``.pdf``; ``.svg`` files
    keep the text. Matplotlib's warnings about each of them are not shown.
    """
    try:
        with optional("plot"):
            import matplotlib
            import matplotlib.font_manager  # which keeps a list of fonts on disk
    except OSError:
        raise CalibrantError(
            "plot: expected a folder in which matplotlib may keep its list of fonts, got none that can be "
            "written; set MPLCONFIGDIR to one"
        ) from None

    with matplotlib.rc_context(_SETTINGS), warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"Glyph \d+ .* missing from font", UserWarning)
        yield


def strip_above(ax: "Axes", label: str, *, height: float = STRIP - _GAP, fontsize: float = 6.5) -> "Axes":
    """Return a flat panel above the axes with the same x-axis, for the number or the density of samples."""
    strip = ax.inset_axes((0, 1 + _GAP, 1, height), sharex=ax)
    strip.tick_params(axis="x", labelbottom=False, length=0)
    strip.set_ylabel(label, fontsize=fontsize)
    return strip


def outer_labels(ax: "Axes", below: str, beside: str) -> None:
    """Label the axes that all panels inside share."""
    from matplotlib.transforms import ScaledTranslation

    inch = layout.figure_of(ax).dpi_scale_trans
    look: dict[str, Any] = {"fontsize": 7.5}
    down = ax.transAxes + ScaledTranslation(0, -15 / 72, inch)
    ax.text(0.5, 0, below, ha="center", va="top", transform=down, **look)
    left = ax.transAxes + ScaledTranslation(-21 / 72, 0, inch)
    ax.text(0, 0.5, beside, ha="right", va="center", rotation=90, transform=left, **look)


def diagonal(ax: "Axes", *, linewidth: float = 0.8, zorder: float = 2) -> None:
    """Draw the dashed diagonal of the unit square."""
    ax.plot([0, 1], [0, 1], color=BLACK, linewidth=linewidth, linestyle=(0, (4, 2)), zorder=zorder)


def unit_axes(ax: "Axes", *, ticks: int = 5) -> None:
    """Show shares from 0 to 1 in percent on both axes."""
    places = [i / ticks for i in range(ticks + 1)]
    names = [f"{100 * place:.0f}" for place in places]
    ax.set_xlim(0, 1)
    ax.set_ylim(0, 1)
    ax.set_xticks(places, names)
    ax.set_yticks(places, names)


def apart(ticks: Sequence[float], points: float) -> list[str]:
    """Return the labels of ticks on a logarithmic axis, without those that would touch the one before.

    Args:
        ticks: Positive numbers in ascending order.
        points: Length of the axis.
    """
    names, end = [], -math.inf
    for tick in ticks:
        name = f"{int(tick):,}" if tick == int(tick) else f"{tick:g}"
        share = math.log(tick / ticks[0]) / math.log(max(ticks[-1] / ticks[0], 1 + 1e-9))
        half = words.text_width(name, 6.5) / 2 + 1.5
        names.append(name if share * points - half >= end else "")
        end = share * points + half if names[-1] else end
    return names


def group_edges(ax: "Axes", edges: Sequence[float]) -> None:
    """Show on the x-axis the edges of groups that stand at 0, 1, 2, ...; where they are many, not each."""
    step = max(1, math.ceil(len(edges) * 24 / (72 * layout.inches(ax))))
    shown = range(0, len(edges), step)
    ax.set_xticks([place - 0.5 for place in shown], [f"{edges[place]:.1f}" for place in shown])


def percent_axis(ax: "Axes", which: str) -> None:
    """Show the shares on the ``"x"`` or the ``"y"`` axis in percent."""
    from matplotlib.ticker import FuncFormatter

    axis = ax.xaxis if which == "x" else ax.yaxis
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.4g}"))
