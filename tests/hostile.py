"""Names that attack: what a class, a group, a file or an option may be called by someone who means harm.

Every command that shows names is run with all of them; :data:`NAMES` is the one list.
"""

import re
from collections.abc import Iterator
from html.parser import HTMLParser

#: Names by the attack; all differ, and none is empty.
NAMES = {
    "ANSI colour": "\x1b[31mred\x1b[0m",
    "terminal title": "\x1b]0;owned\x07t",
    "clear screen": "\x1b[2J\x1b[Hc",
    "C1 control": "c1\x9b31m",
    "backspaces": "good\x08\x08\x08\x08evil",
    "carriage return": "first\rsecond",
    "line break": "one\ntwo",
    "tab": "one\ttwo",
    "null": "nul\x00l",
    "right to left": "\u202egpj.exe",
    "isolate": "\u2066open\u2069",
    "line separator": "a\u2028b\u2029c",
    "zero width": "c\u200bat\ufeff",
    "lone surrogate": "byte\udcff",
    "noncharacter": "\uffffx",
    "markup": "[red]swallowed[/red]",
    "markup that closes": "[/x]",
    "markup link": "[link=file:///etc/passwd]x[/link]",
    "backslash at the end": "back[bold]\\",
    "emoji code": ":warning:",
    "mathtext": "$\\frac{1}{2}$",
    "broken mathtext": "$\\frac$",
    "underscore": "_hidden",
    "script": "</script><script>alert(1)</script>",
    "image": "\"'><img src=x onerror=alert(1)>",
    "entity": "&lt;b&gt; & <![CDATA[",
    "template": "{{ 7 * 7 }}{% raw %}",
    "pipe": "a | b `c` *d* [e](javascript:x)",
    "LaTeX": "\\input{/etc/passwd}%#^~",
    "formula": "=cmd|'/c calc'!A1",
    "formula at": "@SUM(1+1)",
    "formula plus": "+1+1",
    "guarded formula": "'-2+3",
    "quotes": "say \"x\", 'y'; z",
    "format": "%s%n{0}${HOME}",
    "very long": "long " * 400 + "end",
    "emoji": "family \U0001f468\u200d\U0001f469\u200d\U0001f467",
    "Hebrew": "\u05e9\u05dc\u05d5\u05dd",
    "combining": "z\u0351\u0300\u0301\u0489a",
}

# What may not reach a terminal or a page as it is; line breaks are ours.
_RAW = re.compile(
    "[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]"
)


def texts() -> list[str]:
    """Return the names that are text: all but halves of characters, which only file names contain."""
    return [name for name in NAMES.values() if not any("\ud800" <= letter <= "\udfff" for letter in name)]


def file_names() -> Iterator[str]:
    """Yield those names that a file can have."""
    for name in NAMES.values():
        if "\x00" not in name and "/" not in name and len(name.encode("utf-8", "surrogateescape")) < 200:
            yield name


def raw_characters(text: str) -> list[str]:
    """Return the control characters, bidirectional marks and surrogates of a text, as escapes."""
    return [ascii(each) for each in _RAW.findall(text)]


class Tags(HTMLParser):
    """How often each element of a page occurs, the attributes that are used, and the texts."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.counts: dict[str, int] = {}
        self.attributes: set[str] = set()
        self.texts: set[str] = set()
        self.titles: set[str | None] = set()
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Count an element."""
        self.counts[tag] = self.counts.get(tag, 0) + 1
        self.attributes |= {name for name, _ in attrs}
        self.titles |= {value for name, value in attrs if name == "title"}

    def handle_data(self, data: str) -> None:
        """Remember a text."""
        self.texts.add(data)
