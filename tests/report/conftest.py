"""Reports of small seeded predictions, written once by the commands that users type."""

import json
import sys
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from calibrant.cli import main
from tests.conftest import draw, open_file

HOSTILE = (
    "<script>alert(1)</script>",
    "</script><script>window.hacked = 1</script><!--",
    "\"><img src=x onerror='window.hacked = 1'>",
    "{{ 7 * 7 }} & ${8 * 8}",
)
FILE = """te"st '<b>&.npz"""


@dataclass(frozen=True)
class Written:
    """A report and what it was made of."""

    folder: Path
    page: Path
    logits: np.ndarray
    labels: np.ndarray

    @property
    def results(self):
        return json.loads((self.folder / "results.json").read_text())

    @property
    def html(self):
        return self.page.read_text(encoding="utf-8")


def call(*arguments):
    """Run a command as a shell would, and return its exit code."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["calibrant", *map(str, arguments)])
        with pytest.raises(SystemExit) as stopped:
            main()
    return stopped.value.code or 0


@pytest.fixture(scope="session")
def written(tmp_path_factory):
    """What ``calibrate --out`` writes, with hostile names of classes and files."""
    folder = tmp_path_factory.mktemp("report")
    for name, seed in (("val.npz", 1), (FILE, 2), ("shift.npz", 3)):
        logits, labels = draw(1500, 4, seed=seed, sharpen=3.0)
        np.savez(folder / name, logits=logits, labels=labels, class_names=np.array(HOSTILE))
    np.savez(folder / "foreign.npz", logits=logits / 5)
    out = folder / "out"
    names = "uncalibrated,temperature,spline,smart,vector,metacal,pool"
    told = ("calibrate", folder / "val.npz", "--test", folder / FILE, "--methods", names, "--out", out)
    assert call(*told) == 0
    logits, labels = draw(1500, 4, seed=2, sharpen=3.0)
    return Written(out, out / "report.html", logits, labels)


@pytest.fixture(scope="session")
def grouped(tmp_path_factory):
    """The page of answers to questions of several subjects, repaired by group; one subject is an attack."""
    folder = tmp_path_factory.mktemp("grouped")
    rng = np.random.default_rng(5)
    for name in ("val", "test"):
        subjects = np.repeat(["art", HOSTILE[1], "law"], [500, 500, 6])
        confidence = rng.choice([0.5, 0.8, 0.95], 1006)
        correct = rng.random(1006) < np.where(subjects == "art", confidence, confidence**3)
        np.savez(folder / f"{name}.npz", confidence=confidence, correct=correct, subject=subjects)
    told = ("--val", folder / "val.npz", "--by", "subject", "--methods", "platt,isotonic_centred,pool")
    assert call("report", folder / "test.npz", *told, "--out", folder / "page.html") == 0
    return folder / "page.html"


@pytest.fixture(scope="session")
def full_page(written):
    """A page with shifted and out-of-distribution samples."""
    folder = written.folder.parent
    told = ("--val", folder / "val.npz", "--methods", "uncalibrated,temperature,spline,smart,pool")
    more = ("--shift", folder / "shift.npz", "--ood", folder / "foreign.npz", "--out", folder / "full.html")
    assert call("report", folder / FILE, *told, *more) == 0
    return folder / "full.html"


class Tables(HTMLParser):
    """The rows of each table by its id, and every attribute that could load something."""

    def __init__(self, text):
        super().__init__()
        self.rows, self.loads, self.texts, self.scripts = {}, [], [], 0
        self._table = None
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.scripts += tag == "script"
        self.loads += [
            (tag, given[name]) for name in ("src", "href", "srcset", "action", "data") if name in given
        ]
        if tag == "table":
            self._table = self.rows.setdefault(given["id"], [])
        elif tag == "tr" and self._table is not None:
            self._table.append((given.get("data-name"), []))
        elif tag in ("td", "th") and self._table and "data-value" in given:
            self._table[-1][1].append(given["data-value"])

    def handle_data(self, data):
        if self.lasttag not in ("script", "style"):
            self.texts.append(data)


@pytest.fixture
def page(chromium, written):
    """The report of ``calibrate --out`` in a window of its own, for tests that change it."""
    page = open_file(chromium, written.page).page
    yield page
    page.context.close()
