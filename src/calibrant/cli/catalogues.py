"""The commands ``calibrant measures``, ``methods`` and ``losses``: lists, and one entry explained."""

import json
import re
import shlex
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.columns import Columns
from rich.markup import escape

from calibrant.cli.options import AsJson
from calibrant.cli.printing import described
from calibrant.docstrings import Option, call
from calibrant.errors import InputError, did_you_mean
from calibrant.show.table import Column, Table
from calibrant.show.terminal import Console

if TYPE_CHECKING:
    from calibrant.losses.names import TrainingLoss
    from calibrant.metrics.measure import Measure
    from calibrant.posthoc.names import Method


_OPTION = ("option", "default", "meaning")


@dataclass(frozen=True)
class Explanation:
    """A method, a measure or a loss, explained.

    Attributes:
        name: What one types.
        meaning: What it does, in one sentence.
        facts: Short facts by their heading; empty ones are not shown.
        text: Formula and description.
        options: Its options.
        commands: Command lines that use it.
        python: Lines of Python that use it.
        references: Papers.
    """

    name: str
    meaning: str
    facts: Mapping[str, str]
    text: str
    options: Sequence[Option]
    commands: Sequence[str]
    python: Sequence[str]
    references: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "explanation": self.text,
            "options": [asdict(option) for option in self.options],
            "references": self.references,
            "commands": list(self.commands),
            "python": list(self.python),
        }

    def show(self, summary: Mapping[str, Any], *, as_json: bool) -> None:
        """Print the explanation for people, or with the summary of the list as one JSON object."""
        if as_json:
            typer.echo(json.dumps({self.name: {**summary, **self.to_dict()}}))
        else:
            self._print(Console())

    def _print(self, console: Console) -> None:
        """Print the explanation, with paragraphs as wide as the terminal."""
        lines = [*_wrapped(f"{self.name}: {self.meaning}", console.width), ""]
        width = max((len(heading) for heading in self.facts), default=0)
        for heading, fact in self.facts.items():
            if fact:
                lines += _wrapped(fact, console.width, first=f"{heading:<{width}}  ")
        lines += ["", *_paragraphs(self.text, console.width)] if self.text else []
        console.print("\n".join(lines), markup=False, highlight=False, soft_wrap=True)
        if self.options:
            rows = [(each.name, each.default or "must be given", each.meaning) for each in self.options]
            columns = [Column(name, align="left", wraps=name == "meaning") for name in _OPTION]
            console.print()
            console.show(Table.of(columns, rows))
        rest = ["", "On the command line:", *_indented(self.commands)]
        rest += ["", "In Python:", *_indented(self.python)]
        rest += ["", "References:", *_paragraphs(self.references, console.width)] if self.references else []
        console.print("\n".join(rest), markup=False, highlight=False, soft_wrap=True)


def check_name(name: str, what: str, known: Iterable[str], command: str) -> str:
    """Return the name, or refuse one that does not exist with the nearest that does."""
    if name in known:
        return name
    hint = did_you_mean(name, known) or f"; calibrant {command} lists them"
    raise InputError(f"{what}: expected the name of a {what}, got {name!r}{hint}")


def _paragraphs(text: str, width: int) -> list[str]:
    """Wrap paragraphs; formulas and lists, which are indented, stay as they are."""
    lines: list[str] = []
    for paragraph in text.split("\n\n"):
        kept = paragraph.startswith((" ", "- "))
        lines += [
            *(_indented(paragraph.splitlines()) if kept else _wrapped(paragraph, width, first="  ")),
            "",
        ]
    return lines[:-1]


def _wrapped(text: str, width: int, *, first: str = "") -> list[str]:
    """Wrap a text; words that one types are never broken."""
    return textwrap.wrap(
        text,
        width,
        initial_indent=first,
        subsequent_indent=" " * len(first),
        break_long_words=False,
        break_on_hyphens=False,
    )


def _indented(lines: Iterable[str]) -> list[str]:
    return [f"  {line}" for line in lines]


def _catalogue(first: str, last: str, rows: Sequence[Sequence[object]]) -> Table:
    """Lay out the entries of a catalogue with their marks; names are never cut."""
    columns = [Column(first, align="left"), Column("", align="left"), Column(last, align="left", wraps=True)]
    return Table.of(columns, rows)


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
    from calibrant.evaluation.tables import title_of
    from calibrant.metrics.names import MEASURES

    if name is not None:
        measure = MEASURES[check_name(name, "measure", MEASURES, "measures")]
        _explanation_of_measure(name, measure).show(_summary_of_measure(measure), as_json=as_json)
        return
    if as_json:
        typer.echo(json.dumps({each: _summary_of_measure(measure) for each, measure in MEASURES.items()}))
        return
    console = Console()
    rows = [
        (each, ("*" if measure.core else " ") + (" " if measure.of_pairs else "p"), title_of(measure))
        for each, measure in MEASURES.items()
    ]
    console.show(_catalogue("measure", "title", rows))
    console.print()
    console.say(
        "* shown by default, p needs probabilities of all classes; ↓ lower and ↑ higher is better.",
        "calibrant measures NAME explains one; evaluate --measures NAMES computes them.",
        style="dim",
    )


def _summary_of_measure(measure: "Measure") -> dict[str, Any]:
    return {
        "title": measure.title,
        "meaning": measure.meaning,
        "reads": measure.reads,
        "of_pairs": measure.of_pairs,
        "better": measure.better,
        "core": measure.core,
    }


def _explanation_of_measure(name: str, measure: "Measure") -> Explanation:
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
    from calibrant.posthoc.names import METHODS, automatic_methods, resolve_for_pairs

    if name is not None:
        method = METHODS[check_name(name, "method", METHODS, "methods")]
        _explanation_of_method(name, method).show(_summary_of_method(method), as_json=as_json)
        return
    listed = resolve_for_pairs("all", signals=True) if pairs else list(METHODS)
    if as_json:
        typer.echo(json.dumps({each: _summary_of_method(METHODS[each]) for each in listed}))
        return
    console = Console()
    shown = listed if pairs or every else automatic_methods()
    if len(shown) < len(listed):
        console.print("Compared by default, some only for few or for many classes:\n", highlight=False)
    rows = [(each, *_row_of_method(each, METHODS[each], papers=every)) for each in shown]
    console.show(_catalogue("method", "what it does", rows))
    others = [each for each in listed if each not in shown]
    if others:
        console.print("\nFurther methods:", highlight=False)
        named = [escape(each) for each in others]
        console.print(Columns(named, padding=(0, 2), column_first=True), highlight=False)
    more = "" if every else "; --all describes all of them"
    console.print()
    console.say(
        "= never changes the predicted class, f needs features.",
        f"calibrant methods NAME explains one{more}.",
        style="dim",
    )


def _row_of_method(name: str, method: "Method", *, papers: bool) -> tuple[str, str]:
    """Return the marks of a method and what it does; a variant names the method it is made from."""
    from calibrant.posthoc.names import variant_of

    base = variant_of(name)
    meaning = method.meaning if base is None else call(base, (), method.options)
    text = re.sub(r"; the predicted class (never changes|may change)\.$", ".", meaning)
    marks = ("=" if method.preserves_accuracy else " ") + ("f" if method.calibrator.needs_features else " ")
    return marks, f"{text}\n{method.paper}" if papers else text


def _summary_of_method(method: "Method") -> dict[str, Any]:
    return {
        "meaning": method.meaning,
        "paper": method.paper,
        "preserves_accuracy": method.preserves_accuracy,
        "needs_features": method.calibrator.needs_features,
    }


def _explanation_of_method(name: str, method: "Method") -> Explanation:
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


def losses(
    name: Annotated[str | None, typer.Argument(help="Explain this loss: formula and options.")] = None,
    as_json: AsJson = False,
) -> None:
    """List the training losses, or explain one of them and how it is used.

    Example: calibrant losses adafocal
    """
    from calibrant.losses.names import LOSSES

    if name is not None:
        loss = LOSSES[check_name(name, "loss", LOSSES, "losses")]
        _explanation_of_loss(name, loss).show(_summary_of_loss(loss), as_json=as_json)
        return
    if as_json:
        typer.echo(json.dumps({each: _summary_of_loss(loss) for each, loss in LOSSES.items()}))
        return
    console = Console()
    console.show(described({each: loss.meaning for each, loss in LOSSES.items()}, "loss"))
    console.print()
    console.say("calibrant losses NAME explains one, with its recipe.", style="dim")


def _summary_of_loss(loss: "TrainingLoss") -> dict[str, str]:
    return {
        "meaning": loss.meaning,
        "recipe": loss.recipe,
        "paper": loss.paper,
        "module": f"calibrant.losses.{loss.module.__name__}",
        "reads": loss.reads,
        "needs": ", ".join((*loss.sizes, *loss.module.needs)),
    }


def _explanation_of_loss(name: str, loss: "TrainingLoss") -> Explanation:
    summary, encodes = _summary_of_loss(loss), loss.reads == "embeddings"
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
