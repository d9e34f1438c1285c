"""The command ``calibrant calibrate``."""

import os
import sys
from collections.abc import Collection
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from calibrant.cli.columns import is_large, open_rows, read, read_sample, with_columns
from calibrant.cli.options import (
    COLUMNS,
    METHODS,
    OUTPUT,
    AsJson,
    Methods,
    Seed,
    checked_criterion,
    command_line,
    fast_or,
)
from calibrant.cli.pixels import IGNORED_PIXEL, IgnoreIndex, MapLabels, ScoreMaps
from calibrant.cli.printing import say
from calibrant.errors import InputError
from calibrant.files import shown, suffix_of
from calibrant.outputs import check_targets, one_writer
from calibrant.progress import progress_bar
from calibrant.show.terminal import Console

if TYPE_CHECKING:
    from calibrant.data.columns import Columns
    from calibrant.data.predictions import Predictions
    from calibrant.evaluation.calibration import WholeStream
    from calibrant.evaluation.choose import Choice
    from calibrant.inputs import Progress
    from calibrant.report.page import Page

# The word for groups that are looked for instead of named.
SEGMENTS_BY = "auto"


@partial(with_columns, boxes_by=("class", "size"))
def calibrate(
    path: Annotated[
        Path, typer.Argument(metavar="VAL", help="Predictions with labels, held out from training.")
    ],
    test: Annotated[
        Path | None, typer.Option("--test", help="Predictions to measure on.", metavar="TEST")
    ] = None,
    test_ground_truth: Annotated[
        Path | None,
        typer.Option(
            "--test-ground-truth",
            help="The objects of TEST, if they are in another file or folder than those of VAL.",
            metavar="FILE|FOLDER",
            rich_help_panel=COLUMNS,
        ),
    ] = None,
    methods: Methods = "auto",
    keep_accuracy: Annotated[
        bool,
        typer.Option(
            "--keep-accuracy",
            help="Compare only methods that never change the predicted class; of boxes, that keep the order "
            "of each class, and so AP.",
            rich_help_panel=METHODS,
        ),
    ] = False,
    criterion: Annotated[
        str,
        typer.Option(
            "--criterion",
            help="What decides the choice: nll, brier, ece or classwise_ece.",
            metavar="SCORE",
            rich_help_panel=METHODS,
        ),
    ] = "nll",
    simple: Annotated[
        bool,
        typer.Option(
            "--simple",
            help="Prefer the simplest method within one standard error of the pool.",
            rich_help_panel=METHODS,
        ),
    ] = False,
    folds: Annotated[
        int | None,
        typer.Option(
            "--folds",
            help="Number of folds; by default 5, or 3 with more than eight million logits.",
            rich_help_panel=METHODS,
        ),
    ] = None,
    all_samples: Annotated[
        bool,
        typer.Option(
            "--all-samples",
            help="Use large sets whole: slower, and hardly better.",
            rich_help_panel=METHODS,
        ),
    ] = False,
    seed: Seed = 0,
    labels: MapLabels = None,
    ignore_index: IgnoreIndex = IGNORED_PIXEL,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            help="Folder for calibrator.safetensors, results.json, report.html and repaired answers.",
            metavar="DIR",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    as_json: AsJson = False,
    *,
    columns: "Columns",
) -> None:
    """Compare post-hoc methods, choose one, and save it with a report.

    Every method is cross-validated on VAL. So is the pool, a mixture of them, which is chosen unless
    temperature scaling (Platt scaling for a black box) is better.

    Methods are fitted on at most 100,000 samples of VAL and chosen on 20,000 of these (500,000 for both with
    two classes), fewer with many classes, and whole units if rows have units; --all-samples uses all.
    Folders, patterns and Parquet files above 200 MB are read as a stream, of which such a sample is loaded.
    All rows of TEST are measured.

    --by race,sex also corrects the chosen mixture for each race, each sex, and both together. --by auto looks
    for segments of the features, or of the signals of --confidence, and corrects those that differ.

    Example: calibrant calibrate val.npz --test test.npz --out calibrated

    Example: calibrant calibrate answers.jsonl --confidence stated --correct is_right --out honest

    Example: calibrant calibrate answers.csv --confidence stated,length,year --by auto --out honest

    Example: calibrant calibrate detections.json --ground-truth instances.json --out honest

    Score maps of a segmentation are compared on a sample of the pixels of each image, with the image as the
    unit, and all pixels of TEST are measured.

    Example: calibrant calibrate val_logits.npy --test test_logits.npy --out honest
    """
    from calibrant.cli.printing import pages, print_calibration
    from calibrant.evaluation import compare, effect_of, make_choice
    from calibrant.evaluation.calibration import Calibration
    from calibrant.evaluation.folder import CALIBRATOR, FITTED_ON, RESULTS
    from calibrant.inference.memory import remembering

    decisive = checked_criterion(criterion)
    maps = ScoreMaps.of(path, labels, ignore_index, columns, seed=seed)
    segments = columns.groups == SEGMENTS_BY
    columns = replace(columns, groups=None) if segments else columns
    columns, wanted, fast = _wanted(methods, columns, maps, keep_accuracy=keep_accuracy)
    columns, of_measured = _columns_of_parts(columns, path, test, test_ground_truth)
    measured, given = test or path, [each for each in (path, test) if each is not None]
    sampled = {each for each in given if maps is None and is_large(each, columns)}
    with progress_bar(visible=not as_json) as progress:
        load = partial(_load, maps=maps, sampled=sampled, whole=all_samples, seed=seed, progress=progress)
        validation = load(path, columns=columns)
        held_out = None if test is None else load(test, columns=of_measured)
    if out is not None:
        from calibrant.report.describe import describe_comparison
        from calibrant.report.sources import Origin, Sources
        from calibrant.report.write import save_results

        saved = [CALIBRATOR, RESULTS, *pages(out)]
        written = [out / name for name in (*saved, _repaired_name(measured))]
        check_targets(written, given)
    # Other processes are kept out, and places that cannot be written are refused, before minutes of fitting.
    with (
        nullcontext() if out is None else one_writer(out),
        progress_bar(visible=not as_json) as progress,
        remembering(),
    ):
        comparison = compare(
            validation,
            test=held_out,
            methods=wanted,
            fast=fast,
            keep_accuracy=keep_accuracy,
            segments=segments,
            all_samples=all_samples,
            n_folds=folds,
            seed=seed,
            progress=progress,
        )
        choice = make_choice(comparison, score=decisive, simple=simple)
        effect = effect_of(comparison, choice, validation if held_out is None else held_out)
        pixels = None if maps is None else maps.measured(path, test, choice, progress)
        whole = _whole(test, columns, choice, progress) if test in sampled else None
        whole = whole if pixels is None else pixels.whole
        found = Calibration(comparison, choice, effect, criterion, seed, whole)
        if out is not None:
            progress("writing the report", 1, 1)
            files = {"validation": path} | ({} if test is None else {"test": test})
            origin = Origin(command_line(), files, seed)
            known = [None if each is None else _known_before(each) for each in (validation, held_out)]
            sources = Sources(measured.name, validation=known[0], test=known[1], origin=origin)
            page = describe_comparison(comparison, choice, sources)
            rows = validation if held_out is None else held_out
            if pixels is not None:
                page = pixels.on(page)
            elif not sampled:
                page = _with_boxes(page, measured, of_measured, choice) if columns.of_boxes else page
                saved += _write_repaired(measured, of_measured, choice, rows, out)
            calibrator = choice.result.calibrator if pixels is None else pixels.calibrator
            answer = found.to_dict() | {FITTED_ON: os.path.relpath(path, out)}
            save_results(out, calibrator, answer, page)
    if as_json:
        typer.echo(found.to_json())
        return
    console = Console()
    print_calibration(console, found)
    if effect.changed:
        console.say("--keep-accuracy compares only methods that keep the predictions.", style="dim")
    if out is not None:
        console.say(f"Saved in {shown(out)}: {', '.join(saved)}")


def _wanted(
    methods: str, columns: "Columns", maps: ScoreMaps | None, *, keep_accuracy: bool
) -> "tuple[Columns, str | list[str], bool]":
    """Return how rows are read for some methods, the methods, and whether only the quick ones are meant."""
    if maps is not None:
        return columns, maps.methods(methods, keep_accuracy=keep_accuracy), False
    if columns.of_boxes and keep_accuracy:
        from calibrant.boxes.repair import MONOTONE_METHODS, keeping_order

        columns = keeping_order(columns)
        methods = ",".join(MONOTONE_METHODS) if methods in ("auto", "fast") else methods
    return columns, *fast_or(methods)


def _columns_of_parts(
    columns: "Columns", path: Path, test: Path | None, test_ground_truth: Path | None
) -> "tuple[Columns, Columns]":
    """Return how VAL and TEST are read: boxes of two parts of the images have each their own."""
    if test is None or not columns.of_boxes:
        if test_ground_truth is not None:
            raise InputError(
                "--test-ground-truth: expected together with --ground-truth and --test, got one without; "
                "leave it out"
            )
        return columns, columns
    from calibrant.boxes.columns import BoxColumns, columns_of_parts

    assert isinstance(columns, BoxColumns)
    if test_ground_truth is not None:
        return columns, replace(columns, ground_truth=test_ground_truth)
    return columns_of_parts(columns, path, test)


def _load(
    path: Path,
    *,
    columns: "Columns",
    maps: ScoreMaps | None,
    sampled: Collection[Path],
    whole: bool,
    seed: int,
    progress: "Progress",
) -> "Predictions":
    """Load predictions, or a sample of those that are large, and say how many rows it has."""
    if maps is not None:
        return maps.rows(path, progress)
    if path not in sampled:
        return read(path, columns, graded="keep")
    most = sys.maxsize if whole else None
    return read_sample(open_rows(path, columns), progress, who="methods see", n_rows=most, seed=seed)


def _whole(
    test: Path | None, columns: "Columns", choice: "Choice", progress: "Progress"
) -> "WholeStream | None":
    """Measure all rows of a stream before and after the chosen method."""
    from calibrant.evaluation.calibration import WholeStream
    from calibrant.streams.evaluate import evaluate_calibrated, evaluate_stream

    if test is None:
        return None
    stream = open_rows(test, columns)
    before = evaluate_stream(stream, progress=progress)
    after = evaluate_calibrated(stream, choice.result.calibrator, progress=progress)
    return WholeStream(before.n, dict(before.metrics), dict(after.metrics))


def _known_before(predictions: "Predictions") -> "Predictions":
    """Return what the report compares with: the predictions, or the base rate of a score that only ranks."""
    from calibrant.data.predictions import ScorePredictions

    split = predictions.split()
    return split.base_rate() if isinstance(split, ScorePredictions) else split


def _write_repaired(
    measured: Path, columns: "Columns", choice: "Choice", rows: "Predictions", out: Path
) -> list[str]:
    """Write the answers that were measured with repaired confidences; return the name of the file.

    Only files of answers have rows to keep. Without a test set each answer is repaired by a fit that has not
    seen it.
    """
    if columns.of_boxes:
        return _write_boxes(measured, columns, choice, out)
    from calibrant.data.files import load_answers, save_predictions
    from calibrant.data.rewriting import ROW_FORMATS, write_answers
    from calibrant.errors import CalibrantError

    predictions = choice.result.measured
    repaired = predictions.confidence
    if repaired is not None and rows.outcome is not None:  # the parts of a split sample are equal
        repaired = repaired[rows.first_parts()]
    if repaired is None or suffix_of(measured) not in ROW_FORMATS:
        return []
    name = _repaired_name(measured)
    if predictions.n_rows < predictions.n:
        save_predictions(predictions, out / name)
        return [name]
    try:
        write_answers(measured, out / name, repaired, kept=load_answers(measured, columns=columns).kept)
    except CalibrantError as error:  # a log of another tool may have several rows for an answer
        if isinstance(error.__cause__, OSError):  # a full disk
            raise
        say(f"{name} is not written: {error}", err=True)
        return []
    return [name]


def _with_boxes(page: "Page", measured: Path, columns: "Columns", choice: "Choice") -> "Page":
    """Return a page with the part about a detector, before the repair and after."""
    from calibrant.boxes.columns import BoxColumns, read_box_pairs
    from calibrant.report.boxes import with_boxes

    repaired = choice.result.measured.confidence
    assert isinstance(columns, BoxColumns)
    assert repaired is not None
    pairs = read_box_pairs(measured, columns)
    return with_boxes(page, pairs, after=repaired.numpy(force=True), pictures=columns.pictures)


def _write_boxes(measured: Path, columns: "Columns", choice: "Choice", out: Path) -> list[str]:
    """Write the boxes that were measured with repaired scores, as results of COCO."""
    from calibrant.boxes.columns import read_box_pairs
    from calibrant.boxes.repair import in_order_of, repaired_scores, write_repaired

    pairs, repaired = read_box_pairs(measured, columns), choice.result.measured.confidence
    assert repaired is not None
    scores = repaired_scores(choice.result.calibrator, pairs.detections)
    scores[pairs.rows] = repaired.numpy(force=True)
    name = _repaired_name(Path("boxes.json"))
    write_repaired(measured, out / name, pairs.detections, in_order_of(scores, pairs.detections))
    return [name]


def _repaired_name(measured: Path) -> str:
    return f"repaired{suffix_of(measured)}"
