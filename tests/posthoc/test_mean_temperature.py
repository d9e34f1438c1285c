"""The mean of several temperatures for each sample, with which a pool ends."""

import numpy as np
import pytest
import torch

from calibrant.errors import InputError
from calibrant.metrics import negative_log_likelihood, smooth_ece
from calibrant.posthoc import SMART, ParameterizedTemperatureScaling, load_calibrator
from calibrant.posthoc.mean_temperature import MeanTemperature
from tests.conftest import draw
from tests.rounding import assert_equal_up_to_rounding

INDICATORS = ("margin", "confidence", "entropy")


def bent(n, *, seed=0, k=4):
    """Logits that are overconfident where the margin is large only."""
    logits, labels = draw(n, k, seed=seed, sharpen=1.0)
    top = np.sort(logits, axis=1)
    return logits * (1 + top[:, -1:] - top[:, -2:-1]), labels


@pytest.fixture(scope="module")
def fitted():
    return MeanTemperature.fit(*bent(400))


def test_the_output_is_the_softmax_at_the_harmonic_mean_of_the_temperatures_and_one(fitted):
    parts = [SMART.fit(*bent(400), indicator=each) for each in INDICATORS]
    parts.append(ParameterizedTemperatureScaling.fit(*bent(400)))
    share, new = 400 / 500, bent(30, seed=1)[0]
    for row, found in zip(new, fitted.predict_proba(new), strict=True):
        inverses = [1 / float(part.temperature(torch.tensor(row[None]))) for part in parts]
        scaled = row * (1 - share + share * sum(inverses) / 4)
        expected = np.exp(scaled - scaled.max())
        np.testing.assert_allclose(found, expected / expected.sum(), rtol=1e-9)


def test_it_repairs_a_confidence_that_one_temperature_cannot(fitted):
    logits, labels = bent(4000, seed=2)
    after = fitted.predict_log_proba(logits)
    before = torch.log_softmax(torch.tensor(logits), dim=1)
    assert smooth_ece(after.exp(), labels) < 0.5 * smooth_ece(before.exp(), labels)
    assert negative_log_likelihood(logits=after, labels=labels) < negative_log_likelihood(
        logits=before, labels=labels
    )


def test_samples_that_depend_on_each_other_count_less(fitted):
    logits, labels = bent(400)
    # Each question is answered by four copies of one row, so there are 100 independent ones.
    copies = [np.repeat(each[:100], 4, axis=0) for each in (logits, labels)]
    alone = MeanTemperature.fit(*copies)
    of_units = MeanTemperature.fit(*copies, units=np.repeat(np.arange(100), 4))
    assert float(fitted.share) == float(alone.share) == pytest.approx(0.8)
    assert float(of_units.share) == pytest.approx(0.5, abs=0.02)


def test_weights_count_by_their_effective_number():
    logits, labels = bent(400)
    weights = np.where(np.arange(400) < 200, 1.0, 1e-9)
    assert float(MeanTemperature.fit(logits, labels, weights=weights).share) == pytest.approx(2 / 3, abs=1e-3)


def test_the_prices_that_were_found_give_the_same_curves(fitted):
    again = MeanTemperature.fit(*bent(400), **fitted.for_folds)
    logits = torch.tensor(bent(50, seed=1)[0])
    assert_equal_up_to_rounding(again(logits), fitted(logits))
    assert len(fitted.for_folds["strengths"]) == 3


def test_the_predicted_class_stays_ties_and_masked_classes_too(fitted):
    logits = torch.tensor(bent(500, seed=3)[0])
    logits[:20, 1] = logits[:20].amax(dim=1)
    logits[20:40, 0] = -torch.inf
    log_probs = fitted.predict_log_proba(logits)
    highest, top = logits == logits.amax(dim=1, keepdim=True), log_probs.amax(dim=1, keepdim=True)
    assert bool(highest.gather(1, log_probs.argmax(dim=1, keepdim=True)).all())
    assert bool((top - log_probs)[highest].lt(1e-12).all())
    assert bool((log_probs[20:40, 0] == -torch.inf).all())
    assert bool(log_probs[:, 1:].isfinite().all())


def test_a_file_holds_all_parts(fitted, tmp_path):
    fitted.save(tmp_path / "mean.safetensors")
    loaded = load_calibrator(tmp_path / "mean.safetensors")
    logits = torch.tensor(bent(50, seed=1)[0])
    assert isinstance(loaded, MeanTemperature)
    assert_equal_up_to_rounding(loaded(logits), fitted(logits))


def test_prices_for_other_curves_are_refused():
    with pytest.raises(
        InputError, match="strengths: expected one for each of margin, confidence, entropy, got 2"
    ):
        MeanTemperature.fit(*bent(50), strengths=[1.0, 2.0])
