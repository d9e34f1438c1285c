"""The command ``calibrant apply``."""

from pathlib import Path
from typing import Annotated

import typer

from calibrant.data import load_predictions, save_predictions
from calibrant.posthoc import load_calibrator
from calibrant.selection import calibrated


def apply(
    calibrator: Annotated[Path, typer.Argument(metavar="CALIBRATOR", help="What calibrate saved.")],
    path: Annotated[Path, typer.Argument(metavar="FILE", help="Predictions; labels are not needed.")],
    out: Annotated[Path, typer.Option("--out", help="Where the calibrated predictions go.", metavar="OUT")],
) -> None:
    """Write calibrated predictions: logits become calibrated log-probabilities.

    Example: calibrant apply calibrated/calibrator.safetensors new.npz --out honest.npz
    """
    fitted = load_calibrator(calibrator)
    repaired = calibrated(fitted, load_predictions(path, need_labels=False))
    save_predictions(repaired, out)
    typer.echo(f"{out}: {repaired.n:,} predictions calibrated by {type(fitted).__name__}")
