"""How one entry of a catalogue is explained: what it is, its formula, its options, and how it is called."""

import json
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import typer

from calibrant.cli.terminal import tables
from calibrant.cli.terminal.text import Console
from calibrant.docstrings import Option
from calibrant.errors import InputError, did_you_mean


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
            console.print()
            console.print(tables.options(rows))
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
