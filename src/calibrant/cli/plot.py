"""The command ``calibrant plot``."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from calibrant.cli.columns import read, with_columns
from calibrant.cli.flags import flag_of
from calibrant.cli.options import METHODS, OUTPUT, split_list
from calibrant.cli.printing import say
from calibrant.errors import InputError
from calibrant.files import shown
from calibrant.progress import progress_bar
from calibrant.show.terminal import Console

if TYPE_CHECKING:
    from calibrant.data.columns import Columns


def _print_kinds(wanted: bool) -> None:
    if wanted:
        from calibrant.cli.printing import described
        from calibrant.plots.kinds import KINDS, RUN_KINDS

        taken = {name: ", ".join(sorted(map(flag_of, kind.takes))) for name, kind in KINDS.items()}
        ends = {name: f" ({options})" if options else "" for name, options in taken.items()}
        of_files = {name: kind.meaning + ends[name] for name, kind in KINDS.items()}
        of_runs = {name: kind.meaning for name, kind in RUN_KINDS.items()}
        console = Console()
        console.show(described(of_files, "of predictions", "what it shows"))
        console.print()
        console.show(described(of_runs, "of training runs", "what it shows"))
        raise typer.Exit


@with_columns
def plot(
    kind: Annotated[
        str, typer.Argument(metavar="KIND", help="What to draw, such as reliability; --list names all kinds.")
    ],
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE|RUN...",
            help="Predictions with labels, or the folder of a run; dynamics and bins compare several.",
        ),
    ],
    out: Annotated[
        Path,
        typer.Option(
            "--out", help="The figure: .pdf, .svg or .png.", metavar="FIGURE", rich_help_panel=OUTPUT
        ),
    ],
    bins: Annotated[int | None, typer.Option("--bins", help="Number of bins or groups.")] = None,
    method: Annotated[
        str | None,
        typer.Option(
            "--methods",
            help="Methods to fit on --val: names separated by commas, with options as in 'smart(settled=0)'.",
            metavar="NAMES",
            rich_help_panel=METHODS,
        ),
    ] = None,
    val: Annotated[
        Path | None,
        typer.Option("--val", help="Predictions to fit methods on.", metavar="VAL", rich_help_panel=METHODS),
    ] = None,
    ood: Annotated[
        Path | None, typer.Option("--ood", help="Predictions of out-of-distribution samples.", metavar="FILE")
    ] = None,
    title: Annotated[
        str | None, typer.Option("--title", help="Text above the figure.", rich_help_panel=OUTPUT)
    ] = None,
    width: Annotated[
        float | None,
        typer.Option(
            "--width",
            help="Width in inches: 3.3 for a column of a paper, 6.8 for a page.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    _list: Annotated[
        bool,
        typer.Option("--list", help="List the kinds and stop.", callback=_print_kinds, is_eager=True),
    ] = False,
    *,
    columns: "Columns",
) -> None:
    """Draw a figure of saved predictions, for a paper or a slide.

    With --methods, the figure shows FILE calibrated by that method. Some figures show it before and after, or
    several methods side by side. --list describes every figure and its options.

    Example: calibrant plot reliability test.npz --methods smart --val val.npz --out after.pdf
    """
    from calibrant.plots.display import check_format
    from calibrant.plots.kinds import RUN_KINDS, Request, check_kind, draw, draw_runs

    if kind in RUN_KINDS:
        given = {"--bins": bins, "--methods": method, "--val": val, "--ood": ood}
        for option in (name for name, value in given.items() if value is not None):
            raise InputError(f"{option}: expected none for {kind}, which draws a run, got one")
        from calibrant.training.folder import load_runs

        check_format(out)
        draw_runs(kind, load_runs(paths), title=title, width=width).save(out)
        say(f"{shown(out)}: {RUN_KINDS[kind].meaning}")
        return
    chosen = check_kind(kind)
    if len(paths) > 1:
        raise InputError(f"FILE: expected one file for {kind}, got {len(paths)}")
    check_format(out)
    with progress_bar() as progress:
        request = Request(
            read(paths[0], columns, need_labels=chosen.needs_labels, graded="split"),
            validation=None if val is None else read(val, columns, graded="split"),
            foreign=None if ood is None else read(ood, columns, need_labels=False),
            methods=() if method is None else tuple(split_list(method)),
            n_bins=bins,
            place={"title": title, "width": width},
            progress=progress,
        )
        draw(kind, request).save(out)
    say(f"{shown(out)}: {chosen.meaning}")
