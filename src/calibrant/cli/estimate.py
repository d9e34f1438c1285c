"""The command ``calibrant estimate``."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from calibrant.cli.columns import read, tell_repeats, with_columns
from calibrant.cli.options import COLUMNS, METHODS, AsJson, Methods, fast_or, refuse_both
from calibrant.errors import InputError
from calibrant.progress import progress_bar
from calibrant.show.terminal import Console, line

if TYPE_CHECKING:
    from calibrant.data.columns import Columns
    from calibrant.decisions.expected import ExpectedQuality
    from calibrant.decisions.judges import JudgedOutcomes


@with_columns
def estimate(
    labelled: Annotated[
        str,
        typer.Argument(
            metavar="LABELLED",
            help="Predictions with labels, held out from training; or, with --score, scored rows.",
        ),
    ],
    unlabelled: Annotated[
        str | None,
        typer.Argument(metavar="[UNLABELLED]", help="Predictions of the same model; labels are ignored."),
    ] = None,
    policy: Annotated[
        str | None,
        typer.Option(
            "--policy",
            help="Column of what made the answer: the model, the prompt, the version.",
            metavar="COLUMN",
            rich_help_panel=COLUMNS,
        ),
    ] = None,
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
    """Estimate accuracy, Brier score and risk without labels, or mean outcomes from a judge's scores.

    The estimate assumes that a confidence means the same in both files. Two tests compare their confidences
    and predicted classes. If these have changed, a warning says that the estimate cannot be trusted, and the
    exit code is 3. Otherwise it is 0, or 2 if a file or an option is wrong. With --unit, intervals and tests
    treat the rows of a unit as one.

    With --score, one file has a judge's score in each row and an outcome in some. The mean outcome of each
    policy and the differences are estimated from both. If labelled rows do not represent the others, a
    warning says what the estimate relies on, and the exit code is 3.

    Example: calibrant estimate val.npz production.npz

    Example: calibrant estimate labelled.jsonl new.jsonl --confidence stated --correct is_right --read percent

    Example: calibrant estimate answers.csv --score judge --outcome human --policy model --unit prompt_id
    """
    found: ExpectedQuality | JudgedOutcomes
    if columns.score is not None:
        if unlabelled is not None:
            raise InputError(
                "UNLABELLED: expected no second file with --score, got one; rows without an outcome are in "
                "the first"
            )
        refuse_both(calibrator=calibrator, score=columns.score)
        found = _outcomes(labelled, columns.score, columns.outcome or "outcome", policy, columns)
    elif unlabelled is None:
        raise InputError(
            "UNLABELLED: expected a file of predictions without labels, got none; name it, or name the "
            "column of a judge's scores with --score"
        )
    else:
        found = _quality(labelled, unlabelled, calibrator, methods, columns, visible=not as_json)
    if as_json:
        typer.echo(found.to_json())
    else:
        console, table = Console(), found.to_table()
        console.print(line((Path(unlabelled or labelled).name, "bold"), f": {table.title}"))
        console.show(table)
    raise typer.Exit(0 if found.trusted else 3)


def _outcomes(
    path: str, score: str, outcome: str, policy: str | None, columns: "Columns"
) -> "JudgedOutcomes":
    from calibrant.data.judged import load_judged
    from calibrant.decisions.judges import estimate_outcomes

    rows = load_judged(path, score=score, outcome=outcome, policy=policy, units=columns.units)
    found = estimate_outcomes(rows.score, rows.outcome, policies=rows.policies, units=rows.units)
    if rows.repeats is not None:
        tell_repeats(path, rows.repeats)
    return found


def _quality(
    labelled: str,
    unlabelled: str,
    calibrator: Path | None,
    methods: str,
    columns: "Columns",
    *,
    visible: bool,
) -> "ExpectedQuality":
    from calibrant.decisions.expected import estimate_quality
    from calibrant.evaluation.folder import load_bound_calibrator

    fitted = None if calibrator is None else load_bound_calibrator(calibrator)
    wanted, fast = fast_or(methods)
    known = read(labelled, columns)
    # Whoever has no labels has no column of them either.
    new = read(unlabelled, replace(columns, labels=None), need_labels=False)
    with progress_bar(visible=visible) as progress:
        return estimate_quality(known, new, calibrator=fitted, methods=wanted, fast=fast, progress=progress)
