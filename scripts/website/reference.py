"""The pages of the reference that are made from the source: names, commands, configuration keys."""

import os
import re
from collections.abc import Iterator
from typing import Any, Protocol

import griffe
import typer
from scripts.website.names import PACKAGES, PublicName, homes, lookup, public_names
from scripts.website.outputs import COLUMNS, kept
from typer.core import TyperGroup
from typer.testing import CliRunner

from calibrant.cli import app


class Command(Protocol):
    """A command of Typer, as far as its page needs it."""

    @property
    def help(self) -> str | None:
        """The docstring of the command."""


_SETTINGS = "calibrant.training.config.settings"
_BOX = re.compile(r"^ ", re.MULTILINE)


def pages() -> Iterator[tuple[str, str]]:
    """Yield the address below docs/ and the Markdown of each page."""
    for package in PACKAGES:
        yield api_address(package), api_page(package)
    yield "reference/api/index.md", api_index()
    for name, command in commands().items():
        yield f"reference/commands/{name}.md", command_page(name, command)
    yield "reference/commands/index.md", command_index()
    yield "reference/configuration.md", configuration_page()


def api_address(package: str) -> str:
    """Return the address of the page of one package."""
    return f"reference/api/{package}.md"


def api_index() -> str:
    """Return the list of packages with what each is for."""
    rows = [
        f"| [`{package}`]({package}.md) | {len(public_names(package))} | {_first_line(lookup(package))} |"
        for package in PACKAGES
    ]
    total = sum(len(public_names(package)) for package in PACKAGES)
    return "\n".join(
        [
            "# Python names",
            "",
            f"Which function or class do I need? All {total} public names, each on the page of the package "
            "that you import it from. Names that are not here may change without notice.",
            "",
            "| package | names | what it is for |",
            "|---|---|---|",
            *rows,
            "",
        ]
    )


def api_page(package: str) -> str:
    """Return the page of one package: its docstring, a table of its names, and each name in full."""
    names = public_names(package)
    docstring = lookup(package).docstring
    rows = [f"| [`{each.name}`][{each.path}] | {_in_a_cell(each.summary)} |" for each in names]
    return "\n".join(
        [
            f"# {package}",
            "",
            docstring.value if docstring else "",
            "",
            "| name | what it is or does |",
            "|---|---|",
            *rows,
            "",
            *map(_described, names),
        ]
    )


def _described(name: PublicName) -> str:
    """Return the part of the page about one name; in full where it belongs, and elsewhere with a link."""
    home = homes()[name.defined]
    if home != name.path:
        shown = f"## `{name.name}` {{#{name.path}}}"
        return f"{shown}\n\n{name.summary}\n\nThe same as [`{home}`][{home}].\n"
    if lookup(name.package)[name.name].is_module:
        return f"[](){{#{name.path}}}\n\n::: {name.defined}\n"
    return f"::: {name.path}\n"


def commands() -> dict[str, Command]:
    """Return the commands by name, in the order of ``calibrant --help``."""
    group = typer.main.get_command(app)
    assert isinstance(group, TyperGroup)
    return {name: command for name, command in group.commands.items() if not command.hidden}


def command_index() -> str:
    """Return the list of commands with what each is for, and ``calibrant --help``."""
    rows = [
        f"| [`calibrant {name}`]({name}.md) | {(command.help or '').strip().splitlines()[0]} |"
        for name, command in commands().items()
    ]
    return "\n".join(
        [
            "# Commands",
            "",
            "Which command do I need?",
            "",
            "| command | what it does |",
            "|---|---|",
            *rows,
            "",
        ]
    )


def command_page(name: str, command: Command) -> str:
    """Return the page of one command: a real session, then what ``--help`` prints."""
    first = (command.help or "").strip().splitlines()[0]
    shown = kept(name)
    parts = [f"# calibrant {name}", "", first, ""]
    if shown:
        parts += [
            "## What it prints",
            "",
            "With the [bundled predictions](../../bundled.md) of a CIFAR-10 network as `val.npz`, `test.npz` "
            "and `noisy.npz`:",
            "",
            _block(shown),
        ]
    parts += ["## Options", "", _block(help_text(name))]
    for sub in getattr(command, "commands", {}):
        parts += [f"## calibrant {name} {sub}", "", _block(help_text(name, sub))]
    return "\n".join(parts)


def help_text(*words: str) -> str:
    """Return what a command prints with ``--help`` in a terminal of 100 columns."""
    env = {**os.environ, "COLUMNS": COLUMNS, "TERMINAL_WIDTH": COLUMNS, "NO_COLOR": "1"}
    result = CliRunner().invoke(app, [*words, "--help"], env=env, prog_name="calibrant")
    lines = [line.rstrip() for line in result.output.strip("\n").splitlines()]
    return _BOX.sub("", "\n".join([f"$ calibrant {' '.join(words)} --help", *lines]))


def configuration_page() -> str:
    """Return the page of all configuration keys, from the settings classes."""
    return "\n".join(
        [
            "# Configuration keys",
            "",
            "Which keys may a training configuration have? A TOML file that "
            "[`calibrant train`](commands/train.md) reads has the tables below; "
            "`--set training.epochs=5` changes one key. [Training](../training.md) explains them, and "
            "[the papers' settings](../configs/README.md) are examples.",
            "",
            "```sh",
            "calibrant train --set training.epochs=10 --set data.limit=300 --out runs/digits",
            "```",
            "",
            *_table_of("Config", ""),
        ]
    )


def _table_of(name: str, prefix: str) -> list[str]:
    """Return the keys of one settings class as a table, then the classes of its keys."""
    settings = lookup(f"{_SETTINGS}.{name}")
    meanings = _meanings(settings)
    rows, inner = [], []
    for key, attribute in _fields(settings).items():
        annotation = str(attribute.annotation)
        if found := re.search(r"\w+Settings", annotation):
            inner += _table_of(found[0], f"{prefix}.{key}".lstrip("."))
        else:
            rows.append(
                f"| `{key}` | `{_cell(annotation)}` | {_default(attribute)} | {meanings.get(key, '')} |"
            )
    title = f"## `[{prefix}]`" if prefix else "## Top level"
    described = [] if not prefix else [_first_line(settings), ""]
    heading = ["| key | type | default | meaning |", "|---|---|---|---|"] if rows else []
    return [title, "", *described, *heading, *rows, "", *inner]


def _fields(settings: griffe.Object | griffe.Alias) -> dict[str, griffe.Attribute]:
    """Return the fields of a dataclass, those of its bases first."""
    found: dict[str, griffe.Attribute] = {}
    for base in settings.bases if isinstance(settings, griffe.Class) else []:
        found |= _fields(lookup(f"{_SETTINGS}.{base}"))
    return found | {
        name: each
        for name, each in settings.members.items()
        if isinstance(each, griffe.Attribute) and each.annotation is not None and not name.startswith("_")
    }


def _meanings(settings: griffe.Object | griffe.Alias) -> dict[str, str]:
    """Return the meaning of each key, from the section Attributes of the class and of its bases."""
    found: dict[str, str] = {}
    for base in settings.bases if isinstance(settings, griffe.Class) else []:
        found |= _meanings(lookup(f"{_SETTINGS}.{base}"))
    assert settings.docstring is not None
    for section in settings.docstring.parse("google", warnings=False):
        if isinstance(section, griffe.DocstringSectionAttributes):
            found |= {each.name: _in_a_cell(each.description) for each in section.value}
    return found


def _default(attribute: griffe.Attribute) -> str:
    value = str(attribute.value)
    return "" if value.startswith("field(") else f"`{_cell(value)}`"


def _cell(text: str) -> str:
    return text.replace("\n", " ")


def _in_a_cell(text: str) -> str:
    """Return Markdown in one line whose bars end no cell."""
    return " ".join(text.split()).replace("|", "&#124;")


def _first_line(documented: griffe.Object | griffe.Alias) -> str:
    return documented.docstring.value.partition("\n")[0] if documented.docstring else ""


def _block(text: str) -> str:
    return f"```text\n{text.rstrip()}\n```\n"


def undocumented() -> list[str]:
    """Return what the reference lacks: names without a docstring, commands without a real output."""
    names = [each.path for package in PACKAGES for each in public_names(package) if not each.docstring]
    silent = [f"calibrant {name}" for name in commands() if not kept(name)]
    keyless = [f"configuration key {key}" for key in _keys_without_meaning("Config")]
    return names + silent + keyless


def _keys_without_meaning(name: str) -> Iterator[str]:
    settings = lookup(f"{_SETTINGS}.{name}")
    meanings: dict[str, Any] = _meanings(settings)
    for key, attribute in _fields(settings).items():
        if found := re.search(r"\w+Settings", str(attribute.annotation)):
            yield from _keys_without_meaning(found[0])
        elif not meanings.get(key):
            yield f"{name}.{key}"
