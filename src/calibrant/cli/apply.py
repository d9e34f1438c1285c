"""The command ``calibrant apply``."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from calibrant.cli.columns import tell_dropped, with_columns
from calibrant.cli.options import SavedCalibrator, Stream
from calibrant.errors import InputError

if TYPE_CHECKING:
    from calibrant.data.columns import Columns


@with_columns
def apply(
    calibrator: SavedCalibrator,
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            help="Predictions, with or without labels: a file, or a folder, pattern or address of Parquet "
            "files of any size.",
        ),
    ],
    out: Annotated[
        Path,
        typer.Option(
            "--out", help="File for the calibrated predictions; a folder for several files.", metavar="OUT"
        ),
    ],
    stream: Stream = False,
    *,
    columns: "Columns",
) -> None:
    """Write calibrated predictions: logits become calibrated log-probabilities.

    A repaired confidence is written as the column confidence; a .jsonl, .csv or .parquet file keeps all its
    other columns. If the calibrator has a map for each group, --by names the column of the group; rows of
    groups that it has not seen get the common map.

    Example: calibrant apply calibrated/calibrator.safetensors new.npz --out calibrated.npz

    Example: calibrant apply calibrated/calibrator.safetensors predictions/ --out calibrated/
    """
    from calibrant.cli import streams
    from calibrant.data.files import FORMATS, load_answers, save_predictions
    from calibrant.data.rewriting import ROW_FORMATS, write_answers
    from calibrant.evaluation.calibrated import calibrated
    from calibrant.posthoc.files import load_calibrator

    fitted = load_calibrator(calibrator)
    if columns.groups is not None and fitted.group_names is None:
        raise InputError(
            f"--by: expected none for {calibrator.name}, which has one map for all groups, got "
            f"{columns.groups!r}; leave it out"
        )
    whole = [f"--out {out}"] if out.suffix.lower() in FORMATS and out.suffix.lower() != ".parquet" else []
    whole += ["columns under other names"] if columns.describe_answers else []
    if streams.is_streamed(source, asked=stream, needs_all=whole):
        streams.apply(fitted, source, out, by=columns.groups)
        return
    answers = load_answers(source, need_labels=False, columns=columns)
    tell_dropped(source, answers.predictions)
    result = calibrated(fitted, answers.predictions)
    if result.confidence is not None and {Path(source).suffix.lower(), out.suffix.lower()} <= {*ROW_FORMATS}:
        write_answers(source, out, result.confidence, kept=answers.kept)
    else:
        save_predictions(result, out)
    typer.echo(f"{out}: {result.n:,} predictions calibrated by {type(fitted).__name__}")
