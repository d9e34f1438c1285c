"""Where the parts of a figure stand: all of them inside it, the title above and the legend below the data."""

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING

from calibrant.plots import words

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.axes._base import _AxesBase
    from matplotlib.backend_bases import RendererBase
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import LayoutEngine
    from matplotlib.transforms import Bbox

# Points between the parts and the edge of the figure, and between the parts themselves.
_EDGE, _GAP = 4.0, 5.0

# The smallest side of the axes in points: a figure too small for its texts is cut off rather than refused.
_SMALLEST = 20.0

# Points left of axes of the user's and below them that ticks and a label may take, as in any figure.
_ROOM = 45.0, 32.0

# Lines of one entry of a legend.
_LEGEND_LINES = 4

# What stands around the axes depends a little on their size: after this many rounds it is settled.
_ROUNDS = 2


@cache
def _fitted_layout() -> "type[LayoutEngine]":
    """Return the class of the layout; made here so that importing this file needs no matplotlib."""
    from matplotlib.layout_engine import LayoutEngine

    class FittedLayout(LayoutEngine):
        """Keep everything around the only axes of a figure inside it, whenever the figure is drawn."""

        _adjust_compatible = True
        _colorbar_gridspec = False

        def execute(self, fig: "Figure") -> None:
            """Move the axes, the title and the legend."""
            if fig.axes:
                _place(fig.axes[0], fig.bbox.height)

    return FittedLayout


def new_axes(width: float, height: float) -> "Axes":
    """Return axes in a new figure of this size in inches, which pyplot does not manage."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout=_fitted_layout()()).add_axes((0, 0, 1, 1))


def figure_of(ax: "Axes") -> "Figure":
    """Return the whole figure that axes are part of."""
    figure = ax.get_figure(root=True)
    assert figure is not None
    return figure


def settle(ax: "Axes", share: float) -> None:
    """Give a figure the height that its only axes need to be this share of their width high."""
    figure = figure_of(ax)
    for _ in range(_ROUNDS):
        height = _place(ax, figure.bbox.height, share)
        figure.set_size_inches(figure.get_size_inches()[0], height / figure.dpi)


def _place(ax: "Axes", height: float, share: float | None = None) -> float:
    """Move axes, title and legend of a figure of this height in pixels; return the height they need."""
    from matplotlib.transforms import Bbox

    figure = figure_of(ax)
    scale = figure.dpi / 72
    edge, gap, smallest = _EDGE * scale, _GAP * scale, _SMALLEST * scale
    width = figure.bbox.width
    title, legend = ax.title, ax.get_legend()
    # Without a renderer a text takes that of the last drawing, whose resolution may have been another.
    # Layouts of matplotlib ask the figure for one in this way; its stubs do not know of it.
    renderer: RendererBase = figure._get_renderer()  # type: ignore[attr-defined]
    around, box = _without(ax, _beside(ax), renderer), ax.bbox.frozen()
    left, right = box.x0 - around.x0, around.x1 - box.x1
    above, below = around.y1 - box.y1, box.y0 - around.y0
    title_box = title.get_window_extent(renderer) if title.get_text() else None
    legend_box = legend.get_window_extent(renderer) if legend else None
    top = edge + above + (0 if title_box is None else gap + title_box.height)
    bottom = edge + below + (0 if legend_box is None else gap + legend_box.height)
    x0, x1 = edge + left, max(width - edge - right, edge + left + smallest)
    if share is not None:
        height = bottom + top + share * (x1 - x0)
    y0, y1 = bottom, max(height - top, bottom + smallest)
    ax.set_position(Bbox.from_extents(x0 / width, y0 / height, x1 / width, y1 / height))
    middle = (x0 + x1) / 2
    if title_box is not None:
        x = _within(middle, title_box.width / 2 + edge, width)
        title.set_position(((x - x0) / (x1 - x0), (y1 + above + gap - y0) / (y1 - y0)))
    if legend is not None and legend_box is not None:
        x = _within(middle, legend_box.width / 2 + edge, width)
        legend.set_bbox_to_anchor((x / width, (y0 - below - gap) / height), transform=figure.transFigure)
    return height


def keep_inside(ax: "Axes") -> None:
    """Make axes of the user's smaller by the legend and by all around them that ordinary axes do not have.

    Ticks and labels of the usual size stay where matplotlib's layouts expect them, outside the data area.
    """
    current: Bbox = ax.get_position(original=True)
    is_measuring = False

    def locate(_: "_AxesBase", renderer: "RendererBase | None") -> "Bbox":
        nonlocal current, is_measuring
        if is_measuring:
            return current
        is_measuring = True
        try:
            current = ax.get_position(original=True)
            for _round in range(_ROUNDS):
                current = _inside(ax, renderer)
            _attach(ax, renderer)
        finally:
            is_measuring = False
        return current

    ax.set_axes_locator(locate)


def _inside(ax: "Axes", renderer: "RendererBase | None") -> "Bbox":
    """Return the place of axes of the user's at which all that we add stays where the axes were."""
    from matplotlib.transforms import Bbox

    figure = ax.get_figure()
    assert figure is not None
    renderer = renderer or figure_of(ax)._get_renderer()  # type: ignore[attr-defined]  # as in _place
    scale, legend = figure_of(ax).dpi / 72, ax.get_legend()
    slot = ax.get_position(original=True).transformed(figure.transSubfigure)
    around = _without(ax, _beside(ax), renderer)
    left, below = (room * scale for room in _ROOM)
    x0 = slot.x0 + max(ax.bbox.x0 - around.x0 - left, 0)
    x1 = slot.x1 - max(around.x1 - ax.bbox.x1 - 2 * _GAP * scale, 0)
    y0 = slot.y0 + max(ax.bbox.y0 - around.y0 - below, 0)
    y1 = slot.y1 - max(around.y1 - ax.bbox.y1 - 2 * _GAP * scale, 0)
    if legend is not None:
        y0 += legend.get_window_extent(renderer).height + _GAP * scale
    smallest = _SMALLEST * scale
    pixels = Bbox.from_extents(x0, y0, max(x1, x0 + smallest), max(y1, y0 + smallest))
    return pixels.transformed(figure.transSubfigure.inverted())


def _attach(ax: "Axes", renderer: "RendererBase | None") -> None:
    """Put the title above everything that belongs to axes of the user's, and the legend below it."""
    from matplotlib.transforms import IdentityTransform

    figure, box, legend = figure_of(ax), ax.bbox, ax.get_legend()
    around = _without(ax, _beside(ax), renderer or figure._get_renderer())  # type: ignore[attr-defined]  # as in _place
    gap = _GAP * figure.dpi / 72
    ax.title.set_y((around.y1 + gap - box.y0) / box.height)
    if legend is not None:
        legend.set_bbox_to_anchor(((box.x0 + box.x1) / 2, around.y0 - gap), transform=IdentityTransform())


def _beside(ax: "Axes") -> list["Artist"]:
    """Return the title and the legend of axes."""
    legend = ax.get_legend()
    return [ax.title, *([legend] if legend else [])]


def _within(middle: float, reach: float, width: float) -> float:
    """Return the place nearest to the middle from which this reach stays inside the width."""
    return width / 2 if 2 * reach >= width else min(max(middle, reach), width - reach)


def _without(ax: "Axes", parts: Sequence["Artist"], renderer: "RendererBase") -> "Bbox":
    """Return the box around axes and all that belongs to them but these parts."""
    shown = [part.get_visible() for part in parts]
    for part in parts:
        part.set_visible(False)
    box = ax.get_tightbbox(renderer, for_layout_only=True)
    for part, visible in zip(parts, shown, strict=True):
        part.set_visible(visible)
    assert box is not None
    return box


def inches(ax: "Axes") -> float:
    """Return the width of axes; those of a new figure are as wide as the figure."""
    return ax.bbox.width / figure_of(ax).dpi


def set_title(ax: "Axes", title: str) -> None:
    """Write a title in as many lines as it takes."""
    from matplotlib import rcParams

    # On a coarse screen letters are up to a twentieth wider than in print.
    text = words.balanced(title, 0.95 * (72 * inches(ax) - 2 * _EDGE), rcParams["axes.titlesize"])
    ax.set_title(text, y=1.0, pad=0, va="bottom", parse_math=False)


def columns(ax: "Axes", count: int, *, inch: float, most: int) -> int:
    """Return how many panels of this width in inches stand beside each other, given their total number.

    Rows are filled evenly: six panels, where five would fit in a row, make two rows of three.
    """
    fitting = max(1, min(count, most, int(inches(ax) / inch)))
    return math.ceil(count / math.ceil(count / fitting))


def panels(
    ax: "Axes", n_rows: int, n_columns: int, *, gap: tuple[float, float], strip: float = 0.0
) -> list["Axes"]:
    """Divide axes into a grid of smaller ones, row by row from the top.

    Args:
        ax: Axes to divide; they keep their place and their title and show nothing else.
        n_rows: Number of rows.
        n_columns: Number of columns.
        gap: Points between columns and between rows, for the texts of the panels.
        strip: Further space between rows, as a share of the height of a panel.
    """
    ax.set_axis_off()
    made = []
    for row in range(n_rows):
        for column in range(n_columns):
            panel = ax.inset_axes((0, 0, 1, 1))
            panel.set_axes_locator(_cell(ax, (n_rows, n_columns), (row, column), gap, strip))
            made.append(panel)
    return made


def _cell(
    ax: "Axes", shape: tuple[int, int], place: tuple[int, int], gap: tuple[float, float], strip: float
) -> Callable[["_AxesBase", "RendererBase"], "Bbox"]:
    """Return the function that finds a panel's place inside axes, wherever these are."""
    from matplotlib.transforms import Bbox

    def locate(_: "_AxesBase", __: "RendererBase") -> Bbox:
        figure = figure_of(ax)
        (rows, n_columns), (row, column), outer = shape, place, ax.bbox
        across, down = (each * figure.dpi / 72 for each in gap)
        width = max((outer.width - across * (n_columns - 1)) / n_columns, 1)
        height = max((outer.height - down * (rows - 1)) / (rows + strip * (rows - 1)), 1)
        left, top = outer.x0 + column * (width + across), outer.y1 - row * (height * (1 + strip) + down)
        pixels = Bbox.from_extents(left, top - height, left + width, top)
        return pixels.transformed(figure.transFigure.inverted())

    return locate


def legend_below(
    ax: "Axes",
    handles: Sequence["Artist"] | None = None,
    labels: Sequence[str] | None = None,
    *,
    title: str | None = None,
    most: int = 4,
) -> None:
    """Draw a legend below axes and their label, where it hides no data, in as many columns as fit.

    Args:
        ax: The axes.
        handles: Lines and areas; by default those of the axes.
        labels: Their names; long ones are broken into lines.
        title: Text above the entries.
        most: Greatest number of columns.
    """
    from matplotlib import rcParams

    if handles is None or labels is None:
        handles, labels = ax.get_legend_handles_labels()
    size = rcParams["legend.fontsize"]
    wide = 72 * inches(ax) - 2 * _EDGE
    handle, between = (rcParams["legend.handlelength"] + 0.8) * size, 1.4 * size
    names = [words.wrapped(label, wide - handle - size, size, most=_LEGEND_LINES) for label in labels]
    longest = max((words.text_width(line, size) for name in names for line in name.split("\n")), default=0.0)
    fitting = int((wide + between - size) // (longest + handle + between))
    ax.legend(
        handles,
        names,
        loc="upper center",
        bbox_to_anchor=(0.5, 0),
        ncols=max(1, min(fitting, most, len(names))),
        columnspacing=1.4,
        title=None if title is None else words.wrapped(title, wide - size, size),
        alignment="center" if title is None else "left",
        title_fontsize=size,
    )
