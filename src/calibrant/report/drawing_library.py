"""Vega, Vega-Lite and Vega-Embed as one script, bundled once for each version and then read from a cache."""

import hashlib
import os
from functools import cache
from importlib.metadata import version
from pathlib import Path

from calibrant.errors import CalibrantError
from calibrant.files import write_file

_SNIPPET = "window.vegaEmbed = vegaEmbed;"


@cache
def drawing_library() -> str:
    """Return the script that draws the charts.

    Bundling takes two seconds and always gives the same text, so it is saved in the user's cache folder. If
    that cannot be read or written, the script is bundled again.
    """
    path = cache_path()
    script = None if path is None else _read(path)
    if script is None:
        script = _bundle()
        if path is not None:
            _save(path, script)
    return script


def cache_path() -> Path | None:
    """Return where the script is saved; None if the user has no home folder."""
    named = Path(os.environ.get("XDG_CACHE_HOME", ""))
    try:
        folder = named if named.is_absolute() else Path.home() / ".cache"
    except RuntimeError:
        return None
    return folder / "calibrant" / f"vega-{version('vl-convert-python')}.js"


def _bundle() -> str:
    import vl_convert

    script = vl_convert.javascript_bundle(_SNIPPET)
    if "</script" in script.lower() or "<!--" in script:
        raise AssertionError("the drawing library contains a tag that would end the script")
    return script


def _read(path: Path) -> str | None:
    """Return a saved script; None if there is none, or if it is not exactly what was saved."""
    try:
        digest, script = path.read_bytes().decode().split("\n", 1)
    except (OSError, ValueError):
        return None
    return script if digest == _digest(script) else None


def _save(path: Path, script: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, f"{_digest(script)}\n{script}")
    except (OSError, CalibrantError):
        pass  # a cache is not needed


def _digest(script: str) -> str:
    # With the snippet, so that a script for another one is not used.
    return hashlib.sha256(f"{_SNIPPET}\n{script}".encode()).hexdigest()
