"""Read losses written as formulas in configuration files: ``"focal(gamma=3) + 0.5 * mdca"``."""

import ast
import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any, TypeGuard

from calibrant.catalogue import Catalogue
from calibrant.errors import InputError
from calibrant.expressions import parse_expression, read_term
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
    return _loss(parse_expression(text), text, makers)


def _loss(node: ast.expr | None, text: str, makers: Mapping[str, Maker]) -> Loss:
    match node:
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _loss(left, text, makers) + _loss(right, text, makers)
        case (
            ast.BinOp(left=ast.Constant(value=int() | float() as factor), op=ast.Mult(), right=scaled)
            | ast.BinOp(left=scaled, op=ast.Mult(), right=ast.Constant(value=int() | float() as factor))
        ) if not isinstance(factor, bool):
            return factor * _loss(scaled, text, makers)
    term = read_term(node)
    if term is None:
        raise _not_understood(text)
    return _make(term.name, term.options, makers)


def _make(name: str, options: Mapping[str, Any], makers: Mapping[str, Maker]) -> Loss:
    maker = Catalogue("loss", "the name of a loss", makers).named(name)
    try:
        made = maker(**options)
    except TypeError as error:
        raise InputError(f"loss: {name} does not take these options ({error})") from None
    _check_numbers(name, made, options)
    return made


def _check_numbers(name: str, made: Loss, options: Mapping[str, Any]) -> None:
    """Refuse what is no finite number for options whose default is a number, before training begins."""
    declared = inspect.signature(type(made)).parameters
    for option, value in options.items():
        default = declared[option].default if option in declared else None
        if _is_number(default) and not (_is_number(value) and math.isfinite(value)):
            raise InputError(f"loss: expected a finite number for {option} of {name}, got {value!r}")


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _not_understood(text: str) -> InputError:
    return InputError(
        f"loss: expected losses with weights such as 'focal(gamma=3) + 0.5 * mdca', got {text!r}"
    )
