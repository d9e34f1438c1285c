"""The files of a public project agree with each other: workflow, pre-commit, Makefile, versions, release."""

import re
import shutil
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml
from hatchling.builders.wheel import WheelBuilder
from scripts import layers, release

import calibrant

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
WORKFLOW, NIGHTLY = (
    yaml.safe_load((ROOT / ".github" / "workflows" / f"{name}.yml").read_text(encoding="utf-8"))
    for name in ("checks", "nightly")
)
HOME = "https://github.com/calibrant/calibrant"


def recipe(target):
    """The commands of a target of the Makefile, with .venv for the variable."""
    lines = re.search(rf"^{target}:.*\n((?:\t.*\n)+)", MAKEFILE, re.MULTILINE)[1].splitlines()
    return [line.strip().replace("$(BIN)", ".venv/bin") for line in lines]


def test_pre_commit_runs_what_make_lint_runs():
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))
    hooks = [hook for repository in config["repos"] for hook in repository["hooks"]]
    assert [hook["entry"] for hook in hooks] == [*recipe("style"), *recipe("types")]
    assert {repository["repo"] for repository in config["repos"]} == {"local"}


def test_the_workflow_and_the_matrix_have_every_python_that_is_supported():
    supported = [line.rpartition(" ")[2] for line in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", line)]
    assert WORKFLOW["jobs"]["test"]["strategy"]["matrix"]["python"] == supported
    assert re.search(r"^PYTHONS := (.*)$", MAKEFILE, re.MULTILINE)[1].split() == supported
    assert PROJECT["requires-python"] == f">={supported[0]}"


@pytest.mark.parametrize(
    ("workflow", "expected"),
    [
        (WORKFLOW, {"lint", "tests", "lowest", "docs", "release-check"}),
        (NIGHTLY, {"test-long", "coverage"}),
    ],
    ids=["every push", "every night"],
)
def test_a_workflow_runs_targets_of_the_makefile_and_may_write_nothing(workflow, expected):
    runs = [step["run"] for job in workflow["jobs"].values() for step in job["steps"] if "run" in step]
    targets = {words.split()[1] for words in runs}
    assert targets == expected
    declared = re.search(r"^\.PHONY: (.*)$", MAKEFILE, re.MULTILINE)[1].split()
    assert targets <= set(declared)
    assert workflow["permissions"] == {"contents": "read"}


def test_make_quick_names_tests_that_exist():
    given = re.search(r"^TESTS \?= ((?:.*\\\n)*.*)$", MAKEFILE, re.MULTILINE)[1].replace("\\\n", " ")
    for prefix, names in re.findall(r"\$\(addprefix (\S+?),\$\(addsuffix \.py,(.*?)\)\)", given):
        given += "".join(f" {prefix}{name}.py" for name in names.split())
    places = re.findall(r"tests/[\w/]+(?:\.py)?(?=\s|$)", given)
    assert len(places) > 20
    assert [place for place in places if not (ROOT / place).exists()] == []


def test_templates_are_valid_and_ask_for_what_helps():
    folder = ROOT / ".github" / "ISSUE_TEMPLATE"
    bug = yaml.safe_load((folder / "bug.yml").read_text(encoding="utf-8"))
    assert {part["id"] for part in bug["body"]} == {"what", "expected", "versions"}
    for file in folder.glob("*.yml"):
        assert isinstance(yaml.safe_load(file.read_text(encoding="utf-8")), dict), file.name


def test_addresses_of_the_project_are_the_same_placeholder_everywhere():
    assert {url.removeprefix(HOME)[:1] for url in PROJECT["urls"].values()} <= {"", "/"}
    texts = [
        (ROOT / name).read_text(encoding="utf-8")
        for name in (
            "SECURITY.md",
            "CODE_OF_CONDUCT.md",
            "docs/releases.md",
            ".github/ISSUE_TEMPLATE/config.yml",
        )
    ]
    assert {found for text in texts for found in re.findall(r"https://github\.com/\w+/\w+", text)} == {HOME}
    assert "placeholder" in texts[2]


def test_package_citation_and_changelog_have_one_version():
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {calibrant.__version__}\n" in citation
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    released = re.findall(r"^## (\d+\.\d+\.\d+) - \d{4}-\d\d-\d\d$", changelog, re.MULTILINE)
    assert released[-1] == "0.1.0"
    assert calibrant.__version__.startswith(released[0])


@pytest.fixture
def project(tmp_path):
    """A copy of the files that a release changes."""
    (tmp_path / "src" / "calibrant").mkdir(parents=True)
    for name in ("CITATION.cff", "src/calibrant/_version.py"):
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "CHANGELOG.md").write_text(
        "# Changelog\n\n## Unreleased\n\n- New.\n\n## 0.1.0 - 2026-01-01\n"
    )
    return tmp_path


def test_a_release_writes_the_version_everywhere_and_begins_a_new_section(project):
    release.prepare(project, "0.2.0", "2026-02-03")
    assert release.version_of(project) == "0.2.0"
    assert "\nversion: 0.2.0\n" in (project / "CITATION.cff").read_text()
    assert (project / "CHANGELOG.md").read_text() == (
        "# Changelog\n\n## Unreleased\n\n## 0.2.0 - 2026-02-03\n\n- New.\n\n## 0.1.0 - 2026-01-01\n"
    )


@pytest.mark.parametrize(
    ("version", "message"),
    [("next", "expected a number such as 0.1.0"), ("0.1.0", "0.1.0, which has a section already")],
)
def test_a_release_that_cannot_be_changes_nothing(project, version, message):
    before = {file: file.read_text() for file in project.rglob("*.*") if file.is_file()}
    with pytest.raises(SystemExit, match=message):
        release.prepare(project, version, "2026-02-03")
    assert before == {file: file.read_text() for file in project.rglob("*.*") if file.is_file()}


def test_a_release_without_changes_is_refused(project):
    release.prepare(project, "0.2.0", "2026-02-03")
    with pytest.raises(SystemExit, match="expected changes below Unreleased, got none"):
        release.prepare(project, "0.3.0", "2026-02-04")
    assert release.version_of(project) == "0.2.0"


@pytest.mark.slow
def test_a_wheel_without_a_file_of_the_package_is_noticed(tmp_path):
    built = Path(next(iter(WheelBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"]))))
    assert release.missing_files(built) == []
    poor = tmp_path / "poor.whl"
    with zipfile.ZipFile(built) as whole, zipfile.ZipFile(poor, "w") as part:
        for name in whole.namelist():
            if not name.endswith("cifar10_val.npz"):
                part.writestr(name, whole.read(name))
    assert release.missing_files(poor) == ["calibrant/data/bundled/cifar10_val.npz"]


def test_the_table_of_layers_is_that_of_the_linter_and_names_every_module():
    page = layers.PAGE.read_text(encoding="utf-8")
    assert layers.with_table(page) == page
    source = ROOT / "src" / "calibrant"
    packages = {path.parent.name for path in source.glob("*/__init__.py")}
    modules = {path.stem for path in source.glob("*.py")} - {"__init__"}
    assert {name for layer in layers.layers() for name in layer} == modules | packages
