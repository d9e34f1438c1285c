"""The list of all result pages, each with the question that it answers."""

import re

from scripts.website.names import ROOT

_HEADING = re.compile(r"^# (.+)$", re.MULTILINE)


def result_pages() -> str:
    """Return the Markdown of the page that lists all results."""
    rows = []
    for file in sorted((ROOT / "docs" / "results").glob("*.md")):
        title, question = title_and_question(file.read_text(encoding="utf-8"))
        rows.append(f"| [{title}]({file.name}) | {question} |")
    return "\n".join(
        [
            "# Results",
            "",
            "What was measured, and by which command? Each page names the command that makes its numbers. "
            "[The rows of each seed](rows/index.md) are part of the repository.",
            "",
            "| page | what it answers |",
            "|---|---|",
            *rows,
            "",
        ]
    )


def title_and_question(text: str) -> tuple[str, str]:
    r"""Return the first heading of a page and the first paragraph after it, in one line.

    Example:
        >>> title_and_question("# Cost\n\nWhat does\nit cost?\n\nMuch.")
        ('Cost', 'What does it cost?')
    """
    heading = _HEADING.search(text)
    assert heading is not None
    paragraph = next(
        part for part in text[heading.end() :].strip().split("\n\n") if not part.startswith(("```", "#"))
    )
    return heading[1], " ".join(paragraph.split())
