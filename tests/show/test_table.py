"""A table is one value for terminal, notebooks, Markdown, LaTeX and data frames; numbers are written once."""

import builtins
import math
import re

import pytest

from calibrant import Predictions, compare, evaluate
from calibrant.decisions import (
    act_on_costs,
    check_requirements,
    compare_sets,
    estimate_frequencies,
    estimate_quality,
)
from calibrant.decisions.costs import Costs
from calibrant.decisions.thresholds import find_threshold
from calibrant.errors import MissingPackageError
from calibrant.evaluation import by_group, make_choice, paired_comparison
from calibrant.posthoc import TemperatureScaling
from calibrant.show import Cell, Column, Table
from calibrant.show.numbers import count, number, p_value, percent, points, span
from calibrant.show.terminal import fitted, width_of
from calibrant.streams.measures import StreamMeasures
from tests.conftest import draw

TABLE = Table.of(
    [Column("model", align="left"), Column("ECE", "%"), "95 % interval", Column("fit s", optional=1)],
    [
        ("a_b & c", points(0.1234).styled("best"), span(0.1, 0.2, points), number(1.5, 2)),
        ("d|e", points(0.2), Cell(None, ""), number(2.0, 2)),
    ],
    title="Two models",
    notes=("a note",),
)


def test_plain_text_lines_up_numbers_and_ends_with_the_notes():
    lines = str(TABLE).splitlines()
    assert lines[0] == "Two models"
    assert lines[2].split() == ["model", "%", "95", "%", "interval", "fit", "s"]
    assert lines[3].index("12.34") == lines[4].index("20.00")
    assert lines[-1] == "a note"


def test_markdown_escapes_bars_and_marks_the_best():
    lines = TABLE.to_markdown().splitlines()
    assert lines[:2] == ["| model | ECE % | 95 % interval | fit s |", "|---|---:|---:|---:|"]
    assert lines[2] == "| a_b & c | **12.34** | 10.00 to 20.00 | 1.50 |"
    assert lines[3].startswith(r"| d\|e |")


def test_latex_escapes_its_own_signs_and_marks_the_best():
    text = TABLE.to_latex()
    assert text.startswith("\\begin{tabular}{lrrr}\n\\toprule\nmodel & ECE \\% ")
    assert r"a\_b \& c & \textbf{12.34} & 10.00 to 20.00 & 1.50 \\" in text


def test_a_data_frame_has_numbers_as_they_are_and_two_columns_for_an_interval():
    pandas = pytest.importorskip("pandas")
    frame = TABLE.to_frame()
    assert list(frame.columns) == ["model", "ECE %", "95 % interval, low", "95 % interval, high", "fit s"]
    assert frame["ECE %"].tolist() == [0.1234, 0.2]
    assert frame["95 % interval, low"].tolist()[0] == 0.1
    assert pandas.isna(frame["95 % interval, high"][1])


def test_without_pandas_one_sentence_says_what_to_install(monkeypatch):
    original = builtins.__import__

    def missing(name, *arguments, **options):
        if name == "pandas":
            raise ImportError(name)
        return original(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(MissingPackageError, match="to_frame: expected the package pandas, got none"):
        TABLE.to_frame()


def test_a_narrow_terminal_leaves_out_optional_columns_first():
    assert fitted(TABLE, 200) == TABLE
    assert "fit s" not in [column.title for column in fitted(TABLE, width_of(TABLE) - 1).columns]


def test_terminals_show_the_first_rows_and_other_places_all():
    long = Table.of(["row"], [(place,) for place in range(30)], most=5)
    assert str(long).splitlines()[-1] == "... and 25 more"
    assert long.to_markdown().count("\n") == 32
    assert long._repr_html_().count("<tr>") == 6


@pytest.mark.parametrize(
    ("cell", "text"),
    [
        (percent(0.12349), "12.35 %"),
        (percent(0.7123, None), "71.2 %"),
        (percent(math.nan), "undefined"),
        (points(-0.0312, 1, sign=True), "-3.1"),
        (number(0.91731), "0.9173"),
        (number(None), ""),
        (count(12345), "12,345"),
        (p_value(0.0004), "<0.001"),
        (p_value(math.nan), ""),
        (span(math.nan, 1.0, number), ""),
    ],
)
def test_a_number_is_written_in_one_way(cell, text):
    assert str(cell) == text


@pytest.fixture(scope="module")
def predictions():
    logits, labels = draw(400, 3, seed=0, sharpen=2.0)
    return Predictions(logits=logits, labels=labels, groups=["a", "b"] * 200)


def _streamed(given):
    measures = StreamMeasures()
    measures.update(given)
    return measures.compute()


RESULTS = {
    "evaluation": lambda p: evaluate(p, intervals=True, chance=True, n_resamples=5),
    "comparison": lambda p: compare(p, methods=["uncalibrated", "temperature"], n_resamples=5),
    "choice": lambda p: make_choice(compare(p, methods=["uncalibrated", "temperature"], n_resamples=5)),
    "pairs": lambda p: paired_comparison(p, p, n_resamples=5),
    "groups": by_group,
    "gate": lambda p: check_requirements(p, ["ece < 0.01", "accuracy > 0.1"], n_resamples=20),
    "threshold": lambda p: find_threshold(p, risk=0.3),
    "sets": lambda p: compare_sets(p).choose("aps"),
    "costs": lambda p: act_on_costs(p, Costs([[0, 1, 1], [1, 0, 1], [1, 1, 0]]), methods=None, n_resamples=5),
    "quality": lambda p: estimate_quality(p, p, calibrator=TemperatureScaling(2.0)),
    "frequencies": lambda p: estimate_frequencies(p, p, calibrator=TemperatureScaling(2.0), n_resamples=5),
    "stream": _streamed,
}


@pytest.mark.parametrize("name", RESULTS)
def test_every_result_prints_its_table_in_every_form(name, predictions):
    result = RESULTS[name](predictions)
    table = result.to_table()
    first = table.rows[0][0].text.strip()
    assert not re.match(r"\w+\(", str(result)), "a dump of the dataclass"
    assert first in str(result)
    assert first.replace("%", r"\%").split()[-1] in result.to_latex()
    assert result.to_markdown().count("\n") == len(table.rows) + 2
    assert len(result.to_frame()) == len(table.rows)
    assert '<table class="numbers">' in result._repr_html_()
