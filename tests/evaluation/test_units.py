"""Everything that is printed about chance counts units: thresholds, bins, bands, gates, headings."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from calibrant import Predictions, evaluate
from calibrant.bins import equal_width_bins
from calibrant.decisions import check_requirements
from calibrant.evaluation import answer_when, compare, paired_comparison
from calibrant.inference.bands import effective_counts, effective_size
from calibrant.plots import ReliabilityDisplay, SmoothReliabilityDisplay
from calibrant.report import compare_files, describe, write_report
from calibrant.report.figures import binned
from calibrant.report.sources import Sources, count


def answers(n=200, copies=1, seed=0):
    """Calibrated answers, each as often as there are copies, which are units."""
    rng = np.random.default_rng(seed)
    confidence = rng.uniform(0.5, 1, n)
    correct = rng.random(n) < confidence
    units = np.arange(n).repeat(copies)
    return Predictions(confidence=confidence.repeat(copies), correct=correct.repeat(copies), units=units)


def rows_alone(predictions):
    return predictions.replaced(units=None)


def test_copies_of_a_sample_are_one_sample():
    once, copied = rows_alone(answers()).outcomes(), answers(copies=6).outcomes()
    assert effective_size(once) == 200
    # A little less, because the variance between units is estimated.
    assert 185 < effective_size(copied) <= 200
    assert effective_size(replace(copied, units=None)) == 1200
    bins = equal_width_bins(copied, 10)
    sizes = effective_counts(copied, bins)
    assert torch.all(sizes <= bins.count / 6 + 1e-9)
    assert effective_counts(replace(copied, units=None), bins) is None


def test_samples_of_one_unit_are_one_sample():
    pairs = answers(20).replaced(units=[3] * 20).outcomes()
    assert effective_size(pairs) == 1
    assert effective_size(pairs.take(torch.arange(0))) == 0


def widths(rows):
    return [row.high - row.low for row in rows if row.n]


@pytest.mark.parametrize("copies", [1, 5])
def test_intervals_of_what_is_answered_do_not_shrink_with_copies(copies):
    one, copied = (answer_when(each.outcomes()) for each in (answers(), answers(copies=copies)))
    assert [row.wrong for row in copied] == pytest.approx([row.wrong for row in one], nan_ok=True)
    if copies == 1:
        assert copied == answer_when(rows_alone(answers()).outcomes())
        return
    alone = answer_when(rows_alone(answers(copies=copies)).outcomes())
    assert all(ours >= theirs for ours, theirs in zip(widths(copied), widths(one), strict=True))
    assert all(ours > 1.5 * theirs for ours, theirs in zip(widths(copied), widths(alone), strict=True))


def test_bands_of_reliability_diagrams_do_not_shrink_with_copies():
    one, copied = answers(), answers(copies=5)
    for draw in (ReliabilityDisplay.from_predictions, SmoothReliabilityDisplay.from_predictions):
        spans = [
            (band.high - band.low).nan_to_num().mean()
            for band in (draw(each, n_resamples=100).band for each in (one, copied, rows_alone(copied)))
        ]
        assert spans[1] > 0.8 * spans[0]
        assert spans[1] > 1.5 * spans[2]
    ours, theirs = (binned(each.outcomes(), 10) for each in (copied, rows_alone(copied)))
    assert ours.count == theirs.count
    assert all(a <= b for a, b in zip(ours.band_low, theirs.band_low, strict=True) if a is not None)


def test_a_gate_at_the_true_accuracy_rarely_decides():
    decided = {"rows": 0, "units": 0}
    for seed in range(40):
        rng = np.random.default_rng(seed)
        hits = rng.random(100) < 0.75
        copied = Predictions(
            confidence=np.full(600, 0.75), correct=hits.repeat(6), units=np.arange(100).repeat(6)
        )
        for what, each in (("units", copied), ("rows", rows_alone(copied))):
            gate = check_requirements(each, "accuracy > 0.75", n_resamples=200)
            decided[what] += gate.outcome != "unknown"
    assert decided["units"] <= 5
    assert decided["rows"] > 12


def test_a_gate_counts_units():
    gate = check_requirements(answers(copies=4), ["accuracy > 0.7", "accuracy > 0.1"])
    assert (gate.n, gate.n_units) == (800, 200)
    table = gate.to_table()
    assert table.title == "Gate of 800 rows of 200 units"
    assert [column.heading for column in table.columns][-1] == "units needed"
    undecided = gate.verdicts[0]
    if undecided.outcome == "unknown":
        assert "cannot tell with 200 units" in undecided.sentence
    assert "n_units" not in check_requirements(rows_alone(answers()), "accuracy > 0.1").to_dict()


def test_a_baseline_is_matched_by_ids():
    model = answers().replaced(ids=range(200))
    baseline = answers(seed=1).replaced(ids=range(200))
    expected = check_requirements(model, baseline=baseline)
    shuffled = baseline.take(np.random.default_rng(0).permutation(200)).replaced(units=None)
    found = check_requirements(model.replaced(units=None), baseline=shuffled)
    assert [each.value for each in found.verdicts] == [each.value for each in expected.verdicts]


def test_headings_state_rows_and_units():
    copied = answers(copies=3)
    assert evaluate(copied).to_table().title == "600 predictions of 200 units"
    assert evaluate(copied).to_dict()["n_units"] == 200
    assert "n_units" not in evaluate(rows_alone(copied)).to_dict()
    assert count(copied) == "600 predictions of 200 units"
    title = paired_comparison(copied, copied, measures=["accuracy"]).to_table().title
    assert title == "Two models on the same 600 rows of 200 units"
    found = compare(copied, methods=["platt"])
    assert found.to_table().title == "Comparison: 1 methods, 600 validation samples of 200 units"
    assert found.to_dict()["n_units"] == 200


def test_with_one_sample_per_unit_every_number_is_that_of_rows():
    named = answers().replaced(units=np.arange(200)[::-1] * 3)
    alone = rows_alone(named)
    for measures in ("core", ["smece", "aurc", "ece_sweep"]):
        ours, theirs = (
            evaluate(each, measures=measures, intervals=True, chance=True) for each in (named, alone)
        )
        assert ours.intervals == theirs.intervals
        assert ours.by_chance == theirs.by_chance
    (a,), (b,) = (check_requirements(each, "ece < 0.2").verdicts for each in (named, alone))
    assert (a.least, a.most) == (b.least, b.most)


def test_the_report_states_units(tmp_path):
    page = tmp_path / "report.html"
    write_report(describe(answers(copies=3), Sources("answers")), page)
    text = page.read_text(encoding="utf-8")
    assert "600 predictions of 200 units" in text
    assert "Samples belong to 200 units" in text


def test_a_report_of_two_models_matches_them_by_id():
    first, other = (answers(seed=seed).replaced(ids=range(200), units=None) for seed in (0, 1))
    order = np.random.default_rng(0).permutation(200)[:180]
    page = compare_files({"first": first, "other": other.take(order)}, Sources("first"))
    kept = np.sort(order)
    expected = compare_files({"first": first.take(kept), "other": other.take(kept)}, Sources("first"))
    assert page.pairs == expected.pairs
