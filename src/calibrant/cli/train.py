"""The command ``calibrant train``."""

import json
import os
import shlex
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from calibrant.cli.options import command_line
from calibrant.cli.printing import say
from calibrant.outputs import check_is_local, one_writer
from calibrant.progress import progress_bar
from calibrant.show.terminal import Console

if TYPE_CHECKING:
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
        typer.Option(
            "--out",
            help="Folder of the run.",
            metavar="DIR",
            show_default="runs/NAME of CONFIG, or NAME-2, ... if there is a run",
        ),
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
    if out is not None:
        out = check_is_local(out, "in which a run is locked and resumed")
    from calibrant.cli.training_watchers import TrainingLog, watching
    from calibrant.training.config.toml import load_config, load_first_run
    from calibrant.training.folder import CONFIG, check_code, load_folder_config, only_folder
    from calibrant.training.outcome import assess, check_posthoc
    from calibrant.training.own_code import named_code
    from calibrant.training.run import train as run_training

    base = Path("runs", "digits" if path is None else path.stem)
    saved, own = resume and path is None, path
    if saved:
        folder = out or only_folder(base)
        load_folder_config(folder)  # raises an error if there is no run
        path = folder / CONFIG
    config = load_first_run(changes or ()) if path is None else load_config(path, changes or ())
    if saved:
        check_code(config, load_config(changes=changes or ()), factory)
    check_posthoc(config.posthoc)  # before hours of training
    folder = out or (only_folder(base) if resume else _new_folder(base))
    if named_code(config):
        sys.path.insert(0, str(Path.cwd()))  # a module of one's own may be in the current folder
    with (
        _naming_resume(own, folder),
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
            answer = outcome.to_dict(run)
            _write(run, outcome, answer)
            logged.finish(outcome)
    if as_json:
        typer.echo(json.dumps(answer))
        return
    _show(run, outcome)


def _new_folder(base: Path) -> Path:
    """Return the folder of a new run that no other run has.

    Processes that a launcher has started cannot agree on a number; those that the first one starts get its
    choice.
    """
    from calibrant.training.folder import new_folder
    from calibrant.training.processes import launched

    if launched() is not None:
        return base
    if not _is_first_process():
        return Path(os.environ.get(_CHOSEN, base))
    folder = new_folder(base)
    os.environ[_CHOSEN] = str(folder)
    if folder != base:
        say(f"calibrant: note: {base} contains another run, so this one is in {folder}", err=True)
    return folder


# Tells the processes that the first one starts where the run is.
_CHOSEN = "CALIBRANT_RUN_FOLDER"


@contextmanager
def _naming_resume(config: Path | None, folder: Path) -> Iterator[None]:
    """On Ctrl-C, say which command continues the run."""
    try:
        yield
    except KeyboardInterrupt:
        given = [] if config is None else [str(config)]
        command = shlex.join(["calibrant", "train", *given, "--resume", "--out", str(folder)])
        if _is_first_process():
            say(f"calibrant: stopped; continue from the last checkpoint with: {command}", err=True)
        raise typer.Exit(128 + signal.SIGINT) from None


def _is_first_process() -> bool:
    """Whether this process, of those that a launcher has started for the run, is the one that writes."""
    ranks = ("RANK", "LOCAL_RANK", "SLURM_PROCID")
    return all(os.environ.get(name, "0") == "0" for name in ranks)


def _write(run: "Run", outcome: "Outcome", answer: dict[str, Any]) -> None:
    from calibrant.report.describe import describe_comparison
    from calibrant.report.sources import Origin, Sources
    from calibrant.report.write import save_results
    from calibrant.training.outcome import joined_sets, title_of_run

    predictions = run.predictions
    files = {role: run.folder / "predictions" / f"{role}.npz" for role in ("validation", "test")}
    shift, shift_name = joined_sets(predictions, "shifted/")
    foreign, foreign_name = joined_sets(predictions, "foreign/")
    page = describe_comparison(
        outcome.comparison,
        outcome.choice,
        Sources(
            title_of_run(run.config),
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


def _show(run: "Run", outcome: "Outcome") -> None:
    from calibrant.cli.printing import pages, print_calibration
    from calibrant.evaluation.calibration import Calibration
    from calibrant.evaluation.effect import effect_of
    from calibrant.evaluation.folder import CALIBRATOR
    from calibrant.training.outcome import elsewhere_table, stages_table, title_of_run

    console, effect = Console(), effect_of(outcome.comparison, outcome.choice, run.predictions["test"])
    console.say(title_of_run(run.config), style="bold")
    console.print()
    print_calibration(console, Calibration(outcome.comparison, outcome.choice, effect))
    if len(run.refinement) > 1:
        console.print("\nRefinement, stage by stage:", highlight=False)
        console.show(stages_table(run.refinement))
    if any(each.detection or len(each.measures) > 1 for each in outcome.methods.values()):
        console.print("\nShifted and out-of-distribution sets:", highlight=False)
        console.show(elsewhere_table(outcome.as_json()))
    written = ["model.safetensors", "predictions/", "metrics.csv", CALIBRATOR, *pages(run.folder)]
    console.say(f"Saved in {run.folder}: {', '.join(written)}")
