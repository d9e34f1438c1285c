"""Tables of finished rows."""

import csv
import io
import statistics

import pytest

from calibrant.errors import InputError
from calibrant.papers.experiment import parse_experiment
from calibrant.papers.quantities import quantity
from calibrant.papers.rows import Record, Row
from calibrant.papers.table import make_tables
from calibrant.papers.writers import to_csv
from tests.papers.small import TEXT, small_experiment

ECE = {
    "uncalibrated": (0.10, 0.12, 0.11),
    "temperature": (0.031, 0.052, 0.040),
    "smart": (0.030, 0.050, 0.041),
}


def rows(values=ECE):
    return [
        Row(
            "small",
            "quick",
            {"source": "digits", "method": method},
            seed,
            (
                Record({"set": "test"}, {"ece": number, "nll": 1 - number}),
                Record({"set": "noise"}, {"ece": 9.0, "nll": 9.0}),
            ),
            1.0,
            {},
        )
        for method, numbers in values.items()
        for seed, number in enumerate(numbers)
    ]


@pytest.fixture(scope="module")
def table():
    return make_tables(small_experiment(), reversed(rows()))[0]


def cell(table, method, measure):
    place = [column.measure for column in table.columns].index(measure)
    return table.lines[(method,)][place]


def test_lines_stand_in_the_order_of_the_grid_whatever_was_finished_first(table):
    assert list(table.lines) == [("uncalibrated",), ("temperature",), ("smart",)]


def test_cells_hold_mean_and_deviation_over_seeds_of_the_wanted_set(table):
    found = cell(table, "temperature", "ece")
    assert found.mean == pytest.approx(0.041)
    assert found.std == pytest.approx(statistics.stdev(ECE["temperature"]))


def test_the_best_is_the_lowest_of_a_measure_that_should_be_low(table):
    best = [line for line, cells in table.lines.items() if cells[1].is_best]
    assert best == [("smart",)]
    assert cell(table, "uncalibrated", "nll").is_best


def test_what_chance_explains_is_not_significantly_worse(table):
    # smart is better by 0.001, 0.002 and -0.001: t = 0.67 / 0.88, far from significant
    assert cell(table, "temperature", "ece").is_near
    assert not cell(table, "uncalibrated", "ece").is_near


def test_a_constant_difference_is_significant():
    shifted = {"uncalibrated": (0.25, 0.5), "temperature": (0.125, 0.375)}
    found = make_tables(small_experiment(), rows(shifted))[0]
    assert not cell(found, "uncalibrated", "ece").is_near


def test_one_seed_marks_only_the_best():
    found = make_tables(small_experiment(), rows({name: values[:1] for name, values in ECE.items()}))[0]
    assert [cell(found, name, "ece").is_near for name in ECE] == [False, False, False]
    assert "±" not in found.to_table().to_markdown()


def test_the_papers_figures_stand_beside_ours(table):
    figures = table.papers["SMART table 1, CIFAR-10, ResNet-50: ECE %"]
    assert figures == {("uncalibrated",): "4.34", ("temperature",): "1.38", ("smart",): "0.76"}


def test_a_paper_is_matched_by_any_label_of_the_results_of_a_line():
    text = TEXT.replace('match = { method = "posthoc" }', 'match = { theirs = "posthoc" }')
    labelled = [
        Row(row.experiment, row.preset, row.key, row.seed, (record,), 1.0, {})
        for row in rows()
        for record in (Record({"set": "test", "theirs": "spline"}, row.records[0].values),)
    ]
    found = make_tables(parse_experiment("small", text), labelled)[0]
    assert set(found.papers["SMART table 1, CIFAR-10, ResNet-50: ECE %"].values()) == {"1.52"}


def test_a_label_that_a_result_does_not_have_is_left_out_of_the_heading():
    text = TEXT.replace('columns = ["source"]', 'columns = ["source", "network"]')
    found = make_tables(parse_experiment("small", text), rows())[0]
    assert [column.heading for column in found.columns] == ["digits, NLL ↓", "digits, ECE % ↓"]


def test_a_variant_with_the_settings_of_the_paper_takes_the_place_of_the_name_in_the_paper():
    text = TEXT.replace(
        'match = { method = "posthoc" }',
        'match = { method = "posthoc" }\nnames = { temperature = "smart", uncalibrated = "spline" }',
    )
    found = make_tables(parse_experiment("small", text), rows())[0]
    assert found.papers["SMART table 1, CIFAR-10, ResNet-50: ECE %"] == {
        ("uncalibrated",): "1.52",
        ("temperature",): "0.76",
    }


def test_markdown_marks_best_and_near(table):
    lines = table.to_table().to_markdown().splitlines()
    assert lines[0].startswith("| method | digits, NLL ↓ | digits, ECE % ↓ | SMART table 1")
    assert "**4.03 ± 1.00**" in lines[4]
    assert "*4.10 ± 1.05*" in lines[3]
    assert lines[4].endswith("| 0.76 |")
    assert {line.count("|") for line in lines} == {5}


def test_csv_has_plain_fractions(table):
    found = list(csv.DictReader(io.StringIO(to_csv(table))))
    assert float(found[2]["digits ece"]) == pytest.approx(0.0403333)
    assert float(found[2]["digits ece std"]) == pytest.approx(statistics.stdev(ECE["smart"]))


def test_latex_escapes_and_marks(table):
    text = table.to_table().to_latex()
    assert r"\textbf{4.03 $\pm$ 1.00}" in text
    assert r"\underline{4.10 $\pm$ 1.05}" in text
    assert r"ECE \% $\downarrow$" in text
    assert text.count(r"\\") == 4


def test_missing_numbers_leave_a_dash():
    partial = rows()
    partial[0] = Row("small", "quick", partial[0].key, 0, (Record({"set": "test"}, {"nll": 0.5}),), 1.0, {})
    only = [row for row in partial if row.seed == 0]
    found = make_tables(small_experiment(), only)[0]
    assert cell(found, "uncalibrated", "ece") is None
    assert "| \N{EN DASH} |" in found.to_table().to_markdown()


def arena(rates, *, seed=0):
    """Two tasks, on which methods have these Brier scores."""
    return [
        Row(
            "small",
            "quick",
            {"source": source},
            seed,
            tuple(
                Record({"set": "test", "method": name}, {"nll": scores[place], "brier": scores[place]})
                for name, scores in rates.items()
            ),
            1.0,
            {},
        )
        for place, source in enumerate(("a", "b"))
    ]


def test_results_of_several_tasks_in_one_cell_are_averaged_within_a_seed():
    text = TEXT.replace('columns = ["source"]', "").replace('["nll", "ece"]', '["nll"]')
    rows = [*arena({"x": (0.25, 0.75)}), *arena({"x": (0.5, 1.5)}, seed=1)]
    found = make_tables(parse_experiment("small", text), rows)[0].lines[("x",)][0]
    assert found.values == {0: 0.5, 1: 1.0}


def test_elo_says_who_beats_whom_over_all_tasks_of_a_seed():
    text = TEXT.replace('columns = ["source"]', "").replace('["nll", "ece"]', '["elo"]')
    found = make_tables(parse_experiment("small", text), arena({"x": (0.1, 0.2), "y": (0.2, 0.1)}))[0]
    assert [cells[0].mean for cells in found.lines.values()] == pytest.approx([1000, 1000])
    found = make_tables(parse_experiment("small", text), arena({"x": (0.1, 0.1), "y": (0.2, 0.2)}))[0]
    assert found.lines[("x",)][0].mean > 1100 > 900 > found.lines[("y",)][0].mean


def test_tables_that_match_no_row_are_refused_in_one_sentence():
    nothing = parse_experiment("x", TEXT.replace('only = { set = "test" }', 'only = { set = "tset" }'))
    said = r"^table: .* which have set=noise, test, measures ece, nll, got only = .'set': 'tset'"
    with pytest.raises(InputError, match=said):
        make_tables(nothing, rows())


def test_no_rows_no_table():
    with pytest.raises(InputError, match="expected finished rows, got none"):
        make_tables(small_experiment(), [])


def test_unknown_quantities_are_shown_as_they_are_and_never_called_best():
    assert quantity("worst_ratio").heading == "worst ratio"
    assert quantity("worst_ratio").better == "neither"
