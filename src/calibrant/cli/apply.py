"""The command ``calibrant apply``."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from calibrant.cli.columns import files_of, is_large, open_rows, read, read_sample, tell_dropped, with_columns
from calibrant.cli.options import OUTPUT, STREAMS, SavedCalibrator
from calibrant.cli.printing import Speed, say
from calibrant.errors import InputError
from calibrant.files import shown, suffix_of
from calibrant.outputs import check_targets
from calibrant.progress import progress_bar
from calibrant.show.terminal import Console

if TYPE_CHECKING:
    from calibrant.data.columns import Columns
    from calibrant.data.rewriting import Written
    from calibrant.decisions.frequencies import FrequencyShift
    from calibrant.posthoc.calibrator import Calibrator
    from calibrant.streams.rewriting import Engine

# The panel of options for data that differ from the fitting data.
NEW_DATA = "New data"


@partial(with_columns, without=("unit", "iou", "only"), boxes_by=())
def apply(
    calibrator: SavedCalibrator,
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            help="Predictions, with or without labels: a file, a folder, a pattern, or an address of Parquet "
            "files. Parquet files may be larger than memory. Or score maps: .npz, .npy or a folder.",
        ),
    ],
    out: Annotated[
        Path,
        typer.Option(
            "--out",
            help="File for the calibrated predictions; a folder for several files.",
            metavar="OUT",
            rich_help_panel=OUTPUT,
        ),
    ],
    write: Annotated[
        str | None,
        typer.Option(
            "--write",
            help="What is written: probs, logits (log-probabilities) or confidence; by default what the "
            "predictions are.",
            metavar="probs|logits|confidence",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    labels: Annotated[
        str | None,
        typer.Option(
            "--labels",
            help="Labels in other files, by the ids of --id: a file, a folder or a pattern. They become a "
            "column of the table that is written.",
            metavar="LABELS",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    engine: Annotated[
        str,
        typer.Option(
            "--engine",
            help="Rewrite a stream in this process or on a Ray cluster, that of RAY_ADDRESS or a new one.",
            metavar="local|ray",
            rich_help_panel=STREAMS,
        ),
    ] = "local",
    prior: Annotated[
        str | None,
        typer.Option(
            "--prior",
            help="Class frequencies of the new data: balanced, or a CSV file of classes and frequencies.",
            metavar="FILE|balanced",
            rich_help_panel=NEW_DATA,
        ),
    ] = None,
    undo_resampling: Annotated[
        str | None,
        typer.Option(
            "--undo-resampling",
            help="Class frequencies of a resampled training set, to undo the resampling: the result has "
            "those of the fitting set, or of --prior. Only if the calibrator treats all classes "
            "alike.",
            metavar="FILE|balanced",
            rich_help_panel=NEW_DATA,
        ),
    ] = None,
    adapt: Annotated[
        str | None,
        typer.Option(
            "--adapt",
            help="Adapt the calibrator to SOURCE without labels: to a shift, such as noise or another "
            "camera, or to class frequencies that are estimated.",
            metavar="shift|frequencies",
            rich_help_panel=NEW_DATA,
        ),
    ] = None,
    labelled: Annotated[
        str | None,
        typer.Option(
            "--labelled",
            help="Labelled predictions of the same model from before, such as the fitting data; by default "
            "with --adapt those that the folder of calibrate names.",
            metavar="FILE",
            rich_help_panel=NEW_DATA,
        ),
    ] = None,
    old_prior: Annotated[
        str | None,
        typer.Option(
            "--old-prior",
            help="Class frequencies of the fitting set, if the calibrator does not know them.",
            metavar="FILE|balanced",
            rich_help_panel=NEW_DATA,
        ),
    ] = None,
    *,
    columns: "Columns",
) -> None:
    """Write calibrated predictions: probabilities stay probabilities, logits become log-probabilities.

    Rows keep their other columns and their labels, and archives their other arrays. --write chooses what is
    written instead; confidence is that of the predicted class, which is written too.

    CALIBRATOR can also be a rule saved by decide or sets: its decision for each sample is written to a .csv,
    .tsv, .jsonl or .parquet file. If the input is such a file, its other columns are kept.

    The repaired confidence of a black box is written to the column confidence; a column of that name is kept
    as stated_confidence. If the calibrator has a map for each group, --by names the column of
    the group; groups that were not in the fitting data get the common map.

    If the new data are harder than the fitting data, --adapt shift estimates the accuracy on SOURCE without
    its labels and bends the calibrator until it promises that; features in both files help. If class
    frequencies differ, --prior corrects for known ones, and --adapt frequencies for estimated ones.

    Example: calibrant apply calibrated/calibrator.safetensors new.npz --out calibrated.npz

    Example: calibrant apply calibrated/calibrator.safetensors predictions/ --out calibrated/

    Example: calibrant apply honest/calibrator.safetensors new.json --ground-truth images.json --out out.json

    Example: calibrant apply honest/calibrator.safetensors new_logits.npy --out repaired_logits.npy

    Example: calibrant apply calibrated/calibrator.safetensors new.npz --prior new.csv --out corrected.npz

    Example: calibrant apply calibrator.safetensors new.npz --adapt shift --labelled val.npz --out x.npz
    """
    from calibrant.data.files import FORMATS
    from calibrant.data.rewriting import check_written
    from calibrant.decisions.frequencies import check_corrections
    from calibrant.evaluation.folder import load_bound_calibrator
    from calibrant.inputs import check_choice
    from calibrant.pixels.headers import holds_images
    from calibrant.posthoc.confidence import ConfidenceCalibrator
    from calibrant.posthoc.labels import LabelCalibrator
    from calibrant.streams.applying import apply_joined, apply_to_files, is_rule, targets_of
    from calibrant.streams.files import is_streamed

    named = {
        "prior": prior,
        "undo_resampling": undo_resampling,
        "adapt": adapt,
        "labelled": labelled,
        "old_prior": old_prior,
    }
    other_data = {name: value for name, value in named.items() if value is not None}
    on_ray = check_choice(engine, "--engine", ("local", "ray")) == "ray"
    fitted = None if is_rule(calibrator) else load_bound_calibrator(calibrator)
    if other_data:
        check_corrections(other_data, fitted)
    if columns.of_boxes or holds_images(source):
        given = {"--labels": labels is not None, "--engine": on_ray}
        given |= {f"--{name.replace('_', '-')}": True for name in other_data}
        _apply_to_images(fitted, calibrator, source, out, columns, write, given)
        return
    if fitted is None:
        given = {"--write": write is not None, "--engine": on_ray}
        _apply_rule(calibrator, source, out, columns, [name for name, value in given.items() if value])
        return
    if other_data:
        fitted = _for_other_data(fitted, calibrator, source, out, columns, **other_data)
    columns = replace(columns, several_labels=isinstance(fitted, LabelCalibrator))
    _check_groups(fitted, calibrator, columns)
    check_targets([out], [calibrator])
    several = isinstance(fitted, LabelCalibrator)
    pairs = isinstance(fitted, ConfidenceCalibrator)
    written = check_written(write, None if pairs else fitted.n_classes or 2, several_labels=several)
    whole = [f"--out {out}"] if suffix_of(out) in FORMATS and suffix_of(out) != ".parquet" else []
    whole += ["columns under other names"] if columns.needs_whole_files else []
    whole += ["--labels"] if labels is not None else []
    if is_streamed(source, asked=on_ray, needs_all=whole):
        _apply_to_stream(fitted, source, out, columns.by, written, on_ray=on_ray)
        return
    files = files_of(source)
    targets = targets_of(source, files, out)
    known = None if labels is None else list(files_of(labels).values())
    if targets is None:
        if known is not None:
            raise InputError("--labels: expected a folder in --out for several files, got one file; name one")
        paths = [Path(path) for path in files.values()]
        done = apply_joined(fitted, paths, out, columns, tell_dropped, write=written)
    else:
        done = apply_to_files(fitted, targets, out, columns, tell_dropped, write=written, labels=known)
    say(f"{shown(out)}: {done:,} predictions calibrated by {_named(fitted)}")


def _apply_rule(path: Path, source: str, out: Path, columns: "Columns", options: list[str]) -> None:
    """Write what a rule decides for each sample; refuse options that only calibrators have."""
    from calibrant.streams.applying import apply_rule

    for option in options:
        raise InputError(f"{option}: expected none for {path.name}, which is a rule, got one")
    decided = apply_rule(path, source, out, columns, tell_dropped)
    say(f"{shown(out)}: {decided.n:,} decisions by the rule of {path.name}")


def _apply_to_boxes(
    fitted: "Calibrator | None", path: Path, source: str, out: Path, columns: "Columns"
) -> None:
    """Write results of COCO with repaired scores, or those boxes that a rule keeps."""
    from calibrant.boxes.columns import read_boxes
    from calibrant.boxes.repair import kept_boxes, repaired_scores, write_repaired
    from calibrant.decisions.rule import load_rule

    if suffix_of(out) != ".json":
        raise InputError(f"--out: expected a .json file for boxes, got {out.name}")
    check_targets([out], [path, source])
    boxes = read_boxes(source, columns)
    if fitted is None:
        n = write_repaired(source, out, boxes, boxes.score, kept=kept_boxes(load_rule(path), boxes))
        say(f"{shown(out)}: {n:,} of {boxes.n:,} boxes kept by the rule of {path.name}")
        return
    n = write_repaired(source, out, boxes, repaired_scores(fitted, boxes))
    say(f"{shown(out)}: {n:,} boxes repaired by {_named(fitted)}")


def _named(fitted: "Calibrator") -> str:
    """Return the name of a calibrator's method, or those of two in a chain."""
    from calibrant.posthoc.chain import Chain

    parts = (fitted.first, fitted.second) if isinstance(fitted, Chain) else (fitted,)
    return ", then ".join(type(part).__name__ for part in parts)


def _check_groups(fitted: "Calibrator", path: Path, columns: "Columns") -> None:
    if columns.by is not None and fitted.group_names is None:
        raise InputError(
            f"--by: expected none for {path.name}, which has one map for all groups, got {columns.by!r}; "
            "leave it out"
        )


def _for_other_data(
    fitted: "Calibrator", path: Path, source: str, out: Path, columns: "Columns", **given: str
) -> "Calibrator":
    """Return a calibrator for data that differ from those of its fit, by what is known or estimated."""
    adapt = given.pop("adapt", None)
    check_targets([out], [value for value in given.values() if value != "balanced"])
    if fitted.class_names is None and columns.classes is not None:
        fitted.class_names = tuple(columns.classes)
    if adapt is None:
        return _corrected(fitted, columns, **given)
    return _adapted(fitted, path, source, columns, to=adapt, labelled=given.get("labelled"))


def _apply_to_images(
    fitted: "Calibrator | None",
    path: Path,
    source: str,
    out: Path,
    columns: "Columns",
    write: str | None,
    unused: Mapping[str, bool],
) -> None:
    """Write the boxes of a detector, or score maps image by image."""
    from calibrant.pixels.writing import write_calibrated

    given = {**unused, "--id": bool(columns.ids)}
    given |= {"--write": write is not None} if columns.of_boxes else {"--by": columns.by is not None}
    for name in (name for name, value in given.items() if value):
        what = "boxes" if columns.of_boxes else "score maps"
        raise InputError(f"{name}: expected none for {what}, got one; leave it out")
    if columns.of_boxes:
        _apply_to_boxes(fitted, path, source, out, columns)
        return
    if fitted is None:
        raise InputError(
            f"calibrator: expected one of score maps, got the rule {path.name}; leave rules to rows"
        )
    check_targets([out], [path, source])
    with progress_bar() as progress:
        n = write_calibrated(fitted, Path(source), out, write=write, progress=progress)
    say(f"{shown(out)}: {n:,} images calibrated by {_named(fitted)}")


def _corrected(
    fitted: "Calibrator", columns: "Columns", *, labelled: str | None = None, **texts: str
) -> "Calibrator":
    """Return a calibrator for other class frequencies, which are known, than those of its fitting set."""
    from calibrant.decisions.frequencies import correct_frequencies, given_frequencies

    known = None if labelled is None else read(labelled, columns, judged=False)
    known_ones = {name: given_frequencies(text) for name, text in texts.items()}
    return correct_frequencies(fitted, labelled=known, **known_ones)


def _adapted(
    fitted: "Calibrator", path: Path, source: str, columns: "Columns", *, to: str, labelled: str | None
) -> "Calibrator":
    """Return a calibrator for the data that it will be applied to, whose labels are not known."""
    from calibrant.decisions.frequencies import estimate_frequencies
    from calibrant.decisions.shift import MOST_ROWS, AdaptedCalibrator
    from calibrant.evaluation.folder import fitted_on
    from calibrant.inputs import check_choice

    check_choice(to, "--adapt", ("shift", "frequencies"))
    before = fitted_on(path) if labelled is None else labelled
    if before is None:
        raise InputError(
            "--labelled: expected labelled predictions of the same model beside --adapt, got none, and no "
            "folder of calibrate that names them; give the file that the calibrator was fitted on"
        )
    known = read(before, columns, judged=False)
    columns = replace(columns, labels=None)
    found: AdaptedCalibrator | FrequencyShift
    with progress_bar() as progress:
        if to == "shift" and is_large(source, columns):
            stream = open_rows(source, columns, need_labels=False, features=known.features is not None)
            new = read_sample(stream, progress, who="the estimate sees", n_rows=MOST_ROWS)
        else:
            new = read(source, columns, need_labels=False, judged=False)
        if to == "shift":
            found = AdaptedCalibrator.fit(fitted, known, new)
        else:
            found = estimate_frequencies(known, new, calibrator=fitted, progress=progress)
    console, table = Console(), found.to_table()
    console.say(table.title, style="bold")
    console.show(table)
    return found.calibrator


def _apply_to_stream(
    fitted: "Calibrator", source: str, out: Path, by: str | None, write: "Written | None", *, on_ray: bool
) -> None:
    from calibrant.streams.applying import apply_to_stream

    engine: Engine | None = None
    if on_ray:
        from calibrant.streams.ray import rewrite_on_ray

        engine = rewrite_on_ray
    with progress_bar() as progress:
        speed = Speed(progress)
        written = apply_to_stream(fitted, source, out, by=by, progress=speed.show, write=write, engine=engine)
    say(
        f"{shown(out)}: {written.rows:,} predictions in {written.files:,} files calibrated by "
        f"{_named(fitted)}, {written.rows / speed.seconds:,.0f} rows/s"
    )
