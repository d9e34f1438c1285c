"""The pages of results: made of rows that were measured, for experiments that exist as they were run."""

import importlib.util
import re
from pathlib import Path

import pytest

from calibrant.papers.experiment import experiment_names, load_experiment
from calibrant.papers.rows import finished_rows, identity, saved_experiment

ROOT = Path(__file__).parents[2]
# One needs a file that must be fetched, the other a folder of the user's own.
NEED_DATA = {"calarena", "arena_real"}
# Its jobs are the models of a file, and it has a page of its own.
OWN_PAGE = "llm"
# A figure of a paper, about which it claims nothing.
ONLY_DRAWN = "loss_gradients"
FOLDERS = sorted((ROOT / "docs" / "results" / "rows").iterdir())


def make_results():
    spec = importlib.util.spec_from_file_location("make_results", ROOT / "scripts" / "make_results.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_what_the_rows_say():
    page = (ROOT / "docs" / "results" / "benchmark.md").read_text(encoding="utf-8")
    assert page == make_results().page()


def test_the_page_of_language_models_is_what_their_rows_say():
    page = (ROOT / "docs" / "results" / "llm.md").read_text(encoding="utf-8")
    assert page == make_results().llm_page()
    for image in ("llm.svg", "llm.png"):
        assert (ROOT / "docs" / "results" / "figures" / image).stat().st_size < 1_000_000


def test_every_experiment_was_run_but_those_that_need_data_of_the_user():
    every = set(experiment_names()) - NEED_DATA
    assert {folder.name for folder in FOLDERS} == every


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_rows_are_complete_and_belong_to_the_experiment_as_it_is(folder):
    assert saved_experiment(folder) == load_experiment(folder.name)
    rows = finished_rows(folder)
    if folder.name == OWN_PAGE:
        sizes = load_experiment(folder.name).presets["quick"]["grid"]["samples"]
        counted = [sum(row.key["samples"] == size for row in rows) for size in sizes]
        assert min(counted) > 0.98 * max(counted)  # one confidence has too few answers for the largest
        assert len({identity(row) for row in rows}) == len(rows)
        return
    wanted = {identity(job) for job in load_experiment(folder.name).jobs("quick")}
    assert {identity(row) for row in rows} == wanted
    # All of CIFAR-10 takes hours, so there are two seeds only.
    assert len({row.seed for row in rows}) >= (2 if folder.name == "cifar10_all" else 3)


def test_every_experiment_has_its_line_in_what_reproduces():
    page = (ROOT / "docs" / "results" / "reproduces.md").read_text(encoding="utf-8")
    for name in {folder.name for folder in FOLDERS} - {OWN_PAGE, ONLY_DRAWN}:
        assert f"bench run {name}`" in page, name


def test_the_page_of_figures_shows_every_figure_of_the_rows_and_names_its_command():
    results = ROOT / "docs" / "results"
    page = (results / "figures.md").read_text(encoding="utf-8")
    shown = re.findall(r"!\[([^]]+)\]\(figures/([^)]+)\)", page)
    drawn = {
        f"{figure.name}.svg": folder.name
        for folder in FOLDERS
        for figure in load_experiment(folder.name).figures
    }
    assert set(drawn) <= {name for _, name in shown}
    for name in drawn.values():
        assert f"calibrant bench plot {name} --out docs/results/figures" in page
    for words, name in shown:
        assert (results / "figures" / name).stat().st_size < 80_000
        assert len(words) > 20
