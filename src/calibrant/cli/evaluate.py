"""The command ``calibrant evaluate``."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from calibrant.cli.columns import read, with_columns
from calibrant.cli.options import STREAMS, AsJson, Bins, Ood, word_or_list
from calibrant.progress import progress_bar

if TYPE_CHECKING:
    from calibrant.data.columns import Columns


@with_columns
def evaluate(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            help="Predictions: a .npz, .parquet, .csv, .tsv, .safetensors or .jsonl file, or a log of "
            "another tool; a folder or pattern of such files; or an address of Parquet files. Parquet "
            "files may be larger than memory.",
        ),
    ],
    measures: Annotated[
        str, typer.Option("--measures", help="core, all, or names separated by commas.", metavar="NAMES")
    ] = "core",
    bins: Bins = 15,
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
    ood: Ood = None,
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

    Example: calibrant evaluate test.npz --measures all --intervals

    Example: calibrant evaluate answers.csv --by subject

    Example: calibrant evaluate predictions/ --by model_version

    Example: calibrant evaluate answers.jsonl --confidence stated --correct is_right --read percent

    Example: calibrant evaluate s3://bucket/predictions --engine ray
    """
    from calibrant.cli import streams
    from calibrant.cli.printing import print_evaluation
    from calibrant.evaluation.full import evaluate_fully
    from calibrant.show.terminal import Console

    reader = streams.engine_named(engine)
    whole = {
        "--intervals": intervals,
        "--per-class": per_class,
        "--per-margin": per_margin,
        "--compare": compare,
        "--ood": ood,
    }
    needs_all = [name for name, value in whole.items() if value] + streams.unserved(measures)
    needs_all += ["columns under other names"] if columns.needs_whole_files else []
    if streams.is_streamed(source, asked=skip_bad or reader is not None, needs_all=needs_all):
        streams.evaluate(
            source,
            measures=measures,
            n_bins=bins,
            by=columns.groups,
            skip_bad=skip_bad,
            as_json=as_json,
            engine=reader,
        )
        return
    predictions, ungrouped = read(source, columns), replace(columns, groups=None)
    other = None if compare is None else read(compare, ungrouped)
    foreign = None if ood is None else read(ood, ungrouped, need_labels=False)
    with progress_bar(visible=not as_json) as progress:
        found = evaluate_fully(
            predictions,
            measures=word_or_list(measures, "core", "all"),
            n_bins=bins,
            intervals=intervals,
            per_class=per_class,
            n_margins=per_margin,
            by=(columns.groups or "group") if columns.makes_groups else None,
            other=other,
            foreign=foreign,
            progress=progress,
        )
    if as_json:
        typer.echo(found.to_json())
    else:
        title = Path(source).name if Path(source).is_file() else source
        print_evaluation(Console(), found, title=title)
