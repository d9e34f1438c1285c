"""The command ``calibrant calibrate``."""

import dataclasses
import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from calibrant._version import __version__
from calibrant.cli.terminal import tables
from calibrant.cli.terminal.command_line import command_line
from calibrant.cli.terminal.progress import progress_bar
from calibrant.data.files import load_predictions
from calibrant.errors import InputError
from calibrant.evaluation.compare import Comparison, MethodResult, choose, compare
from calibrant.report.folder import CALIBRATOR, REPORT, save_results
from calibrant.report.gather import Sources, describe_comparison
from calibrant.report.provenance import Origin
from calibrant.report.write import write_report


def calibrate(
    path: Annotated[
        Path, typer.Argument(metavar="VAL", help="Predictions with labels, held out from training.")
    ],
    test: Annotated[
        Path | None, typer.Option("--test", help="Other predictions, to measure on.", metavar="TEST")
    ] = None,
    methods: Annotated[
        str, typer.Option("--methods", help="auto, all, or names separated by commas.", metavar="NAMES")
    ] = "auto",
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", help="Folder for calibrator.safetensors, results.json and report.html.", metavar="DIR"
        ),
    ] = None,
    folds: Annotated[int, typer.Option("--folds", help="Parts of the cross-validation.")] = 5,
    seed: Annotated[int, typer.Option("--seed", help="Equal seeds give equal results.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Compare post-hoc methods, choose one, and save it with a report.

    Every method is cross-validated on VAL; the simplest one within a standard error of the best negative
    log-likelihood is chosen.

    Example: calibrant calibrate val.npz --test test.npz --out calibrated
    """
    validation = load_predictions(path)
    held_out = None if test is None else load_predictions(test)
    wanted = methods if methods in ("auto", "all") else [name.strip() for name in methods.split(",")]
    if out is not None and out.exists() and not out.is_dir():
        raise InputError(f"--out: expected a folder, got the file {out}; name another one")
    with progress_bar(visible=not as_json) as progress:
        comparison = compare(
            validation, test=held_out, methods=wanted, n_folds=folds, seed=seed, progress=progress
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
    for name, reason in comparison.skipped.items():
        console.print(f"[dim]{name} is left out: {reason}[/dim]", highlight=False)
    console.print(f"\nChosen: [bold]{chosen.name}[/bold]. {_gain(chosen)}", highlight=False)
    if out is not None:
        console.print(f"Saved in {out}: {CALIBRATOR}, results.json, {REPORT}", highlight=False)


def _gain(chosen: MethodResult) -> str:
    difference = chosen.improvement
    return (
        f"It changes the negative log-likelihood by {difference.difference:+.4f} "
        f"(95 % interval {difference.low:+.4f} to {difference.high:+.4f})."
    )


def _answer(comparison: Comparison, chosen: MethodResult, seed: int) -> dict[str, Any]:
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
