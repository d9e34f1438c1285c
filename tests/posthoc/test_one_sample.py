"""One sample at a time: the same answer as among many, from any number of threads."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from calibrant import Predictions
from calibrant.errors import InputError
from calibrant.evaluation.calibrated import fit_method
from calibrant.posthoc import ByGroup, ConfidenceCalibrator, ScoreCalibrator, TemperatureScaling
from calibrant.posthoc.names import METHODS
from tests.conftest import draw
from tests.rounding import assert_equal_up_to_rounding

NAMES = ("temperature", "structured_smart", "spline", "isotonic", "venn_abers", "uncalibrated")


@pytest.fixture(scope="module")
def pairs():
    rng = np.random.default_rng(0)
    confidence = rng.beta(5, 2, size=400).round(3)
    return confidence, rng.random(400) < confidence**1.5


@pytest.mark.parametrize("name", NAMES)
def test_a_row_alone_gets_what_it_gets_among_others(name):
    logits, labels = draw(300, 5, sharpen=2.0)
    calibrator = fit_method(METHODS[name], Predictions(logits=logits, labels=labels))
    many = calibrator.predict_proba(logits[:20])
    assert isinstance(many, np.ndarray)
    for row, expected in zip(logits[:20], many, strict=True):
        one = calibrator.predict_one(row)
        assert one.dtype == expected.dtype
        assert_equal_up_to_rounding(one, expected)
        assert_equal_up_to_rounding(np.array(calibrator.predict_one(row.tolist())), expected)
    assert isinstance(calibrator.predict_one(torch.tensor(logits[0])), torch.Tensor)


def test_the_answer_can_be_used_where_gradients_are_recorded():
    calibrator, scale = TemperatureScaling(2.0), torch.ones(3, requires_grad=True)
    (calibrator.predict_one(torch.tensor([1.0, 2.0, 0.0])) * scale).sum().backward()
    (calibrator.predict_log_proba(torch.tensor([[1.0, 2.0, 0.0]])) * scale).sum().backward()
    assert scale.grad is not None


def test_a_number_is_the_log_odds_of_class_1():
    assert TemperatureScaling(2.0).predict_one(3.0) == pytest.approx([1 - 0.81757, 0.81757], abs=1e-5)


@pytest.mark.parametrize("method", ["pool", "temperature", "histogram"])
@pytest.mark.parametrize("number", [0.0, 1e-9, 0.3333337, 0.5, 0.95, 1.0])
def test_a_confidence_alone_gets_what_it_gets_among_others(pairs, method, number):
    calibrator = ConfidenceCalibrator.fit_pairs(*pairs, method=method)
    expected = calibrator.predict_confidence(np.array([0.2, number]))[1]
    assert calibrator(number) == pytest.approx(expected, rel=1e-10, abs=1e-12)
    assert calibrator.predict_one(number) == calibrator(number)


def test_a_score_alone_gets_what_it_gets_among_others(pairs):
    confidence, correct = pairs
    calibrator = ScoreCalibrator.fit_scores(100 * confidence, correct, method="platt")
    assert calibrator.predict_one(73.0) == pytest.approx(calibrator.predict_confidence([10.0, 73.0])[1])


def test_one_sample_has_its_group_and_its_features():
    logits, labels = draw(300, 3, sharpen=2.0)
    names = np.where(np.arange(300) % 3 == 0, "north", "south")
    calibrator = ByGroup.fit(logits, labels, groups=names)
    for group in ("north", "south", "elsewhere"):
        expected = calibrator.predict_proba(logits[:1], groups=[group])[0]
        assert_equal_up_to_rounding(calibrator.predict_one(logits[0], group=group), expected)
    features = np.random.default_rng(0).normal(size=(300, 4))
    of_features = Predictions(logits=features @ np.eye(4, 3), labels=labels, features=features)
    clipping = fit_method(METHODS["feature_clipping"], of_features)
    assert_equal_up_to_rounding(
        clipping.predict_one(logits[0], features[0]), clipping.predict_proba(logits[:1], features[:1])[0]
    )


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            [[1.0, 2.0]],
            r"row: expected scores of shape \(k,\), got shape \(1, 2\); predict_proba takes several",
        ),
        ([1.0, float("nan"), 0.0], "finite"),
        ([1.0, 2.0], "expected the 3 classes"),
        ("high", "expected"),
    ],
)
def test_what_is_no_row_is_refused(row, message):
    with pytest.raises(InputError, match=message):
        TemperatureScaling(1.0, n_classes=3).predict_one(row)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([0.9], "row: expected one number, got list; predict_confidence takes several"),
        (90.0, "divided by 100"),
    ],
)
def test_what_is_no_confidence_is_refused(pairs, given, message):
    with pytest.raises(InputError, match=message):
        ConfidenceCalibrator.fit_pairs(*pairs, method="platt").predict_one(given)


def test_many_threads_at_once_get_equal_answers_and_leave_the_numbers_of_threads_alone(pairs):
    before = torch.get_num_threads()
    logits, labels = draw(300, 5, sharpen=2.0)
    of_classes = fit_method(METHODS["structured_smart"], Predictions(logits=logits, labels=labels))
    of_pairs = ConfidenceCalibrator.fit_pairs(*pairs, method="pool")

    def answers(_):
        found = [of_classes.predict_one(row).tolist() for row in logits[:50]]
        return found, [of_pairs(number / 50) for number in range(50)], torch.get_num_threads()

    alone = answers(0)
    with ThreadPoolExecutor(8) as pool:
        for found, repaired, threads in pool.map(answers, range(16)):
            np.testing.assert_allclose(found, alone[0], rtol=1e-6)
            np.testing.assert_allclose(repaired, alone[1], rtol=1e-9)
            assert threads == alone[2]
    assert torch.get_num_threads() == before
