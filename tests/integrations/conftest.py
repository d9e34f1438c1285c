"""The command line, for tests of what it logs."""

from tests.cli.conftest import run_once

__all__ = ["run_once"]
