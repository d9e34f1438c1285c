"""The command line: one function per command, tables for people, JSON for programs."""

import atexit
import gc
import io
import os
import sys
import threading
import warnings
from collections.abc import Sequence
from importlib import import_module
from inspect import cleandoc
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

import typer
from typer.core import TyperCommand, TyperGroup

from calibrant._version import __version__
from calibrant.cli.flags import flag_of, with_flags
from calibrant.cli.printing import say
from calibrant.errors import CalibrantError, InputError
from calibrant.outputs import check_place
from calibrant.text import shortened, visible

# The commands in the order of the help, and the modules that define them.
_COMMANDS = {
    **{name: name for name in ("demo", "evaluate", "gate", "calibrate", "apply", "estimate")},
    **dict.fromkeys(("methods", "measures", "losses"), "catalogues"),
    **{name: name for name in ("train", "predict", "report", "plot", "export", "decide", "cascade", "sets")},
    **{name: name for name in ("monitor", "bench")},
}
# Options that name what is written: a path or an address, which is tried before anything is read.
_WRITTEN = frozenset({"out", "state", "prometheus", "junit", "figure"})
# Commands whose folder cannot be at an address.
_LOCAL = ("train",)
# Characters of an error message; a name of ten thousand is cut in the middle.
_LONGEST_MESSAGE = 2000


class _Group(TyperGroup):
    """The commands, and options of ``calibrant`` itself."""

    def __init__(self, **options: Any) -> None:  # noqa: ANN401  # options of Typer
        super().__init__(**options)
        # Typer keeps the lines of a docstring, which the terminal would break once more.
        for each in self.commands.values():
            each.help = "\n\n".join(
                " ".join(part.split()) for part in cleandoc(each.help or "").split("\n\n")
            )

    def get_params(self, ctx: Any) -> list[Any]:  # noqa: ANN401  # its type depends on the version of Typer
        """Return the options; flags that are not given are False.

        Otherwise Typer imports Pydantic to convert their missing value, a third of the time of --help.
        """
        params = super().get_params(ctx)
        for each in params:
            if each.default is None and getattr(each, "is_flag", False):
                each.default = False
        return params


class _Command(TyperCommand):
    """A command that refuses an option given twice, unless it may be repeated, and places it cannot write."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401  # a context of Typer
        """Parse the arguments; otherwise the first of two values would be dropped in silence."""
        given = self.make_parser(ctx).parse_args(args=list(args))[2] if not ctx.resilient_parsing else []
        for option in (each for each in given if given.count(each) > 1):
            if not (
                getattr(option, "multiple", False) or option.nargs == -1 or getattr(option, "is_flag", 0)
            ):
                raise InputError(f"{option.opts[0]}: expected once, got it twice; leave one out")
        rest = super().parse_args(ctx, args)
        if not ctx.resilient_parsing and self.name not in _LOCAL:
            for name in _WRITTEN.intersection(ctx.params):
                if (place := ctx.params[name]) is not None:
                    ctx.params[name] = check_place(place, name=flag_of(name))
        return rest


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"calibrant {__version__}")
        raise typer.Exit


def _options(
    version: bool = typer.Option(
        False, "--version", help="Print the version and stop.", callback=_print_version, is_eager=True
    ),
) -> None:
    """Honest confidence for classifiers: measure it, repair it, train for it."""


def app_of(*names: str) -> typer.Typer:
    """Return the command line with these commands; the others are not imported."""
    made = typer.Typer(
        name="calibrant",
        cls=_Group,
        help="Honest confidence for classifiers: measure it, repair it, train for it.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    made.callback()(_options)
    for name in names:
        command = getattr(import_module(f"{__name__}.{_COMMANDS[name]}"), name)
        if isinstance(command, typer.Typer):
            made.add_typer(command, name=name, cls=_Group)
        else:
            made.command(cls=_Command)(command)
    return made


#: The command line with every command, made when it is first asked for.
app: typer.Typer

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name != "app":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()["app"] = app_of(*_COMMANDS)
        return globals()["app"]


def _app_for(arguments: Sequence[str]) -> typer.Typer:
    """Return a command line that knows the command of these arguments, and every command if none is first."""
    return app_of(*(arguments[:1] if {*arguments[:1]} & {*_COMMANDS} else _COMMANDS))


def main() -> None:
    """Run a command; Calibrant's own errors become one line on stderr and exit code 2."""
    warnings.showwarning = _show_warning
    _collect_less()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # Letters that the encoding of the terminal lacks are shown as escapes.
            stream.reconfigure(errors="backslashreplace")
    try:
        _refuse_empty(sys.argv[1:])
        _app_for(sys.argv[1:])()
    except CalibrantError as error:
        _refuse(with_flags(str(error), _options_of(sys.argv[1:])))
    except MemoryError as error:
        _refuse(
            f"expected more memory, got too little ({error or 'no details'}); a folder of Parquet files is "
            "read as a stream, which takes little"
        )
    except OSError as error:
        if error.filename is None:
            raise
        _refuse(
            f"{error.filename}: expected a file or folder that can be used, got an error: {error.strerror}"
        )
    finally:
        _leave_abandoned_work()


def _collect_less() -> None:
    """Look for reference cycles less often, and at the end not in what ends with the process anyway.

    Most of a short command is importing, which makes many objects and no garbage.
    """
    gc.set_threshold(10_000)
    atexit.unregister(gc.freeze)  # from an earlier call
    atexit.register(gc.freeze)


def _options_of(arguments: Sequence[str]) -> set[str]:
    """Return the options of the command that the arguments name."""
    known: Any = typer.main.get_command(_app_for(arguments))
    for word in arguments:
        if (found := getattr(known, "commands", {}).get(word)) is None:
            break
        known = found
    return {name for each in known.params for name in each.opts}


def _refuse(message: str) -> NoReturn:
    """Print what is wrong as one line, and end with code 2."""
    say(f"calibrant: {shortened(visible(' '.join(message.split())), _LONGEST_MESSAGE)}", err=True)
    sys.exit(2)


def _refuse_empty(arguments: Sequence[str]) -> None:
    """Refuse empty arguments, usually unset variables of a script: an empty path is the current folder."""
    if "" in arguments:
        before = arguments[arguments.index("") - 1] if arguments[0] else "the command"
        raise InputError(
            f"expected a name or a value after {before}, got an empty text; write . for the current folder"
        )


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Show our own warnings as one line, and others as Python does."""
    if Path(__file__).parent.parent in Path(filename).parents:
        say(f"calibrant: note: {message}", err=True)
    else:
        _PYTHON_SHOWS(message, category, filename, lineno, file, line)


_PYTHON_SHOWS = warnings.showwarning


def _leave_abandoned_work() -> None:
    """End the process if threads still compute what nobody waits for, after Ctrl-C or an error.

    The interpreter would wait for them. A command that imported no threads has none to leave.
    """
    threads, error = sys.modules.get("calibrant.threads"), sys.exc_info()[1]
    if threads is None or not isinstance(error, SystemExit) or not threads.work_was_abandoned():
        return
    if any(thread.name.startswith("calibrant") for thread in threading.enumerate()):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(error.code if isinstance(error.code, int) else 1)
