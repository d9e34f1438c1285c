"""Run the command line in-process, as a user's shell would see it."""

import io
import sys
from contextlib import redirect_stderr, redirect_stdout

import pytest

from calibrant.cli import main


@pytest.fixture(scope="session")
def run_once():
    """Return a function like ``run`` for fixtures that live longer than a test."""

    def call(*arguments):
        with (
            pytest.MonkeyPatch.context() as patch,
            redirect_stdout(io.StringIO()) as out,
            redirect_stderr(io.StringIO()) as err,
        ):
            patch.setattr(sys, "argv", ["calibrant", *map(str, arguments)])
            patch.setenv("COLUMNS", "120")
            with pytest.raises(SystemExit) as stopped:
                main()
        return stopped.value.code or 0, out.getvalue(), err.getvalue()

    return call


@pytest.fixture
def run(monkeypatch, capsys):
    """Call ``calibrant`` in a terminal of some columns; return exit code, standard output, standard error."""

    def call(*arguments, columns=120):
        monkeypatch.setattr(sys, "argv", ["calibrant", *map(str, arguments)])
        monkeypatch.setenv("COLUMNS", str(columns))
        with pytest.raises(SystemExit) as stopped:
            main()
        captured = capsys.readouterr()
        return stopped.value.code or 0, captured.out, captured.err

    return call
