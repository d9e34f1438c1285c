"""The state of a monitoring on disk: one JSON file, the old one or the new one."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from calibrant.errors import FormatError
from calibrant.files import atomic_path

_FORMAT = "calibrant-monitor"
_VERSION = 2


def write_state(path: str | os.PathLike[str], state: Mapping[str, Any]) -> None:
    """Write a state, all of it or nothing."""
    whole = {"format": _FORMAT, "version": _VERSION, **state}
    with atomic_path(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        file.write(json.dumps(whole, allow_nan=False))
        file.flush()
        os.fsync(file.fileno())


def read_state(path: Path) -> dict[str, Any]:
    """Return a state that was written, by this version or the one before, which remembered no files."""
    try:
        state = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise FormatError(f"{path.name}: expected the state of a monitor, got no JSON ({error})") from error
    if not isinstance(state, dict) or state.get("format") != _FORMAT:
        raise FormatError(f"{path.name}: expected the state of a monitor, got other JSON; name another file")
    if state.get("version") == 1:
        state["files"] = {}
    elif state.get("version") != _VERSION:
        got = state.get("version")
        raise FormatError(
            f"{path.name}: expected a state of version {_VERSION} or 1, got {got!r}; begin a new one"
        )
    return state
