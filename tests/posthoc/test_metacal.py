"""Meta-Cal: abstention under a promise."""

import numpy as np
import pytest
import torch
from scipy.stats import entropy

from calibrant.errors import FitError, InputError
from calibrant.metrics import expected_calibration_error
from calibrant.posthoc import MetaCal, TemperatureScaling, load_calibrator
from tests.conftest import draw, softmax
from tests.rounding import assert_equal_up_to_rounding


@pytest.fixture(scope="module")
def world():
    logits, labels = draw(50_000, 5, seed=99, spread=4.0, sharpen=2.0)
    return torch.tensor(logits), torch.tensor(labels)


def broken_promises(world, variant, bound, *, n, tolerance, trials):
    """How often a threshold from n samples breaks its promise about the population."""
    z, y = world
    correct = z.argmax(dim=1) == y
    score = torch.distributions.Categorical(logits=z).entropy()
    rng = np.random.default_rng(0)
    broken = 0
    for _ in range(trials):
        rows = torch.from_numpy(rng.choice(len(z), n, replace=False))
        fitted = MetaCal.fit(z[rows], y[rows], variant=variant, bound=bound, tolerance=tolerance)
        kept = score < fitted.threshold
        if variant == "miscoverage":
            broken += float((~kept & correct).sum() / correct.sum()) > bound
        else:
            broken += float(correct[kept].double().mean()) < bound
    return broken


@pytest.mark.slow
@pytest.mark.parametrize(("variant", "bound"), [("miscoverage", 0.1), ("accuracy", 0.9)])
def test_the_promise_is_broken_as_rarely_as_promised(world, variant, bound):
    trials, tolerance = 200, 0.1
    broken = broken_promises(world, variant, bound, n=400, tolerance=tolerance, trials=trials)
    assert broken <= trials * tolerance + 3 * np.sqrt(trials * tolerance * (1 - tolerance))


def test_the_promise_is_not_kept_by_never_abstaining(world):
    z, y = world
    fitted = MetaCal.fit(z[:2000], y[:2000], bound=0.1)
    correct = z.argmax(dim=1) == y
    assert float((fitted.abstains(z) & correct).sum() / correct.sum()) > 0.07
    accurate = MetaCal.fit(z[:2000], y[:2000], variant="accuracy", bound=0.9)
    assert 0.1 < float(accurate.abstains(z).double().mean()) < 0.6


def test_samples_of_high_entropy_become_uniform_and_the_others_are_tempered(world):
    logits, labels = (part[:2000].numpy() for part in world)
    fitted = MetaCal.fit(logits, labels)
    probs = fitted.predict_proba(logits)
    away = entropy(softmax(logits), axis=1) >= float(fitted.threshold)
    assert 0 < away.mean() < 0.5
    assert (probs[away] == probs[away][:, :1]).all()
    assert probs[away] == pytest.approx(0.2)
    assert probs[~away] == pytest.approx(softmax(logits[~away] / float(fitted.temperature)))
    base = TemperatureScaling.fit(logits[~away], labels[~away])
    assert float(fitted.temperature) == pytest.approx(float(base.temperature))


def test_uniform_rows_predict_the_first_class_and_are_calibrated_by_it(world):
    logits, labels = (part.numpy() for part in world)
    fitted = MetaCal.fit(logits[:4000], labels[:4000], bound=0.2)
    probs = fitted.predict_proba(logits)
    assert (np.argmax(probs, axis=1)[fitted.abstains(torch.tensor(logits)).numpy()] == 0).all()
    assert expected_calibration_error(probs, labels) < 0.02
    assert expected_calibration_error(softmax(logits), labels) > 0.09


def test_too_few_samples_for_the_promise_become_temperature_scaling():
    logits, labels = draw(50, 4, sharpen=2.0)
    fitted = MetaCal.fit(logits, labels)
    assert not fitted.abstains(torch.tensor(logits)).any()
    assert fitted.predict_proba(logits) == pytest.approx(
        TemperatureScaling.fit(logits, labels).predict_proba(logits)
    )


def test_the_fewest_samples_for_the_promise_are_59_right_ones():
    logits = np.stack([np.linspace(1, 3, 61), np.zeros(61)], axis=1)
    for right, abstains in ((58, False), (59, True)):
        rows = np.r_[0:right, 59, 60]
        labels = np.where(rows >= 59, 1, 0)
        fitted = MetaCal.fit(logits[rows], labels)
        assert bool(fitted.abstains(torch.tensor([[0.5, 0.0]])).all()) is abstains


def test_without_a_miss_below_the_threshold_the_temperature_is_that_of_all_samples():
    confident = np.tile([[9.0, 0.0]], (300, 1))
    doubtful = np.tile([[0.2, 0.0]], (100, 1))
    logits = np.concatenate([confident, doubtful])
    labels = np.concatenate([np.zeros(300, int), np.arange(100) % 5 % 2])
    fitted = MetaCal.fit(logits, labels, variant="accuracy", bound=0.97)
    assert fitted.abstains(torch.tensor(doubtful)).all()
    assert float(fitted.temperature) == pytest.approx(
        float(TemperatureScaling.fit(logits, labels).temperature)
    )


def test_an_accuracy_that_cannot_be_promised_is_refused():
    logits, labels = draw(200, 4)
    with pytest.raises(
        FitError, match="no share of the 200 samples is accurate enough to promise an accuracy of"
    ):
        MetaCal.fit(logits, labels, variant="accuracy", bound=0.999)


@pytest.mark.parametrize("variant", ["miscoverage", "accuracy"])
def test_it_comes_back_from_a_file_the_same(world, variant, tmp_path):
    z, y = (part[:2000] for part in world)
    fitted = MetaCal.fit(z, y, variant=variant, bound=0.1 if variant == "miscoverage" else 0.85)
    fitted.save(tmp_path / "saved.safetensors")
    assert_equal_up_to_rounding(load_calibrator(tmp_path / "saved.safetensors")(z), fitted(z))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"variant": "both"}, "^variant: expected 'miscoverage' or 'accuracy', got 'both'"),
        ({"bound": 0.0}, "^bound: expected a number between 0 and 1, got 0.0"),
        ({"bound": "x"}, "^bound: expected a number between 0 and 1, got x"),
        ({"tolerance": 1.0}, "^tolerance: expected a number between 0 and 1, got 1.0"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        MetaCal.fit([[1.0, 0.0], [0.0, 1.0]], [0, 0], **options)
