"""Commands of the pages that cannot run in a test: why, and what is checked instead."""

import argparse
import re
import runpy
import sys
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from typer.main import get_command

from calibrant.cli import app
from calibrant.papers.experiment import load_experiment
from tests.docs.pages import ROOT, words_of

COMMANDS: Any = get_command(app)
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"][
    "optional-dependencies"
]
# Names that an experiment gets from its data, beside those of its grid.
FROM_DATA = {"llm": {"model", "confidence"}, "arena_real": {"file"}}


def unknown(words):
    """Return the first word of a command of ours that does not exist, or None."""
    command = COMMANDS
    while hasattr(command, "commands") and words and not words[0].startswith("-"):
        if words[0] not in command.commands:
            return words[0]
        command, words = command.commands[words[0]], words[1:]
    known = {name for each in command.params for name in (*each.opts, *each.secondary_opts)}
    options = [word.partition("=")[0] for word in words if re.match(r"--?[a-zA-Z]", word)]
    return next((option for option in options if option not in known | {"--help", "-h"}), None)


def has_options_that_exist(words):
    """Check the command of ours, which may come after a launcher."""
    assert unknown(words[words.index("calibrant") + 1 :]) is None


def names_a_target(words):
    """Check that the Makefile has the target."""
    targets = re.search(r"^\.PHONY: (.*)$", MAKEFILE, re.MULTILINE)[1].split()
    assert set(words[1:]) <= set(targets)


def installs_what_is_there(words):
    """Check the file of constraints, and extras of this package."""
    assert words[1] == "install"
    if "-c" in words:
        assert (ROOT / words[words.index("-c") + 1]).is_file()
    for extra in re.findall(r"\.\[(.*?)\]", " ".join(words)):
        assert set(extra.split(",")) <= EXTRAS.keys()


def names_a_commit(words):
    """Check that the last word may be a commit."""
    assert re.fullmatch("[0-9a-f]{7,}|COMMIT", words[-1])


def is_of_the_container(words):
    """Check that there is a container file, and a command that is run in it."""
    assert (ROOT / "Dockerfile").is_file()
    if words[1] == "run":
        has_options_that_exist(words[words.index("calibrant") :])


def is_a_part_of_lint(words):
    """Check that ``make lint`` runs the program."""
    assert re.search(rf"^\t\$\(BIN\)/{words[0]}$", MAKEFILE, re.MULTILINE)


class _OptionsAreReadError(Exception):
    pass


def reads_its_options(words):
    """Start the script and stop it when it has read its options; one without options must be an example."""
    script = ROOT / words[1]
    if "parser" not in script.read_text(encoding="utf-8"):
        assert words[2:] == []
        assert f'"{script.stem}"' in (ROOT / "tests" / "test_examples.py").read_text(encoding="utf-8")
        return
    read = argparse.ArgumentParser.parse_args

    def stop(*arguments, **options):
        read(*arguments, **options)
        raise _OptionsAreReadError

    before = set(sys.modules)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(argparse.ArgumentParser, "parse_args", stop)
        patch.setattr(sys, "argv", words[1:])
        patch.syspath_prepend(script.parent)
        with pytest.raises(_OptionsAreReadError):
            runpy.run_path(str(script), run_name="__main__")
    for name in {path.stem for path in script.parent.glob("*.py")} & (set(sys.modules) - before):
        del sys.modules[name]


def has_jobs(words):
    """Check that the experiment has the preset, and jobs with the values that ``--only`` names."""
    given = COMMANDS.commands["bench"].commands["run"].make_context("run", words[3:]).params
    experiment = load_experiment(given["name"])
    only = dict(each.split("=", 1) for each in given["only"] or ())
    values = {name: value.split(",") for name, value in only.items()}
    of_grid = {
        name: value for name, value in values.items() if name not in FROM_DATA.get(experiment.worker, ())
    }
    assert any(experiment.jobs(experiment.preset_named(given["preset"]), seeds=given["seeds"], only=of_grid))


@dataclass(frozen=True)
class Instead:
    """Commands that are not run.

    Attributes:
        begins: A pattern of their beginning.
        why: The reason, and the tests that run the same in small.
        check: What is checked instead; takes the words of the command.
    """

    begins: str
    why: str
    check: Callable[[list[str]], None]


NOT_RUN = (
    Instead(r"docker ", "needs Docker; tests/docs/test_packages.py reads the file", is_of_the_container),
    Instead(r"git worktree add ", "needs a history; what follows runs in small", names_a_commit),
    Instead(r"make ", "creates an environment, or runs these tests", names_a_target),
    Instead(r"pip ", "changes the environment and needs the network", installs_what_is_there),
    Instead(r"lint-imports", "a part of make lint, which runs before the tests", is_a_part_of_lint),
    Instead(
        r"python (benchmarks|examples|scripts)/",
        "takes minutes or writes pages; in small: tests/test_benchmarks.py, tests/test_examples.py, "
        "tests/docs/test_project.py, tests/docs/test_readme.py, tests/test_papers_page.py",
        reads_its_options,
    ),
    Instead(
        r"calibrant bench run ",
        "takes minutes to days; in small: tests/papers/test_runner.py, tests/papers/test_llm.py, "
        "tests/papers/test_arena_real.py, tests/papers/test_training_worker.py",
        has_jobs,
    ),
    Instead(
        r"calibrant evaluate .*--engine ray",
        "needs a cluster; in small: tests/streams/test_ray.py",
        has_options_that_exist,
    ),
    Instead(
        r"calibrant train .*--log (mlflow|wandb)=",
        "needs a server or packages that are no requirement; in small: tests/integrations/test_loggers.py",
        has_options_that_exist,
    ),
    Instead(
        r"calibrant train .*hardware\.devices=|torchrun |srun ",
        "starts several processes; in small: tests/training/test_two_processes.py",
        has_options_that_exist,
    ),
)


def without_assignments(command):
    """Return a command without the variables that are set for it."""
    return re.sub(r"^([A-Z_]+=\S+ +)+", "", command)


def instead_of(command):
    """Return the entry of the table for a command, or None if the command must run."""
    found = [each for each in NOT_RUN if re.match(each.begins, without_assignments(command))]
    assert len(found) < 2
    return found[0] if found else None


def check(command):
    """Check a command that is not run."""
    instead_of(command).check(words_of(without_assignments(command)))
