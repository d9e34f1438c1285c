"""The command ``calibrant methods``."""

import json
from typing import Annotated

import typer
from rich.console import Console

from calibrant.cli.options import AsJson


def methods(
    as_json: AsJson = False,
    pairs: Annotated[
        bool, typer.Option("--pairs", help="Only those that repair the stated confidence of a black box.")
    ] = False,
) -> None:
    """List the post-hoc methods, from simple to complex, with what each does.

    Example: calibrant methods
    """
    from calibrant.cli.terminal import tables
    from calibrant.posthoc.names import METHODS, resolve_for_pairs

    listed = resolve_for_pairs("all", signals=True) if pairs else METHODS

    explained: dict[str, dict[str, str | bool]] = {
        name: {
            "meaning": method.meaning,
            "paper": method.paper,
            "preserves_accuracy": method.preserves_accuracy,
            "needs_features": method.calibrator.needs_features,
        }
        for name, method in METHODS.items()
        if name in listed
    }
    if as_json:
        typer.echo(json.dumps(explained))
    else:
        Console().print(tables.explanations(explained))
