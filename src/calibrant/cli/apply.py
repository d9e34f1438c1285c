"""The command ``calibrant apply``."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from calibrant.cli.columns import files_of, read, tell_dropped, with_columns
from calibrant.cli.options import SavedCalibrator, Stream
from calibrant.cli.terminal.text import say
from calibrant.errors import InputError
from calibrant.files import make_folder
from calibrant.outputs import check_targets, filling

if TYPE_CHECKING:
    from calibrant.data.columns import Columns
    from calibrant.posthoc.calibrator import Calibrator


@with_columns
def apply(
    calibrator: SavedCalibrator,
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            help="Predictions, with or without labels: a file; a folder or pattern of files, of any size if "
            "Parquet; or an address of Parquet files.",
        ),
    ],
    out: Annotated[
        Path,
        typer.Option(
            "--out", help="File for the calibrated predictions; a folder for several files.", metavar="OUT"
        ),
    ],
    stream: Stream = False,
    *,
    columns: "Columns",
) -> None:
    """Write calibrated predictions: logits become calibrated log-probabilities.

    A rule, which decide or sets saved, writes its decision for each sample to a .csv, .tsv, .jsonl or
    .parquet file; rows of such a file keep their other columns.

    A repaired confidence is written as the column confidence; a .jsonl, .csv or .parquet file keeps all its
    other columns. If the calibrator has a map for each group, --by names the column of the group; rows of
    groups that it has not seen get the common map.

    Example: calibrant apply calibrated/calibrator.safetensors new.npz --out calibrated.npz

    Example: calibrant apply calibrated/calibrator.safetensors predictions/ --out calibrated/
    """
    from calibrant.cli import streams
    from calibrant.data.files import FORMATS, save_predictions
    from calibrant.evaluation.calibrated import calibrated
    from calibrant.evaluation.folder import load_bound_calibrator
    from calibrant.posthoc.labels import LabelCalibrator

    if _is_rule(calibrator):
        _apply_rule(calibrator, source, out, columns)
        return
    fitted = load_bound_calibrator(calibrator)
    columns = replace(columns, several_labels=isinstance(fitted, LabelCalibrator))
    if columns.groups is not None and fitted.group_names is None:
        raise InputError(
            f"--by: expected none for {calibrator.name}, which has one map for all groups, got "
            f"{columns.groups!r}; leave it out"
        )
    check_targets([out], [calibrator])
    whole = [f"--out {out}"] if out.suffix.lower() in FORMATS and out.suffix.lower() != ".parquet" else []
    whole += ["columns under other names"] if columns.needs_whole_files else []
    if streams.is_streamed(source, asked=stream, needs_all=whole):
        streams.apply(fitted, source, out, by=columns.groups)
        return
    targets = _targets(source, out)
    if targets is None:
        result = calibrated(fitted, read(source, columns, need_labels=False))
        save_predictions(result, out)
        done = result.n
    else:
        done = _apply_each(fitted, targets, out, columns)
    say(f"{out}: {done:,} predictions calibrated by {type(fitted).__name__}")


def _is_rule(path: Path) -> bool:
    """Return whether a file holds a rule, which decides, instead of a calibrator."""
    from calibrant.decisions.rule import FORMAT
    from calibrant.posthoc.files import format_of

    return format_of(path) == FORMAT


def _apply_rule(path: Path, source: str, out: Path, columns: "Columns") -> None:
    """Write what a rule decides for each sample; rows of a table keep their other columns."""
    from calibrant.data.files import load_answers
    from calibrant.data.rewriting import ROW_FORMATS, write_columns, write_rows
    from calibrant.decisions.rule import load_rule

    rule = load_rule(path)
    check_targets([out], [path, source])
    if not Path(source).is_file():
        raise InputError(
            f"SOURCE: expected one file of predictions for a rule, got {source}; apply it to each file"
        )
    answers = load_answers(Path(source), need_labels=False, columns=columns)
    tell_dropped(source, answers.predictions)
    decided = rule.decide(answers.predictions)
    if Path(source).suffix.lower() in ROW_FORMATS:
        write_columns(source, out, decided.columns, kept=answers.kept)
    else:
        write_rows(out, decided.columns)
    say(f"{out}: {decided.n:,} decisions by {type(rule).__name__}")


def _targets(source: str, out: Path) -> dict[Path, Path] | None:
    """Return the file to write for each file of the source; none if several become one file."""
    from calibrant.data.files import FORMATS

    files = {name: Path(path) for name, path in files_of(source).items()}
    alone = Path(source) in files.values()
    joined = not alone and out.suffix.lower() in FORMATS
    targets = {path: out if alone else out / name for name, path in files.items()}
    check_targets([out] if joined else targets.values(), [source, *files.values()])
    return None if joined else targets


def _apply_each(fitted: "Calibrator", targets: dict[Path, Path], out: Path, columns: "Columns") -> int:
    """Write each file with calibrated predictions, and return their number."""
    if list(targets.values()) == [out]:
        return sum(_apply(fitted, path, target, columns) for path, target in targets.items())
    done = 0
    with filling(out) as finished:
        for path, target in targets.items():
            make_folder(target.parent)
            done += _apply(fitted, path, target, columns)
            finished.append(target)
    return done


def _apply(fitted: "Calibrator", path: Path, target: Path, columns: "Columns") -> int:
    """Write one file with calibrated predictions, and return their number."""
    from calibrant.data.files import load_answers, save_predictions
    from calibrant.data.labels import LabelPredictions
    from calibrant.data.rewriting import ROW_FORMATS, write_answers
    from calibrant.evaluation.calibrated import calibrated

    answers = load_answers(path, need_labels=False, columns=columns)
    tell_dropped(path, answers.predictions)
    result = calibrated(fitted, answers.predictions)
    if isinstance(result, LabelPredictions):
        save_predictions(result, target)
        return result.n_rows
    if result.confidence is not None and {path.suffix.lower(), target.suffix.lower()} <= {*ROW_FORMATS}:
        write_answers(path, target, result.confidence, kept=answers.kept)
    else:
        save_predictions(result, target)
    return result.n
