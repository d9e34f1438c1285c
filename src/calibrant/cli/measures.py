"""The command ``calibrant measures``."""

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from calibrant.cli.options import AsJson
from calibrant.cli.terminal.text import Console

if TYPE_CHECKING:
    from calibrant.cli.terminal.explanation import Explanation
    from calibrant.metrics.measure import Measure

_READS = {
    "outcomes": "confidence in the predicted class, and whether it was right",
    "probs": "probabilities of all classes",
    "logits": "logits, or probabilities of all classes",
}
_BETTER = {"lower": "lower is better", "higher": "higher is better", "neither": "neither direction is better"}


def measures(
    name: Annotated[
        str | None, typer.Argument(help="Explain this measure: formula, options and how to call it.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the measures, or explain one of them.

    Example: calibrant measures ece
    """
    from calibrant.cli.terminal import tables
    from calibrant.cli.terminal.explanation import check_name
    from calibrant.metrics.names import MEASURES

    if name is not None:
        measure = MEASURES[check_name(name, "measure", MEASURES, "measures")]
        _explanation(name, measure).show(_summary(measure), as_json=as_json)
        return
    if as_json:
        typer.echo(json.dumps({each: _summary(measure) for each, measure in MEASURES.items()}))
        return
    console = Console()
    console.print(tables.described_measures(MEASURES))
    console.print(
        "\n[dim]* shown by default, p needs probabilities of all classes; ↓ lower and ↑ higher is better.\n"
        "calibrant measures NAME explains one; evaluate --measures NAMES computes them.[/dim]",
        highlight=False,
    )


def _summary(measure: "Measure") -> dict[str, Any]:
    return {
        "title": measure.title,
        "meaning": measure.meaning,
        "reads": measure.reads,
        "of_pairs": measure.of_pairs,
        "better": measure.better,
        "core": measure.core,
    }


def _explanation(name: str, measure: "Measure") -> "Explanation":
    from calibrant.cli.terminal.explanation import Explanation

    own = _READS[measure.reads]
    quadratic = measure.max_samples
    return Explanation(
        name,
        measure.meaning,
        {
            "title": measure.title,
            "column": measure.short,
            "reads": f"{own}; or confidence with correct" if measure.reads_pairs else own,
            "better": _BETTER[measure.better],
            "cost": "" if quadratic is None else f"quadratic: above {quadratic:,} samples only if named",
        },
        measure.explanation,
        measure.option_details,
        [f"calibrant evaluate test.npz --measures {name}"],
        [
            f"from calibrant.metrics import {measure.function.__name__}",
            measure.python,
            f'calibrant.evaluate(predictions, measures="{name}").metrics["{name}"]',
        ],
        measure.references,
    )
