"""The command ``calibrant report``."""

import webbrowser
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from calibrant.cli.columns import read, with_columns
from calibrant.cli.options import (
    OUTPUT,
    Methods,
    Ood,
    command_line,
    fast_or,
    word_or_list,
)
from calibrant.cli.pixels import IGNORED_PIXEL, IgnoreIndex, MapLabels, ScoreMaps
from calibrant.cli.printing import say
from calibrant.errors import InputError
from calibrant.files import address_of, shown
from calibrant.outputs import check_targets
from calibrant.progress import progress_bar

if TYPE_CHECKING:
    from calibrant.data.columns import Columns
    from calibrant.inputs import Progress
    from calibrant.report.page import Page


@partial(with_columns, without=(), boxes_by=("class", "size"))
def report(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="DIR|FILE...",
            help="A folder written by 'calibrate --out', or files of predictions. The page is about the "
            "first file; the others are models to compare on the same samples.",
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            help="File for the page.",
            metavar="PAGE",
            show_default="report.html, in DIR if given",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    val: Annotated[
        Path | None,
        typer.Option("--val", help="Predictions to fit post-hoc methods on, to compare them.", metavar="VAL"),
    ] = None,
    methods: Methods = "auto",
    measures: Annotated[
        str | None,
        typer.Option(
            "--measures",
            help="Further measures: core, all, or names separated by commas.",
            metavar="NAMES",
        ),
    ] = None,
    shift: Annotated[
        Path | None,
        typer.Option("--shift", help="Labelled predictions under distribution shift.", metavar="FILE"),
    ] = None,
    ood: Ood = None,
    labels: MapLabels = None,
    ignore_index: IgnoreIndex = IGNORED_PIXEL,
    open_page: Annotated[
        bool, typer.Option("--open", help="Show the page in the browser.", rich_help_panel=OUTPUT)
    ] = False,
    *,
    columns: "Columns",
) -> None:
    """Write one interactive page: a verdict, a comparison of methods, and charts.

    The page is a single file that works offline. With --val, methods are fitted on VAL and compared; the
    chart of temperatures needs smart and temperature among them. Without --val, nothing is fitted. 'calibrant
    calibrate --out' writes the same page, with more options for the comparison.

    Example: calibrant report test.npz --val val.npz --out report.html --open

    Example: calibrant report test.npz other.npz --measures smece,augrc

    Example: calibrant report detections.json --ground-truth instances.json --images pictures/

    Example: calibrant report test_logits.npy --val val_logits.npy
    """
    from calibrant.report.write import REPORT, why_no_page, write_report

    if missing := why_no_page():
        raise missing
    maps = ScoreMaps.of(paths[0], labels, ignore_index, columns)
    of_folder = paths[0].is_dir() and maps is None
    target = (paths[0] / REPORT if of_folder else Path(REPORT)) if out is None else out
    given = [path for path in (*paths, val, shift, ood) if path is not None]
    check_targets([target], [path for path in given if path.is_file()])
    with progress_bar() as progress:
        if maps is not None:
            more = {"FILE": len(paths) > 1, "--shift": shift, "--ood": ood, "--measures": measures}
            for name in (name for name, value in more.items() if value):
                raise InputError(f"{name}: expected one source of score maps, got more; leave it out")
            page = _of_maps(maps, val, methods, progress)
        elif of_folder:
            has_more = any(each is not None for each in (val, ood, measures))
            page = _of_folder(paths, shift, columns, has_more=has_more)
        else:
            if val is not None and len(paths) > 1:
                raise InputError(
                    f"FILE: expected one file beside --val, got {len(paths)}; compare models without it"
                )
            test = None if val is None else paths[0]
            named = {"validation": val, "test": test, "shift": shift, "foreign": ood}
            files = {role: path for role, path in named.items() if path is not None}
            further = () if measures is None else word_or_list(measures, "core", "all")
            page = _of_files(paths, files, columns, methods, further, progress)
            page = _with_boxes(page, paths[0], columns) if columns.of_boxes else page
        progress("writing the page", 1, 1)
        write_report(page, target)
    say(f"{shown(target)}: {page.verdict.headline}")
    if open_page:
        webbrowser.open(address_of(target) or target.resolve().as_uri())


def _of_folder(paths: list[Path], shift: Path | None, columns: "Columns", *, has_more: bool) -> "Page":
    from calibrant.evaluation.folder import CALIBRATOR
    from calibrant.posthoc.files import load_calibrator
    from calibrant.report.describe import with_shift
    from calibrant.report.write import load_page

    if len(paths) > 1 or has_more:
        raise InputError(
            f"DIR: expected only the folder {paths[0]}, got further files or options; a folder can only be "
            "combined with --shift"
        )
    page = load_page(paths[0])
    if shift is None:
        return page
    calibrator = None if page.chosen is None else load_calibrator(paths[0] / CALIBRATOR)
    return with_shift(page, calibrator, read(shift, columns, graded="split"), shift.name)


def _of_maps(maps: ScoreMaps, val: Path | None, methods: str, progress: "Progress") -> "Page":
    """Describe score maps; compare methods that are fitted on others, if those are given."""
    from calibrant.evaluation import compare, make_choice
    from calibrant.report.describe import compare_files, describe_comparison
    from calibrant.report.sources import Origin, Sources

    path = maps.first
    rows = maps.rows(path, progress)
    if val is None:
        sources = Sources(path.name, origin=Origin(command_line(), {path.name: path}, maps.seed))
        return maps.measured(path, None, None, progress).on(compare_files({path.name: rows}, sources))
    validation = maps.rows(val, progress)
    origin = Origin(command_line(), {"validation": val, "test": path}, maps.seed)
    sources = Sources(path.name, validation=validation, test=rows, origin=origin)
    wanted = maps.methods(methods, keep_accuracy=False)
    comparison = compare(validation, test=rows, methods=wanted, progress=progress)
    choice = make_choice(comparison)
    page = describe_comparison(comparison, choice, sources)
    return maps.measured(val, path, choice, progress).on(page)


def _with_boxes(page: "Page", path: Path, columns: "Columns") -> "Page":
    from calibrant.boxes.columns import BoxColumns, read_box_pairs
    from calibrant.report.boxes import with_boxes

    assert isinstance(columns, BoxColumns)
    return with_boxes(page, read_box_pairs(path, columns), pictures=columns.pictures)


def _of_files(
    paths: list[Path],
    files: dict[str, Path],
    columns: "Columns",
    methods: str,
    measures: str | Sequence[str],
    progress: "Progress",
) -> "Page":
    """Describe the first file; compare it with the others, or with methods that are fitted on a file."""
    from calibrant.report.describe import compare_files, describe_comparison
    from calibrant.report.sources import Origin, Sources

    names = [path.name for path in paths]
    titles = names if len(set(names)) == len(names) else [str(path) for path in paths]
    given = {
        role: read(path, columns, need_labels=role != "foreign", graded="split")
        for role, path in files.items()
    }
    shown = {} if "test" in given else dict(zip(titles, paths, strict=True))
    models = {title: read(path, columns, graded="split") for title, path in shown.items()}
    sources = Sources(
        titles[0],
        validation=given.get("validation"),
        test=given.get("test"),
        shift=given.get("shift"),
        foreign=given.get("foreign"),
        origin=Origin(command_line(), files | shown, 0),
    )
    if not models:
        from calibrant.evaluation import compare, make_choice

        wanted, fast = fast_or(methods)
        comparison = compare(
            given["validation"], test=given["test"], methods=wanted, fast=fast, progress=progress
        )
        progress("measuring", 0, 1)
        return describe_comparison(comparison, make_choice(comparison), sources, measures=measures)
    if len(models) < len(paths):
        raise InputError("FILE: expected different files, got one of them twice")
    progress("measuring", 0, 1)
    return compare_files(models, sources, measures=measures)
