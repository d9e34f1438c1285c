"""The report of a black box: the page without what needs classes, and what to answer."""

import json
import re
from dataclasses import asdict

import numpy as np
import pytest

from calibrant import Predictions, compare
from calibrant.evaluation import answer_when, make_choice
from calibrant.inference import paired_difference
from calibrant.metrics import MEASURES
from calibrant.report import compare_files, describe, describe_comparison, render
from calibrant.report.page import page_from_json
from calibrant.report.sources import Sources
from tests.conftest import draw
from tests.report.conftest import Tables, call

NEED_CLASSES = ("class", "logit", "margin", "uncalibrated", "Uncalibrated")


def answers(n, seed):
    """Stated confidences with ties, of which at most 80 % are right."""
    rng = np.random.default_rng(seed)
    stated = rng.choice([0.0, 0.5, 0.8, 0.9, 0.95, 1.0], n)
    return {"confidence": stated, "correct": rng.random(n) < 0.3 + stated / 2}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A black box, another one on the same questions, and what calibrate wrote."""
    folder = tmp_path_factory.mktemp("answers")
    subjects = np.array(["law", "art", "history"])[np.arange(900) % 3]
    for name, seed in (("val", 1), ("test", 2), ("other", 3)):
        np.savez(folder / f"{name}.npz", **answers(900, seed), groups=subjects)
    assert call("calibrate", folder / "val.npz", "--test", folder / "test.npz", "--out", folder / "out") == 0
    return folder


def text_of(page):
    """What a reader sees; the drawings are data."""
    return " ".join(Tables(page).texts)


def test_the_page_of_a_comparison_does_not_speak_of_classes(folder):
    page = (folder / "out" / "report.html").read_text()
    shown = text_of(page)
    assert [word for word in NEED_CLASSES if re.search(rf"\b{word}", shown)] == []
    assert "As stated" in shown
    for heading in ("Methods compared", "Answer when at least", "Calibration of each group"):
        assert heading in shown


@pytest.mark.parametrize("arguments", [("test.npz",), ("test.npz", "other.npz")])
def test_pages_of_files_do_not_speak_of_classes(folder, arguments):
    out = folder / "page.html"
    assert call("report", *(folder / name for name in arguments), "--out", out) == 0
    shown = text_of(out.read_text())
    assert [word for word in NEED_CLASSES if re.search(rf"\b{word}", shown)] == []
    # The names of files are the models, and a paired bootstrap says which is better.
    assert ("paired bootstrap" in shown) == (len(arguments) > 1)


def test_model_against_model_has_the_paired_test_of_each_measure():
    models = {name: Predictions(**answers(900, seed)) for name, seed in (("a", 2), ("b", 3))}
    (pair,) = compare_files(models, Sources("a")).pairs
    a, b = (each.outcomes() for each in models.values())
    assert pair.other == "b"
    for line in pair.differences:
        measure = next(each for each in MEASURES.values() if each.title == line.title)
        found = paired_difference(
            measure.function,
            a.confidence,
            b.confidence,
            correct_a=a.correct,
            correct_b=b.correct,
            **measure.arguments(15),
        )
        assert (line.difference, line.low, line.high, line.p_value) == (
            found.difference,
            found.low,
            found.high,
            found.p_value,
        )
    tested = {line.title for line in pair.differences}
    assert {MEASURES[name].title for name in ("accuracy", "nll", "brier", "ece", "auroc_correct")} <= tested


def test_other_questions_are_refused(folder, capsys):
    np.savez(folder / "shuffled.npz", **answers(900, 4), groups=np.array(["law"] * 900))
    assert call("report", folder / "test.npz", folder / "shuffled.npz", "--out", folder / "no.html") == 2
    message = "groups: expected the same samples in the same order, got 'art' and 'law' in row 1"
    assert message in capsys.readouterr().err
    assert not (folder / "no.html").exists()


def test_the_thresholds_are_those_of_the_predictions_before_and_after(folder):
    saved = json.loads((folder / "out" / "results.json").read_text())
    page = page_from_json(saved["page"])
    first = page.candidates[0]
    expected = answer_when(Predictions(**answers(900, 2)).outcomes())
    assert len(first.figures.answers) == len(expected) == 9
    for rule, row in zip(first.figures.answers, expected, strict=True):
        assert (rule.n, rule.answered, rule.at_most_wrong) == (row.n, row.answered, row.at_most_wrong)
        assert rule.wrong == (row.wrong if row.n else None)
    rows = Tables((folder / "out" / "report.html").read_text()).rows["answer-table"]
    chosen = next(each for each in page.candidates if each.name == page.chosen)
    cells = [cells for _, cells in rows if cells]
    for shown, before, after in zip(cells, first.figures.answers, chosen.figures.answers, strict=True):
        numbers = [
            number for each in (before, after) for number in (each.threshold, each.answered, each.wrong)
        ]
        assert shown == ["" if number is None else str(number) for number in numbers]
    assert saved["answer_when"] == [asdict(rule) for rule in chosen.figures.answers]


def test_after_the_repair_a_threshold_leaves_no_more_wrong_than_it_says(folder):
    page = page_from_json(json.loads((folder / "out" / "results.json").read_text())["page"])
    chosen = next(each for each in page.candidates if each.name == page.chosen)
    given = [rule for rule in chosen.figures.answers if rule.at_most_wrong is None and rule.n]
    assert given
    assert all(rule.low <= 1 - rule.threshold for rule in given)
    assert any(rule.low > 1 - rule.threshold for rule in page.candidates[0].figures.answers[:6])


def test_class_scores_have_thresholds_too():
    logits, labels = draw(300, 3, sharpen=2.0)
    page = describe(Predictions(logits=logits, labels=labels), Sources("model.npz"))
    assert "Answer when at least" in text_of(render(page))
    assert page.own == "uncalibrated"


def test_a_stated_confidence_that_is_right_stays_and_the_page_says_so():
    rng = np.random.default_rng(0)
    stated = rng.choice([0.6, 0.75, 0.9], 2000)
    honest = Predictions(confidence=stated, correct=rng.random(2000) < stated)
    comparison = compare(honest, methods=["uncalibrated"], n_folds=2)
    page = describe_comparison(comparison, make_choice(comparison), Sources("honest", validation=honest))
    assert "no method tested is better than the confidence as stated" in page.verdict.headline


@pytest.mark.slow
def test_the_table_of_thresholds_follows_the_picker(folder, look):
    path = folder / "out" / "report.html"
    page = page_from_json(json.loads((folder / "out" / "results.json").read_text())["page"])
    seen = look(path)
    for candidate in (page.candidates[1], page.candidates[2]):
        seen.page.select_option("#method", candidate.name)
        seen.page.wait_for_function(f"document.querySelector('.picked').textContent === {candidate.title!r}")
        rows = seen.page.locator("#answer-table tbody tr").all()
        for row, rule in zip(rows, candidate.figures.answers, strict=True):
            shown = row.locator("td").all_inner_texts()[3:5]
            threshold = "\N{EN DASH}" if rule.threshold is None else f"{100 * rule.threshold:.1f}"
            assert shown == [threshold, f"{100 * rule.answered:.1f}"]
    assert seen.messages == []


@pytest.mark.slow
@pytest.mark.parametrize("width", [360, 1400])
def test_nothing_overflows(folder, look, width):
    seen = look(folder / "out" / "report.html", width=width)
    assert seen.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
