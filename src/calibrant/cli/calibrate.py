"""The command ``calibrant calibrate``."""

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from calibrant._version import __version__
from calibrant.cli.columns import read, with_columns
from calibrant.cli.options import (
    AsJson,
    Fast,
    KeepAccuracy,
    Methods,
    Score,
    Seed,
    Simple,
    checked_score,
    command_line,
    word_or_list,
)
from calibrant.cli.terminal.progress import progress_bar
from calibrant.errors import InputError

if TYPE_CHECKING:
    from calibrant.data.columns import Columns
    from calibrant.evaluation.choose import Choice
    from calibrant.evaluation.compare import Comparison


@with_columns
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
    score: Score = "nll",
    simple: Simple = False,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            help="Folder for calibrator.safetensors, results.json, report.html and repaired answers.",
            metavar="DIR",
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
    *,
    columns: "Columns",
) -> None:
    """Compare post-hoc methods, choose one, and save it with a report.

    Every method is cross-validated on VAL, and so is the pool, a mixture of them. The pool is chosen, unless
    temperature scaling (for confidences of a black box Platt scaling) is better.

    Example: calibrant calibrate val.npz --test test.npz --out calibrated

    Example: calibrant calibrate answers.jsonl --confidence stated --correct is_right --out honest
    """
    from calibrant.cli.terminal import show, tables
    from calibrant.evaluation import compare, decide
    from calibrant.report.describe import describe_comparison
    from calibrant.report.sources import Origin, Sources
    from calibrant.report.write import CALIBRATOR, REPORT, save_results, write_report

    decisive = checked_score(score)
    validation = read(path, columns)
    held_out = None if test is None else read(test, columns)
    wanted = word_or_list(methods, "auto", "all")
    if out is not None and out.exists() and not out.is_dir():
        raise InputError(f"--out: expected a folder, got the file {out}; name another one")
    saved = [CALIBRATOR, "results.json", REPORT]
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
        choice = decide(comparison, score=decisive, simple=simple)
        answer = _answer(comparison, choice, score, seed)
        if out is not None:
            progress("writing the report", 1, 1)
            files = {"validation": path} | ({} if test is None else {"test": test})
            origin = Origin(command_line(), files, seed)
            sources = Sources((test or path).name, validation=validation, test=held_out, origin=origin)
            page = describe_comparison(comparison, choice, sources)
            out.mkdir(parents=True, exist_ok=True)
            choice.result.calibrator.save(out / CALIBRATOR)
            save_results(out, answer, page)
            write_report(page, out / REPORT)
            saved += _write_repaired(test or path, columns, choice, out)
    if as_json:
        typer.echo(json.dumps(answer))
        return
    console = Console()
    console.print(tables.methods(comparison, choice.result, width=console.width))
    show.print_skipped(console, comparison.skipped)
    console.print()
    show.print_choice(console, choice)
    gain = choice.result.improvement
    console.print(
        f"It changes the negative log-likelihood by {gain.difference:+.4f} (95 % interval {gain.low:+.4f} to "
        f"{gain.high:+.4f}).",
        highlight=False,
    )
    if out is not None:
        console.print(f"Saved in {out}: {', '.join(saved)}", highlight=False)


def _write_repaired(measured: Path, columns: "Columns", choice: "Choice", out: Path) -> list[str]:
    """Write the answers that were measured with repaired confidences; return the name of the file.

    Only files of answers have rows to keep. Without a test set each answer is repaired by a fit that has not
    seen it.
    """
    from calibrant.data.files import load_answers
    from calibrant.data.rewriting import ROW_FORMATS, write_answers
    from calibrant.errors import CalibrantError

    repaired = choice.result.measured.confidence
    if repaired is None or measured.suffix.lower() not in ROW_FORMATS:
        return []
    name = f"repaired{measured.suffix.lower()}"
    try:
        write_answers(measured, out / name, repaired, kept=load_answers(measured, columns=columns).kept)
    except CalibrantError as error:  # a log of another tool may have several rows for an answer
        typer.echo(f"{name} is not written: {error}", err=True)
        return []
    return [name]


def _answer(comparison: "Comparison", choice: "Choice", score: str, seed: int) -> dict[str, Any]:
    from calibrant.cli.terminal.show import pool_numbers
    from calibrant.evaluation.answering import answer_when
    from calibrant.files import without_nan

    return {
        "chosen": choice.result.name,
        "choice": choice.reason,
        "score": score,
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
                **pool_numbers(result.calibrator),
            }
            for result in comparison.results
        },
        "answer_when": [
            without_nan(dataclasses.asdict(rule)) for rule in answer_when(choice.result.measured.outcomes())
        ],
        "skipped": dict(comparison.skipped),
    }
