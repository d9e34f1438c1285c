"""What several commands read from the command line: shared options, lists with commas, the line itself."""

import shlex
import sys
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Seed: TypeAlias = Annotated[int, typer.Option("--seed", help="Equal seeds give equal results.")]
Ood: TypeAlias = Annotated[
    Path | None,
    typer.Option("--ood", help="Predictions of out-of-distribution samples, to detect.", metavar="FILE"),
]
Methods: TypeAlias = Annotated[
    str,
    typer.Option("--methods", help="Methods to fit: auto, all, or names with commas.", metavar="NAMES"),
]
Stream: TypeAlias = Annotated[
    bool,
    typer.Option("--stream", help="Read a Parquet file batch by batch, which is the default above 200 MB."),
]
SavedCalibrator: TypeAlias = Annotated[
    Path, typer.Argument(metavar="CALIBRATOR", help="A calibrator that calibrate saved.")
]


def comma_list(text: str) -> list[str]:
    """Return the names in a list with commas.

    Example:
        >>> comma_list("nll, ece")
        ['nll', 'ece']
    """
    return [name.strip() for name in text.split(",")]


def word_or_list(text: str, *words: str) -> str | list[str]:
    """Return the text if it is one of the words, such as ``all``, else the names in a list with commas."""
    return text if text in words else comma_list(text)


def command_line() -> str:
    """Return the command with its arguments, quoted for a shell."""
    return shlex.join(["calibrant", *sys.argv[1:]])
