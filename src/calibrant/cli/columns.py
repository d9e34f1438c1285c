"""Options that say which columns of a file hold what, and the reading of files with them."""

import functools
import inspect
from collections.abc import Callable
from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from calibrant.cli.options import split_list
from calibrant.cli.terminal.text import say
from calibrant.errors import InputError

if TYPE_CHECKING:
    from calibrant.data.columns import Columns
    from calibrant.data.predictions import Predictions


def columns_from(
    logits: Annotated[
        str | None,
        typer.Option(
            "--logits",
            help="Column of logits, prefix of one column per class, or these columns separated by commas.",
            metavar="NAMES",
        ),
    ] = None,
    probs: Annotated[
        str | None,
        typer.Option(
            "--probs", help="Columns of probabilities, named like those of --logits.", metavar="NAMES"
        ),
    ] = None,
    labels: Annotated[
        str | None, typer.Option("--labels", help="Column of the true classes.", metavar="NAME")
    ] = None,
    weights: Annotated[
        str | None, typer.Option("--weights", help="Column of sample weights.", metavar="NAME")
    ] = None,
    classes: Annotated[
        str | None,
        typer.Option(
            "--classes",
            help="Class names in the order of their columns, separated by commas, or a file with one per "
            "line. Needed if labels are names.",
            metavar="NAMES|FILE",
        ),
    ] = None,
    confidence: Annotated[
        str | None,
        typer.Option(
            "--confidence",
            help="Column of a black box's confidence. Several, separated by commas, are signals; the first "
            "is the confidence.",
            metavar="NAMES",
        ),
    ] = None,
    correct: Annotated[
        str,
        typer.Option("--correct", help="Column that says whether each answer was right.", metavar="NAME"),
    ] = "correct",
    by: Annotated[
        str | None, typer.Option("--by", help="Column with the group of each sample.", metavar="COLUMN")
    ] = None,
    percent: Annotated[
        bool,
        typer.Option("--percent", help="Confidences or probabilities are in percent: 95, '95' or '95 %'."),
    ] = False,
    words: Annotated[
        Path | None,
        typer.Option(
            "--words",
            help='JSON file that maps words to confidences, such as {"very likely": 0.9}.',
            metavar="FILE",
        ),
    ] = None,
    drop_missing: Annotated[
        bool,
        typer.Option(
            "--drop-missing", help="Leave out answers with missing or impossible values, and count them."
        ),
    ] = False,
    missing_group: Annotated[
        bool,
        typer.Option("--missing-group", help="Put answers without a confidence into a group of their own."),
    ] = False,
    options: Annotated[
        str | None,
        typer.Option(
            "--options",
            help="Column with the log-probabilities of a multiple-choice question's options.",
            metavar="NAME",
        ),
    ] = None,
    answer: Annotated[
        str, typer.Option("--answer", help="Column of the right option, with --options.", metavar="NAME")
    ] = "answer",
    masses: Annotated[
        bool, typer.Option("--masses", help="--options are probabilities, which need not sum to one.")
    ] = False,
    layout: Annotated[
        str | None,
        typer.Option(
            "--layout",
            help="The tool that wrote the file: lm-eval, inspect or openai; detected by default.",
            metavar="TOOL",
        ),
    ] = None,
) -> "Columns":
    """Return which columns of a file hold what, as the command line says."""
    from calibrant.data.columns import LAYOUTS, Columns, read_classes, read_words
    from calibrant.inputs import check_choice

    if drop_missing and missing_group:
        raise InputError("--missing-group: expected either this or --drop-missing, got both; leave one out")
    return Columns(
        logits=() if logits is None else split_list(logits),
        probs=() if probs is None else split_list(probs),
        labels=labels,
        weights=weights,
        classes=None if classes is None else read_classes(classes),
        confidence=() if confidence is None else split_list(confidence),
        correct=correct,
        groups=by,
        options=options,
        masses=masses,
        answer=answer,
        percent=percent,
        words=None if words is None else read_words(words),
        missing="drop" if drop_missing else "group" if missing_group else "refuse",
        layout=None if layout is None else check_choice(layout, "--layout", LAYOUTS),
    )


def with_columns(command: Callable[..., None], **helps: str) -> Callable[..., None]:
    """Give a command the options of :func:`columns_from`; it gets their result as ``columns``.

    Args:
        command: The command, with a parameter ``columns``.
        **helps: What the help of this command says about an option, by the name of its parameter.
    """
    shared = inspect.signature(columns_from).parameters
    own = inspect.signature(command).parameters

    @functools.wraps(command)
    def run(**given: Any) -> None:  # noqa: ANN401  # the arguments of the command
        columns = columns_from(**{name: given.pop(name) for name in shared})
        command(**given, columns=columns)

    parameters = [each for each in own.values() if each.name != "columns"]
    parameters += [_with_help(each, helps.get(each.name)) for each in shared.values()]
    # Typer reads both.
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # no attribute of a type
    return run


def _with_help(parameter: inspect.Parameter, text: str | None) -> inspect.Parameter:
    """Return the parameter of an option with another help, if there is one."""
    if text is None:
        return parameter
    kind, option = get_args(parameter.annotation)
    option = copy(option)
    option.help = text
    return parameter.replace(annotation=Annotated[kind, option])


def read(path: str | Path, columns: "Columns", *, need_labels: bool = True) -> "Predictions":
    """Load a file of predictions, or all files of a folder or pattern; say how many answers were left out."""
    from calibrant.data.files import load_predictions
    from calibrant.data.predictions import join_predictions

    parts = {}
    for name, file in files_of(path).items():
        parts[name] = load_predictions(file, need_labels=need_labels, columns=columns)
        tell_dropped(file, parts[name])
    return join_predictions(parts)


def files_of(path: str | Path) -> dict[str, str | Path]:
    """Return the files of a folder or pattern by their names below it; a file is itself."""
    if Path(path).is_file():  # the usual case, which needs no pyarrow
        return {Path(path).name: path}
    from calibrant.streams.files import find_files, is_many

    return (
        {file.name: file.path for file in find_files(str(path))} if is_many(str(path)) else {str(path): path}
    )


def tell_dropped(path: str | Path, predictions: "Predictions") -> None:
    """Say on stderr how many answers of a file were left out, and why."""
    if "dropped" in predictions.metadata:
        dropped, because = (predictions.metadata[key] for key in ("dropped", "dropped_because"))
        rows = predictions.n + int(dropped)
        say(f"{Path(path).name}: left out {int(dropped):,} of {rows:,} answers: {because}", err=True)
