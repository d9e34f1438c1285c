"""The command ``calibrant train``."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import torch
import typer
from rich.console import Console

from calibrant._version import __version__
from calibrant.cli.terminal import tables
from calibrant.cli.terminal.command_line import command_line
from calibrant.cli.terminal.progress import progress_bar
from calibrant.data.predictions import Predictions
from calibrant.report.folder import CALIBRATOR, REPORT, save_results
from calibrant.report.gather import Sources, describe_comparison
from calibrant.report.provenance import Origin
from calibrant.report.write import write_report

if TYPE_CHECKING:
    from calibrant.training.config.settings import Config
    from calibrant.training.outcome import Outcome
    from calibrant.training.run import Run


def train(
    path: Annotated[
        Path | None,
        typer.Argument(metavar="[CONFIG]", help="A TOML file; without one, a small network learns digits."),
    ] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option(
            "--set", help="Change a setting, as in training.epochs=5; may be repeated.", metavar="KEY=VALUE"
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Folder of the run.", metavar="DIR", show_default="runs/NAME of CONFIG"),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in the folder.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Train a classifier, repair its confidence, and write model, predictions and a report.

    Losses, models, data and post-hoc methods are named in CONFIG. Killed at any moment, --resume goes on from
    the last checkpoint.

    Example: calibrant train --set training.loss=adafocal --out runs/adafocal
    """
    from calibrant.cli.terminal.training_progress import watching
    from calibrant.training.config.read import load_config
    from calibrant.training.folder import CONFIG, load_folder_config
    from calibrant.training.outcome import assess, check_posthoc
    from calibrant.training.records import finite
    from calibrant.training.run import train as run_training

    folder = Path("runs", "digits" if path is None else path.stem) if out is None else out
    if resume and path is None:
        load_folder_config(folder)  # one sentence if there is none
        path = folder / CONFIG
    config = load_config(path, changes or ())
    check_posthoc(config.posthoc)  # before hours of training
    # A model of the user's own, "module:factory", is looked for where the command was typed.
    sys.path.insert(0, str(Path.cwd()))
    with watching(visible=not as_json) as watcher:
        run = run_training(config, folder, resume=resume, watcher=watcher)
    if not run.is_main:
        return
    with progress_bar(visible=not as_json) as progress:
        outcome = assess(run, progress=progress)
        progress("writing the report", 1, 1)
        answer = finite(_answer(run, outcome))
        _write(run, outcome, answer)
    if as_json:
        typer.echo(json.dumps(answer))
        return
    _show(run, outcome)


def _write(run: "Run", outcome: "Outcome", answer: dict[str, Any]) -> None:
    predictions = run.predictions
    files = {role: run.folder / "predictions" / f"{role}.npz" for role in ("validation", "test")}
    shift, shift_name = _together(predictions, "shifted/")
    foreign, foreign_name = _together(predictions, "foreign/")
    page = describe_comparison(
        outcome.comparison,
        outcome.chosen,
        Sources(
            _title(run.config),
            validation=predictions["validation"],
            test=predictions["test"],
            shift=shift,
            foreign=foreign,
            names={"shift": shift_name, "foreign": foreign_name, "test": "the test part"}
            | {"validation": "the validation part"},
            origin=Origin(command_line(), files, run.config.seed),
        ),
    )
    outcome.chosen.calibrator.save(run.folder / CALIBRATOR)
    save_results(run.folder, answer, page)
    write_report(page, run.folder / REPORT)


def _title(config: "Config") -> str:
    encoder = "" if config.encoder is None else f"{config.encoder.loss}, then "
    return f"{config.model.name} on {config.data.name}, {encoder}{config.training.loss}"


def _together(predictions: Mapping[str, Predictions], prefix: str) -> tuple[Predictions | None, str]:
    """Put all shifted sets, or all foreign ones, into one, and name them."""
    parts = {name.removeprefix(prefix): each for name, each in predictions.items() if name.startswith(prefix)}
    if not parts:
        return None, ""
    labels = [each.labels for each in parts.values() if each.labels is not None]
    joined = Predictions(
        logits=torch.cat([each.to_logits() for each in parts.values()]),
        labels=torch.cat(labels) if labels else None,
        class_names=next(iter(parts.values())).class_names,
    )
    names = list(parts)
    return joined, ", ".join(names) if len(names) < 4 else f"{len(names)} sets, {names[0]} to {names[-1]}"


def _answer(run: "Run", outcome: "Outcome") -> dict[str, Any]:
    return {
        "folder": str(run.folder),
        "chosen": outcome.chosen.name,
        "n_validation": run.predictions["validation"].n,
        "n_test": run.predictions["test"].n,
        "seed": run.config.seed,
        "calibrant": __version__,
        "stages": {name: dict(values) for name, values in run.refinement.items()},
        "methods": outcome.as_json(),
        "skipped": dict(outcome.comparison.skipped),
    }


def _show(run: "Run", outcome: "Outcome") -> None:
    console = Console()
    console.print(f"[bold]{_title(run.config)}[/bold]\n", highlight=False)
    console.print(tables.methods(outcome.comparison, outcome.chosen))
    for name, reason in outcome.comparison.skipped.items():
        console.print(f"[dim]{name} is left out: {reason}[/dim]", highlight=False)
    if len(run.refinement) > 1:
        console.print("\nRefinement, stage by stage:", highlight=False)
        console.print(tables.stages(run.refinement))
    if any(each.detection or len(each.measures) > 1 for each in outcome.methods.values()):
        console.print("\nFrom elsewhere:", highlight=False)
        console.print(tables.elsewhere(outcome.as_json()))
    written = f"model.safetensors, predictions/, metrics.csv, {CALIBRATOR}, {REPORT}"
    console.print(f"\nChosen: [bold]{outcome.chosen.name}[/bold].", highlight=False)
    console.print(f"Saved in {run.folder}: {written}", highlight=False)
