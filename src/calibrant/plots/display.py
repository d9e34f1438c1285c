"""The base class of figures: it holds values, draws them on axes, and writes the figure to a file."""

import io
import os
from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Self, TypedDict

from calibrant.errors import InputError
from calibrant.files import write_file
from calibrant.plots import layout, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Suffixes of the files that a figure can be written to.
PICTURE_FORMATS = (".pdf", ".svg", ".png")

# A time stamp would make equal figures unequal files.
_METADATA = {".pdf": {"CreationDate": None}, ".svg": {"Date": None}, ".png": None}


class Place(TypedDict, total=False):
    """Where a figure is drawn.

    Attributes:
        ax: Axes to draw on; by default new ones in a figure of their own.
        width: Width of the new figure in inches.
        title: Text above.
    """

    ax: "Axes | None"
    width: float | None
    title: str | None


class Display(ABC):
    """Values that can be drawn; after :meth:`plot` ``ax_`` holds the axes and ``figure_`` their figure."""

    #: Width of a figure in inches, and the height of its data area as a share of the area's width.
    width: ClassVar[float] = style.COLUMN
    ratio: ClassVar[float] = 0.68

    ax_: "Axes"
    figure_: "Figure"

    def proportion(self, ax: "Axes") -> float:  # noqa: ARG002 - most have one shape, at every width
        """Return the height of the data area in a new figure as a share of its width; the rest is added."""
        return self.ratio

    @abstractmethod
    def draw(self, ax: "Axes") -> None:
        """Draw the values on axes; nothing is computed here."""

    def plot(self, ax: "Axes | None" = None, *, width: float | None = None, title: str | None = None) -> Self:
        """Draw the values.

        Args:
            ax: Axes to draw on; by default new ones in a figure of their own, unknown to pyplot.
            width: Width of the new figure in inches; its height follows from what is drawn.
            title: Text above, in as many lines as it takes.
        """
        with style.applied():
            inches = self.width if width is None else width
            if not 1 <= inches <= 40:
                raise InputError(
                    f"width: expected inches from 1 to 40, got {inches:g}; a column of a paper has about 3.3"
                )
            axes = layout.new_axes(inches, inches) if ax is None else ax
            share = self.proportion(axes)
            self.draw(axes)
            if title is not None:
                layout.set_title(axes, title)
            if ax is None:
                layout.settle(axes, share)
            else:
                layout.keep_inside(axes)
        self.ax_, self.figure_ = axes, layout.figure_of(axes)
        return self

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the figure to a ``.pdf``, ``.svg`` or ``.png`` file, whole or not at all; text stays text."""
        suffix = check_format(path)
        if not hasattr(self, "figure_"):
            self.plot()
        memory = io.BytesIO()  # matplotlib hides why a file cannot be written
        with style.applied():
            self.figure_.savefig(memory, format=suffix[1:], metadata=_METADATA[suffix])
        write_file(path, memory.getvalue())

    def _repr_png_(self) -> bytes | None:
        """Return the image that a notebook shows below a cell."""
        if not hasattr(self, "figure_"):
            return None
        memory = io.BytesIO()
        with style.applied():
            self.figure_.savefig(memory, format="png", dpi=160)
        return memory.getvalue()


def check_format(path: str | os.PathLike[str]) -> str:
    """Return the suffix of a path; refuse suffixes other than those of :data:`PICTURE_FORMATS`."""
    name = Path(path)
    suffix = name.suffix.lower()
    if suffix not in PICTURE_FORMATS:
        raise InputError(
            f"{name.name}: expected a file named {', '.join(PICTURE_FORMATS)}, got "
            f"{name.suffix or 'no suffix'!r}; the suffix decides the format"
        )
    return suffix
