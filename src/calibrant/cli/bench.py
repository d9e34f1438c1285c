"""The commands ``calibrant bench list``, ``run``, ``table``, ``page``, ``plot`` and ``verdicts``."""

import json
import signal
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from calibrant.cli.options import AsJson, split_list
from calibrant.cli.printing import say
from calibrant.errors import InputError
from calibrant.files import make_folder, shown, write_file
from calibrant.outputs import check_is_local, check_targets, one_writer
from calibrant.progress import progress_bar
from calibrant.show.table import Column, Table
from calibrant.show.terminal import Console

_FILES = {"markdown": "table.md", "csv": "table.csv", "latex": "table.tex"}

bench = typer.Typer(
    help="Rerun the experiments of the papers, on two cores or on a cluster.", no_args_is_help=True
)


@bench.command("list")
def list_experiments(
    papers: Annotated[
        bool, typer.Option("--papers", help="List the papers' tables and figures with their commands.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List the experiments with their topics, numbers of jobs, and the data they need.

    With --papers, list every table and figure of the papers with the commands that make it. DATA stands for
    the folder of data sets, RUN for the folder of a training run.

    Example: calibrant bench list --papers
    """
    from calibrant.papers.experiment import PRESETS, experiment_names, load_experiment

    if papers:
        _show_exhibits(as_json=as_json)
        return
    if as_json:
        loaded = {name: load_experiment(name) for name in experiment_names()}
        listed = [
            {
                "name": name,
                "title": each.title,
                "claim": each.claim,
                "needs": {preset: each.needs(preset) for preset in PRESETS if preset in each.presets},
            }
            for name, each in loaded.items()
        ]
        typer.echo(json.dumps(listed))
        return
    rows = []
    for name in experiment_names():
        experiment = load_experiment(name)
        counts = [
            str(sum(1 for _ in experiment.jobs(preset))) if preset in experiment.presets else ""
            for preset in ("quick", "full")
        ]
        needs = ", ".join(experiment.needs("quick")) if "quick" in experiment.presets else ""
        rows.append([name, experiment.title, *counts, needs])
    columns = [Column("experiment", align="left"), Column("topic", align="left", wraps=True)]
    columns += [Column("quick\njobs"), Column("full\njobs"), Column("quick\nneeds", align="left", wraps=True)]
    Console().show(Table.of(columns, rows))


def _show_exhibits(*, as_json: bool) -> None:
    from calibrant.papers.exhibits import all_exhibits

    if as_json:
        typer.echo(json.dumps([{"paper": paper, **asdict(each)} for paper, each in all_exhibits()]))
        return
    last = ""
    for paper, each in all_exhibits():
        if paper != last:
            typer.echo(f"{'' if not last else chr(10)}{paper}")
            last = paper
        typer.echo(f"  {each.name}: {each.shows}")
        for preset, commands in (("quick", each.quick), ("full", each.full)):
            for command in commands:
                typer.echo(f"    {preset:5}  {command}")
        if each.note:
            typer.echo(f"    {each.note}")


@bench.command()
def run(
    name: Annotated[str, typer.Argument(metavar="NAME", help="An experiment, or a TOML file of your own.")],
    preset: Annotated[
        str, typer.Option("--preset", help="quick for two cores, full for the papers' settings.")
    ] = "quick",
    seeds: Annotated[
        int | None, typer.Option("--seeds", help="Number of seeds.", show_default="the preset's")
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(
            "--only",
            help="Only jobs with these values, as in --only 'task=cifar10_*' --only seed=3,4. A "
            "loss of your own is trained beside them: --only 'method=*,my_module:MyLoss(alpha=1)'.",
            metavar="NAME=VALUES",
        ),
    ] = None,
    jobs: Annotated[int, typer.Option("--jobs", help="Processes at once, one thread each.")] = 1,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Folder of the rows.", metavar="DIR", show_default="bench/NAME-PRESET"),
    ] = None,
    data: Annotated[
        Path | None, typer.Option("--data", help="Folder of data sets that are not bundled.", metavar="DIR")
    ] = None,
    runs: Annotated[
        Path | None,
        typer.Option(
            "--runs",
            help="Keep trained networks here; do not train again those that are here.",
            metavar="DIR",
        ),
    ] = None,
) -> None:
    """Run an experiment; jobs whose rows are already in the folder are skipped.

    Example: calibrant bench run posthoc --preset quick --jobs 2
    """
    given = None if out is None else check_is_local(out, "in which a run is locked and continued")
    from calibrant.papers.experiment import load_experiment
    from calibrant.papers.rows import ROWS
    from calibrant.papers.runner import run_experiment

    experiment, chosen = load_experiment(name), _only(only)
    if name.endswith(".toml") or any(":" in value for values in chosen.values() for value in values):
        sys.path.insert(0, str(Path.cwd()))  # a module of one's own may be in the current folder
    wanted = experiment.preset_named(preset)
    folder = given or Path("bench", f"{experiment.name}-{preset}")
    if data is not None:
        check_targets([folder / ROWS], [data])
    try:
        with one_writer(folder), progress_bar() as progress:
            progress("starting", 0, 1)
            for _ in run_experiment(
                experiment,
                folder,
                preset=wanted,
                seeds=seeds,
                only=chosen,
                jobs=jobs,
                data=data,
                runs=runs,
                progress=progress,
            ):
                pass
            texts = _texts(folder)
            for form, file in _FILES.items():
                write_file(folder / file, texts[form])
    except KeyboardInterrupt:
        say(
            f"calibrant: stopped; finished jobs are kept in {folder}, and the same command continues",
            err=True,
        )
        raise typer.Exit(128 + signal.SIGINT) from None
    say(texts["markdown"])
    say(f"Saved in {folder}: {', '.join(['rows.jsonl', *_FILES.values()])}")


@bench.command()
def table(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A folder that run wrote.")],
    form: Annotated[str, typer.Option("--format", help="markdown, csv, latex or json.")] = "markdown",
) -> None:
    """Print the table of finished rows: mean and deviation over seeds, the best marked.

    Example: calibrant bench table bench/posthoc-quick --format latex
    """
    from calibrant.papers.rows import finished_rows, flat

    if form not in (*_FILES, "json"):
        raise InputError(f"--format: expected markdown, csv, latex or json, got {form!r}")
    typer.echo(json.dumps(flat(finished_rows(folder))) if form == "json" else _texts(folder)[form])


@bench.command()
def page(
    folder: Annotated[
        Path,
        typer.Argument(metavar="DIR", help="A folder that run arena_real, or a file with its worker, wrote."),
    ],
    add: Annotated[
        list[Path] | None,
        typer.Option(
            "--add",
            help="Rows of other people, merged with those of DIR; may be repeated.",
            metavar="ROWS.JSONL",
            exists=True,
            dir_okay=False,
        ),
    ] = None,
    out: Annotated[Path, typer.Option("--out", help="The page.", metavar="FILE.html")] = Path("arena.html"),
) -> None:
    """Write the arena of real predictions as one page: ranks, duels and costs, by classes and samples.

    A task that several people ran counts once: it is recognised by a digest of the predictions. Versions of
    Calibrant are ranked apart. A file of --add may hold the rows of several people. The page is a single file
    that works offline.

    Example: calibrant bench page bench/arena_real --add theirs/rows.jsonl --out arena.html
    """
    from calibrant.papers.arena_page import arena_page
    from calibrant.papers.arena_tasks import merge_tasks, read_arena_tasks
    from calibrant.papers.rows import ROWS, files_left_out, finished_rows, read_rows, saved_experiment

    if out.suffix.lower() != ".html":
        raise InputError(f"--out: expected a file that ends in .html, got {shown(out)}")
    check_targets([out], [folder / ROWS, *(add or ())])
    worker = saved_experiment(folder).worker
    if worker != "arena_real":
        raise InputError(
            f"DIR: expected a folder of the arena of real predictions, got {folder}, whose rows are of the "
            f"worker {worker}; bench table and bench plot show those"
        )
    rows = {str(folder): finished_rows(folder)} | {str(path): read_rows(path) for path in add or ()}
    merged = merge_tasks({name: read_arena_tasks(found, source=name) for name, found in rows.items()})
    write_file(out, arena_page(merged, sources=list(rows), left_out=files_left_out(folder)))
    if merged.contradictions:
        first, n = merged.contradictions[0], len(merged.contradictions)
        say(f"{n:,} differing {'result' if n == 1 else 'results'}, the first number counts: {first}")
    say(f"{shown(out)}: {len(merged.tasks):,} tasks, {merged.n_repeated:,} of them run more than once")


@bench.command()
def plot(
    name: Annotated[
        str, typer.Argument(metavar="NAME|DIR", help="An experiment, or a folder that run wrote.")
    ],
    out: Annotated[
        Path,
        typer.Option("--out", help="A folder, or .pdf, .svg or .png for one figure.", metavar="DIR|FIGURE"),
    ],
    rows: Annotated[
        Path, typer.Option("--rows", help="Folder with a folder of rows for each NAME.", metavar="DIR")
    ] = Path("docs/results/rows"),
) -> None:
    """Draw the figures of an experiment, such as those of a paper: means over seeds with 95 % intervals.

    Example: calibrant bench plot validation_size --out validation_size.pdf
    """
    from calibrant.papers.figures import figures_of_folder
    from calibrant.plots.display import PICTURE_FORMATS

    made = figures_of_folder(Path(name) if Path(name).is_dir() else rows / name)
    is_file = out.suffix.lower() in PICTURE_FORMATS
    if is_file and len(made) > 1:
        raise InputError(f"--out: expected a folder for {', '.join(made)}, got the file {out}")
    make_folder(out.parent if is_file else out)
    for figure, display in made.items():
        path = out if is_file else out / f"{figure}.svg"
        display.save(path)
        redrawn = ", ".join(display.figure.redraws)
        say(f"{shown(path)}: redraws {redrawn}" if redrawn else str(shown(path)))


@bench.command()
def verdicts(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="A folder whose subfolders bench run wrote.")
    ] = Path("docs/results/rows"),
    form: Annotated[str, typer.Option("--format", help="text, markdown or json.")] = "text",
) -> None:
    """Check the papers' claims against finished rows: in pairs over seeds and test samples, on each task.

    Example: calibrant bench verdicts docs/results/rows --format markdown
    """
    from calibrant.inputs import check_choice
    from calibrant.papers.verdict_page import to_page, verdict_values, with_count
    from calibrant.papers.verdicts import all_results, judged_claims

    check_choice(form, "--format", ("text", "markdown", "json"))
    judged = judged_claims(folder)
    if form == "json":
        typer.echo(json.dumps(verdict_values(judged)))
        return
    if form == "markdown":
        typer.echo(to_page(judged, all_results(folder)), nl=False)
        return
    rows = [
        (
            each.paper,
            each.claim.text,
            "tested" if each.claim.tested else with_count(each.verdict, each.printed),
            with_count(each.own_verdict, each.ours),
        )
        for each in judged
    ]
    columns = [
        Column(name, align="left", wraps=True) for name in ("paper", "claim", "as printed", "our default")
    ]
    Console().show(Table.of(columns, rows))
    typer.echo(
        "In brackets: comparisons that are better, worse, equal within the margin, and that cannot tell. "
        "Of trained networks only those count whose cross-entropy is overconfident."
    )


def _only(words: list[str] | None) -> dict[str, list[str]]:
    """Return the values to run by name; names with options, as in adafocal(n_bins=5), may contain commas."""
    found: dict[str, list[str]] = {}
    for word in words or ():
        name, sign, values = word.partition("=")
        if not (name and sign and values):
            raise InputError(f"--only: expected NAME=VALUES, such as task=digits, got {word!r}")
        found.setdefault(name, []).extend(split_list(values))
    return found


def _texts(folder: Path) -> dict[str, str]:
    """Return the tables of a folder in each format."""
    from calibrant.papers.leaderboard import leaderboard_page
    from calibrant.papers.rows import files_left_out, finished_rows, saved_experiment
    from calibrant.papers.table import make_tables
    from calibrant.papers.writers import to_csv

    experiment, rows = saved_experiment(folder), finished_rows(folder)
    tables = make_tables(experiment, rows)
    texts = {
        "markdown": "\n".join(each.to_table().to_markdown() for each in tables),
        "csv": "\n".join(map(to_csv, tables)),
        "latex": "\n".join(each.to_table().to_latex() for each in tables),
    }
    if experiment.worker == "arena_real":
        texts["markdown"] = leaderboard_page(rows, left_out=files_left_out(folder))
    return texts
