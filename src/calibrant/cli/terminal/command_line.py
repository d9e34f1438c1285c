"""The line that was typed, for reports to tell how they were made."""

import shlex
import sys


def command_line() -> str:
    """Return the command with its arguments, as a shell would take it again."""
    return shlex.join(["calibrant", *sys.argv[1:]])
