"""The page on disk: one HTML file that needs nothing else, and the results to draw it again from."""

import json
import os
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from calibrant.errors import FormatError, MissingPackageError
from calibrant.evaluation.folder import CALIBRATOR, DIGEST, RESULTS, calibrator_digest, read_results
from calibrant.extras import why_missing
from calibrant.files import atomic_path, remove_file, write_file
from calibrant.posthoc.calibrator import Calibrator
from calibrant.report.charts import FEW, specifications
from calibrant.report.drawing_library import drawing_library
from calibrant.report.page import AnswerRule, Candidate, Fact, NumberList, Page, page_from_json, page_to_json
from calibrant.report.single_file import asset, render_file
from calibrant.show.numbers import Cell, bare, number, p_value, percent, points
from calibrant.text import shortened, visible

REPORT = "report.html"
_NONE = "\N{EN DASH}"
_GROUPS_DRAWN = 30
# Characters of a name in tables and headings.
_LONGEST_NAME = 60


def write_report(page: Page, path: str | os.PathLike[str]) -> None:
    """Write the page, whole or not at all, to one HTML file that works without a network."""
    write_file(path, render(page))


def why_no_page() -> MissingPackageError | None:
    """Return why no page can be made here; None if it can."""
    return why_missing("report", "jinja2", "vl_convert")


def render(page: Page) -> str:
    """Return the page as HTML."""
    if missing := why_no_page():
        raise missing
    return render_file(
        "template.html.j2",
        package="calibrant.report",
        scripts={"vega": drawing_library(), "page": asset("calibrant.report", "page.js")},
        data=_drawings(page),
        filters={
            "percent": _percent,
            "cell": _cell,
            "digits": _digits,
            "keep": _keep,
            "signed": _signed,
            "p_value": _p_value,
            "tenths": _tenths,
            "change": _change,
            "span": _span,
            "wrong": _wrong,
            "short": _short,
        },
        page=page,
        few=FEW,
    )


def save_results(folder: Path, calibrator: Calibrator, answer: Mapping[str, Any], page: Page) -> None:
    """Write the calibrator, the page and the results, below which the numbers that the page draws are a line.

    Where no page can be made, the other two are written; ``calibrant report`` makes a page of them elsewhere.

    All files are there before the first one is moved into place, so that a full disk leaves an older folder
    as it was. The results come last and have the digest of the calibrator; the page shows it too.
    """
    digest = calibrator_digest(calibrator)
    made_from = Fact("Calibrator", (f"{CALIBRATOR}, SHA-256 of its numbers {digest[:16]}…",))
    page = replace(page, facts=(*page.facts, made_from))
    results = json.dumps({**answer, DIGEST: digest}, indent=1).removesuffix("}").rstrip()
    drawn = json.dumps(page_to_json(page), allow_nan=False, separators=(",", ":"))
    with ExitStack() as written:
        results_file = written.enter_context(atomic_path(folder / RESULTS))
        results_file.write_text(f'{results},\n "page": {drawn}\n}}\n', encoding="utf-8")
        if why_no_page() is None:
            report_file = written.enter_context(atomic_path(folder / REPORT))
            report_file.write_text(render(page), encoding="utf-8")
        else:
            remove_file(folder / REPORT)  # it would be about an older calibrator
        calibrator.save(folder / CALIBRATOR)


def load_page(folder: Path) -> Page:
    """Read the page that was saved in a folder."""
    path, saved = folder / RESULTS, read_results(folder)
    if "page" not in saved:
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
    named = {"name": candidate.name, "title": candidate.title, "short": _short(candidate.title)}
    return named | asdict(candidate.figures)


def _short(name: str) -> str:
    """Return a name that fits into a cell; the page has the whole one in a title."""
    return shortened(visible(name), _LONGEST_NAME)


def _text(cell: Cell) -> str:
    """Return a number for the page: a dash if it is unknown, a minus sign, and no break before its unit."""
    return _keep(cell.text).replace("-", "\N{MINUS SIGN}") or _NONE


def _percent(value: float | None, digits: int = 1) -> str:
    return _text(percent(value, digits, undefined=""))


def _cell(value: float | None, in_percent: bool) -> str:
    return _text(bare(value, in_percent=in_percent, digits=4))


def _span(ends: NumberList, in_percent: bool) -> str:
    """Return both ends of an interval, with a digit less than the value."""
    low, high = (points(end, 1) if in_percent else number(end, 3) for end in ends)
    return f"{_text(low)} to {_text(high)}"


def _tenths(value: float | None) -> str:
    return _text(points(value, 1))


def _wrong(rule: AnswerRule) -> str:
    """Return the share of wrong answers with its interval, times 100."""
    if rule.wrong is None:
        return _NONE
    return f"{_tenths(rule.wrong)} ({_tenths(rule.low)} to {_tenths(rule.high)})"


def _change(value: float, in_percent: bool) -> str:
    """Return a difference of measures with its sign."""
    return _text(points(value, sign=True) if in_percent else number(value, sign=True))


def _signed(value: float | None) -> str:
    """Return a difference of shares times 100, with its sign."""
    return _text(points(value, 1, sign=True))


def _p_value(value: float | None) -> str:
    return _text(p_value(value))


def _keep(text: str) -> str:
    """Return the text with no line breaks between numbers and their units."""
    return text.replace(" %", "\N{NO-BREAK SPACE}%")


def _digits(value: float | None, digits: int = 2) -> str:
    return _text(number(value, digits))
