"""Combination of signals: the penalised optimum, missing signals, files, ONNX."""

import numpy as np
import pytest
import torch
from scipy.stats import norm, rankdata
from sklearn.linear_model import LogisticRegression

from calibrant import Predictions, compare
from calibrant.errors import FitError, InputError
from calibrant.metrics import auroc_correctness, brier_score, negative_log_likelihood
from calibrant.outcomes import log_odds
from calibrant.posthoc import Combination, PlattScaling, load_calibrator
from calibrant.posthoc.combination import _ranked
from calibrant.posthoc.confidence import ConfidenceCalibrator
from calibrant.posthoc.fitting.logistic import fit_likeliest_ridge
from tests.rounding import assert_equal_up_to_rounding


def answers(n, *, seed=0, missing=0.0):
    """Two noisy views of how likely each answer is right: a confidence with ties, and a length."""
    rng = np.random.default_rng(seed)
    truth = rng.normal(size=n)
    stated = np.round(1 / (1 + np.exp(-2 * (truth + rng.normal(size=n)) - 2)), 1)
    length = np.exp(3 - truth + rng.normal(size=n))
    signals = np.stack([stated, length], axis=1)
    signals[rng.random((n, 2)) < missing] = np.nan
    correct = rng.random(n) < 1 / (1 + np.exp(-2 * truth))
    confidence = np.nan_to_num(signals[:, 0], nan=0.5)
    return log_odds(torch.tensor(confidence)), torch.tensor(correct).long(), torch.tensor(signals)


def right(calibrator, logits, signals):
    """The probability of being right."""
    return calibrator.predict_log_proba(logits, signals)[:, 1].exp().numpy()


def normal_ranks(column):
    present = ~np.isnan(column)
    x = np.zeros(len(column))
    quantiles = norm.ppf((rankdata(column[present]) - 0.5) / present.sum())
    x[present] = (quantiles - quantiles.mean()) / quantiles.std()
    return x


def bends(x, present):
    """Natural cubic splines of orthonormal curvature, from their definition, without their straight parts."""
    knots = norm.ppf(np.linspace(0.02, 0.98, 5))
    t, places = (x - knots[0]) / np.ptp(knots), (knots - knots[0]) / np.ptp(knots)

    def curved(at, power):
        ramps = [np.clip(at - each, 0, None) ** power for each in places]
        d = [(ramps[j] - ramps[-1]) / (1 - places[j]) for j in range(4)]
        return np.stack([each - d[-1] for each in d[:-1]], axis=1)

    fine = np.linspace(0, 1, 20_001)
    second = 6 * curved(fine, 1)
    gram = second.T @ second / 20_000
    basis = np.ptp(knots) * curved(t, 3) @ np.linalg.inv(np.linalg.cholesky(gram)).T
    line = np.stack([x, np.ones_like(x)], axis=1)
    straight = line @ np.linalg.lstsq(line[present], basis[present], rcond=None)[0]
    return (basis - straight) * present[:, None]


@pytest.mark.parametrize("interactions", [False, True])
def test_it_is_the_penalised_regression_on_splines_of_normal_ranks(interactions):
    logits, labels, signals = answers(250, missing=0.1)
    fitted = Combination.fit(logits, labels, features=signals, ridge=2.0, interactions=interactions)
    columns = signals.numpy().T
    ranks = [normal_ranks(column) for column in columns]
    inputs = [
        *(x[:, None] for x in ranks),
        *(bends(x, ~np.isnan(column)) for x, column in zip(ranks, columns, strict=True)),
        *(np.isnan(column)[:, None] for column in columns),
        *([(ranks[0] * ranks[1])[:, None]] if interactions else []),
    ]
    table = np.concatenate(inputs, axis=1).astype(float)
    model = LogisticRegression(C=1 / 2.0, tol=1e-10, max_iter=10_000).fit(table, labels.numpy())
    assert right(fitted, logits, signals) == pytest.approx(model.predict_proba(table)[:, 1], abs=1e-6)


def test_two_signals_know_more_than_the_better_one():
    logits, labels, signals = answers(1000)
    new_logits, new_labels, new_signals = answers(5000, seed=1)
    both = right(Combination.fit(logits, labels, features=signals), new_logits, new_signals)
    alone = np.exp(PlattScaling.fit(logits, labels).predict_log_proba(new_logits)[:, 1].numpy())
    pairs = {"correct": new_labels.bool()}
    assert brier_score(confidence=both, **pairs) < brier_score(confidence=alone, **pairs) - 0.01
    assert auroc_correctness(confidence=both, **pairs) > auroc_correctness(confidence=alone, **pairs) + 0.05


def test_the_order_of_a_signal_is_all_that_counts():
    logits, labels, signals = answers(250)
    other = torch.stack([signals[:, 0] ** 3, -signals[:, 1].log()], dim=1)
    fits = (Combination.fit(logits, labels, features=each) for each in (signals, other))
    first, second = (right(fit, logits, each) for fit, each in zip(fits, (signals, other), strict=True))
    assert first == pytest.approx(second, abs=1e-6)


def test_a_signal_of_many_values_is_stored_by_some_of_them():
    logits, labels, signals = answers(3000)
    fitted = Combination.fit(logits, labels, features=signals)
    assert fitted.values.shape == (2, 256)
    _, ranks = _ranked(signals, fitted.values, fitted.ranks)
    expected = np.stack([normal_ranks(column) for column in signals.numpy().T], axis=1)
    assert np.abs(ranks.numpy() - expected).mean() < 0.002


def test_noise_beside_a_signal_does_no_harm():
    logits, labels, signals = answers(1000)
    new_logits, new_labels, new_signals = answers(5000, seed=1)
    rng = np.random.default_rng(2)
    losses = {}
    for n_noisy in (0, 1):
        noisy, new_noisy = (
            torch.cat([each, torch.tensor(rng.normal(size=(len(each), n_noisy)))], dim=1)
            for each in (signals, new_signals)
        )
        fitted = Combination.fit(logits, labels, features=noisy)
        log_probs = fitted.predict_log_proba(new_logits, new_noisy)
        losses[n_noisy] = negative_log_likelihood(logits=log_probs, labels=new_labels)
    assert losses[1] < losses[0] + 0.002


def log_evidence(x, y, ridge):
    """Laplace's approximation of the log-likelihood with normal coefficients integrated out."""
    model = LogisticRegression(C=1.0, tol=1e-10, max_iter=10_000).fit(x / np.sqrt(ridge), y)
    p = model.predict_proba(x / np.sqrt(ridge))[:, 1]
    table = np.column_stack([x, np.ones(len(x))])
    curve = (table * (p * (1 - p))[:, None]).T @ table + np.diag([*ridge, 0.0])
    likelihood = np.log(np.where(y == 1, p, 1 - p)).sum() - np.square(model.coef_).sum() / 2
    return likelihood + np.log(ridge).sum() / 2 - np.linalg.slogdet(curve)[1] / 2


def test_ridges_make_the_answers_likeliest_and_noise_gets_a_strong_one():
    rng = np.random.default_rng(4)
    x = rng.normal(size=(500, 6))
    y = (rng.random(500) < 1 / (1 + np.exp(-x[:, :4] @ [1.0, 2.0, 0.4, -0.4]))).astype(float)
    blocks = np.array([0, 0, 1, 1, 2, 2])
    theta, ridge = (each.numpy() for each in fit_likeliest_ridge(*map(torch.tensor, (x, y, blocks))))
    best = log_evidence(x, y, ridge)
    for block, factor in ((0, 2), (0, 0.5), (1, 2), (1, 0.5)):
        assert log_evidence(x, y, np.where(blocks == block, factor, 1) * ridge) < best
    assert ridge[0] < 1 < ridge[2] < 20 < ridge[4]
    model = LogisticRegression(C=1.0, tol=1e-10, max_iter=10_000).fit(x / np.sqrt(ridge), y)
    assert theta[:-1] == pytest.approx(model.coef_[0] / np.sqrt(ridge), abs=1e-5)


def test_the_confidence_is_a_signal_unless_it_is_among_them():
    logits, labels, signals = answers(400, missing=0.1)
    assert not Combination.fit(logits, labels, features=signals).reads_logits
    assert Combination.fit(logits, labels, features=signals[:, 1:]).reads_logits
    # Confidences of 1 are moved, which keeps their order.
    wrapped = ConfidenceCalibrator.fit(logits, labels, method="combination", features=signals)
    assert isinstance(wrapped.base, Combination)
    assert not wrapped.base.reads_logits


def test_missing_signals_and_those_beyond_the_fitting_set_get_an_answer():
    logits, labels, signals = answers(400, missing=0.1)
    fitted = Combination.fit(logits, labels, features=signals)
    rows = torch.tensor([[0.7, 1e9], [0.7, float(np.nanmax(signals[:, 1]))], [np.nan, np.nan], [0.7, np.nan]])
    far, last, nothing, half = right(fitted, torch.zeros(4), rows)
    assert far == last
    assert 0 < nothing < 1
    assert nothing != half
    with pytest.raises(InputError, match=r"^features: expected finite numbers, got inf in row 0, column 1"):
        fitted.predict_proba(torch.zeros(1), torch.tensor([[0.5, np.inf]]))


def test_a_signal_that_was_always_missing_counts_for_nothing():
    logits, labels, signals = answers(200)
    never = torch.full((200, 1), torch.nan)
    fitted = Combination.fit(logits, labels, features=torch.cat([signals, never], dim=1))
    without = right(Combination.fit(logits, labels, features=signals), logits, signals)
    for each in (never, torch.ones_like(never)):
        assert right(fitted, logits, torch.cat([signals, each], dim=1)) == pytest.approx(without, abs=1e-9)


def test_columns_of_zero_and_one_shift_groups():
    logits, _, signals = answers(3000)
    group = torch.arange(3000) % 2
    rng = np.random.default_rng(3)
    labels = torch.tensor(
        rng.random(3000) < torch.sigmoid(logits.clamp(-3, 3) + 2.0 * group - 1).numpy()
    ).long()
    fitted = Combination.fit(logits, labels, features=torch.cat([signals, group[:, None]], dim=1))
    assert not fitted.products[:, 2].any()
    assert not fitted.curved[:, 2].any()
    here, there = (torch.cat([signals, torch.full((3000, 1), each)], dim=1) for each in (0.0, 1.0))
    shift = np.log(right(fitted, logits, there) / (1 - right(fitted, logits, there)))
    shift -= np.log(right(fitted, logits, here) / (1 - right(fitted, logits, here)))
    assert shift == pytest.approx(np.full(3000, shift[0]), abs=1e-6)
    assert shift[0] == pytest.approx(2.0, abs=0.4)


def test_saved_is_loaded(tmp_path):
    logits, labels, signals = answers(300, missing=0.1)
    fitted = ConfidenceCalibrator(
        Combination.fit(logits, labels, features=signals), torch.tensor([-9.0, 9.0])
    )
    fitted.save(tmp_path / "both.safetensors")
    loaded = load_calibrator(tmp_path / "both.safetensors")
    assert_equal_up_to_rounding(right(loaded, logits, signals), right(fitted, logits, signals))


@pytest.mark.slow
def test_the_onnx_graph_takes_missing_signals(tmp_path):
    runtime = pytest.importorskip("onnxruntime")
    from calibrant.integrations.onnx import export_onnx

    logits, labels, signals = answers(300, missing=0.1)
    fitted = Combination.fit(logits, labels, features=signals)
    export_onnx(fitted, tmp_path / "both.onnx")
    scores = torch.stack([-logits / 2, logits / 2], dim=1).float()
    fed = {"logits": scores.numpy(), "features": signals.float().numpy()}
    (log_probs,) = runtime.InferenceSession(tmp_path / "both.onnx").run(None, fed)
    assert np.exp(log_probs[:, 1]) == pytest.approx(right(fitted, logits, signals), abs=1e-5)


def test_compare_combines_the_signals_of_pairs():
    logits, labels, signals = answers(400, missing=0.1)
    pairs = Predictions(
        confidence=torch.sigmoid(logits),
        correct=labels.bool(),
        signals={"stated": signals[:, 0], "length": signals[:, 1]},
    )
    compared = compare(pairs, methods=["platt", "combination", "pool"], n_resamples=20)
    assert not compared.skipped
    assert compared["combination"].metrics["brier"] < compared["platt"].metrics["brier"]


def test_bad_signals_get_one_sentence():
    logits, labels, signals = answers(50)
    with pytest.raises(
        InputError, match=r"^features: expected signals of shape \(n, s\), which Combination needs"
    ):
        Combination.fit(logits, labels)
    with pytest.raises(
        FitError, match=r"^combination: expected at most 64 signals as features, got 65; pass"
    ):
        Combination.fit(logits, labels, features=torch.zeros(50, 65))
    fitted = Combination.fit(logits, labels, features=signals)
    with pytest.raises(
        InputError, match=r"^features: expected the 2 signals that Combination was .*, got 3$"
    ):
        fitted.predict_proba(logits, torch.zeros(50, 3))
    with pytest.raises(InputError, match=r"^ridge: expected a positive number, got 0$"):
        Combination.fit(logits, labels, features=signals, ridge=0)


def test_right_answers_only_change_nothing():
    logits, labels, signals = answers(50)
    fitted = Combination.fit(logits, torch.ones_like(labels), features=signals)
    assert right(fitted, logits, signals) == pytest.approx(torch.sigmoid(logits).numpy())
