"""The pages of the documentation, and the blocks of code in them."""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = {
    str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
}
SHELL = ("sh", "bash")

_BLOCK = re.compile(r"^```([^\n`]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A block of code.

    Attributes:
        page: Path of the page.
        line: The line of the page on which the block begins.
        language: What stands after the three backquotes.
        code: The text between the fences.
    """

    page: str
    line: int
    language: str
    code: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def is_of_a_tutorial(self) -> bool:
        """Whether the page is a tutorial; these run as a whole in tests of their own."""
        return self.page.startswith("docs/tutorials/") and self.page != "docs/tutorials/index.md"

    def commands(self) -> list[str]:
        """Return the lines of a block of commands, continued lines joined; comments are no commands."""
        lines = (line.strip() for line in self.code.replace("\\\n", " ").splitlines())
        return [line for line in lines if line and not line.startswith("#")]


def blocks_of(page: str, text: str) -> list[Block]:
    """Return the blocks of a page in their order."""
    return [
        Block(page, text.count("\n", 0, found.start()) + 1, found[1], found[2])
        for found in _BLOCK.finditer(text)
    ]


def words_of(command: str) -> list[str]:
    """Return the words of a command as a shell reads them, without its comment."""
    return shlex.split(command, comments=True)


BLOCKS = [block for page, text in PAGES.items() for block in blocks_of(page, text)]
