"""The diagnosis by margin: slopes are derivatives, and the two-slice example disagrees as the paper says."""

import numpy as np
import pytest
import torch

from calibrant.data.predictions import Predictions
from calibrant.errors import InputError
from calibrant.evaluation.margin_diagnosis import diagnose_margins
from calibrant.metrics import negative_log_likelihood, worst_case_probe
from calibrant.surrogates import soft_ece
from tests.conftest import draw, softmax

LOGITS, LABELS = draw(600, 4, seed=3, sharpen=1.5)


def diagnose(logits, labels, **options):
    return diagnose_margins(Predictions(logits=logits, labels=labels), **options)


def sharpened(diagnosis, group, s):
    """Logits in which one margin group alone is multiplied by s."""
    top = np.sort(LOGITS, axis=1)
    margin = top[:, -1] - top[:, -2]
    low, high = diagnosis.edges[group], diagnosis.edges[group + 1]
    last = group == len(diagnosis.count) - 1
    inside = (margin >= low.item()) & ((margin <= high.item()) if last else (margin < high.item()))
    assert inside.sum() == diagnosis.count[group]
    return np.where(inside[:, None], s * LOGITS, LOGITS)


def difference_quotient(measure, diagnosis, group, step=1e-5):
    up, down = (measure(softmax(sharpened(diagnosis, group, 1 + d))) for d in (step, -step))
    return (up - down) / (2 * step)


def soft_error(probs):
    return float(soft_ece(torch.tensor(probs.max(axis=1)), torch.tensor(probs.argmax(axis=1) == LABELS)))


def probed_error(probs):
    confidence, correct = probs.max(axis=1), probs.argmax(axis=1) == LABELS
    return abs(np.mean((correct - confidence) * np.sin(confidence)))


def test_slopes_are_difference_quotients():
    diagnosis = diagnose(LOGITS, LABELS, n_groups=4)
    probed = diagnose(LOGITS, LABELS, n_groups=4, probe=torch.sin)
    for group in range(4):
        nll = difference_quotient(lambda p: negative_log_likelihood(p, LABELS), diagnosis, group)
        assert float(diagnosis.nll_slope[group]) == pytest.approx(nll, abs=1e-7)
        soft = difference_quotient(soft_error, diagnosis, group)
        assert float(diagnosis.calibration_slope[group]) == pytest.approx(soft, abs=1e-6)
        smooth = difference_quotient(probed_error, diagnosis, group)
        assert float(probed.calibration_slope[group]) == pytest.approx(smooth, abs=1e-7)


def test_the_probe_of_the_smooth_calibration_error_can_be_followed():
    probs = softmax(LOGITS)
    worst = worst_case_probe(probs, LABELS)
    probed = diagnose(LOGITS, LABELS, n_groups=4, probe=worst)

    def error(probs):
        confidence, correct = probs.max(axis=1), probs.argmax(axis=1) == LABELS
        phi = np.interp(confidence, worst.confidence.numpy(), worst.phi.numpy())
        return abs(np.mean((correct - confidence) * phi))

    assert error(probs) == pytest.approx(worst.value, abs=1e-12)
    # Between the confidences that it is known at the probe is linear; at them it has a kink.
    for group in range(4):
        slope = difference_quotient(error, probed, group, step=1e-7)
        assert float(probed.calibration_slope[group]) == pytest.approx(slope, abs=0.02)


def test_groups_hold_all_samples_and_describe_them():
    diagnosis = diagnose(LOGITS, LABELS, n_groups=5)
    probs = softmax(LOGITS)
    assert diagnosis.count.sum() == 600
    assert (diagnosis.count - 120).abs().max() <= 1
    assert float((diagnosis.count * diagnosis.confidence).sum() / 600) == pytest.approx(
        probs.max(axis=1).mean()
    )
    assert float((diagnosis.count * diagnosis.accuracy).sum() / 600) == pytest.approx(
        (probs.argmax(axis=1) == LABELS).mean()
    )


def test_an_overconfident_model_wants_to_be_softened_by_both():
    logits, labels = draw(4000, 4, sharpen=3.0)
    diagnosis = diagnose(logits, labels, n_groups=1)
    assert diagnosis.nll_slope > 0
    assert diagnosis.calibration_slope > 0
    assert not diagnosis.disagree.any()


def test_likelihood_and_calibration_can_disagree():
    # One slice of margins: half of its samples (three classes in play) say 0.4 and are right 60 times in 100,
    # half (two in play) say 0.6 and are right 50 times in 100: sharpening helps the likelihood of the first.
    low = np.log([0.45, 0.275, 0.275])
    high = np.log([0.62, 0.62 * 0.275 / 0.45, 1 - 0.62 - 0.62 * 0.275 / 0.45])
    logits = np.repeat([low, high], [100, 100], axis=0)
    labels = np.concatenate([np.repeat([0, 1, 2], [75, 13, 12]), np.repeat([0, 1, 2], [56, 42, 2])])
    over = diagnose(logits, labels, n_groups=1, probe=lambda p: -(p > 0.55).double())
    assert over.nll_slope < 0 < over.calibration_slope
    assert over.disagree.tolist() == [True]


def test_a_temperature_per_sample_is_a_scaling_of_the_logits():
    temperature = np.linspace(0.5, 2.0, len(LOGITS))
    direct = diagnose(LOGITS, LABELS, temperature=temperature, n_groups=1)
    scaled = diagnose(LOGITS / temperature[:, None], LABELS, n_groups=1)
    assert float(direct.nll_slope) == pytest.approx(float(scaled.nll_slope), abs=1e-12)
    assert float(direct.calibration_slope) == pytest.approx(float(scaled.calibration_slope), abs=1e-12)


def test_equal_margins_form_one_group():
    diagnosis = diagnose([[1.0, 0.0], [0.0, 1.0]], [0, 0])
    assert diagnosis.count.tolist() == [2]
    assert diagnosis.edges.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("temperature", [0.0, -1.0, [1.0, 2.0], [[1.0]]])
def test_temperatures_are_checked(temperature):
    with pytest.raises(InputError, match="^temperature: expected a positive number or one per sample, got"):
        diagnose(LOGITS, LABELS, temperature=temperature)


def test_probabilities_have_the_margins_of_their_logarithms():
    given = diagnose_margins(Predictions(probs=softmax(LOGITS), labels=LABELS), n_groups=3)
    assert given.nll_slope.numpy() == pytest.approx(diagnose(LOGITS, LABELS, n_groups=3).nll_slope, abs=1e-9)


def test_predictions_without_classes_are_refused():
    with pytest.raises(InputError, match="^predictions: expected logits or probs with labels, got"):
        diagnose_margins(Predictions(confidence=[0.5], correct=[True]))
