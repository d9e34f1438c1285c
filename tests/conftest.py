"""Seeded synthetic predictions that several tests share."""

import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

# Some virtual machines announce AMX instructions and then refuse them, which ends the process.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

import hypothesis
import numpy as np
import pytest

# How long an example takes says more about the machine than about the code.
hypothesis.settings.register_profile("calibrant", deadline=None)
hypothesis.settings.load_profile("calibrant")


def pytest_collection_modifyitems(items):
    """Run files with slow tests first, and before them those of Ray, which wait: none is the last one."""
    files = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: (item.path.name != "test_ray.py", item.path not in files))


def at_length(values, now):
    """Return parameters of a test: those ``now`` run always, the others in ``make test-long`` only."""
    return [
        value
        if value in now
        else pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=pytest.mark.long)
        for value in values
    ]


def placed(array):
    """Return an array of floats, in other memory if ``CALIBRANT_TEST_MISALIGNED`` is set: one element on.

    Libraries for matrices may then sum in another order.
    """
    if not os.environ.get("CALIBRANT_TEST_MISALIGNED"):
        return array
    whole = np.empty(array.size + 1, array.dtype)
    whole[1:] = array.ravel()
    return whole[1:].reshape(array.shape)


def draw(n, k, *, seed=0, spread=2.0, sharpen=1.0):
    """Logits whose softmax would be the true distribution of the labels, then sharpened."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(n, k)) * spread
    probs = np.exp(logits - logits.max(axis=1, keepdims=True))
    probs /= probs.sum(axis=1, keepdims=True)
    labels = (probs.cumsum(axis=1) > rng.random((n, 1))).argmax(axis=1)
    return placed(logits * sharpen), labels


def softmax(logits):
    """The definition, in float64."""
    e = np.exp(logits - logits.max(axis=1, keepdims=True))
    return placed(e / e.sum(axis=1, keepdims=True))


@pytest.fixture(scope="session")
def overconfident():
    """Logits and labels of a model whose logits are three times too large."""
    return draw(4000, 5, sharpen=3.0)


@pytest.fixture(scope="session")
def sample():
    """Probabilities of a moderately overconfident model with ties and certain predictions, and labels."""
    logits, labels = draw(800, 4, seed=1, sharpen=1.7)
    probs = softmax(logits)
    probs[:40] = np.eye(4)[labels[:40]]  # certain and right
    probs[40:50] = np.eye(4)[(labels[40:50] + 1) % 4]  # certain and wrong
    probs[50:90] = [0.4, 0.3, 0.2, 0.1]
    return probs, labels


@pytest.fixture
def jobs_in_this_process(monkeypatch):
    """Run the jobs of an experiment in a thread: a process of its own imports everything first."""

    @contextmanager
    def workers(_):
        with ThreadPoolExecutor(1) as pool:
            yield pool

    monkeypatch.setattr("calibrant.papers.runner._workers", workers)


_CHROMIUM = (
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@pytest.fixture(scope="module")
def chromium():
    """The system's Chromium; where there is none, browser tests are skipped, or fail if it is required.

    It runs a loop of its own, in which others cannot start theirs, so it ends with the module.
    """
    names = ("chromium", "chromium-browser", "google-chrome")
    path = next((found for name in names if (found := shutil.which(name))), None)
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        sync_playwright = None
    if path is None or sync_playwright is None:
        missing = "Chromium" if path is None else "playwright"
        if os.environ.get("CALIBRANT_REQUIRE_BROWSER"):
            pytest.fail(f"{missing} is missing, and CALIBRANT_REQUIRE_BROWSER asks for it")
        pytest.skip(f"{missing} is not installed")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(_CHROMIUM), timeout=300_000)
        yield browser
        browser.close()


@dataclass
class Visit:
    """An open page, with its messages and its requests."""

    page: object
    messages: list
    requests: list


def open_file(chromium, path):
    """Open a file in a new window of the browser, and wait until it is drawn."""
    page = chromium.new_context(viewport={"width": 1400, "height": 900}, color_scheme="light").new_page()
    page.set_default_timeout(120_000)
    seen = Visit(page, [], [])

    def dismiss(dialog):
        seen.messages.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    page.on("console", lambda message: seen.messages.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: seen.messages.append(f"error: {error}"))
    page.on("dialog", dismiss)
    page.on("request", lambda request: seen.requests.append(request.url))
    page.goto(path.as_uri())
    page.wait_for_selector("html[data-ready=yes]")
    return seen


@pytest.fixture(scope="module")
def windows(chromium):
    """Return a function that opens each file once, for tests that do not change the page."""
    opened = {}

    def window(path):
        if path not in opened:
            opened[path] = open_file(chromium, path)
        return opened[path]

    yield window
    for seen in opened.values():
        seen.page.context.close()


@pytest.fixture
def look(windows):
    """Return a function that shows an open file at some width, in some colours and on some medium."""
    used = []

    def show(path, *, width=1400, scheme="light", media="screen"):
        seen = windows(path)
        used.append(seen.page)
        seen.page.set_viewport_size({"width": width, "height": 900})
        seen.page.emulate_media(color_scheme=scheme, media=media)
        return seen

    yield show
    for page in used:
        page.set_viewport_size({"width": 1400, "height": 900})
        page.emulate_media(color_scheme="light", media="screen")


def serious_violations(page):
    """Return what axe finds against accessibility in a page: names of the rules, and elements."""
    page.evaluate((Path(__file__).parent / "report" / "vendor" / "axe.min.js").read_text(encoding="utf-8"))
    found = page.evaluate("axe.run().then(result => result.violations)")
    return [
        (each["id"], [node["html"][:120] for node in each["nodes"]])
        for each in found
        if each["impact"] in ("serious", "critical")
    ]
