"""The command ``calibrant losses``."""

import json
import textwrap
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from calibrant.errors import InputError, did_you_mean

if TYPE_CHECKING:
    from calibrant.losses.names import TrainingLoss


def losses(
    name: Annotated[str | None, typer.Argument(help="Explain this loss: formula and options.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """List the training losses and how each is used, or explain one of them.

    Example: calibrant losses adafocal
    """
    from calibrant.cli.terminal import tables
    from calibrant.losses.names import LOSSES

    summaries = {each: _summary(loss) for each, loss in LOSSES.items()}
    if name is None:
        typer.echo(json.dumps(summaries)) if as_json else Console().print(tables.losses(summaries))
        return
    if name not in LOSSES:
        hint = did_you_mean(name, LOSSES) or "; calibrant losses lists them"
        raise InputError(f"loss: expected the name of a loss, got {name!r}{hint}")
    loss = LOSSES[name]
    if as_json:
        more = {"explanation": loss.explanation, "options": [asdict(option) for option in loss.options]}
        typer.echo(json.dumps({name: summaries[name] | more}))
        return
    _print(name, summaries[name], loss)


def _summary(loss: "TrainingLoss") -> dict[str, str]:
    return {
        "meaning": loss.meaning,
        "recipe": loss.recipe,
        "paper": loss.paper,
        "module": f"calibrant.losses.{loss.module.__name__}",
        "reads": loss.reads,
        "needs": ", ".join((*loss.sizes, *loss.module.needs)),
    }


def _print(name: str, summary: dict[str, str], loss: "TrainingLoss") -> None:
    from calibrant.cli.terminal import tables

    console = Console()
    lines = [f"{name}: {summary['meaning']}", ""]
    lines += [
        f"{heading:<8} {summary[heading]}"
        for heading in ("recipe", "module", "paper", "needs")
        if summary[heading]
    ]
    lines += ["", textwrap.indent(loss.explanation, "  "), ""]
    console.print("\n".join(lines), markup=False, highlight=False, soft_wrap=True)
    console.print(tables.options([(o.name, o.default or "must be given", o.meaning) for o in loss.options]))
