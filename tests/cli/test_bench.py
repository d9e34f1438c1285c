"""``calibrant bench``: list, run, table, plot."""

import csv
import io
import json
from pathlib import Path

import pytest

from calibrant.papers.exhibits import all_exhibits
from calibrant.papers.experiment import experiment_names
from tests.papers.small import TEXT

ROWS = Path(__file__).parents[2] / "docs" / "results" / "rows"


@pytest.fixture(scope="module")
def finished(run_once, tmp_path_factory):
    folder = tmp_path_factory.mktemp("bench")
    (folder / "mine.toml").write_text(TEXT.replace('"temperature", "smart"]', '"temperature"]'))
    out = folder / "out"
    code, told, error = run_once("bench", "run", folder / "mine.toml", "--seeds", 1, "--out", out)
    assert code == 0, error
    return out, told


def test_list_names_every_experiment_with_its_jobs_and_needs(run):
    code, out, _ = run("bench", "list")
    assert code == 0
    for name in experiment_names():
        assert name in out
    assert "cifar10" in out


def test_list_as_values(run):
    code, out, _ = run("bench", "list", "--json")
    assert code == 0
    listed = {each["name"]: each for each in json.loads(out)}
    assert sorted(listed) == experiment_names()
    assert listed["losses"]["needs"]["quick"] == ["clinc150"]


def test_list_of_papers_has_every_table_and_figure_with_both_commands(run):
    code, out, _ = run("bench", "list", "--papers")
    assert code == 0
    for paper, exhibit in all_exhibits():
        assert f"\n{paper}\n" in f"\n{out}"
        assert f"  {exhibit.name}: {exhibit.shows}\n" in out
        for preset, lines in (("quick", exhibit.quick), ("full ", exhibit.full)):
            assert all(f"    {preset}  {line}\n" in out for line in lines)
    _, out, _ = run("bench", "list", "--papers", "--json")
    table = json.loads(out)
    assert [(each["paper"], each["name"]) for each in table] == [
        (paper, exhibit.name) for paper, exhibit in all_exhibits()
    ]


@pytest.mark.slow
def test_run_writes_rows_and_tables_and_prints_one(finished):
    out, told = finished
    assert {path.name for path in out.iterdir()} == {
        "rows.jsonl", "mine.toml", "table.md", "table.csv", "table.tex",
    }  # fmt: skip
    assert (out / "table.md").read_text() in told
    assert "| uncalibrated |" in told


@pytest.mark.slow
def test_table_speaks_every_format(run, finished):
    out, _ = finished
    for form, name in (("markdown", "table.md"), ("csv", "table.csv"), ("latex", "table.tex")):
        code, told, _ = run("bench", "table", out, "--format", form)
        assert code == 0
        assert told.rstrip("\n") == (out / name).read_text().rstrip("\n")
    _, told, _ = run("bench", "table", out, "--format", "json")
    records = json.loads(told)
    assert {record["method"] for record in records} == {"uncalibrated", "temperature"}


@pytest.mark.slow
def test_numbers_of_the_table_are_those_of_the_rows(run, finished):
    out, _ = finished
    _, told, _ = run("bench", "table", out, "--format", "csv")
    row = json.loads((out / "rows.jsonl").read_text().splitlines()[0])
    shown = next(line for line in csv.DictReader(io.StringIO(told)) if line["method"] == row["key"]["method"])
    test = next(record for record in row["records"] if record["labels"]["set"] == "test")
    assert float(shown["digits ece"]) == test["values"]["ece"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("run", "postho"), "did you mean 'posthoc'?"),
        (("run", "posthoc", "--preset", "huge"), "--preset: expected one of quick, full for posthoc"),
        (("run", "losses"), "--data: expected a folder that holds clinc150"),
        (("run", "posthoc", "--jobs", "0"), "--jobs: expected a whole number of at least 1"),
        (("table", "nowhere"), "DIR: expected a folder that calibrant bench run wrote, got nowhere"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line(run, tmp_path, monkeypatch, words, told):
    monkeypatch.chdir(tmp_path)
    code, out, error = run("bench", *words)
    assert code == 2
    assert out == ""
    assert error.count("\n") == 1
    assert told in error
    assert list(tmp_path.rglob("rows.jsonl")) == []


@pytest.mark.slow
def test_an_unknown_format_is_refused(run, finished):
    out, _ = finished
    code, _, error = run("bench", "table", out, "--format", "html")
    assert code == 2
    assert "--format: expected markdown, csv, latex or json, got 'html'" in error


def test_plot_draws_the_figures_of_an_experiment_by_name_and_of_a_folder(run, tmp_path):
    code, out, error = run("bench", "plot", "validation_size", "--rows", ROWS, "--out", tmp_path / "one.pdf")
    assert (code, error) == (0, "")
    assert out.endswith("one.pdf: redraws smart figure 5\n")
    assert (tmp_path / "one.pdf").read_bytes().startswith(b"%PDF")
    code, out, _ = run("bench", "plot", ROWS / "au_settings", "--out", tmp_path / "all")
    assert code == 0
    assert {path.name for path in (tmp_path / "all").iterdir()} == {
        "au_figure_3.svg", "au_appendix_figure_6.svg",
    }  # fmt: skip
    assert "score margin" in (tmp_path / "all" / "au_figure_3.svg").read_text()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("au_settings", "--out", "x.svg"), "--out: expected a folder for au_figure_3, au_appendix_figure_6"),
        (("seca_tables", "--out", "x"), "seca_tables: expected an experiment with figures, got one that"),
        (("nothing", "--out", "x"), "DIR: expected a folder that calibrant bench run wrote"),
    ],
)
def test_what_cannot_be_plotted_is_said_in_one_line(run, tmp_path, monkeypatch, words, told):
    monkeypatch.chdir(tmp_path)
    code, out, error = run("bench", "plot", *words, "--rows", ROWS)
    assert (code, out) == (2, "")
    assert told in error
    assert error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_the_command_prints_verdicts_as_text_and_as_values(run):
    code, out, _ = run("bench", "verdicts", ROWS)
    assert code == 0
    assert "cannot tell" in out
    code, out, _ = run("bench", "verdicts", ROWS, "--format", "json")
    table = json.loads(out)
    [row] = [each for each in table if each["claim"] == "smCE is at most H + 2 B"]
    assert row["verdict"] == "holds"
    assert len(row["findings"]) == 15
    code, _, error = run("bench", "verdicts", ROWS, "--format", "html")
    assert code == 2
    assert "--format: expected one of text, markdown, json, got 'html'" in error


@pytest.mark.usefixtures("jobs_in_this_process")
def test_only_runs_the_jobs_with_these_values(run, tmp_path):
    (tmp_path / "mine.toml").write_text(TEXT)
    out = tmp_path / "out"
    words = ("--seeds", 1, "--out", out, "--only", "method=temp*,uncalibrated", "--only", "source=digits")
    code, _, error = run("bench", "run", tmp_path / "mine.toml", *words)
    assert code == 0, error
    rows = [json.loads(line) for line in (out / "rows.jsonl").read_text().splitlines()]
    assert {row["key"]["method"] for row in rows} == {"uncalibrated", "temperature"}


@pytest.mark.parametrize(
    ("word", "told"),
    [
        ("method", "--only: expected NAME=VALUES, such as task=digits, got 'method'"),
        ("method=smrt", "--only: expected names and values of the grid of posthoc, got method=smrt"),
        ("task=x", "--only: expected names and values of the grid of posthoc, got task=x"),
    ],
)
def test_only_names_what_the_grid_has(run, tmp_path, word, told):
    code, _, error = run("bench", "run", "posthoc", "--out", tmp_path / "out", "--only", word)
    assert code == 2
    assert told in error
