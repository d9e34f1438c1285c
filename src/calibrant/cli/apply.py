"""The command ``calibrant apply``."""

from pathlib import Path
from typing import Annotated

import typer

from calibrant.cli import streams
from calibrant.data.files import load_predictions, save_predictions
from calibrant.evaluation.calibrated import calibrated
from calibrant.posthoc.files import load_calibrator


def apply(
    calibrator: Annotated[Path, typer.Argument(metavar="CALIBRATOR", help="What calibrate saved.")],
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            help="Predictions, without labels if need be: a file, or a folder, pattern or address of Parquet "
            "files of any size.",
        ),
    ],
    out: Annotated[
        Path,
        typer.Option(
            "--out", help="Where the calibrated predictions go; a folder for several files.", metavar="OUT"
        ),
    ],
    stream: Annotated[
        bool, typer.Option("--stream", help="Read a Parquet file batch by batch, as is done above 200 MB.")
    ] = False,
) -> None:
    """Write calibrated predictions: logits become calibrated log-probabilities.

    Example: calibrant apply calibrated/calibrator.safetensors new.npz --out honest.npz

    Example: calibrant apply calibrated/calibrator.safetensors predictions/ --out honest/
    """
    fitted = load_calibrator(calibrator)
    other_format = [f"--out {out}"] if out.suffix.lower() in (".npz", ".csv", ".safetensors") else []
    if streams.is_streamed(source, asked=stream, needs_all=other_format):
        streams.apply(fitted, source, out)
        return
    repaired = calibrated(fitted, load_predictions(source, need_labels=False))
    save_predictions(repaired, out)
    typer.echo(f"{out}: {repaired.n:,} predictions calibrated by {type(fitted).__name__}")
