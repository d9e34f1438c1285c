"""The command ``calibrant export``."""

from pathlib import Path
from typing import Annotated

import typer

from calibrant.cli.options import SavedCalibrator
from calibrant.cli.printing import say
from calibrant.files import shown
from calibrant.outputs import check_targets


def export(
    calibrator: SavedCalibrator,
    out: Annotated[Path, typer.Option("--out", help="File for the ONNX graph.", metavar="FILE.onnx")],
    n_classes: Annotated[
        int | None, typer.Option("--classes", help="Number of classes, if the calibrator does not store it.")
    ] = None,
) -> None:
    """Write a calibrator as an ONNX graph, and check it with ONNX Runtime.

    A rule saved by decide or sets becomes one graph, with its calibrator, from raw scores to the decision.

    Example: calibrant export calibrated/calibrator.safetensors --out calibrator.onnx
    """
    from calibrant.decisions.rule import RULE_FORMAT, load_rule
    from calibrant.evaluation.folder import load_bound_calibrator
    from calibrant.integrations.onnx import export_onnx
    from calibrant.posthoc.files import format_of

    check_targets([out], [calibrator])
    is_rule = format_of(calibrator) == RULE_FORMAT
    fitted = load_rule(calibrator) if is_rule else load_bound_calibrator(calibrator)
    export_onnx(fitted, out, n_classes=n_classes)
    say(f"{shown(out)}: {type(fitted).__name__} as an ONNX graph, equal to PyTorch to 1e-5")
