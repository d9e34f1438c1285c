"""The command ``calibrant estimate``."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from calibrant.cli.columns import read, with_columns
from calibrant.cli.options import METHODS, AsJson, Methods, fast_or
from calibrant.progress import progress_bar
from calibrant.show.terminal import Console, line

if TYPE_CHECKING:
    from calibrant.data.columns import Columns


@with_columns
def estimate(
    labelled: Annotated[
        str, typer.Argument(metavar="LABELLED", help="Predictions with labels, held out from training.")
    ],
    unlabelled: Annotated[
        str, typer.Argument(metavar="UNLABELLED", help="Predictions of the same model; labels are ignored.")
    ],
    calibrator: Annotated[
        Path | None,
        typer.Option(
            "--calibrator",
            help="A saved calibrator, fitted on other samples than LABELLED. By default one is chosen on "
            "LABELLED by cross-validation.",
            metavar="CALIBRATOR",
            rich_help_panel=METHODS,
        ),
    ] = None,
    methods: Methods = "auto",
    as_json: AsJson = False,
    *,
    columns: "Columns",
) -> None:
    """Estimate accuracy, Brier score and risk without labels, from calibrated confidence.

    The estimate assumes that a confidence means the same in both files. Two tests compare their confidences
    and predicted classes. If these have changed, a warning says that the estimate cannot be trusted, and the
    exit code is 3. Otherwise it is 0, or 2 if a file or an option is wrong. With --unit, intervals and tests
    treat the rows of a unit as one.

    Example: calibrant estimate val.npz production.npz

    Example: calibrant estimate labelled.jsonl new.jsonl --confidence stated --correct is_right --read percent
    """
    from calibrant.decisions.expected import estimate_quality
    from calibrant.evaluation.folder import load_bound_calibrator

    fitted = None if calibrator is None else load_bound_calibrator(calibrator)
    wanted, fast = fast_or(methods)
    known = read(labelled, columns)
    # Whoever has no labels has no column of them either.
    new = read(unlabelled, replace(columns, labels=None), need_labels=False)
    with progress_bar(visible=not as_json) as progress:
        found = estimate_quality(
            known,
            new,
            calibrator=fitted,
            methods=wanted,
            fast=fast,
            progress=progress,
        )
    if as_json:
        typer.echo(found.to_json())
    else:
        console, table = Console(), found.to_table()
        console.print(line((Path(unlabelled).name, "bold"), f": {table.title}"))
        console.show(table)
    raise typer.Exit(0 if found.trusted else 3)
