"""What several commands read from the command line: shared options, lists with commas, the line itself."""

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias, get_args

import typer

from calibrant.errors import InputError

if TYPE_CHECKING:
    from calibrant.evaluation.choose import Criterion

#: Panels of the help; options without a panel stand first.
COLUMNS, METHODS, STREAMS, OUTPUT = "Columns", "Methods", "Streams", "Output"

AsJson: TypeAlias = Annotated[
    bool, typer.Option("--json", help="Print one JSON object.", rich_help_panel=OUTPUT)
]
Seed: TypeAlias = Annotated[
    int,
    typer.Option("--seed", help="Random seed: equal seeds give equal results.", rich_help_panel=METHODS),
]
Ood: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--ood",
        help="Predictions of out-of-distribution samples, to measure their detection.",
        metavar="FILE",
    ),
]
BinCount: TypeAlias = Annotated[int, typer.Option("--bins", help="Number of bins of the binned measures.")]
Methods: TypeAlias = Annotated[
    str,
    typer.Option(
        "--methods",
        help="Methods to fit: auto, fast (the quick ones), all, or names separated by commas, with options "
        "as in 'smart(settled=0)'.",
        metavar="NAMES",
        rich_help_panel=METHODS,
    ),
]
RuleFile: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--out",
        help="File for the rule; apply and export read it.",
        metavar="FILE",
        rich_help_panel=OUTPUT,
    ),
]
SavedCalibrator: TypeAlias = Annotated[
    Path, typer.Argument(metavar="CALIBRATOR", help="A file saved by 'calibrant calibrate'.")
]
CalibratorBefore: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--calibrator",
        help="A calibrator to apply first, fitted on other samples than VAL.",
        metavar="CALIBRATOR",
        rich_help_panel=METHODS,
    ),
]


def checked_criterion(criterion: str) -> "Criterion":
    """Return what ``--criterion`` names, or refuse it before anything is fitted."""
    from calibrant.evaluation.choose import Criterion
    from calibrant.inputs import check_choice

    known: tuple[Criterion, ...] = get_args(Criterion)
    return check_choice(criterion, "--criterion", known)


def refuse_both(**options: object) -> None:
    """Refuse the second of two options if both are given; their names are those of parameters."""
    first, second = (f"--{name.replace('_', '-')}" for name in options)
    if all(options.values()):
        raise InputError(f"{first}: expected either this or {second}, got both; leave one out")


def fast_or(methods: str) -> "tuple[str | list[str], bool]":
    """Return the methods that ``--methods`` names, and whether only the quick ones of them are wanted."""
    return ("auto", True) if methods == "fast" else (word_or_list(methods, "auto", "all"), False)


def split_list(text: str) -> list[str]:
    """Return the names in a list with commas; commas within parentheses or brackets do not separate names.

    Example:
        >>> split_list("temperature, smart(settled=0, epochs=50)")
        ['temperature', 'smart(settled=0, epochs=50)']
    """
    names, depth = [""], 0
    for letter in text:
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and depth <= 0:
            names.append("")
        else:
            names[-1] += letter
    return [name.strip() for name in names]


def word_or_list(text: str, *words: str) -> str | list[str]:
    """Return the text if it is one of the words, such as ``all``, else the names in a list with commas."""
    return text if text in words else split_list(text)


def command_line() -> str:
    """Return the command with its arguments, quoted for a shell."""
    return shlex.join(["calibrant", *sys.argv[1:]])
