"""Read losses written as formulas in configuration files: ``"focal(gamma=3) + 0.5 * mdca"``."""

import ast
from collections.abc import Callable, Mapping
from typing import Any

from calibrant.errors import InputError, did_you_mean
from calibrant.losses.loss import Loss

Maker = Callable[..., Loss]


def parse_loss(text: str, makers: Mapping[str, Maker]) -> Loss:
    """Make the loss that a weighted sum of names describes; only arithmetic is evaluated.

    Args:
        text: Names of losses, each with optional keyword options in parentheses, joined by ``+`` and
            multiplied by numbers with ``*``.
        makers: What makes the loss of each name.

    Example:
        >>> from calibrant.losses import FocalLoss, MDCALoss
        >>> parse_loss("focal(gamma=2) + 0.5 * mdca", {"focal": FocalLoss, "mdca": MDCALoss})
        FocalLoss(gamma=2) + 0.5 * MDCALoss()
    """
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except SyntaxError:
        raise _not_understood(text) from None
    return _loss(tree, text, makers)


def _loss(node: ast.expr, text: str, makers: Mapping[str, Maker]) -> Loss:
    match node:
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _loss(left, text, makers) + _loss(right, text, makers)
        case (
            ast.BinOp(left=ast.Constant(value=int() | float() as factor), op=ast.Mult(), right=scaled)
            | ast.BinOp(left=scaled, op=ast.Mult(), right=ast.Constant(value=int() | float() as factor))
        ) if not isinstance(factor, bool):
            return factor * _loss(scaled, text, makers)
        case ast.Name(id=name):
            return _make(name, {}, makers)
        case ast.Call(func=ast.Name(id=name), args=[], keywords=keywords):
            return _make(name, _options(keywords, text), makers)
    raise _not_understood(text)


def _options(keywords: list[ast.keyword], text: str) -> dict[str, Any]:
    options = {}
    for keyword in keywords:
        if keyword.arg is None:  # a mapping passed with **
            raise _not_understood(text)
        try:
            options[keyword.arg] = ast.literal_eval(keyword.value)
        except (TypeError, ValueError):
            raise _not_understood(text) from None
    return options


def _make(name: str, options: dict[str, Any], makers: Mapping[str, Maker]) -> Loss:
    if name not in makers:
        hint = did_you_mean(name, makers) or f"; known are {', '.join(makers)}"
        raise InputError(f"loss: expected the name of a loss, got {name!r}{hint}")
    try:
        return makers[name](**options)
    except TypeError as error:
        raise InputError(f"loss: {name} does not take these options ({error})") from None


def _not_understood(text: str) -> InputError:
    return InputError(
        f"loss: expected losses with weights such as 'focal(gamma=3) + 0.5 * mdca', got {text!r}"
    )
