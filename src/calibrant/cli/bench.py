"""The commands ``calibrant bench list``, ``run`` and ``table``."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich import table as rich_table
from rich.console import Console

from calibrant.cli.terminal.progress import progress_bar
from calibrant.errors import InputError
from calibrant.files import atomic_path

if TYPE_CHECKING:
    from collections.abc import Callable

    from calibrant.bench.table import Table

bench = typer.Typer(
    help="Rerun the experiments of the papers, on two cores or on a cluster.", no_args_is_help=True
)


@bench.command("list")
def list_experiments() -> None:
    """Show the experiments: what they are about, how many jobs they have, and what data they need.

    Example: calibrant bench list
    """
    from calibrant.bench.experiment import experiment_names, load_experiment

    shown = rich_table.Table(box=None, pad_edge=False, header_style="dim")
    shown.add_column("experiment", no_wrap=True)
    shown.add_column("what it is about")
    shown.add_column("quick jobs", justify="right")
    shown.add_column("full jobs", justify="right")
    shown.add_column("quick needs")
    for name in experiment_names():
        experiment = load_experiment(name)
        counts = [
            str(sum(1 for _ in experiment.jobs(preset))) if preset in experiment.presets else ""
            for preset in ("quick", "full")
        ]
        needs = ", ".join(experiment.needs("quick")) if "quick" in experiment.presets else ""
        shown.add_row(name, experiment.title, *counts, needs)
    Console().print(shown)


@bench.command()
def run(
    name: Annotated[str, typer.Argument(metavar="NAME", help="An experiment, or a TOML file of your own.")],
    preset: Annotated[
        str, typer.Option("--preset", help="quick for two cores, full for the papers' settings.")
    ] = "quick",
    seeds: Annotated[
        int | None, typer.Option("--seeds", help="Number of seeds.", show_default="the preset's")
    ] = None,
    jobs: Annotated[int, typer.Option("--jobs", help="Processes at once, one thread each.")] = 1,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Folder of the rows.", metavar="DIR", show_default="bench/NAME-PRESET"),
    ] = None,
    data: Annotated[
        Path | None, typer.Option("--data", help="Folder of data sets that are not bundled.", metavar="DIR")
    ] = None,
) -> None:
    """Run an experiment; rows that are in the folder already are not run again.

    Example: calibrant bench run posthoc --preset quick --jobs 2
    """
    from calibrant.bench.experiment import load_experiment
    from calibrant.bench.runner import run_experiment

    experiment = load_experiment(name)
    wanted = experiment.preset_named(preset)
    folder = Path("bench", f"{experiment.name}-{preset}") if out is None else out
    with progress_bar() as progress:
        progress("starting", 0, 1)
        for _ in run_experiment(
            experiment, folder, preset=wanted, seeds=seeds, jobs=jobs, data=data, told=progress
        ):
            pass
    _write_tables(folder)
    _print_table(folder)
    typer.echo(f"Saved in {folder}: rows.jsonl, table.md, table.csv, table.tex")


@bench.command()
def table(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="What run wrote.")],
    form: Annotated[str, typer.Option("--format", help="markdown, csv, latex or json.")] = "markdown",
) -> None:
    """Print the table of finished rows: mean and deviation over seeds, the best marked.

    Example: calibrant bench table bench/posthoc-quick --format latex
    """
    from calibrant.bench.rows import flat, read_rows

    if form == "json":
        typer.echo(json.dumps(flat(read_rows(folder))))
    else:
        _print_table(folder, form)


def _print_table(folder: Path, form: str = "markdown") -> None:
    writers = _writers()
    if form not in writers:
        raise InputError(f"--format: expected markdown, csv, latex or json, got {form!r}")
    typer.echo(_text(_tables(folder), writers[form][1]))


def _write_tables(folder: Path) -> None:
    made = _tables(folder)
    for name, write in _writers().values():
        with atomic_path(folder / name) as temporary:
            temporary.write_text(_text(made, write), encoding="utf-8")


def _text(tables: "list[Table]", write: "Callable[[Table], str]") -> str:
    return "\n".join(write(each) for each in tables)


def _writers() -> "dict[str, tuple[str, Callable[[Table], str]]]":
    from calibrant.bench.writers import to_csv, to_latex, to_markdown

    return {
        "markdown": ("table.md", to_markdown),
        "csv": ("table.csv", to_csv),
        "latex": ("table.tex", to_latex),
    }


def _tables(folder: Path) -> "list[Table]":
    from calibrant.bench.rows import read_rows, saved_experiment
    from calibrant.bench.table import make_tables

    return make_tables(saved_experiment(folder), read_rows(folder))
