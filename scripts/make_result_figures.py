"""Draw the figures of docs/results/benchmark.md and docs/results/llm.md from the measured rows.

    python -m scripts.make_result_figures

Lines for an experiment with a size on its axis, dots for losses and for language models before and after
repair.
"""

from collections import defaultdict
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

from scripts.llm_page import honesty_figure

from calibrant.papers.rows import finished_rows, flat
from calibrant.plots import layout, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

RESULTS = Path(__file__).resolve().parent.parent / "docs" / "results"

# A mean over seeds and its deviation, for each place on the axis.
Points = dict[Any, tuple[float, float]]


def points(records: list[dict[str, Any]], line: str, place: str, measure: str) -> dict[str, Points]:
    """Return mean and deviation in percent, by line and by place."""
    found: dict[str, dict[Any, list[float]]] = defaultdict(lambda: defaultdict(list))
    for record in records:
        found[str(record[line])][record[place]].append(100 * record["values"][measure])
    return {
        name: {at: (fmean(values), stdev(values)) for at, values in places.items()}
        for name, places in found.items()
    }


def draw_lines(ax: "Axes", lines: dict[str, Points], x_label: str) -> None:
    """Draw one line per method over sizes, with bars of one deviation."""
    for number, (name, places) in enumerate(lines.items()):
        xs = sorted(places)
        means, errors = zip(*(places[x] for x in xs), strict=True)
        ax.errorbar(xs, means, yerr=errors, label=name, capsize=2, **style.line(number))
    ax.set_xscale("log")
    ax.xaxis.set_major_formatter("{x:g}")
    ax.set_xlabel(x_label)
    ax.set_ylabel("ECE (%)")
    ax.grid()
    ax.legend(ncols=2)


def draw_dots(ax: "Axes", lines: dict[str, Points], steps: tuple[str, ...]) -> None:
    """Draw one row of dots per loss: uncalibrated, and after each post-hoc method."""
    names = list(lines)
    for number, step in enumerate(steps):
        look = style.line(number)
        values = [lines[name][step] for name in names]
        means, errors = zip(*values, strict=True)
        ax.errorbar(
            means,
            range(len(names)),
            xerr=errors,
            label=step,
            color=look["color"],
            marker=look["marker"],
            linestyle="none",
        )
    ax.set_yticks(range(len(names)), names)
    ax.invert_yaxis()
    ax.set_xscale("log")
    ax.xaxis.set_major_formatter("{x:g}")
    ax.set_xlabel("ECE (%), logarithmic")
    ax.grid()
    ax.legend()


def save(ax: "Axes", name: str) -> None:
    """Write a figure without a time stamp."""
    path = RESULTS / "figures" / f"{name}.svg"
    path.parent.mkdir(exist_ok=True)
    layout.figure_of(ax).savefig(path, metadata={"Date": None})
    print(path)


def main() -> None:
    """Draw all figures."""
    rows = {name: flat(finished_rows(RESULTS / "rows" / name)) for name in ("validation_size", "losses")}
    with style.applied():
        ax = layout.new_axes(style.PAGE, 3.2)
        known = [record for record in rows["validation_size"] if record["method"] != "uncalibrated"]
        draw_lines(ax, points(known, "method", "samples", "ece"), "validation samples")
        save(ax, "validation_size")
        ax = layout.new_axes(style.PAGE, 5.0)
        mine = [record for record in rows["losses"] if record["task"] == "clinc150"]
        draw_dots(ax, points(mine, "method", "posthoc", "ece"), ("uncalibrated", "temperature", "smart"))
        save(ax, "losses")
    models = honesty_figure(finished_rows(RESULTS / "rows" / "llm"))
    for suffix in (".svg", ".png"):
        path = RESULTS / "figures" / f"llm{suffix}"
        models.save(path)
        print(path)


if __name__ == "__main__":
    main()
