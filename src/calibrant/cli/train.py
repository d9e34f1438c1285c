"""The command ``calibrant train``."""

import json
import os
import sys
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from calibrant._version import __version__
from calibrant.cli.options import command_line
from calibrant.outputs import one_writer
from calibrant.progress import progress_bar
from calibrant.show.terminal import Console

if TYPE_CHECKING:
    from calibrant.data.predictions import Predictions
    from calibrant.training.config.settings import Config
    from calibrant.training.outcome import Outcome
    from calibrant.training.run import Run


def train(
    path: Annotated[
        Path | None,
        typer.Argument(
            metavar="[CONFIG]",
            help="A TOML file; without one, a small network learns 300 digits with noisy labels.",
        ),
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
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in the folder.")] = False,
    factory: Annotated[
        str | None,
        typer.Option(
            "--factory",
            help="Function that makes the network of a resumed run. Code named only in its folder is never "
            "run.",
            metavar="MODULE:NAME",
        ),
    ] = None,
    log: Annotated[
        list[str] | None,
        typer.Option(
            "--log",
            help="Log measures and the report to mlflow, tensorboard or wandb. PLACE is mlflow's tracking "
            "address or folder, tensorboard's folder, or wandb's project. May be repeated.",
            metavar="KIND[=PLACE]",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Train a classifier, calibrate it, and write the model, its predictions and a report.

    CONFIG names the loss, the model, the data and the post-hoc methods. If the run is killed, --resume
    continues from the last checkpoint. Without CONFIG, a small network memorises noisy digits: with
    cross-entropy it becomes overconfident, with other losses less so, and a post-hoc method repairs the rest.

    Example: calibrant train --set training.loss=adafocal --out runs/adafocal

    Example: calibrant train --log mlflow=http://localhost:5000 --log wandb=my-project
    """
    from calibrant.cli.training_watchers import TrainingLog, watching
    from calibrant.files import without_nan
    from calibrant.training.config.toml import load_config, load_first_run
    from calibrant.training.folder import CONFIG, check_factory, load_folder_config
    from calibrant.training.models.by_name import is_code
    from calibrant.training.outcome import assess, check_posthoc
    from calibrant.training.run import train as run_training

    folder = Path("runs", "digits" if path is None else path.stem) if out is None else out
    saved = resume and path is None
    if saved:
        load_folder_config(folder)  # raises an error if there is no run
        path = folder / CONFIG
    config = load_first_run(changes or ()) if path is None else load_config(path, changes or ())
    if saved:
        check_factory(config, factory)
    check_posthoc(config.posthoc)  # before hours of training
    if is_code(config.model.name):
        sys.path.insert(0, str(Path.cwd()))  # a module of one's own may be in the current folder
    with (
        one_writer(folder) if _is_first_process() else nullcontext(),
        TrainingLog(log or (), folder, config) as logged,
    ):
        with watching(visible=not as_json) as watcher:
            run = run_training(config, folder, resume=resume, watcher=logged.watching(watcher))
        if not run.is_main:
            return
        with progress_bar(visible=not as_json) as progress:
            outcome = assess(run, progress=progress)
            progress("writing the report", 1, 1)
            answer = without_nan(_answer(run, outcome))
            _write(run, outcome, answer)
            logged.finish(outcome)
    if as_json:
        typer.echo(json.dumps(answer))
        return
    _show(run, outcome)


def _is_first_process() -> bool:
    """Whether this process, of those that a launcher has started for the run, is the one that writes."""
    ranks = ("RANK", "LOCAL_RANK", "SLURM_PROCID")
    return all(os.environ.get(name, "0") == "0" for name in ranks)


def _write(run: "Run", outcome: "Outcome", answer: dict[str, Any]) -> None:
    from calibrant.report.describe import describe_comparison
    from calibrant.report.sources import Origin, Sources
    from calibrant.report.write import save_results

    predictions = run.predictions
    files = {role: run.folder / "predictions" / f"{role}.npz" for role in ("validation", "test")}
    shift, shift_name = _joined(predictions, "shifted/")
    foreign, foreign_name = _joined(predictions, "foreign/")
    page = describe_comparison(
        outcome.comparison,
        outcome.choice,
        Sources(
            _title(run.config),
            validation=predictions["validation"],
            test=predictions["test"],
            shift=shift,
            foreign=foreign,
            names={
                "validation": "the validation part",
                "test": "the test part",
                "shift": shift_name,
                "foreign": foreign_name,
            },
            origin=Origin(command_line(), files, run.config.seed),
        ),
    )
    save_results(run.folder, outcome.chosen.calibrator, answer, page)


def _title(config: "Config") -> str:
    encoder = "" if config.encoder is None else f"{config.encoder.loss}, then "
    facts = [] if config.data.limit is None else [f"{config.data.limit:,} samples"]
    facts += [f"{100 * config.data.label_noise:.0f} % wrong labels"] if config.data.label_noise else []
    spoiled = f" ({', '.join(facts)})" if facts else ""
    return f"{config.model.name} on {config.data.name}{spoiled}, {encoder}{config.training.loss}"


def _joined(predictions: "Mapping[str, Predictions]", prefix: str) -> "tuple[Predictions | None, str]":
    """Join all shifted, or all out-of-distribution sets; return the joined set and its name."""
    import torch

    from calibrant.data.predictions import Predictions

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
    from calibrant.evaluation.effect import effect_of

    return {
        "folder": str(run.folder),
        "chosen": outcome.chosen.name,
        "choice": outcome.choice.reason,
        "effect": effect_of(outcome.comparison, outcome.choice, run.predictions["test"]).to_dict(),
        "score": run.config.posthoc.score,
        "n_validation": run.predictions["validation"].n,
        "n_test": run.predictions["test"].n,
        "seed": run.config.seed,
        "calibrant": __version__,
        "stages": {name: dict(values) for name, values in run.refinement.items()},
        "methods": {
            name: {**numbers, **outcome.comparison[name].pool_numbers}
            for name, numbers in outcome.as_json().items()
        },
        "skipped": dict(outcome.comparison.skipped),
    }


def _show(run: "Run", outcome: "Outcome") -> None:
    from calibrant.cli.printing import print_calibration
    from calibrant.evaluation.calibration import Calibration
    from calibrant.evaluation.effect import effect_of
    from calibrant.evaluation.folder import CALIBRATOR
    from calibrant.report.write import REPORT
    from calibrant.training.outcome import elsewhere_table, stages_table

    console, effect = Console(), effect_of(outcome.comparison, outcome.choice, run.predictions["test"])
    console.say(_title(run.config), style="bold")
    console.print()
    print_calibration(console, Calibration(outcome.comparison, outcome.choice, effect))
    if len(run.refinement) > 1:
        console.print("\nRefinement, stage by stage:", highlight=False)
        console.show(stages_table(run.refinement))
    if any(each.detection or len(each.measures) > 1 for each in outcome.methods.values()):
        console.print("\nShifted and out-of-distribution sets:", highlight=False)
        console.show(elsewhere_table(outcome.as_json()))
    written = f"model.safetensors, predictions/, metrics.csv, {CALIBRATOR}, {REPORT}"
    console.say(f"Saved in {run.folder}: {written}")
