"""Figures of finished rows: the means and intervals of the rows, laid out as the experiment's file says."""

from pathlib import Path

import numpy as np
import pytest

from calibrant.errors import InputError
from calibrant.inference.intervals import t_interval
from calibrant.papers.experiment import load_experiment, parse_experiment
from calibrant.papers.figures import ResultFigure, figures_of_folder, make_figures
from calibrant.papers.rows import Record, Row, finished_rows
from tests.papers.small import TEXT

ROWS = Path(__file__).parents[2] / "docs" / "results" / "rows"
DRAWN = sorted(folder.name for folder in ROWS.iterdir() if load_experiment(folder.name).figures)

LINES = """
[[figures]]
name = "by_size"
redraws = ["smart figure 5"]
kind = "lines"
x = "samples"
y = ["ece", "nll"]
group = ["method"]
panel = ["source"]
only = { method = ["temp*", "smart"] }
log = true
"""
DOTS = """
[[figures]]
name = "by_method"
redraws = ["smart figure 4"]
kind = "dots"
x = "method"
y = ["ece"]
group = ["source"]
"""


def experiment(figures: str):
    head, quick, tail = TEXT.partition("[quick]")
    return parse_experiment("small", head + figures + quick + tail)


def row(method, samples, seed, ece, source="digits"):
    values = {"ece": ece, "nll": 10 * ece}
    key = {"source": source, "method": method, "samples": samples}
    return Row("small", "quick", key, seed, (Record({}, values),), 0.0, {})


def size_rows():
    return [
        row(method, samples, seed, (0.1 if method == "smart" else 0.2) / samples + 0.001 * seed)
        for method in ("smart", "temperature", "uncalibrated")
        for samples in (1000, 50, 200)
        for seed in (0, 1, 2)
    ]


def panels(display: ResultFigure):
    return display.ax_.child_axes


def test_lines_are_means_over_seeds_in_ascending_order_with_their_intervals():
    display = make_figures(experiment(LINES), size_rows())["by_size"]
    ece, nll = panels(display)
    assert ece.get_ylabel() == "ECE % ↓"
    assert nll.get_ylabel() == "NLL ↓"
    assert ece.get_xscale() == "log"
    lines = {each.get_label(): each.get_data() for each in ece.lines}
    assert set(lines) == {"smart", "temperature"}  # the third is left out by `only`
    x, y = lines["smart"]
    assert list(x) == [50, 200, 1000]
    np.testing.assert_allclose(y, [100 * (0.1 / n + 0.001) for n in (50, 200, 1000)])
    series = display.panels[display.table.columns[0]]["smart"]
    at_50 = series.places.index("50")
    low, high = t_interval([0.1 / 50 + 0.001 * seed for seed in (0, 1, 2)])
    assert series.low[at_50] == pytest.approx(100 * low)
    assert series.high[at_50] == pytest.approx(100 * high)


def test_dots_have_a_row_for_each_value_and_a_colour_for_each_group():
    rows = [
        row(method, 50, seed, ece + 0.01 * seed, source)
        for method, ece in (("smart", 0.01), ("temperature", 0.02))
        for source in ("digits", "cifar10")
        for seed in (0, 1)
    ]
    display = make_figures(experiment(DOTS), rows)["by_method"]
    assert [text.get_text() for text in display.ax_.get_yticklabels()] == ["smart", "temperature"]
    legend = display.ax_.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == ["digits", "cifar10"]
    dots = display.ax_.containers[0][0].get_data()
    np.testing.assert_allclose(dots[0], [1.5, 2.5])


def test_one_seed_has_a_value_and_no_interval():
    display = make_figures(experiment(DOTS), [row("smart", 50, 0, 0.03)])["by_method"]
    (series,) = display.panels[display.table.columns[0]].values()
    assert list(series.mean) == [3.0]
    assert np.isnan([series.low[0], series.high[0]]).all()


def test_figures_that_no_row_belongs_to_are_left_out():
    other = [row("spline", 50, 0, 0.1)]
    assert set(make_figures(experiment(LINES + DOTS), other)) == {"by_method"}
    with pytest.raises(InputError, match="^small: expected rows with the labels and measures of its figures"):
        make_figures(experiment(LINES), other)


def test_an_experiment_without_figures_or_rows_is_refused():
    with pytest.raises(InputError, match="^small: expected an experiment with figures, got one that"):
        make_figures(experiment(""), size_rows())
    with pytest.raises(InputError, match="^small: expected finished rows, got none"):
        make_figures(experiment(LINES), [])


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ('kind = "pie"', "expected 'lines' or 'dots', got 'pie'"),
        ('kind = "dots"\ncolour = "red"', "colour"),
    ],
)
def test_a_figure_that_cannot_be_read_is_refused(wrong, told):
    with pytest.raises(InputError, match="x.figures") as error:
        parse_experiment("x", TEXT.replace("[quick]", DOTS.replace('kind = "dots"', wrong) + "[quick]"))
    assert told in str(error.value)


def test_folders_saved_before_their_experiment_had_figures_are_drawn_as_the_package_says(tmp_path):
    source = ROWS / "smoothed_scores"
    text = (source / "smoothed_scores.toml").read_text(encoding="utf-8")
    start, end = text.index("[[figures]]"), text.index("[shared]")
    (tmp_path / "smoothed_scores.toml").write_text(text[:start] + text[end:])
    (tmp_path / "rows.jsonl").write_bytes((source / "rows.jsonl").read_bytes())
    assert set(figures_of_folder(tmp_path)) == {"au_appendix_figure_5"}


@pytest.mark.parametrize("name", DRAWN)
def test_every_figure_of_the_results_is_drawn_with_the_numbers_of_the_rows(name):
    made = figures_of_folder(ROWS / name)
    assert set(made) == {figure.name for figure in load_experiment(name).figures}
    seeds = {each.seed for each in finished_rows(ROWS / name)}
    for display in made.values():
        assert display.table.seeds == len(seeds)
        for series in display.panels.values():
            assert all(np.isfinite(each.mean).all() for each in series.values())
            assert len(series) <= 7  # further lines would look like the first ones
