"""The gallery as the site shows it: pictures first, and the code that made each behind it."""

import re

_CODE = r"```(?:sh|python)\n(?:(?!```).)*```\n+"
_PART = re.compile(rf"(?P<code>(?:{_CODE})+)(?P<image>!\[[^\]]*\]\([^)]*\))\n", re.DOTALL)
_HEADING = re.compile(r"^## (?P<title>.+)$", re.MULTILINE)
_IMAGE = re.compile(r"!\[(?P<words>.*?)\]\((?P<file>.*?)\)")
_CONTENTS = re.compile(r"^\*\*Contents:\*\*.*?\n\n", re.MULTILINE | re.DOTALL)


def pictures_first(text: str) -> str:
    """Return the gallery with small pictures on top, and each figure above its code, which is folded."""
    title, question, rest = _CONTENTS.sub("", text).split("\n\n", 2)
    return _PART.sub(_folded, "\n\n".join((title, question, _wall(text), rest)))


def _folded(match: re.Match[str]) -> str:
    code = "\n".join(f"    {line}".rstrip() for line in match["code"].strip().splitlines())
    return f'{match["image"]}\n\n??? example "The code behind it"\n\n{code}\n\n'


def _wall(text: str) -> str:
    """Return links to all sections, each with its first figure."""
    links = []
    parts = _HEADING.split(text)
    for title, body in zip(parts[1::2], parts[2::2], strict=True):
        if image := _IMAGE.search(body):
            anchor = re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
            links.append(f"[![{image['words']}]({image['file']}) {title}](#{anchor})")
    return '<div class="wall" markdown>\n\n' + "\n".join(links) + "\n\n</div>"
