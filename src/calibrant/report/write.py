"""The page on disk: one HTML file that needs nothing else, and the results to draw it again from."""

import base64
import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path
from typing import Any

from calibrant.errors import FormatError
from calibrant.files import read_json, write_file
from calibrant.report.charts import specifications
from calibrant.report.drawing_library import drawing_library
from calibrant.report.page import AnswerRule, Candidate, Page, page_from_json, page_to_json

RESULTS, CALIBRATOR, REPORT = "results.json", "calibrator.safetensors", "report.html"
_NONE = "\N{EN DASH}"
_GROUPS_DRAWN = 30


def write_report(page: Page, path: str | os.PathLike[str]) -> None:
    """Write the page, whole or not at all, to one HTML file that works without a network."""
    write_file(path, render(page))


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
    environment.filters.update(
        percent=_percent,
        cell=_cell,
        digits=_digits,
        keep=_keep,
        signed=_signed,
        p_value=_p_value,
        tenths=_tenths,
        change=_change,
        wrong=_wrong,
    )
    scripts = {"vega": drawing_library(), "page": _asset("page.js")}
    return environment.get_template("template.html.j2").render(
        page=page,
        style=_asset("style.css"),
        scripts=scripts,
        hashes=[_digest(script) for script in scripts.values()],
        data=_embed(_drawings(page)),
    )


def save_results(folder: Path, answer: Mapping[str, Any], page: Page) -> None:
    """Write the results, and below them on one line the numbers that the page draws."""
    results = json.dumps(answer, indent=1).removesuffix("}").rstrip()
    drawn = json.dumps(page_to_json(page), allow_nan=False, separators=(",", ":"))
    write_file(folder / RESULTS, f'{results},\n "page": {drawn}\n}}\n')


def load_page(folder: Path) -> Page:
    """Read the page that was saved in a folder."""
    path = folder / RESULTS
    if not path.exists():
        raise FormatError(
            f"{folder}: expected a folder written by calibrant calibrate --out, got one without {RESULTS}"
        )
    saved = read_json(path, "what calibrate wrote")
    if not isinstance(saved, dict) or "page" not in saved:
        raise FormatError(f"{path}: expected the numbers of a page, got none; run calibrant calibrate again")
    try:
        return page_from_json(saved["page"])
    except FormatError as error:
        raise FormatError(f"{path}: {error}; write the folder again") from None


def _drawings(page: Page) -> dict[str, Any]:
    """Return the charts and the numbers that they draw."""
    scores = () if page.foreign is None else tuple(each.score for each in page.foreign.scores)
    return {
        "charts": specifications(scores),
        "candidates": [_figures(each) for each in page.drawn],
        "chosen": page.chosen,
        "groups": [] if page.groups is None else [asdict(line) for line in page.groups.lines[:_GROUPS_DRAWN]],
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
    """Return JSON that cannot end the script around it: characters of tags and comments are escaped."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _asset(name: str) -> str:
    return (files("calibrant.report") / name).read_text(encoding="utf-8")


def _digest(script: str) -> str:
    """Return the hash by which the page's policy allows a script; no other script will run."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


def _percent(value: float | None, digits: int = 1) -> str:
    return _NONE if value is None else f"{100 * value:.{digits}f}\N{NO-BREAK SPACE}%"


def _cell(value: float | None, percent: bool) -> str:
    if value is None:
        return _NONE
    return f"{100 * value:.2f}" if percent else f"{value:.4f}"


def _tenths(value: float | None) -> str:
    return _NONE if value is None else f"{100 * value:.1f}"


def _wrong(rule: AnswerRule) -> str:
    """Return the share of wrong answers with its interval, times 100."""
    if rule.wrong is None:
        return _NONE
    return f"{_tenths(rule.wrong)} ({_tenths(rule.low)} to {_tenths(rule.high)})"


def _change(value: float, percent: bool) -> str:
    """Return a difference of measures with its sign."""
    text = f"{100 * value:+.2f}" if percent else f"{value:+.4f}"
    return text.replace("-", "\N{MINUS SIGN}")


def _signed(value: float | None) -> str:
    """Return a difference of shares times 100, with its sign."""
    return _NONE if value is None else f"{100 * value:+.1f}".replace("-", "\N{MINUS SIGN}")


def _p_value(value: float | None) -> str:
    if value is None:
        return _NONE
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def _keep(text: str) -> str:
    """Return the text with no line breaks between numbers and their units."""
    return text.replace(" %", "\N{NO-BREAK SPACE}%")


def _digits(value: float | None, digits: int = 2) -> str:
    return _NONE if value is None else f"{value:.{digits}f}"
