"""Read names with options, such as ``focal(gamma=3)``; literals are all that is evaluated."""

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Term:
    """A name with options.

    Attributes:
        name: The name.
        options: The options by name, in the given order.
        text: The term in canonical form: ``name`` or ``name(option=value, ...)``.
    """

    name: str
    options: Mapping[str, Any]
    text: str


def parse_expression(text: str) -> ast.expr | None:
    """Return the syntax tree of one Python expression, or None if the text is not one."""
    try:
        return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError):  # null bytes, or nested too deeply
        return None


def read_term(node: ast.expr | None) -> Term | None:
    """Return the term that a syntax tree describes, or None if it is anything else."""
    match node:
        case ast.Name(id=name):
            return Term(name, {}, name)
        case ast.Call(func=ast.Name(id=name), args=[], keywords=keywords):
            options = _options(keywords)
            if options is None:
                return None
            given = ", ".join(f"{each.arg}={ast.unparse(each.value)}" for each in keywords)
            return Term(name, options, f"{name}({given})" if given else name)
    return None


def parse_term(text: str) -> Term | None:
    """Return the term that is written in a text, or None if the text is anything else.

    Example:
        >>> parse_term("smart( settled = 0 )").text
        'smart(settled=0)'
    """
    return read_term(parse_expression(text))


def _options(keywords: list[ast.keyword]) -> dict[str, Any] | None:
    """Return the values of options; None if one is not a literal, is given twice or comes from ``**``."""
    options: dict[str, Any] = {}
    for keyword in keywords:
        if keyword.arg is None or keyword.arg in options:
            return None
        try:
            options[keyword.arg] = ast.literal_eval(keyword.value)
        except (TypeError, ValueError):
            return None
    return options
