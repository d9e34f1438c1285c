"""The command ``calibrant calibrate``."""

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from calibrant._version import __version__
from calibrant.cli.options import AsJson, Fast, KeepAccuracy, Methods, Seed, command_line, word_or_list
from calibrant.cli.terminal.progress import progress_bar
from calibrant.errors import InputError

if TYPE_CHECKING:
    from calibrant.evaluation.compare import Comparison, MethodResult


def calibrate(
    path: Annotated[
        Path, typer.Argument(metavar="VAL", help="Predictions with labels, held out from training.")
    ],
    test: Annotated[
        Path | None, typer.Option("--test", help="Predictions to measure on.", metavar="TEST")
    ] = None,
    methods: Methods = "auto",
    fast: Fast = False,
    keep_accuracy: KeepAccuracy = False,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", help="Folder for calibrator.safetensors, results.json and report.html.", metavar="DIR"
        ),
    ] = None,
    folds: Annotated[
        int | None,
        typer.Option(
            "--folds", help="Folds of the cross-validation: 5, or 3 with more than eight million logits."
        ),
    ] = None,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Compare post-hoc methods, choose one, and save it with a report.

    Every method is cross-validated on VAL; the simplest one within a standard error of the best negative
    log-likelihood is chosen.

    Example: calibrant calibrate val.npz --test test.npz --out calibrated
    """
    from calibrant.cli.terminal import show, tables
    from calibrant.data.files import load_predictions
    from calibrant.evaluation import choose, compare
    from calibrant.report.describe import describe_comparison
    from calibrant.report.sources import Origin, Sources
    from calibrant.report.write import CALIBRATOR, REPORT, save_results, write_report

    validation = load_predictions(path)
    held_out = None if test is None else load_predictions(test)
    wanted = word_or_list(methods, "auto", "all")
    if out is not None and out.exists() and not out.is_dir():
        raise InputError(f"--out: expected a folder, got the file {out}; name another one")
    with progress_bar(visible=not as_json) as progress:
        comparison = compare(
            validation,
            test=held_out,
            methods=wanted,
            fast=fast,
            keep_accuracy=keep_accuracy,
            n_folds=folds,
            seed=seed,
            progress=progress,
        )
        chosen = choose(comparison)
        answer = _answer(comparison, chosen, seed)
        if out is not None:
            progress("writing the report", 1, 1)
            files = {"validation": path} | ({} if test is None else {"test": test})
            origin = Origin(command_line(), files, seed)
            sources = Sources((test or path).name, validation=validation, test=held_out, origin=origin)
            page = describe_comparison(comparison, chosen, sources)
            out.mkdir(parents=True, exist_ok=True)
            chosen.calibrator.save(out / CALIBRATOR)
            save_results(out, answer, page)
            write_report(page, out / REPORT)
    if as_json:
        typer.echo(json.dumps(answer))
        return
    console = Console()
    console.print(tables.methods(comparison, chosen))
    show.print_skipped(console, comparison.skipped)
    gain = chosen.improvement
    console.print(
        f"\nChosen: [bold]{escape(chosen.name)}[/bold]. It changes the negative log-likelihood by "
        f"{gain.difference:+.4f} (95 % interval {gain.low:+.4f} to {gain.high:+.4f}).",
        highlight=False,
    )
    if out is not None:
        console.print(f"Saved in {out}: {CALIBRATOR}, results.json, {REPORT}", highlight=False)


def _answer(comparison: "Comparison", chosen: "MethodResult", seed: int) -> dict[str, Any]:
    return {
        "chosen": chosen.name,
        "n_validation": comparison.n_validation,
        "n_test": comparison.n_test,
        "n_folds": comparison.n_folds,
        "seed": seed,
        "calibrant": __version__,
        "methods": {
            result.name: {
                "validation": dict(result.metrics),
                "test": None if result.test_metrics is None else dict(result.test_metrics),
                "nll_difference": dataclasses.asdict(result.improvement),
                "fit_seconds": result.fit_seconds,
                "parameters": result.calibrator.n_parameters,
            }
            for result in comparison.results
        },
        "skipped": dict(comparison.skipped),
    }
