"""The command ``calibrant evaluate``."""

from pathlib import Path
from typing import Annotated

import typer

from calibrant import evaluation
from calibrant.cli import show
from calibrant.data import load_predictions


def evaluate(
    path: Annotated[
        Path, typer.Argument(metavar="FILE", help="Predictions: .npz, .parquet, .csv or .safetensors.")
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object, all fractions.")] = False,
    bins: Annotated[int, typer.Option("--bins", help="Number of bins of the binned measures.")] = 15,
) -> None:
    """Print the calibration measures of saved predictions.

    The file holds logits or probs with labels, or confidence with correct.

    Example: calibrant evaluate test.npz --bins 20
    """
    result = evaluation.evaluate(load_predictions(path), n_bins=bins)
    if as_json:
        show.evaluation_json(result)
    else:
        show.evaluation(result, title=path.name)
