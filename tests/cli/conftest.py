"""Run the command line in-process, as a user's shell would see it."""

import sys

import pytest

from calibrant.cli import main


@pytest.fixture
def run(monkeypatch, capsys):
    """Call ``calibrant`` with arguments; return exit code, standard output, standard error."""

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["calibrant", *map(str, arguments)])
        monkeypatch.setenv("COLUMNS", "120")
        with pytest.raises(SystemExit) as stopped:
            main()
        captured = capsys.readouterr()
        return stopped.value.code or 0, captured.out, captured.err

    return call
