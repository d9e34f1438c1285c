"""The site, built once, for a browser that is served or reads from disk."""

import subprocess
import sys
import threading
from dataclasses import dataclass
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Site:
    """A built site, and what the build printed."""

    folder: Path
    code: int
    printed: str
    errors: str


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    """What ``make docs`` builds."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "scripts.website", str(folder)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return Site(folder, result.returncode, result.stdout, result.stderr)


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *arguments):
        pass


@pytest.fixture(scope="session")
def address(site):
    """Serve the site on this machine and return its address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(site.folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


@dataclass
class Visit:
    """An open page, with its messages and with requests to other places."""

    page: object
    messages: list
    requests: list


@pytest.fixture
def visit(chromium, site, address):
    """Return a function that opens a page of the site in a new window."""
    contexts = []

    def open_page(path="index.html", *, width=1400, scheme="light", from_disk=False):
        start = site.folder.as_uri() if from_disk else address
        contexts.append(chromium.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme))
        page = contexts[-1].new_page()
        page.set_default_timeout(120_000)
        seen = Visit(page, [], [])
        page.on("console", lambda message: seen.messages.append(message.text))
        page.on("pageerror", lambda error: seen.messages.append(str(error)))
        page.on("request", lambda request: _note(seen.requests, request.url, start))
        page.goto(f"{start}/{path}")
        return seen

    yield open_page
    for context in contexts:
        context.close()


def _note(requests, url, start):
    if not url.startswith((start, "data:", "blob:")):
        requests.append(url)
