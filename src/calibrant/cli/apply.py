"""The command ``calibrant apply``."""

from pathlib import Path
from typing import Annotated

import typer

from calibrant.cli.options import SavedCalibrator, Stream


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
) -> None:
    """Write calibrated predictions: logits become calibrated log-probabilities.

    Example: calibrant apply calibrated/calibrator.safetensors new.npz --out calibrated.npz

    Example: calibrant apply calibrated/calibrator.safetensors predictions/ --out calibrated/
    """
    from calibrant.cli import streams
    from calibrant.data.files import load_predictions, save_predictions
    from calibrant.evaluation.calibrated import calibrated
    from calibrant.posthoc.files import load_calibrator

    fitted = load_calibrator(calibrator)
    other_format = [f"--out {out}"] if out.suffix.lower() in (".npz", ".csv", ".safetensors") else []
    if streams.is_streamed(source, asked=stream, needs_all=other_format):
        streams.apply(fitted, source, out)
        return
    result = calibrated(fitted, load_predictions(source, need_labels=False))
    save_predictions(result, out)
    typer.echo(f"{out}: {result.n:,} predictions calibrated by {type(fitted).__name__}")
