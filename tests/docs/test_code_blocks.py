"""Code of the pages that no doctest runs: commands name options that exist, Python names what there is."""

import ast
import importlib
import re
import shlex
from pathlib import Path

import pytest
from typer.main import get_command

from calibrant.cli import app

ROOT = Path(__file__).parents[2]
FILES = {
    str(path.relative_to(ROOT)): path for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
}
TEXTS = {name: path.read_text(encoding="utf-8") for name, path in FILES.items()}
COMMANDS = get_command(app)


def blocks(text, language):
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def commands(text):
    """Yield the words of each command of ours, in blocks and within sentences."""
    inside = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    lines = [line for code in blocks(text, "sh") for line in code.replace("\\\n", " ").splitlines()]
    for line in (*lines, *re.findall(r"`([^`\n]+)`", inside)):
        if re.match(r"calibrant [-a-z]", line) and "..." not in line:
            words = shlex.split(line, comments=True)
            ends = [place for place, word in enumerate(words) if word in ("|", "||", "&&", ">", "2>", ";")]
            yield words[1 : ends[0] if ends else None]


def shown_only(text):
    """Return the blocks of Python that are no doctests; those of tutorials run in a test of their own."""
    if "\n## The decision\n" in text:
        return []
    return [code for code in blocks(text, "python") if not code.startswith(">>>")]


def unknown(words):
    """Return the first word of a command that does not exist, or None."""
    command = COMMANDS
    while hasattr(command, "commands") and words and not words[0].startswith("-"):
        if words[0] not in command.commands:
            return words[0]
        command, words = command.commands[words[0]], words[1:]
    known = {name for each in command.params for name in (*each.opts, *each.secondary_opts)} | {
        "--help",
        "-h",
    }
    options = [word.partition("=")[0] for word in words if re.match(r"--?[a-zA-Z]", word)]
    return next((option for option in options if option not in known), None)


@pytest.mark.parametrize("name", [name for name, text in TEXTS.items() if any(commands(text))])
def test_every_command_and_option_exists(name):
    wrong = {" ".join(words): found for words in commands(TEXTS[name]) if (found := unknown(words))}
    assert wrong == {}


def test_options_and_commands_that_do_not_exist_are_noticed():
    assert unknown(["evaluate", "a.npz", "--intervals", "--require", "ece < 1"]) is None
    assert unknown(["evaluate", "a.npz", "--interval"]) == "--interval"
    assert unknown(["evalute", "a.npz"]) == "evalute"
    assert unknown(["bench", "run", "x.toml", "--no-such"]) == "--no-such"


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, text in TEXTS.items() if shown_only(text)])
def test_python_that_is_only_shown_can_be_read_and_names_what_there_is(name):
    for code in shown_only(TEXTS[name]):
        for node in ast.walk(ast.parse(code)):
            if isinstance(node, ast.ImportFrom) and node.module.startswith("calibrant"):
                module = importlib.import_module(node.module)
                assert [each.name for each in node.names if not hasattr(module, each.name)] == []
