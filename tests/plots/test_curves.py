"""Curves, dots and fields draw exactly the values they are given."""

import numpy as np
import pytest
import torch

from calibrant import InputError, Predictions, compare
from calibrant.bins import top_label_bins
from calibrant.evaluation import by_margin, loss_shape
from calibrant.metrics import aurc, confidence_score, ood_curve, risk_coverage_curve
from calibrant.outcomes import margin
from calibrant.plots import (
    AdaFocalGammasDisplay,
    IndicatorsDisplay,
    LossShapeDisplay,
    MarginDiagnosisDisplay,
    MarginGroupsDisplay,
    MarginReliabilityDisplay,
    MethodComparisonDisplay,
    OODRocDisplay,
    RiskCoverageDisplay,
    TemperatureCurveDisplay,
    TrainingDynamicsDisplay,
    ValidationSizeDisplay,
)
from calibrant.posthoc import SMART
from tests.plots.conftest import line


def test_margin_groups_show_confidence_and_accuracy(logits, probs):
    for predictions in (logits, probs):
        display = MarginGroupsDisplay.from_predictions(predictions, n_groups=4)
        expected = by_margin(logits, n_groups=4)
        for label, name in (("accuracy", "accuracy"), ("confidence", "mean_confidence")):
            np.testing.assert_allclose(
                line(display.ax_, label)[1], [part.metrics[name] for part in expected], atol=1e-6
            )


def test_several_models_have_a_panel_each(logits, probs):
    display = MarginGroupsDisplay.from_predictions({"before": logits, "after": probs})
    titles = [panel.get_title(loc="left") for panel in display.ax_.child_axes]  # type: ignore[attr-defined]
    assert titles == ["before", "after"]


def test_groups_are_those_of_the_original_margins_before_and_after_a_repair(logits):
    """A repair that turns the order of the margins around must not turn the groups around."""
    margins = margin(logits.logits)
    repaired = Predictions(logits=logits.logits / (1 + margins[:, None] ** 2), labels=logits.labels)
    groups = MarginGroupsDisplay.from_predictions({"before": logits, "after": repaired}, n_groups=3).groups
    assert [each.n for each in groups["after"]] == [200, 200, 200]
    order = margins.argsort()
    for group, rows in zip(groups["after"], order.split(200), strict=True):
        expected = repaired.to_probs()[rows].amax(dim=1).mean()
        assert group.metrics["mean_confidence"] == pytest.approx(float(expected), abs=1e-6)
    assert [each.metrics["accuracy"] for each in groups["after"]] == [
        each.metrics["accuracy"] for each in groups["before"]
    ]


def test_models_of_other_samples_have_no_common_margins(logits):
    with pytest.raises(
        InputError, match=r"models: expected predictions for the same samples, got \[10, 600\]"
    ):
        MarginGroupsDisplay.from_predictions({"before": logits, "after": logits.take(range(10))})


def test_reliability_of_margin_groups_has_the_samples_of_the_original_groups(logits):
    repaired = Predictions(logits=logits.logits / 3, labels=logits.labels)
    display = MarginReliabilityDisplay.from_predictions({"before": logits, "after": repaired}, n_groups=2)
    titles = [panel.get_title() for panel in display.ax_.child_axes]  # type: ignore[attr-defined]
    assert titles[0] == "all samples"
    assert titles[-1] == "change of confidence (points)"
    assert len(titles) == 4
    order = margin(logits.logits).argsort()
    for title, rows in zip(titles[1:3], order.split(300), strict=True):
        for name, model in (("before", logits), ("after", repaired)):
            bins = display.reliability.bins[title][name]
            assert int(bins.count.sum()) == 300
            own = top_label_bins(model.to_probs()[rows], model.labels[rows], n_bins=10)
            np.testing.assert_allclose(bins.confidence, own.confidence, equal_nan=True)
            shown = own.count >= 10
            x, y = line(display.ax_.child_axes[titles.index(title)], name)
            np.testing.assert_allclose(x, own.confidence[shown])
            np.testing.assert_allclose(y, own.accuracy[shown])
    change = display.reliability.change["after"]
    lowest = order[:30]
    gain = repaired.outcomes().confidence[lowest] - logits.outcomes().confidence[lowest]
    assert float(change[0]) == pytest.approx(float(gain.mean()))


def test_the_needed_temperature_gives_each_sample_the_wanted_confidence(logits):
    needed = IndicatorsDisplay.from_predictions(logits).needed
    z = logits.logits.double()
    probs = torch.softmax(z / needed.temperature[:, None], dim=1)
    np.testing.assert_allclose(probs.amax(dim=1), 0.8, atol=1e-9)
    np.testing.assert_allclose(needed.indicators["logit margin"], margin(z))
    assert bool((needed.temperature <= needed.highest + 1e-9).all())
    assert bool((needed.temperature >= needed.lowest - 1e-9).all())


def test_margins_cannot_be_had_from_pairs(pairs):
    with pytest.raises(InputError, match="expected logits"):
        MarginGroupsDisplay.from_predictions(pairs)
    with pytest.raises(InputError, match="expected logits or probs"):
        TemperatureCurveDisplay.from_predictions(pairs)


def test_the_temperature_curve_is_that_of_the_calibrator(logits):
    smart = SMART.fit(logits.logits, logits.labels, settled=0, epochs=30)
    display = TemperatureCurveDisplay.from_predictions(logits, calibrator=smart)
    margins = margin(logits.logits)
    r = np.corrcoef(margins, smart.temperature_curve(margins))[0, 1]
    assert display.curve.pearson == pytest.approx(r, abs=1e-6)
    x, y = line(display.ax_, f"SMART, Pearson r = {r:.2f}")
    np.testing.assert_allclose(y, smart.temperature_curve(x), rtol=1e-6)
    assert display.curve.share.sum() == pytest.approx(0.99, abs=0.02)


def test_the_risk_coverage_line_is_the_curve(any_form):
    display = RiskCoverageDisplay.from_predictions(any_form)
    outcomes = any_form.outcomes()
    said = {"confidence": outcomes.confidence, "correct": outcomes.correct}
    curve = risk_coverage_curve(**said)
    x, y = line(display.ax_, f"confidence, AURC {100 * aurc(**said):.2f} %")
    np.testing.assert_allclose(x, curve.coverage)
    np.testing.assert_allclose(y, curve.risk)


def test_the_oracle_errs_only_when_nothing_else_is_left(pairs):
    oracle = RiskCoverageDisplay.from_predictions(pairs).oracle
    share = float(pairs.correct.double().mean())
    assert (oracle.risk[oracle.coverage <= share] == 0).all()
    late = oracle.coverage > share
    torch.testing.assert_close(oracle.risk[late], 1 - share / oracle.coverage[late])


def test_validation_sizes_show_the_mean_over_draws(logits):
    display = ValidationSizeDisplay.from_predictions(
        logits, logits, methods=("temperature",), sizes=[100, 400], n_repeats=2
    )
    x, y = line(display.ax_, "temperature")
    assert x.tolist() == [100, 400]
    np.testing.assert_allclose(y, display.sizes.curves["temperature"].mean)


def test_loss_and_weight_are_drawn_side_by_side():
    losses = {"cross-entropy": lambda nll: nll, "squared": lambda nll: nll**2}
    display = LossShapeDisplay.from_functions(losses)
    shape = loss_shape(losses)
    for panel, values in zip(display.ax_.child_axes, (shape.loss, shape.weight), strict=True):
        for name in losses:
            x, y = line(panel, name)
            np.testing.assert_array_equal(x, shape.p)
            np.testing.assert_array_equal(y, values[name])


def test_gammas_are_a_field_of_epochs_and_bins():
    gammas = np.arange(12.0).reshape(4, 3) - 2
    display = AdaFocalGammasDisplay.from_history([{"gammas": row, "gap": row} for row in gammas])
    field = display.ax_.collections[0].get_array()
    np.testing.assert_array_equal(np.asarray(field).reshape(3, 4), gammas.T)
    assert len(display.ax_.collections[1].get_paths()) == 2  # the negative ones are hatched


@pytest.mark.parametrize("history", [[], [{}], [{"gammas": [1.0]}, {"gammas": [1.0, 2.0]}]])
def test_a_history_without_gammas_is_refused(history):
    with pytest.raises(InputError, match="^history: expected the same number of gammas in each epoch"):
        AdaFocalGammasDisplay.from_history(history)


def test_training_dynamics_have_one_panel_per_quantity():
    table = {
        "loss": {"train": [2.0, 1.0, 0.5], "test": [2.0, 1.5, 1.6]},
        "accuracy": torch.tensor([0.1, 0.5, 0.7]),
    }
    display = TrainingDynamicsDisplay(table).plot()
    loss, accuracy = display.ax_.child_axes
    assert line(loss, "train")[0].tolist() == [1, 2, 3]
    assert line(loss, "test")[1].tolist() == [2.0, 1.5, 1.6]
    np.testing.assert_allclose(accuracy.lines[0].get_ydata(), [0.1, 0.5, 0.7], rtol=1e-6)
    with pytest.raises(InputError, match="at least one quantity"):
        TrainingDynamicsDisplay({})


def test_methods_are_dots_with_their_paired_intervals(logits):
    comparison = compare(logits, methods=["uncalibrated", "temperature"], n_folds=2, n_resamples=50)
    display = MethodComparisonDisplay.from_comparison(comparison)
    changes, errors = display.ax_.child_axes
    drawn = {}
    for container in changes.containers:
        points, _, (whiskers,) = container.lines  # type: ignore[attr-defined]
        for (x, y), ((low, _), (high, _)) in zip(points.get_xydata(), whiskers.get_segments(), strict=True):
            drawn[comparison.results[int(y)].name] = (x, low, high)
    for result in comparison.results:
        change = result.improvement
        assert drawn[result.name] == pytest.approx((change.difference, change.low, change.high), abs=1e-12)
    expected = [result.metrics["ece"] for result in comparison.results]
    np.testing.assert_allclose(errors.lines[0].get_xdata(), expected)
    assert [tick.get_text() for tick in changes.get_yticklabels()] == ["uncalibrated", "temperature (chosen)"]


def test_the_roc_line_is_the_curve_and_needs_no_labels(logits):
    foreign = Predictions(logits=logits.logits / 4)
    display = OODRocDisplay.from_predictions(logits, foreign, scores=("msp",))
    curve = ood_curve(*(confidence_score("msp", logits=each.logits) for each in (logits, foreign)))
    scores = f"AUROC {100 * curve.scores.auroc:.1f}, FPR95 {100 * curve.scores.fpr95:.1f}"
    x, y = line(display.ax_, f"maximum softmax probability: {scores}")
    assert x[0] == y[0] == 0
    assert x[-1] == y[-1] == 1
    assert np.trapezoid(y, x) == pytest.approx(curve.scores.auroc, abs=1e-3)


def test_scores_of_logits_are_left_out_where_there_are_only_probabilities(probs, pairs):
    assert list(OODRocDisplay.from_predictions(probs, probs).curves) == ["msp", "negative_entropy"]
    assert list(OODRocDisplay.from_predictions(pairs, pairs).curves) == ["confidence"]
    with pytest.raises(InputError, match="the same form twice"):
        OODRocDisplay.from_predictions(probs, pairs)


def test_the_diagnosis_shades_the_groups_in_which_likelihood_and_calibration_disagree(logits):
    display = MarginDiagnosisDisplay.from_predictions(logits, n_groups=6)
    upper, lower = display.ax_.child_axes
    for panel, slopes in ((upper, display.diagnosis.nll_slope), (lower, display.diagnosis.calibration_slope)):
        bars = [bar for container in panel.containers for bar in container]
        assert sorted(bar.get_height() for bar in bars) == pytest.approx(sorted(slopes.tolist()))
        assert len(panel.patches) - len(bars) == int(display.diagnosis.disagree.sum())
