"""The container and the conda recipe say what pyproject.toml says, and a bare environment is enough."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

import calibrant
from tests.conftest import draw

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
RECIPE = yaml.safe_load((ROOT / "conda" / "recipe.yaml").read_text(encoding="utf-8"))
# Names that conda gives to the same packages.
OF_CONDA = {"torch": "pytorch", "matplotlib": "matplotlib-base"}


def of_conda(lines):
    """Requirements of pyproject.toml as conda writes them."""
    wanted = map(Requirement, lines)
    return {f"{OF_CONDA.get(each.name, each.name)} {each.specifier}" for each in wanted}


def test_the_recipe_needs_what_the_core_needs():
    run = RECIPE["requirements"]["run"]
    assert set(run[1:]) == of_conda(PROJECT["dependencies"])
    assert run[0].startswith("python >=")
    optional = [line for extra in ("tables", "plots", "report", "sklearn") for line in EXTRAS[extra]]
    assert set(RECIPE["requirements"]["run_constraints"]) == of_conda(optional)


def test_the_recipe_has_the_version_the_command_and_the_words_of_the_project():
    assert calibrant.__version__.startswith(RECIPE["context"]["version"])
    ((name, place),) = PROJECT["scripts"].items()
    assert RECIPE["build"]["python"]["entry_points"] == [f"{name} = {place}"]
    assert RECIPE["about"]["summary"] == PROJECT["description"]
    assert RECIPE["about"]["license"] == PROJECT["license"]


def test_the_container_is_slim_has_no_root_and_pins_what_it_installs():
    stages = re.findall(r"^FROM (\S+)", DOCKERFILE, re.MULTILINE)
    assert set(stages) == {"python:${PYTHON}-slim"}
    version = re.search(r"^ARG PYTHON=(.*)$", DOCKERFILE, re.MULTILINE)[1]
    assert f"Programming Language :: Python :: {version}" in PROJECT["classifiers"]
    last = DOCKERFILE.rpartition("FROM ")[2]
    assert re.search(r"^USER [1-9]\d*:[1-9]\d*$", last, re.MULTILINE)
    assert "RUN" not in last
    assert "-c constraints.txt" in DOCKERFILE
    assert set(re.search(r"^ARG EXTRAS=(.*)$", DOCKERFILE, re.MULTILINE)[1].split(",")) <= EXTRAS.keys()


def test_the_container_gets_what_the_build_copies_and_nothing_else():
    copied = re.findall(r"^COPY (?!--from)(.*) \S+$", DOCKERFILE, re.MULTILINE)
    names = {name for line in copied for name in line.split()}
    kept = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert kept[0] == "*"
    assert {line[1:] for line in kept if line.startswith("!")} == names
    assert all((ROOT / name).exists() for name in names)


@pytest.mark.slow
@pytest.mark.parametrize(
    "words", ["evaluate small.csv", "plot reliability small.csv --out figure.png", "report small.csv"]
)
def test_commands_need_no_home_and_no_user(words, tmp_path):
    """As in the container: only a path and a folder for temporary files are set."""
    logits, labels = draw(60, 3, seed=0)
    calibrant.save_predictions(calibrant.Predictions(logits=logits, labels=labels), tmp_path / "small.csv")
    bare = {"PATH": os.environ["PATH"], "TMPDIR": str(tmp_path), "MPLCONFIGDIR": str(tmp_path)}
    bare |= {"PYTHONPATH": str(Path(calibrant.__file__).parents[1]), "PYTHONDONTWRITEBYTECODE": "1"}
    code = "import sys; from calibrant.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, *words.split()], cwd=tmp_path, env=bare, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
