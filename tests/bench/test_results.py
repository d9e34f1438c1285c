"""The pages of results: made of rows that were measured, for experiments that exist as they were run."""

import importlib.util
from pathlib import Path

import pytest

from calibrant.bench.experiment import experiment_names, load_experiment
from calibrant.bench.rows import finished_rows, identity, saved_experiment

ROOT = Path(__file__).parents[2]
# One needs a file that must be fetched, the other a folder of the user's own.
NEED_DATA = {
    "calarena",
    "arena_real",
    "cifar10_all",
    "llm",
}  # the last one also needs hours, and is unfinished
FOLDERS = sorted((ROOT / "docs" / "results" / "rows").iterdir())


def make_results():
    spec = importlib.util.spec_from_file_location("make_results", ROOT / "scripts" / "make_results.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_what_the_rows_say():
    page = (ROOT / "docs" / "results" / "benchmark.md").read_text(encoding="utf-8")
    assert page == make_results().page()


def test_every_experiment_was_run_but_those_that_need_data_of_the_user():
    assert {folder.name for folder in FOLDERS} == set(experiment_names()) - NEED_DATA


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_rows_are_complete_and_belong_to_the_experiment_as_it_is(folder):
    assert saved_experiment(folder) == load_experiment(folder.name)
    rows = finished_rows(folder)
    wanted = {identity(job) for job in load_experiment(folder.name).jobs("quick")}
    assert {identity(row) for row in rows} == wanted
    assert len({row.seed for row in rows}) >= 3


def test_every_experiment_has_its_line_in_what_reproduces():
    page = (ROOT / "docs" / "results" / "reproduces.md").read_text(encoding="utf-8")
    for name in set(experiment_names()) - NEED_DATA:
        assert f"bench run {name}`" in page, name
