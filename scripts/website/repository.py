"""Pages made from files outside docs/, and links between files that hold on GitHub and on the site."""

import posixpath
import re
from collections.abc import Callable, Iterator
from functools import cache

from scripts.website.names import ROOT

#: Files outside docs/ that are pages of the site, by their address there.
PAGES = {
    "contributing.md": "CONTRIBUTING.md",
    "changelog.md": "CHANGELOG.md",
    "security.md": "SECURITY.md",
    "code-of-conduct.md": "CODE_OF_CONDUCT.md",
    "configs/README.md": "configs/README.md",
    "bundled.md": "src/calibrant/data/bundled/README.md",
}
_LINK = re.compile(r"(?<=\]\()(?!https?:|mailto:|#|/)([^)\s#]+)(#[^)\s]*)?(?=\))")
_CODE = re.compile(r"(^```.*?^```$|`[^`\n]+`)", re.MULTILINE | re.DOTALL)


def pages() -> Iterator[tuple[str, str]]:
    """Yield the address and the Markdown of each page that is not in docs/."""
    for address, source in PAGES.items():
        yield address, (ROOT / source).read_text(encoding="utf-8")
    yield "examples/index.md", _examples()
    for file in sorted((ROOT / "examples").glob("*.py")):
        code = file.read_text(encoding="utf-8").rstrip()
        yield f"examples/{file.stem}.md", f"# {file.name}\n\n```python\n{code}\n```\n"
    yield "results/rows/index.md", _rows()


def assets() -> Iterator[str]:
    """Yield files that pages link to, which are copied as they are; paths are the same on the site."""
    yield from (str(file.relative_to(ROOT)) for file in sorted((ROOT / "configs").rglob("*.toml")))


def source_of(address: str) -> str:
    """Return the file in the repository from which a page is made."""
    return PAGES.get(address, f"docs/{address}")


@cache
def _addresses() -> dict[str, str]:
    found = {source: address for address, source in PAGES.items()}
    found |= {
        f"examples/{file.name}": f"examples/{file.stem}.md" for file in (ROOT / "examples").glob("*.py")
    }
    found |= {asset: asset for asset in assets()}
    folders = {"docs/results/rows": "results/rows/index.md", "configs": "configs/README.md"}
    return found | {"README.md": "index.md", "examples": "examples/index.md"} | folders


def address_of(source: str) -> str:
    """Return the address on the site of a file or folder in the repository.

    Example:
        >>> address_of("docs/posthoc.md"), address_of("CONTRIBUTING.md"), address_of("examples/plain_loop.py")
        ('posthoc.md', 'contributing.md', 'examples/plain_loop.md')
    """
    source = source.rstrip("/")
    if source.startswith("docs/results/rows/"):
        return "results/rows/index.md" if (ROOT / source).is_dir() else source.removeprefix("docs/")
    return _addresses().get(source, source.removeprefix("docs/"))


def rewrite_links(text: str, address: str) -> str:
    """Return a page whose links lead to pages of the site; code stays as it is.

    Example:
        >>> rewrite_links("[loop](../examples/plain_loop.py)", "losses.md")
        '[loop](examples/plain_loop.md)'
    """
    folder = posixpath.dirname(source_of(address))

    def target(match: re.Match[str]) -> str:
        found = address_of(posixpath.normpath(posixpath.join(folder, match[1])))
        return posixpath.relpath(found, posixpath.dirname(address) or ".") + (match[2] or "")

    return outside_code(text, lambda part: _LINK.sub(target, part))


def outside_code(text: str, change: Callable[[str], str]) -> str:
    """Return text with everything but code changed."""
    parts = _CODE.split(text)
    return "".join(part if index % 2 else change(part) for index, part in enumerate(parts))


def _examples() -> str:
    rows = []
    for file in sorted((ROOT / "examples").glob("*.py")):
        first = file.read_text(encoding="utf-8").split('"""')[1].strip().splitlines()[0]
        rows.append(f"| [`{file.name}`]({file.stem}.md) | {first} |")
    return "\n".join(
        [
            "# Examples",
            "",
            "Which whole program can I start from? The tests run each of them.",
            "",
            "| program | what it shows |",
            "|---|---|",
            *rows,
            "",
        ]
    )


def _rows() -> str:
    """Return the page of the folder docs/results/rows."""
    folder = ROOT / "docs" / "results" / "rows"
    rows = []
    for experiment in sorted(path for path in folder.iterdir() if path.is_dir()):
        files = ", ".join(
            f"[{file.name}]({experiment.name}/{file.name}) ({file.stat().st_size / 1024:,.0f} kB)"
            for file in sorted(experiment.iterdir())
        )
        rows.append(f"| {experiment.name} | {files} |")
    return "\n".join(
        [
            "# Rows behind the tables",
            "",
            "Where are the numbers of each seed? Every table of the benchmark is made from these rows by "
            "`calibrant bench table`.",
            "",
            "| experiment | files |",
            "|---|---|",
            *rows,
            "",
        ]
    )
