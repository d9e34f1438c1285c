"""What must hold for the built site: links and names lead somewhere, no page is lost, nothing is loaded."""

import posixpath
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

from scripts.website.names import PACKAGES, ROOT, public_names
from scripts.website.reference import undocumented

# Attributes by which a page makes the browser load something, and those that only lead somewhere.
_LOADING = {
    ("script", "src"),
    ("img", "src"),
    ("img", "srcset"),
    ("source", "src"),
    ("source", "srcset"),
    ("iframe", "src"),
    ("video", "src"),
    ("audio", "src"),
    ("object", "data"),
    ("embed", "src"),
    ("link", "href"),
}
_ERROR_PAGE = "404.html"


@dataclass
class Page(HTMLParser):
    """The anchors of one page, where its links lead, and what it loads."""

    address: str
    anchors: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)
    loads: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note the anchors and addresses of one element."""
        for name, value in attrs:
            if value is None:
                continue
            if name == "id" or (tag == "a" and name == "name"):
                self.anchors.add(value)
            elif (tag, name) in _LOADING:
                self.loads.append(value)
            elif name == "href":
                self.links.append(value)


@dataclass(frozen=True)
class Report:
    """What was counted in a built site, and what is wrong with it."""

    pages: int
    links: int
    outside: int
    names: int
    documented: int
    problems: tuple[str, ...]


def check_site(folder: Path) -> Report:
    """Read all pages of a built site."""
    pages = {page.address: page for page in _read(folder)}
    local = [file for file in sorted(folder.rglob("*.html")) if str(ROOT) in file.read_text(encoding="utf-8")]
    names = {each.path for package in PACKAGES for each in public_names(package)}
    anchors = {anchor for page in pages.values() for anchor in page.anchors}
    lacking = undocumented()
    inside = [(page, link) for page in pages.values() for link in page.links if _is_inside(link)]
    problems = [
        *(
            f"{page.address}: a link to {link}, which does not exist"
            for page, link in inside
            if not _leads(page, link, pages, folder)
        ),
        *(
            f"{page.address}: loads {url} from elsewhere"
            for page in pages.values()
            for url in page.loads
            if not _is_own(url)
        ),
        *(f"{name}: a public name without a place in the reference" for name in sorted(names - anchors)),
        *(f"{name}: nothing in the reference explains or shows it" for name in lacking),
        *(f"{file.relative_to(folder)}: names a folder of this machine" for file in local),
        *(f"{address}: no page leads to it" for address in _unreachable(pages)),
    ]
    outside = len({link for page in pages.values() for link in page.links if not _is_inside(link)})
    documented = len(names & anchors - set(lacking))
    return Report(len(pages), len(inside), outside, len(names), documented, tuple(problems))


def clicks_from_the_front(folder: Path) -> dict[str, int]:
    """Return how many clicks each page is away from the front page."""
    return _distances({page.address: page for page in _read(folder)})


def _read(folder: Path) -> Iterator[Page]:
    for file in sorted(folder.rglob("*.html")):
        page = Page(file.relative_to(folder).as_posix())
        page.feed(file.read_text(encoding="utf-8"))
        yield page


def _is_inside(link: str) -> bool:
    return not urlsplit(link).scheme and not link.startswith("//")


def _is_own(url: str) -> bool:
    """Whether a browser loads an address without leaving the site."""
    return _is_inside(url) or url.startswith("data:")


def _target(page: Page, link: str) -> tuple[str, str]:
    """Return the file and the anchor to which a link leads."""
    parts = urlsplit(link)
    if not parts.path:
        return page.address, unquote(parts.fragment)
    joined = posixpath.normpath(posixpath.join(posixpath.dirname(page.address), unquote(parts.path)))
    return joined, unquote(parts.fragment)


def _leads(page: Page, link: str, pages: dict[str, Page], folder: Path) -> bool:
    address, anchor = _target(page, link)
    # The error page is shown for any address, so that its links begin at the root.
    if page.address == _ERROR_PAGE:
        address = address.lstrip("/")
    if address in (".", ""):
        address = "index.html"
    if address not in pages:
        return (folder / address).is_file()
    return not anchor or anchor in pages[address].anchors or anchor.startswith("__")


def _unreachable(pages: dict[str, Page]) -> list[str]:
    return sorted(pages.keys() - _distances(pages).keys() - {_ERROR_PAGE})


def _distances(pages: dict[str, Page]) -> dict[str, int]:
    """Return the number of clicks from the front page to each page that can be reached."""
    found, border = {"index.html": 0}, ["index.html"]
    while border:
        page = pages[border.pop(0)]
        for link in filter(_is_inside, page.links):
            address = _target(page, link)[0]
            if address in pages and address not in found:
                found[address] = found[page.address] + 1
                border.append(address)
    return found
