"""What several commands read from the command line: shared options, lists with commas, the line itself."""

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias, get_args

import typer

if TYPE_CHECKING:
    from calibrant.evaluation.choose import Score as ScoreName

AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Seed: TypeAlias = Annotated[int, typer.Option("--seed", help="Random seed: equal seeds give equal results.")]
Ood: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--ood",
        help="Predictions of out-of-distribution samples, to measure their detection.",
        metavar="FILE",
    ),
]
Methods: TypeAlias = Annotated[
    str,
    typer.Option(
        "--methods",
        help="Methods to fit: auto, all, or names separated by commas, with options as in "
        "'smart(settled=0)'.",
        metavar="NAMES",
    ),
]
Fast: TypeAlias = Annotated[bool, typer.Option("--fast", help="Compare the quick methods only.")]
KeepAccuracy: TypeAlias = Annotated[
    bool,
    typer.Option("--keep-accuracy", help="Compare only methods that never change the predicted class."),
]
Score: TypeAlias = Annotated[
    str,
    typer.Option(
        "--score", help="Score that decides the choice: nll, brier, ece or classwise_ece.", metavar="SCORE"
    ),
]
Simple: TypeAlias = Annotated[
    bool, typer.Option("--simple", help="Prefer the simplest method within one standard error of the pool.")
]
Stream: TypeAlias = Annotated[
    bool,
    typer.Option("--stream", help="Read a Parquet file batch by batch; the default above 200 MB."),
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
    ),
]


def checked_score(score: str) -> "ScoreName":
    """Return what ``--score`` names, or refuse it before anything is fitted."""
    from calibrant.evaluation.choose import Score as ScoreName
    from calibrant.inputs import check_choice

    known: tuple[ScoreName, ...] = get_args(ScoreName)
    return check_choice(score, "--score", known)


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
