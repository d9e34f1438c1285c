"""The page as a file: values, names that are attacks, and nothing that would be loaded."""

import json
import math
import re

import numpy as np
import pytest

from calibrant import Predictions, evaluate
from calibrant.data import load_bundled
from calibrant.decisions import threshold_for_risk
from calibrant.errors import FormatError
from calibrant.evaluation import by_group, compare, make_choice
from calibrant.evaluation.choose import Choice
from calibrant.inference import wilson_interval
from calibrant.posthoc import SMART, TemperatureScaling
from calibrant.report import describe, describe_comparison, render, write_report
from calibrant.report.figures import BIN_NUMBERS, POINTS
from calibrant.report.page import page_from_json, page_to_json
from calibrant.report.sources import Sources
from tests.conftest import draw
from tests.report.conftest import FILE, HOSTILE, Tables

pytestmark = pytest.mark.slow

MOST_BYTES = 3_000_000


def test_values_in_the_page_equal_results_json(written):
    results = written.results
    rows = {name: cells for name, cells in Tables(written.html).rows["comparison-table"] if name}
    assert list(rows) == list(results["methods"])
    shown = ("accuracy", "nll", "brier", "ece", "ece_equal_mass", "classwise_ece", "smece")
    weights = results["methods"]["pool"]["weights"]
    for name, told in results["methods"].items():
        values = [float(cell or "nan") for cell in rows[name][1:]]
        asides = [weights.get(name, math.nan), told["fit_seconds"], told["parameters"]]
        assert values == pytest.approx([told["test"][key] for key in shown] + asides, rel=1e-12, nan_ok=True)
        assert f"{100 * told['test']['ece']:.2f}" in written.html


def test_the_diagram_at_fifteen_bins_has_the_error_of_the_table(written):
    page = page_from_json(written.results["page"])
    for candidate in page.candidates:
        binned = next(each for each in candidate.figures.bins if each.n_bins == 15)
        assert binned.ece == pytest.approx(candidate.metrics["ece"], abs=1e-12)
        assert sum(binned.count) == 1500
        # The interval of a bin depends on its count: few samples say little, also if all are hits.
        shown = zip(binned.count, binned.accuracy, binned.band_low, binned.band_high, strict=True)
        for n, accuracy, low, high in shown:
            expected = (None, None) if n == 0 else pytest.approx(wilson_interval(accuracy, n), abs=1e-8)
            assert (low, high) == expected


def test_calibration_errors_stand_beside_what_chance_would_show(written):
    page = page_from_json(written.results["page"])
    both = [page.candidates[0], next(row for row in page.candidates if row.name == page.chosen)]
    # ECE twice, classwise ECE, smECE
    assert [line.candidate for line in page.chance] == [row.title for row in both] * 4
    for line, row in zip(page.chance[:2], both, strict=True):
        assert line.value == pytest.approx(row.metrics["ece"], abs=1e-12)
        assert 0 < line.mean < line.high
    assert page.chance[0].p_value < 0.01 < page.chance[1].p_value
    shown = [cells for _, cells in Tables(written.html).rows["chance-table"][1:]]
    expected = [[line.value, line.mean, line.high, line.p_value] for line in page.chance]
    assert [[float(cell) for cell in cells[-4:]] for cells in shown] == expected


def test_the_classes_are_those_of_the_predictions(written):
    page = page_from_json(written.results["page"])
    test = Predictions(logits=written.logits, labels=written.labels)
    errors = [line.ece for line in page.classes]
    assert errors == sorted(errors, reverse=True)
    assert np.mean(errors) == pytest.approx(evaluate(test).metrics["classwise_ece"], abs=1e-9)
    assert {line.name for line in page.classes} == set(HOSTILE)


def test_without_a_test_set_the_page_shows_the_out_of_fold_predictions_of_the_table(written, tmp_path):
    from tests.report.conftest import call

    out = tmp_path / "out"
    told = ("calibrate", written.folder.parent / "val.npz", "--methods", "uncalibrated,temperature,spline")
    assert call(*told, "--out", out) == 0
    results = json.loads((out / "results.json").read_text())
    page = page_from_json(results["page"])
    drawn = {each.name: each for each in page.drawn}
    assert set(drawn) == {"uncalibrated", results["chosen"]}
    for name, candidate in drawn.items():
        binned = next(each for each in candidate.figures.bins if each.n_bins == 15)
        assert binned.ece == pytest.approx(results["methods"][name]["validation"]["ece"], abs=1e-12)


def test_a_calibrated_model_stays_uncalibrated_and_the_page_says_so():
    val, test = (
        Predictions(logits=logits, labels=labels) for logits, labels in (draw(600, 3, seed=s) for s in (0, 1))
    )
    comparison = compare(val, test=test, methods=["uncalibrated", "temperature"])
    sources = Sources("honest", validation=val, test=test, shift=test)
    page = describe_comparison(comparison, Choice(comparison["uncalibrated"], "asked for"), sources)
    assert page.chosen is None
    assert page.shift.after is None
    text = render(page)
    assert "no method tested is better than the uncalibrated model" in text
    assert '<tr data-name="uncalibrated" class="chosen">' in text


def test_the_page_draws_the_shares_of_the_pool_and_says_why_a_method_was_chosen():
    val = load_bundled("cifar10_val").take(range(2000))
    pooled = compare(val, methods=["temperature", "spline", "pool"], n_resamples=20)
    page = describe_comparison(pooled, make_choice(pooled), Sources("pooled", validation=val))
    weights = pooled.pool.weights
    assert {row.name: row.share for row in page.candidates if row.share is not None} == weights
    assert sum(weights.values()) == pytest.approx(1)
    text = render(page)
    for share in weights.values():
        assert f'<span class="fill" style="width:{100 * share}%">' in text
    assert text.count('<div class="share">') == len(weights)
    assert "share in the pool" in text
    facts = {fact.label: fact.values for fact in page.facts}
    assert facts["Choice"] == (make_choice(pooled).sentence,)
    assert facts["Choice"][0].startswith("pool (")
    assert page.verdict.headline.endswith("the pool removes most of the calibration error.")
    alone = compare(val, methods=["temperature", "spline"], n_resamples=20)
    without = describe_comparison(alone, make_choice(alone), Sources("alone", validation=val))
    assert "share in the pool" not in render(without)


def drawn():
    logits, labels = draw(400, 3, sharpen=2.0)
    return Predictions(logits=logits, labels=labels)


def test_the_page_of_a_comparison_fits_nothing(monkeypatch):
    val = drawn()
    both, one = (
        compare(val, methods=["uncalibrated", *names], n_resamples=20)
        for names in (("temperature", "smart"), ("temperature",))
    )
    for method in (SMART, TemperatureScaling):
        monkeypatch.setattr(method, "fit", None)
    page = describe_comparison(both, Choice(both["smart"], "asked for"), Sources("both", validation=val))
    assert page.temperatures is not None
    page = describe_comparison(one, Choice(one["temperature"], "asked for"), Sources("one", validation=val))
    assert page.temperatures is None
    assert "Temperature by logit margin" not in render(page)


def test_further_measures_are_shown_and_those_that_cannot_be_computed_are_named():
    few = drawn()
    page = describe(few, Sources("few"), measures=["ks", "top_5_error"])
    assert page.columns[-1].name == "ks"
    assert page.candidates[0].metrics["ks"] == evaluate(few, measures=["ks"]).metrics["ks"]
    assert page.notes[-1] == "top-5 error is left out: needs at least 6 classes."


def test_hostile_names_are_text(written):
    page = Tables(written.html)
    text = "\n".join(page.texts)
    for name in (*HOSTILE, FILE):
        assert name in text
    assert page.scripts == 3  # data, Vega, the page's own
    assert "<script>alert" not in written.html
    assert "49" not in re.findall(r"<th[^>]*>([^<]*)</th>", written.html)


def test_the_page_loads_nothing_and_forbids_all_scripts_but_its_own(written, full_page):
    for text in (written.html, full_page.read_text(encoding="utf-8")):
        assert Tables(text).loads == [("link", "data:,")]
        style = re.search(r"<style>(.*?)</style>", text, re.DOTALL)[1]
        assert "url(" not in style
        assert "@import" not in style
        policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)[1]
        assert policy.startswith("default-src 'none'; script-src 'sha256-")
        assert "unsafe" not in policy.split("script-src")[1].split(";")[0]


def test_the_page_is_small_also_with_all_panels(written, full_page):
    assert written.page.stat().st_size < MOST_BYTES
    assert full_page.stat().st_size < MOST_BYTES


@pytest.mark.slow
def test_a_hundred_thousand_samples_are_reduced_and_the_page_says_so(tmp_path):
    logits, labels = draw(100_000, 3, sharpen=2.0)
    page = describe(Predictions(logits=logits, labels=labels), Sources("many"))
    figures = page.candidates[0].figures
    assert len(figures.risk.coverage) <= POINTS
    assert [sum(each.count) for each in figures.bins] == [100_000] * len(BIN_NUMBERS)
    write_report(page, tmp_path / "many.html")
    assert (tmp_path / "many.html").stat().st_size < MOST_BYTES
    assert "thinned to at most 200 points" in (tmp_path / "many.html").read_text()


def test_a_black_box_has_a_report_too():
    pairs = Predictions(confidence=[0.9, 0.8, 0.6, 0.7], correct=[True, True, False, True])
    page = describe(pairs, Sources("pairs"))
    assert page.classes == ()
    assert "Calibration by logit margin" not in render(page)
    found = evaluate(pairs, intervals=True).intervals
    assert page.candidates[0].intervals == {name: (each.low, each.high) for name, each in found.items()}
    assert f"{100 * found['ece'].low:.1f} to {100 * found['ece'].high:.1f}</small>" in render(page)


def test_a_page_of_weighted_samples_is_that_of_repeated_ones():
    rng = np.random.default_rng(0)
    logits, labels = 3 * rng.normal(size=(300, 3)), rng.integers(0, 3, 300)
    times = rng.integers(0, 3, 300)
    weighted = describe(Predictions(logits=logits, labels=labels, weights=0.1 * times), Sources("test"))
    repeated = describe(
        Predictions(logits=logits.repeat(times, axis=0), labels=labels.repeat(times)), Sources("test")
    )
    ours, plain = weighted.candidates[0], repeated.candidates[0]
    assert set(plain.metrics) - set(ours.metrics) == {"aurc"}
    assert ours.metrics == pytest.approx({name: plain.metrics[name] for name in ours.metrics})
    for one, other in zip(ours.figures.bins, plain.figures.bins, strict=True):
        for name in ("accuracy", "confidence"):
            assert getattr(one, name) == pytest.approx(getattr(other, name))
        assert np.divide(one.count, sum(one.count)) == pytest.approx(np.divide(other.count, sum(other.count)))
        # Fewer samples than rows are certain of less.
        wider = [(a, b) for a, b in zip(one.band_high, other.band_high, strict=True) if a is not None]
        assert all(a >= b - 1e-6 for a, b in wider)
    margins, expected = ([(m.accuracy, m.confidence) for m in each.figures.margins] for each in (ours, plain))
    assert margins == [pytest.approx(pair) for pair in expected]
    assert ours.figures.risk.risk[-1] == pytest.approx(plain.figures.risk.risk[-1])
    n = times.sum() ** 2 / np.square(times).sum()
    assert weighted.measured_on == f"test: 300 predictions, 3 classes, weighted like {n:,.0f} equal ones"
    assert "Samples count by their weights" in render(weighted)
    assert page_from_json(json.loads(json.dumps(page_to_json(weighted)))) == weighted


def test_the_risk_of_each_coverage_has_its_guarantee_unless_samples_have_weights():
    logits, labels = draw(400, 3, sharpen=2.0)
    given = Predictions(logits=logits, labels=labels)
    page = describe(given, Sources("model"))
    risk = page.candidates[0].figures.risk
    assert len(risk.guaranteed) == len(risk.risk)
    known = [pair for pair in zip(risk.guaranteed, risk.risk, strict=True) if pair[0] is not None]
    assert all(guaranteed > observed for guaranteed, observed in known)
    # The threshold of the smallest risk that is guaranteed at a coverage answers at least as much.
    place = len(risk.coverage) // 2
    found = threshold_for_risk(given, risk.guaranteed[place])
    assert found.coverage >= risk.coverage[place] - 1e-6
    assert "The dotted line is the error rate that is guaranteed on new data" in render(page)
    weighted = Predictions(logits=logits, labels=labels, weights=np.arange(1.0, 401.0))
    without = describe(weighted, Sources("model"))
    assert without.candidates[0].figures.risk.guaranteed == ()
    assert "dotted" not in re.sub(r"<style>.*?</style>", "", render(without), flags=re.DOTALL)


def test_a_page_of_a_file_fits_nothing(written, monkeypatch):
    monkeypatch.setattr(SMART, "fit", None)
    page = describe(Predictions(logits=written.logits, labels=written.labels), Sources("test"))
    assert page.temperatures is None
    assert "SMART" not in Tables(render(page)).texts


def test_groups_are_shown_worst_first_before_calibration_and_after():
    rng = np.random.default_rng(2)
    names = np.repeat(["art", "law", "few"], [400, 400, 5])
    confidence = rng.choice([0.5, 0.8, 0.95], 805)
    correct = rng.random(805) < np.where(names == "law", confidence**4, confidence)
    answers = Predictions(confidence=confidence, correct=correct, groups=names)
    comparison = compare(answers, methods=["uncalibrated", "platt", "pool"])
    chosen = next(each for each in comparison.results if each.name == "by_group")
    page = describe_comparison(comparison, Choice(chosen, "by_group"), Sources("pairs", validation=answers))
    before, after = (by_group(each, measures="ece") for each in (answers, chosen.measured))
    assert [line.name for line in page.groups.lines] == [row.name for row in before.rows]
    assert (page.groups.test, page.groups.test_after) == (before.sentence, after.sentence)
    assert (page.groups.within, page.groups.within_after) == (before.within["ece"], after.within["ece"])
    for line, row in zip(page.groups.lines, before.rows, strict=True):
        repaired = next(each for each in after.rows if each.name == row.name)
        assert (line.before.gap, line.before.low, line.before.high) == (row.gap, row.gap_low, row.gap_high)
        assert (line.before.ece, line.after.gap) == (row.metrics["ece"], repaired.gap)
    assert page.groups.lines[-1].before.p_value is None
    rows = {cells[0]: cells for _, cells in Tables(render(page)).rows["group-table"] if cells}
    assert float(rows["law"][4]) == page.groups.lines[0].before.gap
    assert page_from_json(json.loads(json.dumps(page_to_json(page)))) == page
    assert describe(answers.take(np.arange(3)), Sources("pairs")).groups.test_after is None


def test_a_thousand_classes_fit():
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(1200, 1000))
    page = describe(Predictions(logits=logits, labels=rng.integers(1000, size=1200)), Sources("many"))
    assert len(page.classes) == 1000
    assert len(render(page).encode()) < MOST_BYTES


def test_a_page_comes_back_from_json_as_it_was(written):
    page = page_from_json(written.results["page"])
    assert page_from_json(json.loads(json.dumps(page_to_json(page)))) == page
    assert render(page) == written.html


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda page: page.pop("verdict"), "expected 'verdict', got none"),
        (lambda page: page.update(candidates="none"), "page.candidates: expected a list, got 'none'"),
        (
            lambda page: page["verdict"].update(accuracy="high"),
            "verdict.accuracy: expected a number, got 'high'",
        ),
        (lambda page: page["verdict"].update(accuracy=float("nan")), "expected a finite number"),
        (lambda page: page.update(is_choice=1), "page.is_choice: expected true or false, got 1"),
        (lambda page: page.update(candidates=[]), "page.candidates: expected rows"),
        (lambda page: page["candidates"][0].update(figures=None), "page.candidates: expected rows"),
        (lambda page: page.update(chosen="x"), "page.chosen: expected the name of a candidate"),
        (lambda page: page["columns"][0].update(name="x"), "page.columns.name: expected a measure"),
        (lambda page: page["verdict"].update(accuracy_after=None), "page.verdict: expected confidence_after"),
    ],
)
def test_what_is_not_a_page_is_refused(written, change, message):
    broken = written.results["page"]
    change(broken)
    with pytest.raises(FormatError, match=message):
        page_from_json(broken)


def test_the_verdict_on_the_bundled_network():
    page = describe(load_bundled("cifar10_test"), Sources("cifar10_test.npz"))
    assert page.verdict.headline == "Overconfident: confidence 94.5 %, accuracy 82.2 %."


def test_two_classes_have_a_diagram_of_the_positive_one_and_others_none():
    logits, labels = draw(400, 2, seed=3, sharpen=2.0)
    page = describe(Predictions(logits=logits, labels=labels), Sources("two.npz"))
    binned = page.candidates[0].figures.positive
    p = 1 / (1 + np.exp(logits[:, 0] - logits[:, 1]))
    inside = (p > 0.2) & (p <= 0.3)
    assert binned.count[2] == inside.sum()
    assert binned.accuracy[2] == pytest.approx(labels[inside].mean(), abs=1e-6)
    assert 'id="positive-before"' in render(page)
    three = describe(Predictions(logits=np.eye(3), labels=[0, 1, 1]), Sources("three.npz"))
    assert three.candidates[0].figures.positive is None
    assert 'id="positive-before"' not in render(three)
