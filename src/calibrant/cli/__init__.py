"""The command line: one function per command, tables for people, JSON for programs."""

import sys

import typer

from calibrant._version import __version__
from calibrant.cli.apply import apply
from calibrant.cli.bench import bench
from calibrant.cli.calibrate import calibrate
from calibrant.cli.demo import demo
from calibrant.cli.evaluate import evaluate
from calibrant.cli.export import export
from calibrant.cli.losses import losses
from calibrant.cli.methods import methods
from calibrant.cli.monitor import monitor
from calibrant.cli.plot import plot
from calibrant.cli.report import report
from calibrant.cli.train import train
from calibrant.errors import CalibrantError

app = typer.Typer(
    name="calibrant",
    help="Honest confidence for classifiers: measure it, repair it, train for it.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"calibrant {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: bool = typer.Option(
        False, "--version", help="Print the version and stop.", callback=_print_version, is_eager=True
    ),
) -> None:
    """Honest confidence for classifiers: measure it, repair it, train for it."""


for command in (demo, evaluate, calibrate, apply, methods, losses, train, report, plot, export, monitor):
    app.command()(command)
app.add_typer(bench, name="bench")


def main() -> None:
    """Run a command; Calibrant's own errors become one line on stderr and exit code 2."""
    try:
        app()
    except CalibrantError as error:
        typer.echo(f"calibrant: {' '.join(str(error).split())}", err=True)
        sys.exit(2)
