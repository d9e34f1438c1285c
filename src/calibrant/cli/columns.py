"""Options that say which columns of a file hold what, and the reading of files with them."""

import functools
import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import typer

from calibrant.cli.boxes import box_columns
from calibrant.cli.options import COLUMNS, split_list
from calibrant.cli.printing import say
from calibrant.errors import InputError, did_you_mean
from calibrant.files import shown

if TYPE_CHECKING:
    from calibrant.data.columns import Columns
    from calibrant.data.predictions import Predictions
    from calibrant.data.repeats import Repeats
    from calibrant.inputs import Progress
    from calibrant.streams.prediction_stream import PredictionStream


#: What a command does with outcomes between 0 and 1.
Graded: TypeAlias = Literal["keep", "split", "refuse"]
_ROLES = ("logits", "probs", "labels", "weights", "options", "answer")
_WAYS = ("percent", "scale", "falling", "masses", "missing", "words", "classes", "layout")


def columns_from(
    by: Annotated[
        str | None,
        typer.Option(
            "--by",
            help="Column with the group of each sample. Several, separated by commas, make groups each by "
            "itself and all together.",
            metavar="COLUMNS",
            rich_help_panel=COLUMNS,
        ),
    ] = None,
    unit: Annotated[
        str | None,
        typer.Option(
            "--unit",
            help="Column, or several separated by commas, of what rows belong to that depend on each other: "
            "the question of an answer, the image of a box, the patient of a visit.",
            metavar="COLUMNS",
            rich_help_panel=COLUMNS,
        ),
    ] = None,
    identity: Annotated[
        str | None,
        typer.Option(
            "--id",
            help="Column, or several, that names each row; two models are compared on rows of equal name.",
            metavar="COLUMNS",
            rich_help_panel=COLUMNS,
        ),
    ] = None,
    confidence: Annotated[
        str | None,
        typer.Option(
            "--confidence",
            help="Column of a black box's confidence. Several, separated by commas, are signals; the first "
            "is the confidence.",
            metavar="COLUMNS",
            rich_help_panel=COLUMNS,
        ),
    ] = None,
    correct: Annotated[
        str,
        typer.Option(
            "--correct",
            help="Column that says whether each answer was right.",
            metavar="COLUMN",
            rich_help_panel=COLUMNS,
        ),
    ] = "correct",
    score: Annotated[
        str | None,
        typer.Option(
            "--score",
            help="Column of a number on any scale that should rise with the outcome.",
            metavar="COLUMN",
            rich_help_panel=COLUMNS,
        ),
    ] = None,
    outcome: Annotated[
        str | None,
        typer.Option(
            "--outcome",
            help="Column of what came true, from 0 to 1: a tie is 0.5. Instead of --correct.",
            metavar="COLUMN",
            rich_help_panel=COLUMNS,
        ),
    ] = None,
    column: Annotated[
        list[str] | None,
        typer.Option(
            "--column",
            help="Another column, as in labels=truth. Roles: logits and probs (one column, the prefix of one "
            "per class, or all separated by commas), labels, weights; for multiple choice: options "
            "(log-probabilities) and answer (the right one). May be repeated.",
            metavar="ROLE=NAME",
            rich_help_panel=COLUMNS,
        ),
    ] = None,
    ways: Annotated[
        list[str] | None,
        typer.Option(
            "--read",
            help="How values are written: percent (95, '95' or '95 %'), scale=LOW,HIGH (grades), falling (a "
            "score that falls where the outcome rises), words=FILE (JSON of words and "
            "confidences) or words (calibrate learns them), classes=NAMES or FILE (names of the classes in "
            "order), missing=drop or group (answers without a confidence; drop also rows without scores or a "
            "label), masses (options are probabilities), layout=lm-eval, inspect or openai. May be repeated.",
            metavar="HOW",
            rich_help_panel=COLUMNS,
        ),
    ] = None,
) -> "Columns":
    """Return which columns of a file hold what, as the command line says."""
    from calibrant.data.columns import Columns, read_classes, read_words

    roles = _pairs("--column", column or (), _ROLES)
    how = _pairs("--read", ways or (), _WAYS, flags=("percent", "falling", "masses"), either=("words",))
    named = {key: split_list(roles[key]) for key in ("logits", "probs") if key in roles}
    given: dict[str, Any] = roles | named | {key: how[key] for key in ("missing", "layout") if key in how}
    if "words" in how:
        given["words"] = read_words(Path(how["words"])) if how["words"] else True
    if "classes" in how:
        given["classes"] = read_classes(how["classes"])
    if "scale" in how:
        given["scale"] = _numbers(how["scale"])
    return Columns(
        confidence=() if confidence is None else split_list(confidence),
        correct=correct,
        score=score,
        outcome=outcome,
        falling="falling" in how,
        groups=None if by is None else split_list(by),
        units=() if unit is None else split_list(unit),
        ids=() if identity is None else split_list(identity),
        percent="percent" in how,
        masses="masses" in how,
        **given,
    )


def _numbers(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise InputError(f"--read: expected scale=LOW,HIGH, two numbers, got {text!r}") from None


def _pairs(
    option: str,
    words: Sequence[str],
    known: Sequence[str],
    flags: Sequence[str] = (),
    either: Sequence[str] = (),
) -> dict[str, str]:
    """Return the values that an option gives by key; a flag has no value, and some may have one or not."""
    found: dict[str, str] = {}
    for word in words:
        key, _, value = word.partition("=")
        if key not in known:
            hint = did_you_mean(key, known) or f"; known are {', '.join(known)}"
            raise InputError(f"{option}: expected one of its words, got {word!r}{hint}")
        if bool(value) is (key in flags) and key not in either:
            wanted = key if key in flags else f"{key}=NAME"
            raise InputError(f"{option}: expected {wanted}, got {word!r}")
        if key in found:
            raise InputError(f"{option}: expected {key} once, got it twice; leave one out")
        found[key] = value
    return found


def with_columns(
    command: Callable[..., None],
    *,
    without: Sequence[str] = ("identity",),
    boxes_by: Sequence[str] | None = None,
) -> Callable[..., None]:
    """Give a command the options of :func:`columns_from`; it gets their result as ``columns``.

    Args:
        command: The command, with a parameter ``columns``.
        without: Parameters that this command does not have.
        boxes_by: If the command also reads the boxes of a detector: what makes their groups by default.
    """
    of_boxes = {} if boxes_by is None else _parameters(box_columns, (*without, "columns", "by"))
    of_columns = _parameters(columns_from, without)
    shared = of_columns | of_boxes
    own = inspect.signature(command).parameters

    @functools.wraps(command)
    def run(**given: Any) -> None:  # noqa: ANN401  # the arguments of the command
        columns = columns_from(**{name: given.pop(name) for name in of_columns})
        if boxes_by is not None:
            columns = box_columns(columns, boxes_by, **{name: given.pop(name) for name in of_boxes})
        command(**given, columns=columns)

    parameters = [*(each for each in own.values() if each.name != "columns"), *shared.values()]
    # Typer reads both.
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # no attribute of a type
    return run


def _parameters(function: Callable[..., Any], without: Sequence[str]) -> dict[str, inspect.Parameter]:
    """Return the parameters of a function that stand for options, but for some."""
    every = inspect.signature(function).parameters
    return {name: each for name, each in every.items() if name not in without}


def read(
    path: str | Path,
    columns: "Columns",
    *,
    need_labels: bool = True,
    judged: bool = True,
    graded: Graded = "refuse",
) -> "Predictions":
    """Load a file of predictions, or all files of a folder or pattern, and say what to know about it.

    Args:
        path: The file, folder or pattern.
        columns: Which columns hold what.
        need_labels: Whether predictions without labels are refused.
        judged: Whether chance is judged or folds are made, so that rows that repeat are worth a line.
        graded: What is done with outcomes between 0 and 1: nothing, samples are split, or they are refused.
    """
    if columns.of_boxes:
        from calibrant.boxes.columns import read_box_pairs

        return read_box_pairs(path, columns).predictions
    from calibrant.data.files import load_answers
    from calibrant.data.predictions import join_predictions

    parts = {}
    for name, file in files_of(path).items():
        answers = load_answers(file, need_labels=need_labels, columns=columns)
        parts[name] = answers.predictions
        tell_dropped(file, parts[name])
        if judged and columns.words is True:
            say(
                f"{name}: words are groups, whose confidence is not known yet and counts as 50 %; calibrate "
                "learns how often answers with each word are right",
                err=True,
            )
        if judged and answers.repeats is not None:
            tell_repeats(file, answers.repeats)
        if judged:
            tell_worse_than_chance(file, parts[name])
    whole = join_predictions(parts)
    if whole.outcome is not None and graded == "refuse":
        raise InputError(
            "outcome: expected yes or no here, got outcomes between 0 and 1; evaluate, calibrate, gate, plot "
            "and report take them"
        )
    return whole.split() if graded == "split" else whole


def read_with_labels(path: str | Path, columns: "Columns", labels: str) -> "Predictions":
    """Load predictions whose labels are in other files, by id, and say how many rows have none."""
    from calibrant.data.joined import load_joined
    from calibrant.data.predictions import join_predictions

    parts, n = {}, 0
    for name, file in files_of(path).items():
        rows = load_joined(file, columns, files_of(labels).values())
        labelled = rows.labelled()
        n += rows.outputs.n
        if labelled is not None:
            parts[name] = labelled
    if not parts:
        raise InputError(f"--labels: expected labels for the ids of {path}, got none; check --id")
    whole = join_predictions(parts)
    if whole.n < n:
        say(f"{path}: left out {n - whole.n:,} of {n:,} rows: their ids have no label in {labels}", err=True)
    return whole


def is_large(path: str | Path, columns: "Columns") -> bool:
    """Return whether predictions are a stream that is better not loaded as a whole."""
    if columns.needs_whole_files or (Path(path).suffix != ".parquet" and Path(path).is_file()):
        return False
    from calibrant.streams.files import is_streamed

    return is_streamed(str(path), asked=False, unless_small=True)


def open_rows(path: str | Path, columns: "Columns", **options: bool) -> "PredictionStream":
    """Open a stream whose groups and units are named by options."""
    from calibrant.streams.prediction_stream import open_stream

    return open_stream(str(path), columns_by=columns.by, columns_unit=columns.units, **options)


def read_sample(
    stream: "PredictionStream",
    progress: "Progress",
    *,
    who: str,
    n_rows: int | None = None,
    seed: int | None = None,
) -> "Predictions":
    """Load a sample of a stream, and say how many rows it has and who sees it."""
    from calibrant.streams.sampling import sample_stream

    found = sample_stream(stream, n_rows=n_rows, seed=seed or 0, progress=progress)
    n, units = found.predictions.n, found.predictions.n_units
    what = f"{n:,} rows" if units is None else f"{n:,} rows of {units:,} whole units"
    drawn = "" if seed is None else f", drawn with --seed {seed}"
    if n < found.n:
        say(f"{shown(stream.place)}: {who} a sample of {what} of its {found.n:,}{drawn}", err=True)
    return found.predictions


def files_of(path: str | Path) -> dict[str, str | Path]:
    """Return the files of a folder or pattern by their names below it; a file is itself."""
    if Path(path).is_file():  # the usual case, which needs no pyarrow
        return {Path(path).name: path}
    from calibrant.streams.files import find_files, is_many

    return (
        {file.name: file.place for file in find_files(str(path))}
        if is_many(str(path))
        else {shown(path): path}
    )


def tell_worse_than_chance(path: str | Path, predictions: "Predictions") -> None:
    """Say on stderr that a score falls where the outcome rises, and which option to use."""
    if predictions.score is None or (predictions.correct is None and predictions.outcome is None):
        return
    from calibrant.evaluation import evaluate
    from calibrant.show.numbers import percent

    auroc = evaluate(predictions, measures=["auroc_correct"]).metrics["auroc_correct"]
    if auroc < 0.5:
        say(
            f"{Path(path).name}: the score ranks worse than chance (AUROC {percent(auroc)}); if high scores "
            "mean that the outcome is less likely, say so with --read falling",
            err=True,
        )


def tell_repeats(path: str | Path, repeats: "Repeats") -> None:
    """Say on stderr that rows may depend on each other, and which option to use."""
    name, n, different = Path(path).name, repeats.n, repeats.n_different
    if repeats.column is None:
        found = f"of {n:,} rows only {different:,} differ; if copies depend on each other"
        option = "name what they belong to with --unit"
    else:
        found = f"{n:,} rows have {different:,} different {repeats.column}; if rows with the same one depend"
        found, option = f"{found} on each other", f"add --unit {repeats.column}"
    say(f"{name}: {found}, intervals, tests and folds are wrong without units: {option}", err=True)


def tell_dropped(path: str | Path, predictions: "Predictions") -> None:
    """Say on stderr how many answers of a file were left out, and why."""
    if "dropped" in predictions.metadata:
        dropped, because = (predictions.metadata[key] for key in ("dropped", "dropped_because"))
        rows = predictions.n + int(dropped)
        what = "answers" if predictions.k is None else "rows"
        say(f"{Path(path).name}: left out {int(dropped):,} of {rows:,} {what}: {because}", err=True)
