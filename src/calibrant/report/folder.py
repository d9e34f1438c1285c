"""The folder that ``calibrant calibrate`` writes: results for programs, the page for people."""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from calibrant.data.predictions import Predictions
from calibrant.errors import FormatError
from calibrant.files import atomic_path
from calibrant.posthoc.files import load_calibrator
from calibrant.report.page import Fact, Page
from calibrant.report.panels import shift_panel
from calibrant.report.stored import page_from_json, page_to_json

RESULTS, CALIBRATOR, REPORT = "results.json", "calibrator.safetensors", "report.html"


def save_results(folder: Path, answer: Mapping[str, Any], page: Page) -> None:
    """Write the results, and below them on one line the numbers that the page draws."""
    told = json.dumps(answer, indent=1)
    drawn = json.dumps(page_to_json(page), allow_nan=False, separators=(",", ":"))
    with atomic_path(folder / RESULTS) as temporary:
        temporary.write_text(f'{told.removesuffix("}").rstrip()},\n "page": {drawn}\n}}\n', encoding="utf-8")


def load_page(folder: Path) -> Page:
    """Read the page of a folder again."""
    path = folder / RESULTS
    try:
        saved = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise FormatError(
            f"{folder}: expected a folder written by calibrant calibrate --out, got one without {RESULTS}"
        ) from None
    except (OSError, ValueError) as error:
        raise FormatError(f"{path}: expected what calibrate wrote, got a file that is not JSON") from error
    if not isinstance(saved, dict) or "page" not in saved:
        raise FormatError(f"{path}: expected the numbers of a page, got none; run calibrant calibrate again")
    try:
        return page_from_json(saved["page"])
    except FormatError as error:
        raise FormatError(f"{path}: {error}") from None


def with_shift(page: Page, folder: Path, shifted: Predictions, name: str) -> Page:
    """Add samples from elsewhere, repaired by the calibrator of the folder."""
    method = next((each.title for each in page.candidates if each.name == page.chosen), "")
    calibrator = None if page.chosen is None else load_calibrator(folder / CALIBRATOR)
    panel = shift_panel(shifted, calibrator, name, method=method)
    added = Fact("Added", (f"shift: {name}, {shifted.n:,} predictions",))
    return dataclasses.replace(page, shift=panel, facts=(*page.facts, added))
