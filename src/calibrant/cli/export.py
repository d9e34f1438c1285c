"""The command ``calibrant export``."""

from pathlib import Path
from typing import Annotated

import typer

from calibrant.cli.options import SavedCalibrator
from calibrant.cli.printing import say
from calibrant.errors import InputError
from calibrant.files import shown
from calibrant.outputs import check_targets

_SCALES = ("logits", "probs")


def export(
    calibrator: SavedCalibrator,
    out: Annotated[
        Path,
        typer.Option("--out", help="File for the ONNX graph; with --test a folder.", metavar="FILE.onnx"),
    ],
    n_classes: Annotated[
        int | None, typer.Option("--classes", help="Number of classes, if the calibrator does not store it.")
    ] = None,
    model: Annotated[
        Path | None,
        typer.Option(
            "--model", help="A classifier's ONNX graph, to be one graph with it.", metavar="MODEL.onnx"
        ),
    ] = None,
    scores: Annotated[
        str | None,
        typer.Option(
            "--scores",
            help="The output of MODEL that holds the scores, logits=NAME or probs=NAME, if its own name does "
            "not say so.",
            metavar="SCALE=NAME",
        ),
    ] = None,
    inputs: Annotated[
        Path | None,
        typer.Option(
            "--inputs",
            help="Inputs of MODEL to check, beside random ones: arrays by name.",
            metavar="FILE.npz",
        ),
    ] = None,
    test: Annotated[
        Path | None,
        typer.Option(
            "--test",
            help="Predictions with labels, for the model card of a folder for the Hugging Face Hub.",
            metavar="TEST",
        ),
    ] = None,
) -> None:
    """Write a calibrator as an ONNX graph, checked with ONNX Runtime, or as a folder for the Hub.

    A rule saved by decide or sets becomes one graph, with its calibrator, from raw scores to the decision.
    With --model the graph begins with a classifier's, of scikit-learn, LightGBM or PyTorch, for example.

    Example: calibrant export calibrated/calibrator.safetensors --out calibrator.onnx

    With --test it writes a folder for the Hugging Face Hub instead: the calibrator, its configuration, and a
    model card that shows its calibration on these predictions. Nothing is uploaded.

    Example: calibrant export calibrated/calibrator.safetensors --model model.onnx --out both.onnx

    Example: calibrant export calibrated/calibrator.safetensors --test test.npz --out honest
    """
    from calibrant.decisions.rule import RULE_FORMAT, load_rule
    from calibrant.evaluation.folder import load_bound_calibrator
    from calibrant.integrations.onnx import export_onnx
    from calibrant.posthoc.files import format_of

    check_targets([out], [each for each in (calibrator, model, inputs, test) if each is not None])
    if test is not None:
        if model is not None or n_classes is not None:
            raise InputError(
                "--test: expected alone, got --model or --classes too, which are for ONNX graphs"
            )
        _to_hub(calibrator, test, out)
        return
    scale, _, name = (scores or "").partition("=")
    if scores is not None and (scale not in _SCALES or not name):
        raise InputError(f"--scores: expected logits= or probs= and the name of an output, got {scores!r}")
    for option in (each for each, given in (("--scores", scores), ("--inputs", inputs)) if given):
        if model is None:
            raise InputError(f"{option}: expected together with --model, got no model; name one")
    is_rule = format_of(calibrator) == RULE_FORMAT
    fitted = load_rule(calibrator) if is_rule else load_bound_calibrator(calibrator)
    what = f"{type(fitted).__name__} as an ONNX graph"
    if model is None:
        export_onnx(fitted, out, n_classes=n_classes)
    else:
        from calibrant.integrations.onnx_join import join_onnx

        join_onnx(model, fitted, out, inputs=inputs, n_classes=n_classes, **({scale: name} if scale else {}))
        what = f"{shown(model)}, then {type(fitted).__name__}, as one ONNX graph"
    say(f"{shown(out)}: {what}, equal to PyTorch to 1e-5")


def _to_hub(path: Path, test: Path, out: Path) -> None:
    from calibrant.data.files import load_predictions
    from calibrant.evaluation.folder import load_bound_calibrator
    from calibrant.integrations.hub import write_hub_folder

    calibrator = load_bound_calibrator(path)
    write_hub_folder(calibrator, load_predictions(test), out, name=out.name, data=test.name)
    say(f"{shown(out)}: {type(calibrator).__name__} with its model card; nothing was uploaded")
