"""The command ``calibrant gate``."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from calibrant.cli.columns import read, with_columns
from calibrant.cli.options import OUTPUT, AsJson, split_list
from calibrant.errors import InputError
from calibrant.progress import progress_bar

if TYPE_CHECKING:
    from calibrant.data.columns import Columns


@partial(with_columns, without=("by", "score"))
def gate(
    source: Annotated[
        str, typer.Argument(metavar="SOURCE", help="Predictions with labels: a file, a folder or a pattern.")
    ],
    require: Annotated[
        list[str] | None,
        typer.Option(
            "--require",
            help="A bound that must hold beyond chance, such as 'ece < 0.05'; may be repeated.",
            metavar="BOUND",
        ),
    ] = None,
    no_worse_than: Annotated[
        Path | None,
        typer.Option(
            "--no-worse-than",
            help="A baseline's predictions of the same samples; the model must not be worse.",
            metavar="BASELINE",
        ),
    ] = None,
    margin: Annotated[
        str | None,
        typer.Option(
            "--margin",
            help="How much worse the model may be: a number, or 'nll=0.02,ece=0.01'. By default 0.01, and "
            "0.02 for nll.",
            metavar="MARGIN",
        ),
    ] = None,
    unpaired: Annotated[
        bool,
        typer.Option("--unpaired", help="The baseline's samples are others, from the same population."),
    ] = False,
    junit: Annotated[
        Path | None,
        typer.Option(
            "--junit", help="Write the verdicts as JUnit XML.", metavar="FILE", rich_help_panel=OUTPUT
        ),
    ] = None,
    summary: Annotated[
        Path | None,
        typer.Option(
            "--summary",
            help="Write the verdicts, changes and reliability as Markdown, for a pull request.",
            metavar="FILE",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    as_json: AsJson = False,
    *,
    columns: "Columns",
) -> None:
    """Check bounds on measures beyond chance: each passes, fails, or is undecided.

    Exit code: 0 if all bounds hold, 3 if one fails, 4 if the samples cannot tell, and 2 if a file or an
    option is wrong.

    Example: calibrant gate test.npz --require 'ece < 0.05' --require 'nll <= 0.60'

    Example: calibrant gate test.npz --no-worse-than baseline.npz --junit gate.xml --summary gate.md
    """
    from calibrant.decisions.gate import check_requirements
    from calibrant.decisions.junit import write_junit
    from calibrant.decisions.requirement import Requirement
    from calibrant.decisions.summary import gate_summary
    from calibrant.files import write_file
    from calibrant.show.terminal import Console

    _check(require, no_worse_than, {"--margin": margin is not None, "--unpaired": unpaired})
    bounds, allowed = [Requirement.parse(text) for text in require or ()], _margin(margin)
    predictions = read(source, columns, graded="split")
    baseline = None if no_worse_than is None else read(no_worse_than, columns, graded="split")
    with progress_bar(visible=not as_json) as progress:
        found = check_requirements(
            predictions,
            bounds,
            baseline=baseline,
            margin=allowed,
            paired=not unpaired,
            progress=progress,
        )
    if junit is not None:
        write_junit(found, junit, Path(source).name)
    if summary is not None:
        compared = None if unpaired else baseline
        write_file(summary, gate_summary(found, predictions, baseline=compared, name=Path(source).name))
    if as_json:
        typer.echo(found.to_json())
    else:
        console, table = Console(), found.to_table()
        console.say(table.title, style="bold")
        console.show(table)
    raise typer.Exit(found.exit_code)


def _check(require: list[str] | None, baseline: Path | None, needs_baseline: dict[str, bool]) -> None:
    """Check the options before anything is read."""
    if not require and baseline is None:
        raise InputError(
            "--require: expected a bound such as 'ece < 0.05', or a baseline after --no-worse-than, got "
            "neither"
        )
    for name in (name for name, given in needs_baseline.items() if given and baseline is None):
        raise InputError(f"{name}: expected together with --no-worse-than, got no baseline; name one")


def _margin(text: str | None) -> "float | dict[str, float] | None":
    """Return one number, or numbers by name of the measure."""
    if text is None:
        return None
    parts = [part.rpartition("=") for part in split_list(text)]
    try:
        numbers = {name.strip(): float(number) for name, _, number in parts}
    except ValueError:
        numbers = {}
    if not numbers or ("" in numbers and len(parts) > 1):
        raise InputError(f"--margin: expected a number or 'nll=0.02,ece=0.01', got {text!r}")
    return numbers.get("", numbers)
