"""The command ``calibrant export``."""

from pathlib import Path
from typing import Annotated

import typer

from calibrant.cli.options import SavedCalibrator


def export(
    calibrator: SavedCalibrator,
    out: Annotated[Path, typer.Option("--out", help="File for the ONNX graph.", metavar="FILE.onnx")],
    n_classes: Annotated[
        int | None, typer.Option("--classes", help="Number of classes, if the calibrator does not store it.")
    ] = None,
) -> None:
    """Write a calibrator as an ONNX graph, checked against ONNX Runtime before it is moved into place.

    Example: calibrant export calibrated/calibrator.safetensors --out calibrator.onnx
    """
    from calibrant.integrations.onnx import export_onnx
    from calibrant.posthoc.files import load_calibrator

    fitted = load_calibrator(calibrator)
    export_onnx(fitted, out, n_classes=n_classes)
    typer.echo(f"{out}: {type(fitted).__name__} as an ONNX graph, equal to PyTorch to 1e-5")
