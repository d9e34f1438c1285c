"""The command ``calibrant methods``."""

import inspect
import json
from typing import Annotated

import typer
from rich.console import Console

from calibrant.cli.terminal import tables
from calibrant.posthoc.names import METHODS, Method


def methods(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """List the post-hoc methods, from simple to complex, and say what each does.

    Example: calibrant methods
    """
    if as_json:
        typer.echo(json.dumps({name: _explain(method) for name, method in METHODS.items()}))
        return
    Console().print(tables.explanations({name: _explain(method) for name, method in METHODS.items()}))


def _explain(method: Method) -> dict[str, str | bool]:
    meaning = (inspect.getdoc(method.calibrator) or "").partition("\n")[0]
    return {
        "meaning": meaning,
        "paper": method.paper,
        "preserves_accuracy": method.preserves_accuracy,
        "needs_features": method.calibrator.needs_features,
    }
