"""The command ``calibrant report``."""

import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from calibrant.cli.terminal.command_line import command_line
from calibrant.cli.terminal.progress import progress_bar
from calibrant.data.files import load_predictions
from calibrant.data.predictions import Predictions
from calibrant.errors import InputError
from calibrant.evaluation.compare import choose, compare
from calibrant.inputs import Progress
from calibrant.report.folder import REPORT, load_page, with_shift
from calibrant.report.gather import Sources, compare_files, describe_comparison
from calibrant.report.page import Page
from calibrant.report.provenance import Origin
from calibrant.report.write import write_report


def report(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="DIR|FILE...",
            help="What calibrate --out wrote, or predictions: the first file is looked at, others are "
            "models to compare with it on the same samples.",
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", help="The page.", metavar="PAGE", show_default="report.html, in DIR if given"),
    ] = None,
    val: Annotated[
        Path | None,
        typer.Option("--val", help="Predictions to fit post-hoc methods on, to compare them.", metavar="VAL"),
    ] = None,
    methods: Annotated[
        str, typer.Option("--methods", help="With --val: auto, all, or names with commas.", metavar="NAMES")
    ] = "auto",
    shift: Annotated[
        Path | None, typer.Option("--shift", help="Labelled samples from elsewhere.", metavar="FILE")
    ] = None,
    ood: Annotated[
        Path | None, typer.Option("--ood", help="Predictions of foreign samples.", metavar="FILE")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Equal seeds give equal results.")] = 0,
    open_page: Annotated[bool, typer.Option("--open", help="Show the page in the browser.")] = False,
) -> None:
    """Write one page that a person can explore: a verdict, methods side by side, and charts.

    The page is a single file that works offline and can be mailed.

    Example: calibrant report test.npz --val val.npz --out report.html --open
    """
    with progress_bar() as progress:
        if paths[0].is_dir():
            page = _of_folder(paths, val, shift, ood)
            target = paths[0] / REPORT if out is None else out
        else:
            files = _roles(paths, val, shift, ood)
            page = _of_files(paths, files, methods, seed, progress)
            target = Path(REPORT) if out is None else out
        progress("writing the page", 1, 1)
        write_report(page, target)
    typer.echo(f"{target}: {page.verdict.headline}")
    if open_page:
        webbrowser.open(target.resolve().as_uri())


def _of_folder(paths: list[Path], val: Path | None, shift: Path | None, ood: Path | None) -> Page:
    if len(paths) > 1 or val is not None or ood is not None:
        raise InputError(
            f"DIR: expected nothing but --shift beside the folder {paths[0]}, got more; "
            "name files of predictions instead"
        )
    page = load_page(paths[0])
    return page if shift is None else with_shift(page, paths[0], load_predictions(shift), shift.name)


def _roles(paths: list[Path], val: Path | None, shift: Path | None, ood: Path | None) -> dict[str, Path]:
    if val is not None and len(paths) > 1:
        raise InputError(f"FILE: expected one file beside --val, got {len(paths)}; compare models without it")
    named = {"validation": val, "test": None if val is None else paths[0], "shift": shift, "foreign": ood}
    return {role: path for role, path in named.items() if path is not None}


def _of_files(paths: list[Path], files: dict[str, Path], methods: str, seed: int, progress: Progress) -> Page:
    given = {role: load_predictions(path, need_labels=role != "foreign") for role, path in files.items()}
    if "validation" in given:
        return _of_methods(paths[0].name, files, given, methods, seed, progress)
    names = [path.name for path in paths]
    titles = names if len(set(names)) == len(names) else [str(path) for path in paths]
    models = {title: load_predictions(path) for title, path in zip(titles, paths, strict=True)}
    if len(models) < len(paths):
        raise InputError("FILE: expected different files, got one of them twice")
    origin = Origin(command_line(), files | dict(zip(titles, paths, strict=True)), seed)
    progress("measuring", 0, 1)
    return compare_files(models, _sources(titles[0], given, origin))


def _of_methods(
    title: str,
    files: dict[str, Path],
    given: dict[str, Predictions],
    methods: str,
    seed: int,
    progress: Progress,
) -> Page:
    wanted = methods if methods in ("auto", "all") else [name.strip() for name in methods.split(",")]
    comparison = compare(
        given["validation"], test=given["test"], methods=wanted, seed=seed, progress=progress
    )
    progress("measuring", 0, 1)
    sources = _sources(title, given, Origin(command_line(), files, seed))
    return describe_comparison(comparison, choose(comparison), sources)


def _sources(title: str, given: dict[str, Predictions], origin: Origin) -> Sources:
    return Sources(
        title,
        validation=given.get("validation"),
        test=given.get("test"),
        shift=given.get("shift"),
        foreign=given.get("foreign"),
        origin=origin,
    )
