"""Docstrings as plain text, so that a command explains a thing by the words that stand beside its code."""

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

_SECTION = re.compile(r"^([A-Z][A-Za-z ]*):$", re.MULTILINE)
_ROLE = re.compile(r":[a-z]+:`~?([^`]*)`")
_MATH = re.compile(r":math:`([^`]*)`")
_ARGUMENT = re.compile(r"^    \*{0,2}(\w+): ")


@dataclass(frozen=True)
class Option:
    """An option: its default as Python writes it (None if it must be given) and its meaning."""

    name: str
    default: str | None
    meaning: str


def summary(documented: object) -> str:
    """Return the first line of a docstring as plain text."""
    return plain((inspect.getdoc(documented) or "").partition("\n")[0])


def description(documented: object) -> str:
    """Return what stands between the first line of a docstring and its sections, as plain text."""
    body = (inspect.getdoc(documented) or "").partition("\n")[2]
    return plain(_SECTION.split(body)[0]).strip("\n")


def section(documented: object, title: str) -> str:
    """Return a section such as ``References`` as plain text without its indent; empty if there is none."""
    parts = _SECTION.split(inspect.getdoc(documented) or "")
    found = dict(zip(parts[1::2], parts[2::2], strict=True)).get(title, "")
    return plain(inspect.cleandoc(found))


def argument_meanings(documented: object) -> dict[str, str]:
    """Return the meaning of each argument in the section ``Args``, in one line.

    Example:
        >>> argument_meanings(options_of)["leave_out"]
        'Names of parameters that are no options.'
    """
    found: dict[str, str] = {}
    name = ""
    parts = _SECTION.split(inspect.getdoc(documented) or "")
    for line in dict(zip(parts[1::2], parts[2::2], strict=True)).get("Args", "").splitlines():
        if match := _ARGUMENT.match(line):
            name = match[1]
            found[name] = line[match.end() :]
        elif name:
            found[name] += f" {line.strip()}"
    return {name: plain(text).strip() for name, text in found.items()}


def options_of(
    function: Callable[..., Any], *, given: Mapping[str, Any], leave_out: Iterable[str]
) -> tuple[Option, ...]:
    """Return the options of a function, with defaults from its signature and meanings from its docstring.

    Args:
        function: A function or a constructor.
        given: Values that replace the defaults.
        leave_out: Names of parameters that are no options.
    """
    meanings, without = argument_meanings(function), set(leave_out)
    return tuple(
        Option(name, _default(each, given), meanings.get(name, ""))
        for name, each in inspect.signature(function).parameters.items()
        if each.kind is not each.VAR_KEYWORD and name not in without
    )


def plain(text: str) -> str:
    """Return text without the marks of the markup; formulas stay as they are written.

    Example:
        >>> plain("``a`` of :func:`~pack.thing`: :math:`x_b`")
        'a of thing: x_b'
    """
    text = _MATH.sub(r"\1", text).replace(".. math:: ", "    ")
    text = _ROLE.sub(lambda match: match[1].rpartition(".")[2], text)
    return text.replace("``", "").replace("**", "")


def call(name: str, arguments: Iterable[str], options: Mapping[str, Any]) -> str:
    """Return a call as Python writes it.

    Example:
        >>> call("fit", ["logits", "labels"], {"mode": "top"})
        "fit(logits, labels, mode='top')"
    """
    return f"{name}({', '.join((*arguments, *(f'{key}={value!r}' for key, value in options.items())))})"


def _default(parameter: inspect.Parameter, given: Mapping[str, Any]) -> str | None:
    value = given.get(parameter.name, parameter.default)
    return None if value is parameter.empty else repr(value)
