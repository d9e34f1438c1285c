"""Adding a measure, a method, a loss or a plot is one file and one entry, as docs/add-a-method.md shows."""

import doctest
import importlib
import json
import re
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from calibrant import Predictions, save_predictions
from calibrant.cli import app
from calibrant.evaluation import compare, evaluate
from calibrant.losses.names import LOSSES, TrainingLoss, make_loss
from calibrant.metrics.measure import Measure
from calibrant.metrics.names import MEASURES
from calibrant.plots.kinds import KINDS, Kind
from calibrant.posthoc.names import METHODS, Method
from calibrant.streams import evaluate_stream, open_stream
from tests.conftest import at_length, draw

DOCS = Path(__file__).parents[1] / "docs"

# The page of documentation that lists each catalogue.
PAGES: dict[str, Mapping[str, object]] = {
    "measures": MEASURES,
    "posthoc": METHODS,
    "losses": LOSSES,
    "gallery": KINDS,
}


@pytest.fixture
def new_file(tmp_path, monkeypatch):
    """Write the first block of a section of docs/add-a-method.md to a file, and import that."""

    def write(section, name):
        text = (DOCS / "add-a-method.md").read_text(encoding="utf-8").partition(f"\n## {section}\n")[2]
        examples = doctest.DocTestParser().get_examples(text.split("```")[1])
        (tmp_path / f"{name}.py").write_text("".join(example.source for example in examples))
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys.modules, name, raising=False)
        return importlib.import_module(name)

    return write


@pytest.fixture
def predictions():
    logits, labels = draw(300, 3, sharpen=2.0)
    return Predictions(logits=logits, labels=labels)


@pytest.fixture
def file(predictions, tmp_path):
    save_predictions(predictions, tmp_path / "predictions.npz")
    return tmp_path / "predictions.npz"


def run(*arguments):
    """Return what a command prints."""
    result = CliRunner().invoke(app, [str(each) for each in arguments], env={"COLUMNS": "200"})
    assert result.exit_code == 0, (result.output, result.exception)
    return result.output


def undocumented(page):
    """Return the names in a catalogue that its page does not mention as code or in a command."""
    text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
    return [
        name for name in PAGES[page] if not re.search(rf"`{name}`|^calibrant \w+ {name} ", text, re.MULTILINE)
    ]


@pytest.mark.parametrize("page", PAGES)
def test_every_name_of_a_catalogue_is_in_its_page(page):
    assert undocumented(page) == []


def squared_gap_of(predictions):
    """The definition as a loop over bins."""
    probs = torch.softmax(torch.as_tensor(predictions.logits), dim=1).numpy()
    confidence, correct = probs.max(axis=1), probs.argmax(axis=1) == np.asarray(predictions.labels)
    which = np.ceil(confidence * 15)
    gaps = [(confidence[which == b].mean() - correct[which == b].mean()) ** 2 for b in which]
    return np.mean(gaps)


def entries(module):
    """The new measure as streams can compute it: from bins of confidence, or as a mean over samples."""

    def doubt(**pairs):
        return float(doubts(**pairs).mean())

    def doubts(*, confidence, **_):
        return 1 - torch.as_tensor(confidence, dtype=torch.float64)

    return {
        "squared_gap": Measure(
            module.squared_gap,
            "mean squared gap",
            "squared gap",
            takes_bins=True,
            of_bins=module.mean_squared_gap,
        ),
        "doubt": Measure(doubt, "mean doubt", "doubt", terms=doubts),
    }


@pytest.fixture(params=at_length(["squared_gap", "doubt"], ["squared_gap"]))
def measure(request, new_file, monkeypatch):
    """The name of a measure that was added."""
    monkeypatch.setitem(
        MEASURES, request.param, entries(new_file("A measure", "squared_gap_file"))[request.param]
    )
    return request.param


def test_a_measure_is_computed_by_its_name(new_file, monkeypatch, predictions):
    monkeypatch.setitem(
        MEASURES, "squared_gap", entries(new_file("A measure", "squared_gap_file"))["squared_gap"]
    )
    result = evaluate(predictions, measures=["squared_gap"], intervals=True, n_resamples=50)
    assert result.metrics["squared_gap"] == pytest.approx(squared_gap_of(predictions))
    assert result.intervals["squared_gap"].low < result.metrics["squared_gap"]


def test_a_measure_is_on_the_command_line_and_in_its_table(measure, file, predictions):
    value = evaluate(predictions, measures=[measure]).metrics[measure]
    assert json.loads(run("evaluate", file, "--measures", measure, "--json"))["metrics"][measure] == value
    assert MEASURES[measure].title in run("evaluate", file, "--measures", measure)
    assert MEASURES[measure].title in run("evaluate", file, "--measures", "all")


def column_of(html, heading):
    """Return the cells below a heading of the table at the top of a report."""
    table = html.partition('id="comparison-table"')[2].partition("</table>")[0]
    headings = re.findall(r'<button [^>]*class="sort"[^>]*>([^<]*)', table)
    rows = [re.findall(r'<td[^>]* data-value="([^"]*)"', row) for row in table.split("<tr data-name=")[1:]]
    # The first heading is that of the names.
    return [float(row[headings.index(heading) - 1]) for row in rows]


@pytest.mark.parametrize("is_core", [False, True])
def test_a_measure_is_a_column_of_the_report_of_files(
    measure, predictions, file, tmp_path, monkeypatch, is_core
):
    monkeypatch.setitem(MEASURES, measure, replace(MEASURES[measure], core=is_core))
    soft = Predictions(logits=predictions.logits / 2, labels=predictions.labels)
    save_predictions(soft, tmp_path / "soft.npz")
    asked = () if is_core else ("--measures", measure)
    run("report", file, tmp_path / "soft.npz", *asked, "--out", tmp_path / "page.html")
    html = (tmp_path / "page.html").read_text(encoding="utf-8")
    expected = [evaluate(each, measures=[measure]).metrics[measure] for each in (predictions, soft)]
    assert column_of(html, f"{MEASURES[measure].short} %") == pytest.approx(expected, abs=1e-12)
    tested = re.search(r"tested: ([^)]*)", html)
    assert tested is not None
    assert MEASURES[measure].short in tested[1].split(", ")


def test_a_measure_is_a_column_of_the_report_of_methods(measure, predictions, file, tmp_path):
    told = ("--val", file, "--methods", "uncalibrated,temperature", "--measures", measure)
    run("report", file, *told, "--out", tmp_path / "page.html")
    cells = column_of((tmp_path / "page.html").read_text(encoding="utf-8"), f"{MEASURES[measure].short} %")
    assert len(cells) == 2
    assert cells[0] == pytest.approx(evaluate(predictions, measures=[measure]).metrics[measure], abs=1e-6)


def test_a_measure_is_given_by_streams(measure, predictions, tmp_path):
    folder = tmp_path / "stream"
    folder.mkdir()
    for part, rows in enumerate((range(100), range(100, 300))):
        save_predictions(predictions.take(rows), folder / f"{part}.parquet")
    expected = evaluate(predictions, measures=[measure]).metrics[measure]
    assert evaluate_stream(open_stream(folder)).metrics[measure] == pytest.approx(expected, abs=1e-12)
    assert MEASURES[measure].title in run("evaluate", folder, "--measures", measure)


def test_a_measure_must_be_documented(measure):
    assert undocumented("measures") == [measure]


@pytest.fixture
def method(new_file, monkeypatch):
    """The name of a method that was added."""
    module = new_file("A post-hoc method", "prior_shift_file")
    monkeypatch.setitem(METHODS, "prior_shift", Method(module.PriorShift, "somebody, somewhere"))
    return "prior_shift"


def test_a_method_is_listed_with_its_meaning(method):
    listed = json.loads(run("methods", "--json"))[method]
    assert listed["meaning"] == "Shift logits so that the mean prediction has the frequencies of the classes."
    assert listed["paper"] == "somebody, somewhere"
    assert method in run("methods")


def test_a_method_is_compared_chosen_and_reported(method, file, tmp_path):
    shown = run("calibrate", file, "--methods", f"uncalibrated,{method}", "--out", tmp_path / "out")
    assert method in shown
    assert method in (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    answer = json.loads((tmp_path / "out" / "results.json").read_text(encoding="utf-8"))
    assert method in answer["methods"]


def test_a_method_moves_the_mean_prediction_to_the_frequencies(method, predictions):
    comparison = compare(predictions, methods=["uncalibrated", method], n_resamples=20)
    mean = comparison[method].calibrator.predict_proba(predictions.logits).mean(axis=0)
    frequencies = np.bincount(np.asarray(predictions.labels)) / predictions.n
    assert np.asarray(mean) == pytest.approx(frequencies, abs=0.03)


def test_a_method_must_be_documented(method):
    assert undocumented("posthoc") == [method]


@pytest.fixture
def loss(new_file, monkeypatch):
    """The name of a loss that was added."""
    module = new_file("A training loss", "poly_file")
    entry = TrainingLoss(
        module.PolyLoss,
        "Cross-entropy plus the missing probability.",
        "Leng et al., ICLR 2022",
        "poly(epsilon=2.0)",
    )
    monkeypatch.setitem(LOSSES, "poly", entry)
    return "poly"


def test_a_loss_is_listed_and_explained(loss):
    assert json.loads(run("losses", "--json"))[loss]["recipe"] == "poly(epsilon=2.0)"
    explained = json.loads(run("losses", loss, "--json"))[loss]
    assert {"epsilon", "weight", "ignore_index", "reduction"} == {
        each["name"] for each in explained["options"]
    }
    assert "Weight of the missing probability" in run("losses", loss)


def test_a_loss_is_made_by_its_name_alone_and_in_sums(loss):
    logits, labels = torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 0])
    p = torch.softmax(logits, dim=1)[:, 0]
    assert float(make_loss(loss)(logits, labels)) == pytest.approx(float((-p.log() + 2 * (1 - p)).mean()))
    assert repr(make_loss("0.5 * poly + brier")) == "0.5 * PolyLoss(epsilon=1.0) + BrierLoss()"


def test_a_loss_must_be_documented(loss):
    assert undocumented("losses") == [loss]


@pytest.fixture
def plot(new_file, monkeypatch):
    """The name of a plot that was added."""
    display = new_file("A plot", "confidence_curve_file").ConfidenceCurveDisplay
    kind = Kind(
        lambda request: display.from_predictions(request.shown, **request.at), "samples up to each confidence"
    )
    monkeypatch.setitem(KINDS, "confidence-curve", kind)
    return "confidence-curve"


def test_a_plot_is_drawn_by_its_name(plot, file, tmp_path):
    printed = run("plot", plot, file, "--out", tmp_path / "curve.svg", "--title", "Sure of itself")
    assert "samples up to each confidence" in printed
    assert re.search(f"{plot} +samples up to each confidence", run("plot", "--list"))
    figure = (tmp_path / "curve.svg").read_text(encoding="utf-8")
    assert "share of the samples" in figure
    assert "Sure of itself" in figure


def test_a_plot_must_be_documented(plot):
    assert undocumented("gallery") == [plot]
