"""Class names and metadata as JSON text, the form in which files carry them."""

import json
from typing import Any

from calibrant.errors import InputError


def to_text(value: Any) -> str:  # noqa: ANN401  # any JSON value
    """Return a value as JSON text that people can read."""
    return json.dumps(value, ensure_ascii=False)


def from_text(text: str, name: str) -> Any:  # noqa: ANN401  # any JSON value
    """Return the value of JSON text."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(
            f"{name}: expected JSON text, got {text[:40]!r} ({error.msg}); use json.dumps"
        ) from None
