"""Render a page and write it: one file that needs nothing else, whole or not at all."""

import base64
import hashlib
import json
import os
from dataclasses import asdict
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from calibrant.errors import InputError
from calibrant.files import atomic_path
from calibrant.report.charts import specifications
from calibrant.report.page import Candidate, Page

_NONE = "\N{EN DASH}"


def write_report(page: Page, path: str | os.PathLike[str]) -> None:
    """Write the page to one HTML file that works without a network.

    Args:
        page: What to show.
        path: The file; it appears whole or not at all.
    """
    text = render(page)
    try:
        with atomic_path(path) as temporary:
            temporary.write_text(text, encoding="utf-8")
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise InputError(f"{Path(path).name}: expected a place for the report, got: {reason}") from error


def render(page: Page) -> str:
    """Return the page as HTML."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("calibrant.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(percent=_percent, cell=_cell, digits=_digits, keep=_keep)
    scripts = {"vega": _vega(), "page": _asset("page.js")}
    return environment.get_template("template.html.j2").render(
        page=page,
        style=_asset("style.css"),
        scripts=scripts,
        hashes=[_digest(script) for script in scripts.values()],
        data=_embed(_drawings(page)),
    )


def _drawings(page: Page) -> dict[str, Any]:
    """Return the charts and the numbers that they draw."""
    scores = () if page.foreign is None else tuple(each.score for each in page.foreign.scores)
    return {
        "charts": specifications(scores),
        "candidates": [_figures(each) for each in page.drawn],
        "chosen": page.chosen,
        "temperatures": None if page.temperatures is None else asdict(page.temperatures),
        "shift": None
        if page.shift is None
        else [_figures(each) for each in (page.shift.before, page.shift.after) if each is not None],
        "foreign": None if page.foreign is None else asdict(page.foreign),
    }


def _figures(candidate: Candidate) -> dict[str, Any]:
    assert candidate.figures is not None
    return {"name": candidate.name, "title": candidate.title} | asdict(candidate.figures)


def _embed(value: object) -> str:
    """Return JSON that cannot end the script it stands in: no character of a tag or a comment is left."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


@cache
def _vega() -> str:
    """Return Vega, Vega-Lite and Vega-Embed as one script."""
    import altair as alt
    import vl_convert

    # The version that the charts are written for.
    version = ".".join(alt.SCHEMA_VERSION.split(".")[:2])
    script = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", vl_version=version)
    if "</script" in script.lower() or "<!--" in script:
        raise AssertionError("the drawing library cannot be put inside a page as it is")
    return script


def _asset(name: str) -> str:
    return (files("calibrant.report") / name).read_text(encoding="utf-8")


def _digest(script: str) -> str:
    """Return what the page's policy names a script by: no other script will run."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


def _percent(value: float | None, digits: int = 1) -> str:
    return _NONE if value is None else f"{100 * value:.{digits}f}\N{NO-BREAK SPACE}%"


def _cell(value: float | None, percent: bool) -> str:
    if value is None:
        return _NONE
    return f"{100 * value:.2f}" if percent else f"{value:.4f}"


def _keep(text: str) -> str:
    """Return the text with numbers and their units on one line."""
    return text.replace(" %", "\N{NO-BREAK SPACE}%")


def _digits(value: float | None, digits: int = 2) -> str:
    return _NONE if value is None else f"{value:.{digits}f}"
