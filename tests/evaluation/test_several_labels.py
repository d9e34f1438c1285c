"""Several labels at once: measures of each label and of all entries, intervals of rows, and methods."""

import numpy as np
import pytest
from sklearn.metrics import brier_score_loss, log_loss, roc_auc_score

from calibrant import LabelPredictions, compare, evaluate
from calibrant.errors import InputError
from calibrant.evaluation import calibrated, make_choice
from calibrant.evaluation.effect import effect_of
from calibrant.evaluation.full import evaluate_fully
from calibrant.evaluation.groups import by_group
from calibrant.evaluation.paired import paired_comparison
from calibrant.metrics import expected_calibration_error
from calibrant.posthoc import LabelCalibrator

NAMES = ["news", "arts", "sport"]


def drawn(n=300, *, seed=0, **options):
    rng = np.random.default_rng(seed)
    s = np.array([0.0, -1.0, -2.0]) + 2 * rng.normal(size=(n, 3))
    y = rng.random((n, 3)) < 1 / (1 + np.exp(-(0.5 * s + [0.8, 0.0, -0.8])))
    return LabelPredictions(**{"logits": s, "labels": y, "label_names": NAMES} | options)


def test_measures_are_those_of_the_probability_of_a_label():
    given = drawn()
    p, y = given.matrix.numpy(), given.label_matrix.numpy()
    pooled = evaluate(given).metrics
    assert pooled["nll"] == pytest.approx(log_loss(y.ravel(), p.ravel()))
    assert pooled["brier"] == pytest.approx(brier_score_loss(y.ravel(), p.ravel()))
    assert pooled["auroc_correct"] == pytest.approx(roc_auc_score(y.ravel(), p.ravel()))
    table = by_group(given, measures=["nll", "ece"])
    for row in table.rows:
        q, has = p[:, NAMES.index(row.name)], y[:, NAMES.index(row.name)]
        assert row.gap == pytest.approx(q.mean() - has.mean())
        assert row.metrics["nll"] == pytest.approx(log_loss(has, q))
    errors = [expected_calibration_error(confidence=p[:, i], correct=y[:, i]) for i in range(3)]
    assert table.within["ece"] == pytest.approx(np.mean(errors))


def test_intervals_draw_rows():
    one = drawn(200)
    s, y = one.log_odds[:, :1].repeat(1, 5), one.label_matrix[:, :1].repeat(1, 5)  # one label, five times
    names = list("abcde")
    wanted = {"measures": ["nll", "ece", "smece"], "intervals": True, "n_resamples": 100}
    five = evaluate(LabelPredictions(logits=s, labels=y, label_names=names), **wanted)
    alone = evaluate(LabelPredictions(logits=s[:, :1], labels=y[:, :1]), **wanted)
    for name, interval in alone.intervals.items():
        assert five.intervals[name].standard_error == pytest.approx(interval.standard_error, rel=1e-6)


def test_methods_are_compared_by_rows_and_corrected_for_each_label():
    validation, test = drawn(), drawn(400, seed=1)
    comparison = compare(validation, test=test, methods=["uncalibrated", "platt"], n_resamples=50)
    choice = make_choice(comparison)
    fitted = choice.result.calibrator
    assert choice.result.name == "by_group"
    assert isinstance(fitted, LabelCalibrator)
    assert fitted.predict_proba(test.log_odds.numpy()).shape == (400, 3)
    repaired = choice.result.test
    assert isinstance(repaired, LabelPredictions)
    np.testing.assert_allclose(repaired.matrix, fitted.predict_proba(test.log_odds.numpy()))
    assert choice.result.test_metrics["ece"] < 0.5 * comparison["uncalibrated"].test_metrics["ece"]
    before, after = effect_of(comparison, choice, test).mean_over_labels
    assert after < before
    # Out of fold, all entries of a row are predicted by one fit, which has not seen any of them.
    platt = comparison["platt"].held_out.problem.to_logits().numpy()
    s = validation.problem.to_logits().numpy()
    odds, stated = platt[:, 1] - platt[:, 0], s[:, 1] - s[:, 0]
    inside = np.abs(stated).reshape(-1, 3).max(axis=1) < 4  # away from where log-odds are cut off
    slopes = np.diff(odds.reshape(-1, 3)[inside][:, :2]) / np.diff(stated.reshape(-1, 3)[inside][:, :2])
    assert len(np.unique(slopes.round(6))) == comparison.n_folds


def test_weights_of_rows_count_as_repetitions_do():
    weights = np.arange(300) % 3
    weighted, rows = drawn(weights=weights), np.repeat(np.arange(300), weights)
    repeated = drawn().take_rows(rows)
    for name, value in evaluate(repeated, measures=["nll", "brier", "ece"]).metrics.items():
        assert evaluate(weighted, measures=[name]).metrics[name] == pytest.approx(value)
    found = compare(weighted, methods=["platt"], n_resamples=50)["platt"]
    assert isinstance(found.held_out, LabelPredictions)
    assert found.held_out.n_rows == 300


def test_what_does_not_belong_together_is_refused():
    given, other = drawn(), drawn(seed=1)
    fitted = LabelCalibrator.fit_labels(given.log_odds, given.label_matrix, label_names=NAMES)
    assert given.n == 3 * given.n_rows
    with pytest.raises(InputError, match="^labels: expected the same samples in the same order"):
        paired_comparison(given, other)
    with pytest.raises(InputError, match="expected the labels news, arts, sport in this order.* got a, b, c"):
        calibrated(fitted, drawn(label_names=["a", "b", "c"]))
    with pytest.raises(InputError, match="^predictions: expected a column for each of the labels news"):
        calibrated(fitted, given.take([0, 1]))


def test_tables_name_the_share_of_labels_and_show_the_auroc_of_each():
    given = drawn()
    found = evaluate_fully(given)
    p, y = given.matrix.numpy(), given.label_matrix.numpy()
    aurocs = {name: roc_auc_score(y[:, place], p[:, place]) for place, name in enumerate(NAMES)}
    assert {row.name: row.metrics["auroc_correct"] for row in found.groups.rows} == pytest.approx(aurocs)
    headings = found.groups.to_table("label").to_markdown().splitlines()[0]
    assert "AUROC" in headings
    assert "samples" not in headings
    compared = compare(given, methods=["platt"], n_folds=2, n_resamples=10).to_table().to_markdown()
    assert "with label" in compared
    assert "accuracy" not in compared
