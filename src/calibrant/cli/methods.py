"""The command ``calibrant methods``."""

import json
import shlex
from typing import TYPE_CHECKING, Annotated, Any

import typer

from calibrant.cli.options import AsJson
from calibrant.cli.terminal.text import Console

if TYPE_CHECKING:
    from calibrant.cli.terminal.explanation import Explanation
    from calibrant.posthoc.names import Method


def methods(
    name: Annotated[
        str | None, typer.Argument(help="Explain this method: idea, formula, options and how to call it.")
    ] = None,
    as_json: AsJson = False,
    pairs: Annotated[
        bool, typer.Option("--pairs", help="List only methods for the stated confidence of a black box.")
    ] = False,
    every: Annotated[bool, typer.Option("--all", help="Describe every method, with its paper.")] = False,
) -> None:
    """List the post-hoc methods, from simple to complex, or explain one of them.

    Example: calibrant methods smart
    """
    from calibrant.cli.terminal import tables
    from calibrant.cli.terminal.explanation import check_name
    from calibrant.posthoc.names import METHODS, automatic_methods, resolve_for_pairs

    if name is not None:
        method = METHODS[check_name(name, "method", METHODS, "methods")]
        _explanation(name, method).show(_summary(method), as_json=as_json)
        return
    listed = resolve_for_pairs("all", signals=True) if pairs else list(METHODS)
    if as_json:
        typer.echo(json.dumps({each: _summary(METHODS[each]) for each in listed}))
        return
    console = Console()
    described = listed if pairs or every else automatic_methods()
    if len(described) < len(listed):
        console.print("Compared by default, some only for few or for many classes:\n", highlight=False)
    console.print(tables.described_methods({each: METHODS[each] for each in described}, papers=every))
    others = [each for each in listed if each not in described]
    if others:
        console.print("\nFurther methods:", highlight=False)
        console.print(tables.in_columns(others), highlight=False)
    more = "" if every else "; --all describes all of them"
    console.print(
        "\n[dim]= never changes the predicted class, f needs features.\n"
        f"calibrant methods NAME explains one{more}.[/dim]",
        highlight=False,
    )


def _summary(method: "Method") -> dict[str, Any]:
    return {
        "meaning": method.meaning,
        "paper": method.paper,
        "preserves_accuracy": method.preserves_accuracy,
        "needs_features": method.calibrator.needs_features,
    }


def _explanation(name: str, method: "Method") -> "Explanation":
    from calibrant.cli.terminal.explanation import Explanation
    from calibrant.docstrings import call
    from calibrant.posthoc.names import variant_of

    base = variant_of(name)
    settled = [each for each in method.option_details if each.default not in (None, "None")]
    example = [f"{name}({each.name}={each.default})".replace("'", '"') for each in settled[:1]]
    predicted = "never changes" if method.preserves_accuracy else "may change"
    features = ", features" if method.calibrator.needs_features else ""
    return Explanation(
        name,
        method.meaning,
        {
            "variant": "" if base is None else call(base, (), method.options),
            "class": f"calibrant.posthoc.{method.calibrator.__name__}",
            "paper": method.paper,
            "classes": f"the predicted class {predicted}",
            "needs": "features" if features else "",
        },
        method.explanation,
        method.option_details,
        [f"calibrant calibrate val.npz --methods {shlex.quote(each)}" for each in (name, *example)],
        [
            f"from calibrant.posthoc import {method.calibrator.__name__}",
            f"calibrator = {method.python}",
            f"probs = calibrator.predict_proba(logits{features})",
        ],
    )
