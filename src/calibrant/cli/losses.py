"""The command ``calibrant losses``."""

import json
from typing import TYPE_CHECKING, Annotated

import typer

from calibrant.cli.options import AsJson
from calibrant.cli.terminal.text import Console

if TYPE_CHECKING:
    from calibrant.cli.terminal.explanation import Explanation
    from calibrant.losses.names import TrainingLoss


def losses(
    name: Annotated[str | None, typer.Argument(help="Explain this loss: formula and options.")] = None,
    as_json: AsJson = False,
) -> None:
    """List the training losses, or explain one of them and how it is used.

    Example: calibrant losses adafocal
    """
    from calibrant.cli.terminal import tables
    from calibrant.cli.terminal.explanation import check_name
    from calibrant.losses.names import LOSSES

    if name is not None:
        loss = LOSSES[check_name(name, "loss", LOSSES, "losses")]
        _explanation(name, loss).show(_summary(loss), as_json=as_json)
        return
    if as_json:
        typer.echo(json.dumps({each: _summary(loss) for each, loss in LOSSES.items()}))
        return
    console = Console()
    console.print(tables.described({each: loss.meaning for each, loss in LOSSES.items()}, "loss"))
    console.print("\n[dim]calibrant losses NAME explains one, with its recipe.[/dim]", highlight=False)


def _summary(loss: "TrainingLoss") -> dict[str, str]:
    return {
        "meaning": loss.meaning,
        "recipe": loss.recipe,
        "paper": loss.paper,
        "module": f"calibrant.losses.{loss.module.__name__}",
        "reads": loss.reads,
        "needs": ", ".join((*loss.sizes, *loss.module.needs)),
    }


def _explanation(name: str, loss: "TrainingLoss") -> "Explanation":
    from calibrant.cli.terminal.explanation import Explanation
    from calibrant.docstrings import call

    summary, encodes = _summary(loss), loss.reads == "embeddings"
    sizes = [f"{size}={size}" for size in loss.sizes]
    extra = "".join(f", {each}={each}" for each in loss.module.needs)
    return Explanation(
        name,
        loss.meaning,
        {heading: summary[heading] for heading in ("recipe", "module", "paper", "needs")},
        loss.explanation,
        loss.options,
        [f"calibrant train --set {'encoder' if encodes else 'training'}.loss={name}"],
        [
            "from calibrant.losses.names import make_loss",
            f"criterion = {call('make_loss', [repr(name), *sizes], {})}",
            f"loss = criterion({loss.reads}, labels{extra})",
        ],
    )
