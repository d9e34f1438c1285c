"""The command ``calibrant evaluate``."""

import json
import sys
from contextlib import redirect_stdout
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from calibrant.cli.columns import read, read_with_labels, with_columns
from calibrant.cli.options import STREAMS, AsJson, BinCount, Ood, word_or_list
from calibrant.cli.pixels import IGNORED_PIXEL, IgnoreIndex
from calibrant.errors import InputError
from calibrant.progress import progress_bar

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from calibrant.data.columns import Columns
    from calibrant.streams.measures import StreamEvaluation


@partial(with_columns, without=(), boxes_by=("class", "size"))
def evaluate(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            help="Predictions: a .npz, .parquet, .csv, .tsv, .safetensors or .jsonl file, or a log of "
            "another tool; a folder or pattern of such files; or an address of Parquet files. Parquet "
            "files may be larger than memory. Or score maps of images: .npz, .npy or a folder of them.",
        ),
    ],
    measures: Annotated[
        str, typer.Option("--measures", help="core, all, or names separated by commas.", metavar="NAMES")
    ] = "core",
    bins: BinCount = 15,
    intervals: Annotated[
        bool, typer.Option("--intervals", help="Bootstrap a 95 % interval for each measure.")
    ] = False,
    per_class: Annotated[bool, typer.Option("--per-class", help="Also show each class.")] = False,
    per_margin: Annotated[
        int, typer.Option("--per-margin", help="Also show this many groups by logit margin.", metavar="N")
    ] = 0,
    compare: Annotated[
        Path | None,
        typer.Option("--compare", help="Another model's predictions of the same samples.", metavar="OTHER"),
    ] = None,
    models: Annotated[
        str | None,
        typer.Option(
            "--models",
            help="Column that names the model of each row: compare all models pairwise; needs --id.",
            metavar="COLUMN",
        ),
    ] = None,
    labels: Annotated[
        str | None,
        typer.Option(
            "--labels",
            help="Labels in files of their own, joined by --id: a file, a folder or a pattern. Of score maps "
            "in .npy files: a .npy file, or a folder of masks.",
            metavar="FILE|FOLDER",
        ),
    ] = None,
    ood: Ood = None,
    ignore_index: IgnoreIndex = IGNORED_PIXEL,
    skip_bad: Annotated[
        bool,
        typer.Option(
            "--skip-bad",
            help="Skip bad files and row groups of a stream, and count them.",
            rich_help_panel=STREAMS,
        ),
    ] = False,
    engine: Annotated[
        str,
        typer.Option(
            "--engine",
            help="Read a stream in this process or on a Ray cluster, that of RAY_ADDRESS or a new one.",
            metavar="local|ray",
            rich_help_panel=STREAMS,
        ),
    ] = "local",
    as_json: AsJson = False,
    *,
    columns: "Columns",
) -> None:
    """Print the calibration measures of saved predictions.

    The file contains logits or probs with labels, or confidence with correct. Parquet files above 200 MB,
    folders and patterns of them, and addresses are read as a stream.

    Logits or probs of shape (n, k, h, w) with labels of shape (n, h, w) are score maps of a segmentation:
    they are read image by image, and intervals draw images.

    Example: calibrant evaluate test.npz --measures all --intervals

    Example: calibrant evaluate answers.csv --by subject

    Example: calibrant evaluate predictions/ --by model_version

    Example: calibrant evaluate predictions/ --unit question_id --intervals

    Example: calibrant evaluate answers.jsonl --confidence stated --correct is_right --read percent

    Example: calibrant evaluate answers.csv --unit question_id --models model --id question_id

    Example: calibrant evaluate predictions.parquet --labels labels/ --id request_id

    Example: calibrant evaluate s3://bucket/predictions --engine ray

    Example: calibrant evaluate detections.json --ground-truth instances.json --intervals

    Example: calibrant evaluate val_logits.npy --labels val_labels.npy --intervals
    """
    from calibrant.cli.printing import print_evaluation
    from calibrant.evaluation.full import evaluate_fully
    from calibrant.inputs import check_choice
    from calibrant.pixels.headers import holds_images
    from calibrant.show.terminal import Console
    from calibrant.streams.files import is_streamed

    if holds_images(source):
        given: dict[str, object] = {
            "--compare": compare,
            "--models": models,
            "--ood": ood,
            "--per-margin": per_margin,
        }
        given |= {"--skip-bad": skip_bad, "--by": columns.by, "--unit": columns.units, "--id": columns.ids}
        _evaluate_pixels(source, labels, ignore_index, measures, given, bins, intervals, as_json=as_json)
        return
    on_ray = check_choice(engine, "--engine", ("local", "ray")) == "ray"
    wanted = word_or_list(measures, "core", "all")
    whole = {
        "--intervals": intervals,
        "--per-class": per_class,
        "--per-margin": per_margin,
        "--compare": compare,
        "--models": models,
        "--labels": labels,
        "--ood": ood,
    }
    by_unit = {"--intervals"} if columns.units else set()  # which a stream has, too
    needs_all = [name for name, value in whole.items() if value and name not in by_unit] + _unserved(wanted)
    needs_all += ["columns under other names"] if columns.needs_whole_files else []
    if columns.of_boxes:
        refused = {name: value for name, value in whole.items() if name != "--intervals"}
        _evaluate_boxes(source, columns, wanted, bins, refused, intervals=intervals, as_json=as_json)
        return
    if is_streamed(source, asked=skip_bad or on_ray, needs_all=needs_all, unless_small=intervals):
        options = {"n_bins": bins, "skip_bad": skip_bad, "intervals": intervals}
        _evaluate_stream(source, wanted, columns, as_json=as_json, on_ray=on_ray, **options)
        return
    if models is not None:
        _compare_models(source, replace(columns, groups=models), wanted, bins, whole, as_json=as_json)
        return
    ungrouped = replace(columns, groups=None)
    if labels is None:
        predictions = read(source, columns, graded="keep")
    else:
        predictions = read_with_labels(source, columns, labels)
    other = None if compare is None else read(compare, ungrouped, graded="keep")
    foreign = None if ood is None else read(ood, ungrouped, need_labels=False)
    with progress_bar(visible=not as_json) as progress:
        found = evaluate_fully(
            predictions,
            measures=wanted,
            n_bins=bins,
            intervals=intervals,
            per_class=per_class,
            n_margins=per_margin,
            by=(columns.by or "group") if columns.makes_groups else None,
            other=other,
            foreign=foreign,
            progress=progress,
        )
    if as_json:
        typer.echo(found.to_json())
    else:
        title = Path(source).name if Path(source).is_file() else source
        print_evaluation(Console(), found, title=title)


def _evaluate_boxes(
    source: str,
    columns: "Columns",
    measures: str | list[str],
    bins: int,
    options: "Mapping[str, object]",
    *,
    intervals: bool,
    as_json: bool,
) -> None:
    """Print the measures of a detector: those of pairs, those of boxes, and its classes."""
    from calibrant.boxes.columns import read_box_pairs
    from calibrant.boxes.evaluation import evaluate_boxes
    from calibrant.cli.printing import print_evaluation
    from calibrant.show.terminal import Console

    for name in (name for name, value in options.items() if value):
        raise InputError(f"{name}: expected none beside --ground-truth, got one; boxes have no such part")
    pairs = read_box_pairs(source, columns)
    with progress_bar(visible=not as_json) as progress:
        found = evaluate_boxes(
            pairs,
            measures=measures,
            n_bins=bins,
            intervals=intervals,
            by=columns.by or "group",
            progress=progress,
        )
    if as_json:
        typer.echo(found.to_json())
        return
    console = Console()
    print_evaluation(console, found.full, title=Path(source).name)
    console.say(found.heading)
    for table in (found.to_table(), *found.tables):
        console.show(table)


def _evaluate_pixels(
    source: str,
    labels: str | None,
    ignore_index: int,
    measures: str,
    unused: "Mapping[str, object]",
    bins: int,
    intervals: bool,
    *,
    as_json: bool,
) -> None:
    """Print the measures of score maps, of their classes, and by distance to the border of a region."""
    from calibrant.cli.printing import diagram_of, print_heading
    from calibrant.evaluation.full import verdict_sentence
    from calibrant.metrics.names import MEASURES, resolve_measures
    from calibrant.pixels import evaluate_pixels, open_images
    from calibrant.pixels.measures import pixel_measures
    from calibrant.show.terminal import Console

    known = pixel_measures()
    wanted = word_or_list(measures, "core", "all")
    named = known if isinstance(wanted, str) else resolve_measures(wanted)
    for name in (name for name in named if name not in known):
        raise InputError(
            f"--measures: expected measures of sums or ranks for score maps, got {name}; known are "
            f"{', '.join(known)}"
        )
    ranks = wanted == "all" or (wanted != "core" and any(MEASURES[name].of_ranks for name in named))
    for name in (name for name, value in unused.items() if value):
        raise InputError(
            f"{name}: expected none for score maps, whose unit is the image, got one; leave it out"
        )
    images = open_images(source, labels, ignore_index=ignore_index)
    with progress_bar(visible=not as_json) as progress:
        measured = evaluate_pixels(images, n_bins=bins, intervals=intervals, ranks=ranks, progress=progress)
    found = measured.only(named)
    if as_json:
        typer.echo(found.to_json())
        return
    console, table = Console(), found.to_table()
    print_heading(console, source, table.title, verdict_sentence(measured.metrics))
    console.show(table)
    console.print()
    console.print(diagram_of(found.bins))
    for each in found.tables:
        console.show(each)


def _compare_models(
    source: str,
    columns: "Columns",
    measures: str | list[str],
    bins: int,
    options: "Mapping[str, object]",
    *,
    as_json: bool,
) -> None:
    """Print the measures of each model of a file, and the differences between each two of them."""
    from calibrant.evaluation.models import compare_models, split_by_group
    from calibrant.show.terminal import Console

    if not columns.ids:
        raise InputError("--models: expected together with --id, which names the rows to compare, got none")
    for name in (name for name, value in options.items() if value and name != "--models"):
        raise InputError(f"{name}: expected without --models, which compares all models, got both")
    every = split_by_group(read(source, columns, graded="keep"))
    with progress_bar(visible=not as_json) as progress:
        found = compare_models(every, measures=measures, n_bins=bins, progress=progress)
    if as_json:
        typer.echo(found.to_json())
        return
    console = Console()
    for table in (found.to_table(), *found.tables):
        console.show(table)


def _unserved(measures: str | list[str]) -> list[str]:
    """Return the options that name measures which a stream cannot give."""
    if isinstance(measures, str):
        return []
    from calibrant.metrics.names import resolve_measures
    from calibrant.streams.measures import streamed_measures

    names = resolve_measures(measures)
    return [f"--measures {name}" for name in names if name not in streamed_measures()]


def _evaluate_stream(
    source: str,
    measures: str | list[str],
    columns: "Columns",
    *,
    as_json: bool,
    on_ray: bool,
    **options: Any,  # noqa: ANN401  # those of evaluate_stream
) -> None:
    """Print the measures of a stream, and the rows per second."""
    from calibrant.cli.printing import Speed, diagram_of, print_heading
    from calibrant.evaluation.full import verdict_sentence
    from calibrant.metrics.names import MEASURES, resolve_measures
    from calibrant.show.terminal import Console
    from calibrant.streams.evaluate import GroupedStream, evaluate_stream
    from calibrant.streams.prediction_stream import open_stream

    stream = open_stream(source, columns_by=columns.by, columns_unit=columns.units)
    run: Callable[..., StreamEvaluation] = evaluate_stream
    if on_ray:
        from calibrant.streams.ray import evaluate_stream_on_ray

        run = evaluate_stream_on_ray
    # Ray reports dead workers on standard output, which is reserved for the result.
    with progress_bar(visible=not as_json) as progress, redirect_stdout(sys.stderr):
        speed = Speed(progress)
        result = run(stream, progress=speed.show, **options)
    seconds, resolved = speed.seconds, resolve_measures(measures)
    shown = result.only([name for name in MEASURES if name in resolved])
    found = GroupedStream.of(shown, columns.by or "")
    if as_json:
        timed = {"seconds": seconds, "rows_per_second": result.n / seconds}
        typer.echo(json.dumps(found.to_dict() | timed, allow_nan=False))
        return
    console, table = Console(), found.result.to_table()
    print_heading(console, source, table.title, verdict_sentence(found.result.metrics))
    console.show(table)
    console.print()
    console.print(diagram_of(result.bins))
    if found.tests:
        console.show(found.to_table())
    bad = f"; {len(result.left_out)} bad files or row groups left out" if result.left_out else ""
    console.say(f"{result.n:,} rows in {seconds:.1f} s, {result.n / seconds:,.0f} rows/s{bad}", style="dim")
