"""Results show themselves in notebooks: small, escaped, light and dark; progress bars work there too."""

import re
import sys
import types

import numpy as np
import pytest

from calibrant import LabelPredictions, Predictions, compare, evaluate
from calibrant.decisions import check_requirements, threshold_for_risk
from calibrant.evaluation import by_group
from calibrant.evaluation.choose import make_choice
from calibrant.evaluation.paired import paired_comparison
from calibrant.progress import progress_bar
from calibrant.show import Table
from calibrant.show.html import table, text
from tests import hostile
from tests.conftest import draw

NAMES = hostile.texts()


@pytest.fixture(scope="module")
def predictions():
    """Predictions of which every class and every group has a name that attacks."""
    logits, labels = draw(40 * len(NAMES), len(NAMES), sharpen=2.0, spread=3.0)
    groups = [NAMES[row % len(NAMES)] for row in range(len(labels))]
    return Predictions(logits=logits, labels=labels, class_names=NAMES, groups=groups)


SHOWN = {
    "Predictions": lambda p: p,
    "pairs": lambda p: Predictions(
        confidence=np.full(p.n, 0.7), correct=[True] * p.n, groups=p.groups, signals={"<i>": np.ones(p.n)}
    ),
    "LabelPredictions": lambda _: LabelPredictions(
        probs=np.full((3, len(NAMES)), 0.5), labels=np.ones((3, len(NAMES)), dtype=int), label_names=NAMES
    ),
    "Evaluation": lambda p: evaluate(p, intervals=True, chance=True, n_resamples=5),
    "Comparison": lambda p: compare(p, methods=["uncalibrated", "temperature"], n_resamples=5),
    "Choice": lambda p: make_choice(compare(p, methods=["uncalibrated", "temperature"], n_resamples=5)),
    "PairedComparison": lambda p: paired_comparison(p, p, n_resamples=5),
    "GroupTable": lambda p: by_group(p),
    "Gate": lambda p: check_requirements(p, ["ece < 0.01", "accuracy > 0.1"], n_resamples=20),
    "Threshold": lambda p: threshold_for_risk(p, 0.5),
}


@pytest.fixture(scope="module", params=SHOWN)
def shown(request, predictions):
    return SHOWN[request.param](predictions)._repr_html_()


def test_names_that_attack_are_text(shown):
    tags = hostile.Tags(shown)
    allowed = {
        "style",
        "div",
        "strong",
        "table",
        "thead",
        "tbody",
        "tr",
        "th",
        "td",
        "svg",
        "g",
        "rect",
        "path",
    }
    assert set(tags.counts) <= allowed
    assert not {name for name in tags.attributes if name.startswith("on")}
    assert hostile.raw_characters(shown) == []


def test_it_is_small_loads_nothing_and_has_the_colours_of_the_page(shown):
    assert len(shown) < 20_000
    style = shown.partition("</style>")[0]
    assert not re.search(r"https?:|url|@import", style)
    assert not hostile.Tags(shown).attributes & {"src", "srcset", "href", "style"}
    colours = re.findall(r"(?:color|background|currentColor \d+%,) ?:?([#\w]+)", style)
    colours += re.findall(r' (?:fill|stroke)="([^"]*)"', shown)
    assert set(colours) <= {"inherit", "currentColor", "none", "transparent"}


def test_an_evaluation_shows_its_measures_and_a_bar_for_each_bin_with_samples(predictions):
    result = evaluate(predictions)
    tags = hostile.Tags(result._repr_html_())
    assert f"{100 * result.metrics['ece']:.2f} %" in tags.texts
    assert tags.counts["rect"] == int((result.bins.count > 0).sum())
    assert tags.counts["tr"] == 1 + len(result.metrics)


def test_predictions_show_their_first_samples(predictions):
    logits = [[2.0, 0.0], [0.0, 1.0]]
    texts = hostile.Tags(
        Predictions(logits=logits, labels=["cat", "cat"], class_names=["cat", "dog"])._repr_html_()
    ).texts
    assert {"cat", "dog", "88.1 %", "73.1 %"} <= texts
    assert hostile.Tags(predictions._repr_html_()).counts["tr"] == 6


def test_a_comparison_emphasizes_the_likeliest_method(predictions):
    alone = Predictions(logits=predictions.logits, labels=predictions.labels)
    page = compare(alone, methods=["uncalibrated", "temperature"], n_resamples=5)._repr_html_()
    assert "<strong>temperature</strong>" in page
    assert "<strong>uncalibrated</strong>" not in page


def test_long_texts_are_cut():
    assert len(text("x" * 1000)) == 60
    assert table(Table.of(["a"], [["<"]])).count("&lt;") == 1


class Notebook:
    """What IPython gives a kernel, as far as a progress bar needs it."""

    def __init__(self):
        self.pages = []

    def display(self, what, *, display_id):
        assert display_id
        self.update(what)
        return self

    def update(self, what):
        self.pages.append(what._repr_html_())


@pytest.fixture
def notebook(monkeypatch):
    found = Notebook()
    shell = types.SimpleNamespace(kernel=object())
    display = types.SimpleNamespace(display=found.display)
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell))
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    return found


def test_a_notebook_gets_a_bar_that_moves_and_is_removed(notebook, monkeypatch):
    clock = iter(range(100))
    monkeypatch.setattr("calibrant.progress.time.monotonic", lambda: next(clock))
    with progress_bar() as progress:
        for done in range(3):
            progress("<img src=x>", done, 4)
    first, begun, middle, late, last = notebook.pages
    assert first == last == ""
    assert 'value="0.000"' in begun
    assert 'value="0.250"' in middle
    assert "50%" in late
    assert "s left" in late
    assert "<img" not in late


def test_a_notebook_gets_no_flood_of_bars(notebook):
    with progress_bar() as progress:
        for done in range(10_000):
            progress("resamples", done, 10_000)
    assert len(notebook.pages) < 100


def test_the_bar_is_removed_after_an_error(notebook):
    with pytest.raises(ZeroDivisionError), progress_bar() as progress:  # noqa: PT012
        progress("dividing", 0, 1)
        raise ZeroDivisionError
    assert notebook.pages[-1] == ""


@pytest.mark.parametrize("visible", [True, False])
def test_nothing_is_shown_where_nobody_looks(visible, capsys):
    with progress_bar(visible=visible) as progress:
        compare(
            Predictions(confidence=np.linspace(0.1, 0.9, 60), correct=[0, 1] * 30),
            methods="platt",
            progress=progress,
        )
    assert capsys.readouterr() == ("", "")
