"""Every block of the pages is of a kind that some test runs or reads, and commands in sentences exist."""

import re
import tomllib

import pytest
import yaml

from calibrant.papers.experiment import parse_experiment
from calibrant.training import load_config
from tests.docs.checks import unknown
from tests.docs.pages import BLOCKS, PAGES, ROOT, SHELL, Block, blocks_of, words_of

# Where the blocks of a language are tested.
TESTED = {
    **dict.fromkeys(SHELL, "tests/docs/test_commands.py"),
    "python": "tests/docs/test_python_blocks.py",
    "text": "tests/docs/test_outputs.py",
    "toml": "tests/docs/test_code_blocks.py",
    "yaml": "tests/docs/test_code_blocks.py",
}


class _Tagged(yaml.SafeLoader):
    """YAML in which a value may have a tag of another tool."""


_Tagged.add_multi_constructor("!", lambda *_: "")


def commands(text):
    """Yield the words of each command of ours, in blocks and within sentences."""
    inside = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    lines = [
        line
        for block in blocks_of("", text)
        if block.language in (*SHELL, "yaml")
        for line in block.commands()
    ]
    for line in (*lines, *re.findall(r"`([^`\n]+)`", inside)):
        if re.match(r"calibrant [-a-z]", line) and "..." not in line:
            words = words_of(line)
            ends = [place for place, word in enumerate(words) if word in ("|", "||", "&&", ">", "2>", ";")]
            yield words[1 : ends[0] if ends else None]


@pytest.mark.parametrize("name", [name for name, text in PAGES.items() if any(commands(text))])
def test_every_command_and_option_exists(name):
    wrong = {" ".join(words): found for words in commands(PAGES[name]) if (found := unknown(words))}
    assert wrong == {}


def test_options_and_commands_that_do_not_exist_are_noticed():
    assert unknown(["gate", "a.npz", "--unpaired", "--require", "ece < 1"]) is None
    assert unknown(["evaluate", "a.npz", "--interval"]) == "--interval"
    assert unknown(["evalute", "a.npz"]) == "evalute"
    assert unknown(["bench", "run", "x.toml", "--no-such"]) == "--no-such"


def slipped_through(page, text):
    """Return the lines of fences that do not belong to a block, and blocks that no test runs or reads."""
    blocks = blocks_of(page, text)
    fences = [line for line in text.splitlines() if re.match(r"\s*(```|~~~)", line)]
    return ["fences"] * (len(fences) != 2 * len(blocks)) + [
        str(block)
        for block in blocks
        if block.language not in TESTED
        or "+SKIP" in block.code
        or (block.code.startswith(">>> ") and block.language != "python")
        or (">>> " in block.code and not block.code.startswith(">>> ") and not block.is_of_a_tutorial)
    ]


@pytest.mark.parametrize("page", PAGES)
def test_no_block_slips_through(page):
    assert slipped_through(page, PAGES[page]) == []


def test_blocks_that_slip_through_are_noticed():
    assert slipped_through("a.md", "```sh\nls\n```\n") == []
    assert slipped_through("a.md", "```\nls\n```\n") == ["a.md:1"]
    assert slipped_through("a.md", "\n```console\n$ ls\n```\n") == ["a.md:2"]
    assert slipped_through("a.md", "- ls\n  ```sh\n  ls\n  ```\n") == ["fences"]
    assert slipped_through("a.md", "~~~sh\nls\n~~~\n") == ["fences"]
    assert slipped_through("a.md", "```python\n>>> x  # doctest: +SKIP\n```\n") == ["a.md:1"]
    assert slipped_through("a.md", "```python\nx = 1\n>>> x\n1\n```\n") == ["a.md:1"]


def test_the_tests_of_blocks_exist():
    assert [path for path in TESTED.values() if not (ROOT / path).is_file()] == []


def read_settings(block, folder):
    """Read a configuration of a training, or an experiment, as its command does; return what it contains."""
    if "worker" in tomllib.loads(block.code):
        return list(parse_experiment("page", block.code).jobs("quick"))
    path = folder / "page.toml"
    path.write_text(block.code, encoding="utf-8")
    return load_config(path)


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.language == "toml"], ids=str)
def test_settings_can_be_read(block, tmp_path):
    assert read_settings(block, tmp_path)


def test_settings_that_do_not_exist_are_noticed(tmp_path):
    with pytest.raises(Exception, match="no_such"):
        read_settings(Block("a.md", 1, "toml", "[training]\nno_such = 1\n"), tmp_path)


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.language == "yaml"], ids=str)
def test_yaml_can_be_read_and_names_metrics_that_exist(block):
    assert isinstance(yaml.load(block.code, _Tagged), dict)
    source = (ROOT / "src" / "calibrant" / "monitoring" / "prometheus.py").read_text(encoding="utf-8")
    names = re.findall(r"calibrant_\w+", block.code)
    assert [name for name in names if f'"{name}"' not in source] == []
