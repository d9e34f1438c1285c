"""Reliability diagrams draw exactly the values they are given."""

import numpy as np
import pytest
import torch

from calibrant import Predictions
from calibrant.bins import top_label_bins
from calibrant.inference import accuracy_band, wilson_interval
from calibrant.metrics import corp_reliability, smooth_reliability
from calibrant.plots import (
    ClassReliabilityDisplay,
    ConfidenceHistogramDisplay,
    CorpReliabilityDisplay,
    ReliabilityDisplay,
    SmoothReliabilityDisplay,
)
from tests.plots.conftest import line


def bars(ax, label):
    """The bars of this name as (left, bottom, width, height)."""
    container = next(each for each in ax.containers if each.get_label() == label)
    return np.array([[p.get_x(), p.get_y(), p.get_width(), p.get_height()] for p in container.patches])


@pytest.mark.parametrize("binning", ["width", "mass"])
def test_bars_are_as_high_as_the_accuracy_and_gaps_reach_to_the_confidence(any_form, binning):
    display = ReliabilityDisplay.from_predictions(any_form, n_bins=10, binning=binning)
    outcomes = any_form.outcomes()
    bins = top_label_bins(
        confidence=outcomes.confidence, correct=outcomes.correct, n_bins=10, binning=binning
    )
    full = bins.count > 0
    left, bottom, width, height = bars(display.ax_, "accuracy").T
    np.testing.assert_allclose(height, bins.accuracy[full])
    np.testing.assert_allclose(left, bins.edges[:-1][full])
    np.testing.assert_allclose(left + width, bins.edges[1:][full])
    assert not bottom.any()
    over = full & (bins.confidence > bins.accuracy)
    _, bottom, _, height = bars(display.ax_, "gap: overconfident").T
    np.testing.assert_allclose(bottom, bins.accuracy[over])
    np.testing.assert_allclose(bottom + height, bins.confidence[over])


def counts(strip):
    """The heights of all bars of a strip."""
    return [bar.get_height() for bar in strip.patches]


def test_the_strip_above_shows_the_counts(logits):
    display = ReliabilityDisplay.from_predictions(logits, n_bins=10)
    (strip,) = display.ax_.child_axes
    np.testing.assert_array_equal(counts(strip), display.bins.count)


def test_whiskers_are_the_bootstrap_band(logits):
    display = ReliabilityDisplay.from_predictions(logits, n_bins=10, seed=4)
    band = accuracy_band(display.bins, seed=4)
    (container,) = [each for each in display.ax_.containers if each.get_label() == "95 % bootstrap"]
    segments = np.array(container.lines[2][0].get_segments())  # type: ignore[attr-defined]
    full = display.bins.count > 0
    # A whisker never ends on the wrong side of its bar.
    np.testing.assert_allclose(segments[:, 0, 1], torch.minimum(band.low, display.bins.accuracy)[full])
    np.testing.assert_allclose(segments[:, 1, 1], torch.maximum(band.high, display.bins.accuracy)[full])


def test_the_band_can_be_left_out(logits):
    display = ReliabilityDisplay.from_predictions(logits, band=False)
    assert display.band is None
    assert "95 % bootstrap" not in [each.get_label() for each in display.ax_.containers]


def test_the_smooth_line_joins_mean_confidence_and_mean_accuracy_under_the_kernel(any_form):
    display = SmoothReliabilityDisplay.from_predictions(any_form, n_resamples=20)
    outcomes = any_form.outcomes()
    p, hits = outcomes.confidence.double(), outcomes.correct.double()
    curve = smooth_reliability(confidence=p, correct=hits.bool())
    assert f"smECE {100 * curve.value:.1f} %" in display.ax_.get_legend().get_title().get_text()
    x, y = line(display.ax_, "accuracy, smoothed")
    for place in (60, 250, 400, 500):
        # The kernel is a Gaussian that is reflected at both ends.
        reach = [(curve.confidence[8 * place] - each) / curve.bandwidth for each in (p, -p, 2 - p)]
        kernel = sum(torch.exp(-each.square() / 2) for each in reach)
        effective = float(kernel.sum() ** 2 / kernel.square().sum())
        assert float(display.n_effective[8 * place]) == pytest.approx(effective, rel=0.02)
        assert np.isfinite(y[place]) == (display.n_effective[8 * place] >= 30)
        if np.isfinite(y[place]):
            np.testing.assert_allclose(x[place], (kernel * p).sum() / kernel.sum(), atol=2e-3)
            np.testing.assert_allclose(y[place], (kernel * hits).sum() / kernel.sum(), atol=2e-3)


def test_the_smooth_line_fades_and_ends_with_the_samples_and_stays_in_the_axes():
    # Below 0.9 there are 13 samples, of which 5 are hits; above it the model is calibrated.
    confidence = np.concatenate([np.linspace(0.36, 0.44, 13), np.linspace(0.9, 1, 1200)])
    hits = np.concatenate([np.arange(13) < 5, np.arange(1200) % 20 > 0])
    display = SmoothReliabilityDisplay.from_predictions(
        Predictions(confidence=confidence, correct=hits), n_resamples=50
    )
    few_x, few_y = line(display.ax_, "fewer than 30 samples")
    x, y = line(display.ax_, "accuracy, smoothed")
    assert np.nanmin(few_x) > confidence[0] - 1e-3
    assert np.nanmin(x[np.isfinite(y)]) > np.nanmin(few_x)
    for values in (few_y, y, display.band.low, display.band.high):
        assert np.nanmin(values) >= 0
        assert np.nanmax(values) <= 1
    first = int(np.argmax(np.isfinite(few_x)))
    n = float(display.n_effective[8 * first])
    low, high = wilson_interval(float(few_y[first]), n)
    assert float(display.band.low[8 * first]) <= low
    assert float(display.band.high[8 * first]) >= high
    assert high - low > 0.3


def test_the_corp_line_goes_through_both_ends_of_every_group(any_form):
    display = CorpReliabilityDisplay.from_predictions(any_form, n_resamples=20)
    outcomes = any_form.outcomes()
    found = corp_reliability(confidence=outcomes.confidence, correct=outcomes.correct)
    x, y = line(display.ax_, "accuracy, isotonic")
    np.testing.assert_allclose(x[0::2], found.low)
    np.testing.assert_allclose(x[1::2], found.high)
    np.testing.assert_allclose(y[0::2], found.accuracy)
    np.testing.assert_allclose(y[1::2], found.accuracy)
    assert (display.band.low <= display.band.high).all()


def test_the_histogram_stacks_wrong_on_correct_and_shows_both_means(any_form):
    display = ConfidenceHistogramDisplay.from_predictions(any_form, n_bins=10)
    outcomes = any_form.outcomes()
    right, wrong = bars(display.ax_, "correct"), bars(display.ax_, "wrong")
    np.testing.assert_allclose(right[:, 3] + wrong[:, 3], display.bins.weight, atol=1e-12)
    np.testing.assert_allclose(wrong[:, 1], right[:, 3])
    assert right[:, 3].sum() == pytest.approx(float(outcomes.correct.double().mean()))
    places = sorted(float(each.get_xdata()[0]) for each in display.ax_.lines)
    means = (outcomes.correct.double().mean(), outcomes.confidence.mean())
    np.testing.assert_allclose(places, sorted(means))


def test_every_class_has_a_panel_with_its_frequencies(logits):
    display = ClassReliabilityDisplay.from_predictions(logits, n_bins=5)
    panels = display.ax_.child_axes
    # Each panel names its class, its error and how many samples are of this class.
    for name, panel, bins in zip(logits.class_names, panels, display.bins, strict=True):
        n, error = int((logits.labels == logits.class_names.index(name)).sum()), float(bins.expected_gap())
        assert panel.get_title() == f"{name}\nECE {100 * error:.1f} %, n = {n}"  # type: ignore[attr-defined]
        (strip,) = panel.child_axes
        np.testing.assert_allclose(counts(strip), bins.count)
    for panel, bins in zip(panels, display.bins, strict=True):
        np.testing.assert_allclose(bars(panel, "frequency")[:, 3], bins.accuracy[bins.count > 0])
    total = sum(int(bins.correct_sum.sum()) for bins in display.bins)
    assert total == logits.n


def test_class_names_are_shown_as_they_are_and_long_ones_shortened(logits, tmp_path):
    names = ["<script>", r"$\frac{a$", "a long name of a class that does not fit", "x_1^2"]
    odd = Predictions(logits=logits.logits, labels=logits.labels, class_names=names)
    display = ClassReliabilityDisplay.from_predictions(odd)
    display.save(tmp_path / "x.svg")
    text = (tmp_path / "x.svg").read_text(encoding="utf-8")
    assert "&lt;script&gt;" in text
    assert r"$\frac{a$" in text
    assert "a long name of a class" in text


def test_of_many_classes_the_least_calibrated_are_shown(logits):
    every = ClassReliabilityDisplay.from_predictions(logits)
    display = ClassReliabilityDisplay.from_predictions(logits, max_classes=2)
    errors = {name: float(bins.expected_gap()) for name, bins in zip(every.names, every.bins, strict=True)}
    assert list(display.names) == sorted(errors, key=errors.get, reverse=True)[:2]


@pytest.mark.slow
@pytest.mark.parametrize(
    "confidence",
    [[0.7, 0.7], [1.0, 1.0, 1.0], [0.0, 1.0], [0.3] * 50],
    ids=["ties", "sure", "ends", "constant"],
)
def test_odd_predictions_can_be_drawn(confidence):
    hits = [i % 2 == 0 for i in range(len(confidence))]
    odd = Predictions(confidence=confidence, correct=hits)
    for display in (ReliabilityDisplay, SmoothReliabilityDisplay, CorpReliabilityDisplay):
        display.from_predictions(odd, n_resamples=10).figure_.draw_without_rendering()
    ConfidenceHistogramDisplay.from_predictions(odd).figure_.draw_without_rendering()
