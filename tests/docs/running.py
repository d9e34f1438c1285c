"""Commands of ours, run in this process."""

import io
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass

import pytest

from calibrant.cli import main


@dataclass(frozen=True)
class Ended:
    """How a command ended: its exit code, and what it printed to both outputs."""

    code: int
    out: str
    err: str


def run_ours(words, *, columns=120):
    """Run a command of ours in this process, in the current folder and a terminal of some columns."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setattr(sys, "argv", words)
        patch.setenv("COLUMNS", str(columns))
        with pytest.raises(SystemExit) as stopped:
            main()
    return Ended(stopped.value.code or 0, out.getvalue(), err.getvalue())
