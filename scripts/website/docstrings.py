"""Docstrings as Markdown: formulas and references to other objects, for the pages of the reference.

A constant has no docstring of its own: the comment above it that begins with ``#:`` takes its place.
"""

import re
from functools import cache
from pathlib import Path
from typing import Any

import griffe

_BLOCK = re.compile(
    r"^(?P<indent> *)\.\. math:: *(?P<first>.*)\n(?P<rest>(?:(?P=indent) +\S.*\n|\n(?=(?P=indent) +\S))*)",
    re.MULTILINE,
)
_EXAMPLE = re.compile(r"^Example:$", re.MULTILINE)
_MATH = re.compile(r":math:`([^`]+)`")
_ROLE = re.compile(r":(?:func|class|meth|mod|attr|data|exc):`(~?)([^`]+)`")


class MarkdownDocstrings(griffe.Extension):
    """Rewrite each docstring before it is parsed."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:  # noqa: ANN401  # what else Griffe passes on
        """Replace the marks of reStructuredText in the docstring of one object."""
        if obj.docstring is None and isinstance(obj, griffe.Attribute) and (comment := _comment_above(obj)):
            obj.docstring = griffe.Docstring(comment, parent=obj)
        if obj.docstring:
            obj.docstring.value = to_markdown(obj.docstring.value, obj)


def to_markdown(text: str, scope: griffe.Object | None = None) -> str:
    r"""Return a docstring with formulas between dollars and links to the objects that it names.

    Example:
        >>> to_markdown(":math:`x_b` of :func:`~calibrant.evaluate`")
        '$x_b$ of <autoref optional identifier="calibrant.evaluate"><code>evaluate</code></autoref>'
        >>> to_markdown(".. math:: a = b,\n    c\n\nThen.")
        '$$\na = b, c\n$$\n\nThen.'
    """

    def display(match: re.Match[str]) -> str:
        formula = " ".join((match["first"] + " " + match["rest"]).split())
        indent = match["indent"]
        return f"{indent}$$\n{indent}{formula}\n{indent}$$\n"

    def reference(match: re.Match[str]) -> str:
        path = match[2].removesuffix("()")
        shown = path.rpartition(".")[2] if match[1] else path
        # Optional: what is not public has no place in the reference, and is shown as code.
        return f'<autoref optional identifier="{_full_path(path, scope)}"><code>{shown}</code></autoref>'

    text = _BLOCK.sub(display, text + "\n").removesuffix("\n")
    text = _EXAMPLE.sub("Examples:", text)
    return _ROLE.sub(reference, _MATH.sub(r"$\1$", text))


def _full_path(path: str, scope: griffe.Object | None) -> str:
    """Return the path of a name as Python finds it where the docstring stands."""
    if path.startswith("calibrant.") or scope is None:
        return path
    try:
        return scope.resolve(path)
    except griffe.NameResolutionError:
        return path


def _comment_above(attribute: griffe.Attribute) -> str:
    """Return the lines of ``#:`` directly above a constant."""
    if attribute.lineno is None or not isinstance(attribute.filepath, Path):
        return ""
    found: list[str] = []
    for line in reversed(_lines(attribute.filepath)[: attribute.lineno - 1]):
        if not line.startswith("#:"):
            break
        found.insert(0, line.removeprefix("#:").strip())
    return "\n".join(found)


@cache
def _lines(file: Path) -> list[str]:
    return file.read_text(encoding="utf-8").splitlines()
