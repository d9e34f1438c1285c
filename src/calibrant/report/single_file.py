"""One HTML file that needs nothing else: its template, its style, its scripts by their hash, and its data."""

import base64
import hashlib
import json
from collections.abc import Callable, Mapping
from importlib.resources import files
from typing import Any

from calibrant.text import visible


def render_file(
    template: str,
    *,
    package: str,
    scripts: Mapping[str, str],
    data: object,
    filters: Mapping[str, Callable[..., str]] | None = None,
    **values: object,
) -> str:
    """Return a page as HTML; every text in it is escaped, and only its own scripts run.

    Args:
        template: Name of the template.
        package: The package that contains it.
        scripts: The scripts by name.
        data: What the scripts draw, as plain values for JSON.
        filters: Functions that the template calls.
        values: What the template shows.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader(package, "."),
        autoescape=True,
        finalize=_shown,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(filters or {})
    return environment.get_template(template).render(
        style=asset("calibrant.report", "style.css"),
        scripts=scripts,
        hashes=[_digest(script) for script in scripts.values()],
        data=_embed(_shown(data)),
        **values,
    )


def asset(package: str, name: str) -> str:
    """Return the text of a file that belongs to a package."""
    return (files(package) / name).read_text(encoding="utf-8")


def _embed(value: object) -> str:
    """Return JSON that cannot end the script around it: characters of tags and comments are escaped."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _shown(value: Any) -> Any:  # noqa: ANN401  # whatever a template prints, or JSON
    """Return what a page shows: control characters and bidirectional marks of names are made visible."""
    if isinstance(value, str) and not hasattr(value, "__html__"):  # not our own markup
        return visible(value)
    if isinstance(value, dict):
        return {_shown(key): _shown(each) for key, each in value.items()}
    return [_shown(each) for each in value] if isinstance(value, (list, tuple)) else value


def _digest(script: str) -> str:
    """Return the hash by which the page's policy allows a script; no other script will run."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"
