"""Apply a calibrator or a rule to files: each as a whole, joined, or as a stream."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from torch import Tensor

from calibrant.data.columns import Columns
from calibrant.data.files import FORMATS, load_answers, save_predictions
from calibrant.data.joined import load_joined, truth_name
from calibrant.data.predictions import Predictions, join_predictions
from calibrant.data.rewriting import (
    ROW_FORMATS,
    Written,
    in_form,
    write_calibrated,
    write_columns,
    write_joined,
    write_rows,
)
from calibrant.decisions.cascade_rule import CascadeRule
from calibrant.decisions.rule import RULE_FORMAT, Decisions, Rule, load_rule
from calibrant.errors import InputError
from calibrant.evaluation.calibrated import calibrated, check_form
from calibrant.files import make_folder, suffix_of
from calibrant.inputs import Progress
from calibrant.outputs import check_targets, filling
from calibrant.posthoc.calibrator import Calibrator
from calibrant.posthoc.files import format_of
from calibrant.streams.prediction_stream import open_stream
from calibrant.streams.rewriting import Engine, Rewritten, rewrite_stream

#: Called with a file and its predictions, to tell how many answers were left out.
Tell = Callable[[Path, Predictions], None]


def is_rule(path: Path) -> bool:
    """Return whether a file holds a rule, which decides, instead of a calibrator."""
    return format_of(path) == RULE_FORMAT


def apply_rule(path: Path, source: str, out: Path, columns: Columns, tell: Tell) -> Decisions:
    """Write what a rule decides for each sample; rows of a table keep their other columns."""
    rule = load_rule(path)
    check_targets([out], [path, source])
    file = Path(source)
    if not file.is_file():
        raise InputError(
            f"source: expected one file of predictions for a rule, got {source}; apply it to each file"
        )
    return _write_decided(rule, [file], out, columns, tell)


def apply_cascade(path: Path, sources: Sequence[Path], out: Path, columns: Columns, tell: Tell) -> Decisions:
    """Write which stage of a cascade answers each question of the first file, whose columns are kept.

    Args:
        path: The rule.
        sources: Files of the first models, of as many as there are; questions that they do not answer are to
            be passed on.
        out: The file to write.
        columns: Which columns hold what.
        tell: Called with each file and its predictions.
    """
    rule = CascadeRule.load(path)
    check_targets([out], [path, *sources])
    return _write_decided(rule, sources, out, columns, tell)


def _write_decided(rule: Rule, files: Sequence[Path], out: Path, columns: Columns, tell: Tell) -> Decisions:
    """Write what a rule decides about the rows of the first file, which keep their other columns."""
    answers = [load_answers(file, need_labels=False, columns=columns) for file in files]
    for file, each in zip(files, answers, strict=True):
        tell(file, each.predictions)
    decided = rule.decide(*(each.predictions for each in answers))
    if suffix_of(files[0]) in ROW_FORMATS:
        write_columns(files[0], out, decided.columns, kept=answers[0].kept)
    else:
        write_rows(out, decided.columns)
    return decided


def apply_to_stream(
    calibrator: Calibrator,
    source: str,
    out: Path,
    *,
    by: str | None,
    progress: Progress,
    write: Written | None = None,
    engine: Engine | None = None,
) -> Rewritten:
    """Write each file of a stream with calibrated predictions; see :func:`rewrite_stream`."""
    stream = open_stream(source, columns_by=by, need_labels=False)
    return rewrite_stream(
        stream,
        partial(_calibrated_scores, calibrator),
        out,
        check=partial(check_form, calibrator),
        progress=progress,
        write=write,
        engine=engine,
    )


def _calibrated_scores(calibrator: Calibrator, predictions: Predictions) -> Tensor:
    result = calibrated(calibrator, predictions)
    changed = result.logits if result.confidence is None else result.confidence
    assert changed is not None
    return changed


def targets_of(source: str, files: Mapping[str, str | Path], out: Path) -> dict[Path, Path] | None:
    """Return the file to write for each file of a source; None if several become one file."""
    paths = {name: Path(path) for name, path in files.items()}
    alone = Path(source) in paths.values()
    joined = not alone and suffix_of(out) in FORMATS
    targets = {path: out if alone else out / name for name, path in paths.items()}
    check_targets([out] if joined else targets.values(), [source, *paths.values()])
    return None if joined else targets


def apply_to_files(
    calibrator: Calibrator,
    targets: Mapping[Path, Path],
    out: Path,
    columns: Columns,
    tell: Tell,
    *,
    write: Written | None = None,
    labels: Sequence[str | Path] | None = None,
) -> int:
    """Write each file with calibrated predictions, and return their number.

    Args:
        calibrator: The calibrator.
        targets: The file to write for each file that is read.
        out: The file or folder that a person named.
        columns: Which columns hold what.
        tell: Called with each file and its predictions.
        write: What is written, if not what the files hold.
        labels: Files of labels by id, which become a column of the files.
    """
    how = (columns, tell, write, labels)
    if list(targets.values()) == [out]:
        return sum(_apply(calibrator, path, target, *how) for path, target in targets.items())
    done = 0
    with filling(out) as finished:
        for path, target in targets.items():
            make_folder(target.parent)
            done += _apply(calibrator, path, target, *how)
            finished.append(target)
    return done


def apply_joined(
    calibrator: Calibrator,
    paths: Sequence[Path],
    out: Path,
    columns: Columns,
    tell: Tell,
    *,
    write: Written | None = None,
) -> int:
    """Write several files as one with calibrated predictions, and return their number."""
    answers = {path: load_answers(path, need_labels=False, columns=columns) for path in paths}
    for path, each in answers.items():
        tell(path, each.predictions)
    before = join_predictions({path.name: each.predictions for path, each in answers.items()})
    results = {path: calibrated(calibrator, each.predictions) for path, each in answers.items()}
    parts = {path: (result, answers[path].kept) for path, result in results.items()}
    if not write_joined(parts, out, columns, write):
        save_predictions(in_form(before, calibrated(calibrator, before), write), out)
    return before.n_rows


def _apply(
    calibrator: Calibrator,
    path: Path,
    target: Path,
    columns: Columns,
    tell: Tell,
    write: Written | None,
    labels: Sequence[str | Path] | None,
) -> int:
    """Write one file with calibrated predictions, and return their number."""
    if labels is not None:
        rows = load_joined(path, columns, labels)
        result = calibrated(calibrator, rows.outputs)
        more = {truth_name(columns, pairs=rows.are_pairs): rows.values}
        write_calibrated(path, target, rows.outputs, result, columns=columns, write=write, more=more)
        return result.n_rows
    answers = load_answers(path, need_labels=False, columns=columns)
    tell(path, answers.predictions)
    result = calibrated(calibrator, answers.predictions)
    write_calibrated(
        path, target, answers.predictions, result, columns=columns, kept=answers.kept, write=write
    )
    return result.n_rows
