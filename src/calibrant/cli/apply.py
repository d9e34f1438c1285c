"""The command ``calibrant apply``."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from calibrant.cli.columns import files_of, read, tell_dropped, with_columns
from calibrant.cli.options import OUTPUT, SavedCalibrator, refuse_both
from calibrant.cli.printing import say
from calibrant.errors import InputError
from calibrant.files import make_folder
from calibrant.outputs import check_targets, filling
from calibrant.progress import progress_bar
from calibrant.show.terminal import Console

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
            help="Predictions, with or without labels: a file, a folder, a pattern, or an address of Parquet "
            "files. Parquet files may be larger than memory.",
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
    prior: Annotated[
        str | None,
        typer.Option(
            "--prior",
            help="Class frequencies of the new data: balanced, or a CSV file of classes and frequencies.",
            metavar="FILE|balanced",
            rich_help_panel="Class frequencies",
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
            rich_help_panel="Class frequencies",
        ),
    ] = None,
    adapt: Annotated[
        str | None,
        typer.Option(
            "--adapt",
            help="Predictions without labels, to estimate the new class frequencies; needs --labelled.",
            metavar="FILE",
            rich_help_panel="Class frequencies",
        ),
    ] = None,
    labelled: Annotated[
        str | None,
        typer.Option(
            "--labelled",
            help="Predictions with labels and the old class frequencies, such as the fitting data.",
            metavar="FILE",
            rich_help_panel="Class frequencies",
        ),
    ] = None,
    old_prior: Annotated[
        str | None,
        typer.Option(
            "--old-prior",
            help="Class frequencies of the fitting set, if the calibrator does not know them.",
            metavar="FILE|balanced",
            rich_help_panel="Class frequencies",
        ),
    ] = None,
    *,
    columns: "Columns",
) -> None:
    """Write calibrated predictions: logits become calibrated log-probabilities.

    CALIBRATOR can also be a rule saved by decide or sets: its decision for each sample is written to a .csv,
    .tsv, .jsonl or .parquet file. If the input is such a file, its other columns are kept.

    The repaired confidence of a black box is written to the column confidence; a .jsonl, .csv or .parquet
    file keeps all its other columns. If the calibrator has a map for each group, --by names the column of
    the group; groups that were not in the fitting data get the common map.

    If class frequencies differ from those of the fitting data, --prior corrects the probabilities for known
    frequencies, and --adapt for estimated ones.

    Example: calibrant apply calibrated/calibrator.safetensors new.npz --out calibrated.npz

    Example: calibrant apply calibrated/calibrator.safetensors predictions/ --out calibrated/

    Example: calibrant apply calibrated/calibrator.safetensors new.npz --prior new.csv --out corrected.npz

    Example: calibrant apply calibrator.safetensors new.npz --adapt new.npz --labelled val.npz --out x.npz
    """
    from calibrant.cli import streams
    from calibrant.data.files import FORMATS, save_predictions
    from calibrant.evaluation.calibrated import calibrated
    from calibrant.evaluation.folder import load_bound_calibrator
    from calibrant.posthoc.labels import LabelCalibrator

    wanted = _Frequencies(prior, undo_resampling, adapt, labelled, old_prior)
    if _is_rule(calibrator):
        wanted.refuse("a rule, which has its own calibrator")
        _apply_rule(calibrator, source, out, columns)
        return
    fitted = load_bound_calibrator(calibrator)
    check_targets([out], wanted.files)
    fitted = _corrected(fitted, wanted, columns)
    columns = replace(columns, several_labels=isinstance(fitted, LabelCalibrator))
    if columns.groups is not None and fitted.group_names is None:
        raise InputError(
            f"--by: expected none for {calibrator.name}, which has one map for all groups, got "
            f"{columns.groups!r}; leave it out"
        )
    check_targets([out], [calibrator])
    whole = [f"--out {out}"] if out.suffix.lower() in FORMATS and out.suffix.lower() != ".parquet" else []
    whole += ["columns under other names"] if columns.needs_whole_files else []
    if streams.is_streamed(source, asked=False, needs_all=whole):
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


@dataclass(frozen=True)
class _Frequencies:
    """The options about class frequencies, as they were given."""

    prior: str | None
    undo_resampling: str | None
    adapt: str | None
    labelled: str | None
    old_prior: str | None

    @property
    def given(self) -> dict[str, str]:
        """The options that were given, by name."""
        return {
            f"--{name.replace('_', '-')}": value for name, value in vars(self).items() if value is not None
        }

    @property
    def files(self) -> list[str]:
        """The files that are read."""
        return [value for value in self.given.values() if value != "balanced"]

    def refuse(self, what: str) -> None:
        """Refuse all of these options for a file that holds something else than a calibrator of classes."""
        for name, value in self.given.items():
            raise InputError(
                f"{name}: expected a calibrator of classes to correct, got {what}; leave {value} out"
            )

    def check(self) -> None:
        """Refuse options that exclude or need each other."""
        first = next((name for name in self.given if name in ("--prior", "--undo-resampling")), None)
        if self.adapt is not None and (first or self.old_prior):
            raise InputError(
                f"--adapt: expected alone with --labelled, got {first or '--old-prior'} too; frequencies are "
                "either known or estimated"
            )
        if self.adapt is not None and self.labelled is None:
            raise InputError(
                "--labelled: expected predictions with labels beside --adapt, got none; give the file that "
                "the calibrator was fitted on"
            )
        if self.adapt is None and first is None:
            raise InputError(
                f"{next(iter(self.given))}: expected beside --prior, --undo-resampling or --adapt, got none "
                "of them"
            )
        refuse_both(old_prior=self.old_prior, labelled=self.labelled)


def _corrected(fitted: "Calibrator", wanted: _Frequencies, columns: "Columns") -> "Calibrator":
    """Return a calibrator for other class frequencies than those of its fitting set, if any are named."""
    from calibrant.decisions.frequencies import correct_frequencies, estimate_frequencies, given_frequencies
    from calibrant.posthoc.confidence import ConfidenceCalibrator
    from calibrant.posthoc.labels import LabelCalibrator

    if not wanted.given:
        return fitted
    wanted.check()
    if isinstance(fitted, (ConfidenceCalibrator, LabelCalibrator)):
        wanted.refuse(f"a {type(fitted).__name__}, which has no classes")
    if fitted.class_names is None and columns.classes is not None:
        fitted.class_names = tuple(columns.classes)
    known = None if wanted.labelled is None else read(wanted.labelled, columns)
    if wanted.adapt is None:
        names = ("prior", "undo_resampling", "old_prior")
        texts = {name: text for name in names if (text := getattr(wanted, name)) is not None}
        frequencies = {name: given_frequencies(text) for name, text in texts.items()}
        return correct_frequencies(fitted, labelled=known, **frequencies)
    assert known is not None
    new = read(wanted.adapt, replace(columns, labels=None), need_labels=False)
    with progress_bar() as progress:
        found = estimate_frequencies(known, new, calibrator=fitted, progress=progress)
    Console().show(found.to_table())
    return found.calibrator


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
