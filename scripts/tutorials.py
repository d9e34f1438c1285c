"""Run the tutorials, and write into their pages what the code prints, shows and draws.

    python scripts/tutorials.py                  # all of them
    python scripts/tutorials.py repair abstain   # pages whose names contain one of these words
    python scripts/tutorials.py --notebooks      # the notebooks alone, which runs nothing

A page is Markdown. Its blocks of ``python`` are the cells. What follows a cell at once is its output: a block
of ``text`` that was printed, a ``div`` that a result shows of itself, and an image that is drawn from the
last line of the cell. Each page has a notebook beside it, without outputs.
"""

import argparse
import ast
import io
import json
import os
import re
import warnings
from collections.abc import Iterator
from contextlib import chdir, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "tutorials"

_CELL = re.compile(
    r"^```python\n(?P<code>.*?)^```\n"
    r"(?:\n```text\n(?P<text>.*?)^```\n)?"
    r'(?:\n(?P<html><div class="shown">.*?</div><!-- shown -->)\n)?'
    r"(?:\n!\[(?P<words>[^\]]*)\]\((?P<picture>pictures/[\w-]+\.svg)\)\n)?",
    re.MULTILINE | re.DOTALL,
)
# What a reader of the notebook need not be told.
_NOTEBOOK = re.compile(r"\s*\(\[As a notebook\]\([\w-]+\.ipynb\)\.\)")


@dataclass(frozen=True)
class Output:
    """What a cell gives: what it prints, what its last value shows of itself, and a figure."""

    text: str = ""
    html: str = ""
    display: Any = None


@dataclass(frozen=True)
class Cell:
    """A cell of a page with the output that the page shows; its figure by address and alternative text."""

    code: str
    text: str
    html: str
    picture: str
    words: str

    def with_output(self, output: Output) -> str:
        """Return the cell as Markdown with another output."""
        parts = [f"```python\n{self.code}```\n"]
        parts += [f"```text\n{output.text}```\n"] if output.text else []
        parts += [f"{output.html}\n"] if output.html else []
        parts += [f"![{self.words}]({self.picture})\n"] if self.picture else []
        return "\n".join(parts)


def pages() -> list[Path]:
    """Return the tutorials, without their index."""
    return sorted(path for path in FOLDER.glob("*.md") if path.stem != "index")


def cells(text: str) -> Iterator[Cell]:
    """Yield the cells of a page."""
    for found in _CELL.finditer(text):
        yield _cell(found)


def _cell(found: re.Match[str]) -> Cell:
    return Cell(*(found[name] or "" for name in ("code", "text", "html", "picture", "words")))


def run(page: Path) -> Iterator[tuple[Cell, Output]]:
    """Run the cells of a page in one namespace and a folder of their own, as a notebook would."""
    names: dict[str, Any] = {"__name__": f"tutorial_{page.stem.replace('-', '_')}"}
    with TemporaryDirectory() as folder, chdir(folder):
        for cell in cells(page.read_text(encoding="utf-8")):
            yield cell, execute(cell.code, names, page.name)


def execute(code: str, names: dict[str, Any], name: str) -> Output:
    """Run a cell; the value of its last line is shown unless that ends in a semicolon."""
    tree = ast.parse(code, name)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    printed = io.StringIO()
    with redirect_stdout(printed):
        exec(compile(tree, name, "exec"), names)
        value = None
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), name, "eval"), names)
    if value is None or code.rstrip().endswith(";"):
        return Output(printed.getvalue())
    if hasattr(value, "_repr_png_"):
        return Output(printed.getvalue(), display=value)
    shown = value._repr_html_() if hasattr(value, "_repr_html_") else None
    if shown is None:
        return Output(f"{printed.getvalue()}{value!r}\n")
    return Output(printed.getvalue(), f'<div class="shown">{shown}</div><!-- shown -->')


def update(page: Path) -> None:
    """Run a page, and write its outputs into it."""
    outputs = []
    for cell, output in run(page):
        if (output.display is not None) != bool(cell.picture):
            raise SystemExit(f"{page.name}: a figure without an image, or the reverse, after\n{cell.code}")
        if output.display is not None:
            (FOLDER / cell.picture).parent.mkdir(exist_ok=True)
            output.display.save(FOLDER / cell.picture)
        outputs.append(output)
    found = iter(outputs)
    text = page.read_text(encoding="utf-8")
    page.write_text(_CELL.sub(lambda each: _cell(each).with_output(next(found)), text), encoding="utf-8")


def notebook(page: Path) -> str:
    """Return the page as a notebook without outputs."""
    text = _NOTEBOOK.sub("", page.read_text(encoding="utf-8"))
    found, end = [], 0
    for match in _CELL.finditer(text):
        found += [("markdown", text[end : match.start()]), ("code", match["code"])]
        end = match.end()
    found.append(("markdown", text[end:]))
    made: list[dict[str, Any]] = [
        {
            "cell_type": kind,
            "id": f"cell-{place}",
            "metadata": {},
            **({"execution_count": None, "outputs": []} if kind == "code" else {}),
            "source": source.strip().splitlines(keepends=True),
        }
        for place, (kind, source) in enumerate(each for each in found if each[1].strip())
    ]
    metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    whole = {"cells": made, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(whole, indent=1, ensure_ascii=False) + "\n"


def main() -> None:
    """Run the pages that the command line names."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", help="parts of the names of pages")
    parser.add_argument("--notebooks", action="store_true", help="write the notebooks, run nothing")
    chosen = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    warnings.simplefilter("ignore", DeprecationWarning)
    for page in pages():
        if chosen.names and not any(name in page.stem for name in chosen.names):
            continue
        if not chosen.notebooks:
            update(page)
        page.with_suffix(".ipynb").write_text(notebook(page), encoding="utf-8")
        print(page.name)


if __name__ == "__main__":
    main()
