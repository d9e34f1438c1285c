"""Variational calibration errors: gains of a repair that has not seen the samples, which bound the error."""

import math

import numpy as np
import pytest
import torch
from sklearn.isotonic import IsotonicRegression

from calibrant import Predictions, evaluate
from calibrant.errors import InputError
from calibrant.inference import with_interval
from calibrant.metrics import variational_calibration_error
from calibrant.metrics.names import MEASURES
from calibrant.metrics.variational import variational_terms
from calibrant.streams.measures import streamed_measures


def confidences(n, gap=0.0, *, seed=0):
    rng = np.random.default_rng(seed)
    confidence = rng.uniform(0.55, 1, n)
    return {"confidence": confidence, "correct": rng.random(n) < confidence - gap}


def classes(n, k, *, power=1.0, seed=0):
    """Distributions, labels drawn from a power of them, and the true distributions."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(n, k)) * 2
    f, true = (np.exp(each) / np.exp(each).sum(1, keepdims=True) for each in (logits, power * logits))
    return f, (true.cumsum(1) > rng.random((n, 1))).argmax(1), true


def folds_of(n, seed=0):
    return np.random.default_rng(seed).permutation(n) % 5


def test_of_the_top_label_it_is_the_cross_fitted_gain_in_the_loss_of_the_paper():
    """L(f) - L(g) with L(q) = -|q - f| - sign(q - f) (a - q), and g of scikit-learn, fold by fold."""
    given = confidences(300, 0.1)
    c, a = given["confidence"], given["correct"].astype(float)
    folds = folds_of(300)[c.argsort().argsort()]  # folds are drawn for confidences in their order
    gains = []
    for fold in range(5):
        seen = IsotonicRegression(out_of_bounds="clip").fit(c[folds != fold], a[folds != fold])
        for ci, ai in zip(c[folds == fold], a[folds == fold], strict=True):
            g = float(seen.predict([ci])[0])
            loss_of_g = -abs(g - ci) - math.copysign(1, g - ci) * (ai - g)
            gains.append(0.0 - loss_of_g)
    assert variational_calibration_error(**given) == pytest.approx(np.mean(gains), abs=1e-9)


@pytest.mark.parametrize("p", [1.0, 2.0, 3.0])
def test_of_distributions_it_is_the_gain_with_the_gradient_of_the_norm(p, monkeypatch):
    f, y, _ = classes(40, 3)
    repaired = torch.softmax(torch.from_numpy(f).log() * 0.5 + torch.tensor([0.2, 0.0, -0.1]), dim=1)
    monkeypatch.setattr(
        "calibrant.metrics.variational._likeliest_repair",
        lambda log_f, _: (torch.tensor(0.5).to(log_f), torch.tensor([0.2, 0.0, -0.1]).to(log_f)),
    )
    found = variational_terms(f, y, mode="canonical", p=p)
    for i in range(40):
        g = repaired[i].clone().requires_grad_()
        norm = torch.linalg.vector_norm(g - torch.from_numpy(f[i]), ord=p)
        (s,) = torch.autograd.grad(norm, g)
        target = torch.nn.functional.one_hot(torch.tensor(y[i]), 3)
        assert float(found[i]) == pytest.approx(float((norm + s @ (target - g)).detach()), abs=1e-9)


@pytest.mark.parametrize("p", [1.0, 2.0])
def test_the_repair_is_the_likeliest_one(p):
    """A repair by SciPy, fold by fold, gives the same error."""
    from scipy.optimize import minimize

    f, y, _ = classes(300, 3, power=0.6)
    folds, terms = folds_of(300), np.empty(300)
    for fold in range(5):
        rest, log_f = folds != fold, np.log(f)

        def objective(x, rest=rest, log_f=log_f):
            scores = x[0] * log_f[rest] + x[1:]
            nll = np.log(np.exp(scores).sum(1)) - scores[np.arange(rest.sum()), y[rest]]
            return nll.mean() + 5 / rest.sum() * ((x[0] - 1) ** 2 + (x[1:] ** 2).sum())

        x = minimize(objective, [1, 0, 0, 0], tol=1e-12).x
        g = np.exp(x[0] * log_f + x[1:])
        away = g / g.sum(1, keepdims=True) - f
        s = np.sign(away) if p == 1 else away / np.linalg.norm(away, axis=1, keepdims=True)
        terms[~rest] = (s * (np.eye(3)[y] - f)).sum(1)[~rest]
    found = variational_calibration_error(f, y, mode="canonical", p=p)
    assert found == pytest.approx(terms.mean(), abs=2e-3)


def test_a_calibrated_model_has_a_mean_of_zero_and_ece_has_not():
    values = [variational_calibration_error(**confidences(150, seed=seed)) for seed in range(150)]
    assert abs(np.mean(values)) < 3 * np.std(values) / math.sqrt(150)
    measured = [
        evaluate(Predictions(**confidences(150, seed=seed)), measures=["ece"]).metrics["ece"]
        for seed in range(20)
    ]
    assert np.mean(measured) > 0.05


@pytest.mark.parametrize(("mode", "p"), [("canonical", 1.0), ("canonical", 2.0)])
def test_it_finds_most_of_an_error_that_the_repair_can_see_and_not_more(mode, p):
    values, true_error = [], 0.0
    for seed in range(6):
        f, y, true = classes(1500, 5, power=0.5, seed=seed)
        true_error += np.linalg.norm(f - true, ord=p, axis=1).mean() / 6
        values.append(variational_calibration_error(f, y, mode=mode, p=p))
    error = np.std(values, ddof=1) / math.sqrt(6)
    assert np.mean(values) < true_error + 3 * error
    assert np.mean(values) > 0.95 * true_error - 3 * error


def test_class_probabilities_give_the_error_of_the_predicted_class():
    f, y, _ = classes(200, 4)
    pairs = {"confidence": f.max(1), "correct": f.argmax(1) == y}
    assert variational_calibration_error(f, y) == pytest.approx(variational_calibration_error(**pairs))


def test_units_are_never_in_two_folds(monkeypatch):
    units = np.repeat(np.arange(60), 5)
    seen = []

    class Spy:
        def __init__(self, confidence):
            self.seen = {round(float(c), 12) for c in confidence}

        def at(self, c):
            seen.append((self.seen, {round(float(each), 12) for each in c}))
            return c

    def spy(*, confidence, **_):
        return Spy(confidence)

    monkeypatch.setattr("calibrant.metrics.variational.corp_reliability", spy)
    one_each = np.random.default_rng(0).uniform(0.5, 1, 60)
    given = {"confidence": one_each[units], "correct": np.arange(300) % 3 > 0}
    variational_calibration_error(**given, units=units)
    assert len(seen) == 5
    assert all(not fitted & judged for fitted, judged in seen)


def test_evaluation_and_intervals_split_by_the_units_of_the_predictions():
    units = np.repeat(np.arange(80), 5)
    given = confidences(400, 0.15)
    predictions = Predictions(**given, units=units)
    expected = variational_calibration_error(**given, units=units)
    assert expected != variational_calibration_error(**given)
    found = evaluate(predictions, measures=["variational"], intervals=True, n_resamples=100)
    assert found.metrics["variational"] == pytest.approx(expected)
    span = found.intervals["variational"]
    assert span.value == pytest.approx(expected)
    assert span.low < expected < span.high


def test_the_interval_is_that_of_the_mean_of_the_terms():
    given = confidences(500, 0.1)
    terms = variational_terms(**given).numpy()
    span = with_interval(variational_calibration_error, **given, n_resamples=2000)
    assert span.standard_error == pytest.approx(terms.std() / math.sqrt(500), rel=0.1)


def test_weights_are_refused_because_a_fit_depends_on_the_number_of_samples():
    given = confidences(300, 0.1)
    with pytest.raises(InputError, match="^weights: expected none for an error by a fit in folds"):
        variational_calibration_error(**given, weights=np.ones(300))


def test_a_fit_in_folds_is_no_sum_of_batches():
    assert not {name for name, measure in MEASURES.items() if measure.cross_fits} & streamed_measures().keys()


def test_confidences_have_no_distributions():
    with pytest.raises(InputError, match="^arguments: expected probs with labels for mode='canonical'"):
        variational_calibration_error(**confidences(50), mode="canonical")


def test_two_samples_and_one_unit_have_a_value():
    assert math.isfinite(variational_calibration_error(confidence=[0.9, 0.6], correct=[True, False]))
    f, y, _ = classes(4, 3)
    assert variational_calibration_error(f, y, mode="canonical", units=[0, 0, 0, 0]) == 0
