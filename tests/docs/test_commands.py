"""Every command of the pages runs as it is shown, or is checked in the way that a table states."""

import re
import subprocess
import webbrowser
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pytest

from calibrant.training.config import toml
from tests.conftest import at_length
from tests.docs.checks import NOT_RUN, check, has_options_that_exist, instead_of
from tests.docs.pages import BLOCKS, ROOT, SHELL, Block, words_of
from tests.docs.running import Ended, run_ours
from tests.docs.worlds import BEFORE, PLACES, WORLDS

SCRIPTS = [block for block in BLOCKS if block.language in SHELL]
LINES = [line for block in SCRIPTS for line in block.commands()]
PAGES = dict.fromkeys(
    block.page for block in SCRIPTS if any(instead_of(line) is None for line in block.commands())
)
# Their commands draw every figure and print every table; the tests of both are elsewhere.
LONG = {
    "docs/gallery.md",
    "docs/benchmark.md",
    "docs/posthoc.md",
    "docs/training.md",
    "docs/results/figures.md",
    "docs/results/reproduces.md",
}
# Programs that a shell runs in the folder of the page.
PLAIN = {"cat", "cd", "export", "printf"}
# Codes other than 0 that the pages state: a gate that fails or cannot tell, an alarm, a change.
CODES = {"gate": (3, 4), "monitor": (3,), "estimate": (3,)}
WRITTEN = ("--out", "--junit", "--summary", "--state", "--prometheus")


def run_line(line):
    """Run a line as a shell would; one of an unknown program is neither run nor checked and fails."""
    words = words_of(line)
    if words[0] in PLAIN:
        ended = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=False)
        return Ended(ended.returncode, ended.stdout, ended.stderr)
    assert words[0] == "calibrant", f"not run, and not in the table of tests/docs/checks.py: {line}"
    joined = "2>&1" in words
    words = [word for word in words if word != "2>&1"]
    if ">" not in words:
        return run_ours(words)
    ended = run_ours(words[: words.index(">")])
    Path(words[words.index(">") + 1]).write_text(ended.out + ended.err * joined, encoding="utf-8")
    return ended


def allowed(words):
    """Return the exit codes of a command that its page allows."""
    names = [words[1], *(f"{words[1]} {word}" for word in words if word.startswith("--"))]
    return {0}.union(*(CODES.get(name, ()) for name in names))


def run_and_check(line):
    ended, words = run_line(line), words_of(line)
    told = f"{line}\nexit code {ended.code}\n{ended.out[-1500:]}\n{ended.err[-1500:]}"
    assert ended.code in allowed(words), told
    assert "Traceback" not in ended.err, told
    assert not re.search(r"\w+Warning: ", ended.err), told
    missing = [words[words.index(name) + 1] for name in WRITTEN if name in words]
    assert [path for path in missing if not Path(path).exists()] == [], told


def run_all(lines, done):
    """Run commands in their order, in the current folder; those that are ``done`` there are left out."""
    for line in lines:
        if instead_of(line) is None and (words := tuple(words_of(line))) not in done:
            for there, here in PLACES.items():
                line = line.replace(there, here)
            run_and_check(line)
            done.add(words)


@dataclass(frozen=True)
class Folder:
    """A folder with files, and the commands that have run in it."""

    path: Path
    done: set = field(default_factory=set)


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory):
    """Return a function from a page to its folder, which pages with the same files share."""

    @cache
    def folder(makers):
        path = tmp_path_factory.mktemp("page")
        for make in makers:
            make(path)
        return Folder(path)

    return lambda page: folder(WORLDS.get(page, ()))


@pytest.fixture
def short_training(tmp_path, monkeypatch):
    """Let ``calibrant train`` without a configuration stop after a few epochs."""
    text = Path(toml.__file__).with_name("first_run.toml").read_text(encoding="utf-8")
    (tmp_path / "short.toml").write_text(re.sub(r"epochs = \d+", "epochs = 3", text), encoding="utf-8")
    monkeypatch.setattr(toml, "_FIRST_RUN", tmp_path / "short.toml")


@pytest.mark.slow
@pytest.mark.filterwarnings("always")  # as for a user: shown, not raised
@pytest.mark.usefixtures("short_training")
@pytest.mark.parametrize("page", at_length(PAGES, PAGES.keys() - LONG))
def test_the_commands_of_a_page_run_in_their_order(page, folder_of, monkeypatch):
    monkeypatch.setattr(webbrowser, "open", lambda _: True)
    folder = folder_of(page)
    monkeypatch.chdir(folder.path)
    lines = [line for block in SCRIPTS if block.page == page for line in block.commands()]
    run_all([*BEFORE.get(page, ()), *lines], folder.done)


def test_every_command_of_ours_has_options_that_exist():
    for line in LINES:
        if (words := words_of(line))[0] == "calibrant":
            has_options_that_exist([word for word in words if word not in (">", "2>&1")])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of libraries that benchmarks import
@pytest.mark.parametrize("line", dict.fromkeys(line for line in LINES if instead_of(line)))
def test_a_command_that_is_not_run_is_checked(line):
    check(line)


def test_every_entry_of_the_table_is_needed_and_names_tests_that_exist():
    for each in NOT_RUN:
        assert [line for line in LINES if instead_of(line) is each], each.begins
        assert [
            name for name in re.findall(r"tests/[\w/]+\.py", each.why) if not (ROOT / name).is_file()
        ] == []


def test_every_world_belongs_to_a_page_with_commands():
    assert BEFORE.keys() <= WORLDS.keys() <= PAGES.keys()


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("calibrant evaluate no-such-file.npz", "exit code 2"),
        ("calibrant measures no_such_measure", "exit code 2"),
        ("calibrant evalute test.npz", "exit code 2"),
        ("cat no-such-file.csv", "exit code 1"),
        ("curl https://example.org", "not run, and not in the table"),
    ],
)
def test_a_command_that_fails_or_that_nobody_runs_is_noticed(line, error, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(AssertionError, match=error):
        run_all(Block("page.md", 1, "sh", line).commands(), set())


@pytest.mark.parametrize(
    "line",
    [
        "make no-such-target",
        "pip install -c constraints.txt '.[no_such_extra]'",
        "pip install -c no-such-file.txt .",
        "calibrant bench run posthoc --only method=no_such_method",
        "calibrant evaluate folder/ --engine ray --no-such",
        "torchrun --nproc-per-node 4 -m calibrant train --no-such 3",
        "python examples/no_such_example.py",
        "python examples/plain_loop.py --epochs 3",
    ],
)
def test_a_mistake_in_a_command_that_is_not_run_is_noticed(line):
    with pytest.raises((AssertionError, FileNotFoundError)):
        check(line)
    with pytest.raises(SystemExit):
        check("python scripts/peers.py --no-such")
