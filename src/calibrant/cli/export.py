"""The command ``calibrant export``."""

from pathlib import Path
from typing import Annotated

import typer

from calibrant.posthoc.files import load_calibrator


def export(
    calibrator: Annotated[Path, typer.Argument(metavar="CALIBRATOR", help="What calibrate saved.")],
    out: Annotated[Path, typer.Option("--out", help="Where the ONNX graph goes.", metavar="FILE.onnx")],
    n_classes: Annotated[
        int | None, typer.Option("--classes", help="Number of classes, if the calibrator does not know it.")
    ] = None,
) -> None:
    """Write a calibrator as an ONNX graph, checked against ONNX Runtime before it is kept.

    Example: calibrant export calibrated/calibrator.safetensors --out calibrator.onnx
    """
    from calibrant.integrations.onnx import export_onnx

    fitted = load_calibrator(calibrator)
    export_onnx(fitted, out, n_classes=n_classes)
    typer.echo(f"{out}: {type(fitted).__name__} as an ONNX graph, equal to PyTorch's results to 1e-5")
