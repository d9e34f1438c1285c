"""The command ``calibrant losses``."""

import difflib
import inspect
import json
import re
import textwrap
from dataclasses import asdict, dataclass
from typing import Annotated

import typer
from rich.console import Console

from calibrant import losses as package
from calibrant.cli.terminal import tables
from calibrant.errors import InputError
from calibrant.losses.loss import SampleLoss, SampleOptions
from calibrant.losses.names import LOSSES, TrainingLoss


@dataclass(frozen=True)
class Option:
    """What a loss can be told: the default as Python writes it, none if it must be given, and the meaning."""

    name: str
    default: str | None
    meaning: str


def losses(
    name: Annotated[str | None, typer.Argument(help="Explain this loss: formula and options.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """List the training losses and how each is used, or explain one of them.

    Example: calibrant losses adafocal
    """
    told = {each: _summary(each, loss) for each, loss in LOSSES.items()}
    if name is None:
        typer.echo(json.dumps(told)) if as_json else Console().print(tables.losses(told))
        return
    if name not in LOSSES:
        near = difflib.get_close_matches(name, LOSSES, n=1)
        hint = f"did you mean {near[0]!r}?" if near else "calibrant losses lists them"
        raise InputError(f"loss: expected the name of a loss, got {name!r}; {hint}")
    text, options = _explanation(name), _options(name)
    if as_json:
        more = {"explanation": text, "options": [asdict(option) for option in options]}
        typer.echo(json.dumps({name: told[name] | more}))
        return
    _print(name, told[name], text, options)


def _summary(name: str, loss: TrainingLoss) -> dict[str, str]:
    return {
        "meaning": _plain(_doc(getattr(package, f"{name}_loss")).partition("\n")[0]),
        "recipe": loss.recipe,
        "paper": loss.paper,
        "module": f"calibrant.losses.{loss.module.__name__}",
        "reads": loss.reads,
        "needs": ", ".join((*loss.sizes, *loss.module.needs)),
    }


def _explanation(name: str) -> str:
    """Return what function and module say beyond their first lines, without arguments and examples."""
    parts = [getattr(package, f"{name}_loss"), LOSSES[name].module]
    bodies = [re.split(r"\n(?:Args|Example):\n", _doc(part))[0].partition("\n")[2] for part in parts]
    return "\n\n".join(_plain(body).strip("\n") for body in bodies if body.strip())


def _options(name: str) -> list[Option]:
    module = LOSSES[name].module
    meanings = _meanings(_doc(getattr(package, f"{name}_loss"))) | _meanings(_doc(module))
    defaults = {
        option.name: None if option.default is option.empty else repr(option.default)
        for option in inspect.signature(module).parameters.values()
        if option.kind is not option.VAR_KEYWORD
    }
    if issubclass(module, SampleLoss):
        shared = dict(SampleLoss().shared)
        defaults |= {option: repr(shared[option]) for option in SampleOptions.__annotations__}
    return [Option(option, default, meanings.get(option, "")) for option, default in defaults.items()]


def _meanings(doc: str) -> dict[str, str]:
    """Read the arguments that a docstring describes."""
    _, _, described = doc.partition("\nArgs:\n")
    described = re.split(r"\n(?=\S)", described)[0]
    entries = re.findall(r"^ {4}(\w+): (.*(?:\n {8}.*)*)", described, flags=re.MULTILINE)
    return {option: _plain(" ".join(meaning.split())) for option, meaning in entries}


def _doc(documented: object) -> str:
    return inspect.getdoc(documented) or ""


def _plain(text: str) -> str:
    """Take the markup of references, code and formulas away."""
    text = re.sub(r":\w+:`~?(?:[\w.]*\.)?([^`]*)`", r"\1", text)
    text = re.sub(r"^\.\. math:: ?", "    ", text, flags=re.MULTILINE)
    return text.replace("``", "").replace("**", "")


def _print(name: str, told: dict[str, str], text: str, options: list[Option]) -> None:
    console = Console()
    lines = [f"{name}: {told['meaning']}", "", f"recipe   {told['recipe']}", f"module   {told['module']}"]
    lines.append(f"paper    {told['paper']}")
    if told["needs"]:
        lines.append(f"needs    {told['needs']}")
    lines += ["", textwrap.indent(text, "  "), ""] if text else [""]
    console.print("\n".join(lines), markup=False, highlight=False, soft_wrap=True)
    if options:
        console.print(tables.options([(o.name, o.default or "must be given", o.meaning) for o in options]))
