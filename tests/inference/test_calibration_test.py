"""Tests of calibration: the right size when the model is calibrated, growing power when it is not."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from calibrant.errors import InputError
from calibrant.inference.calibration_test import calibration_test
from calibrant.metrics import auroc_correctness, expected_calibration_error, top_label_bins
from calibrant.metrics.kernel import skce

pytestmark = pytest.mark.usefixtures("one_thread")
SETS = 250


def outcomes(n, rng, *, slope=1.0):
    """Return the confidences of a very confident model, and hits that follow them (times a slope)."""
    confidence = np.sqrt(np.sqrt(rng.random(n)))
    return {"confidence": confidence, "correct": rng.random(n) < slope * confidence}


def distributions(n, k, rng, *, sharpen=1.0):
    logits = rng.normal(size=(n, k)) * 2
    probs = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    labels = (probs.cumsum(axis=1) > rng.random((n, 1))).argmax(axis=1)
    sharp = probs**sharpen
    return sharp / sharp.sum(axis=1, keepdims=True), labels


def assert_uniform(p_values, *, step=0.0):
    """Check the size of the test within binomial error, and the distribution; p-values are discrete."""
    p_values = np.array(p_values)
    assert stats.binomtest(int((p_values <= 0.05).sum()), len(p_values), 0.05).pvalue > 0.001
    spread = p_values - step * np.random.default_rng(0).random(len(p_values))
    assert stats.kstest(spread, "uniform").pvalue > 0.001


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n", "options"),
    [(30, {}), (300, {}), (300, {"binning": "mass"}), (300, {"n_bins": 3})],
    ids=str,
)
def test_p_values_of_a_calibrated_model_are_uniform(n, options):
    rng = np.random.default_rng(n)
    assert_uniform(
        [
            calibration_test(**outcomes(n, rng), n_resamples=99, seed=s, **options).p_value
            for s in range(SETS)
        ],
        step=0.01,
    )


@pytest.mark.slow
@pytest.mark.parametrize("binning", ["width", "mass"])
def test_p_values_of_a_calibrated_sample_of_100_000_are_uniform(binning):
    rng = np.random.default_rng(5)
    assert_uniform(
        [
            calibration_test(**outcomes(100_000, rng), n_resamples=99, seed=s, binning=binning).p_value
            for s in range(100 if binning == "width" else 30)
        ],
        step=0.01,
    )


def test_kernel_p_values_of_a_calibrated_model_are_uniform_even_if_rows_are_sorted_by_label():
    rng = np.random.default_rng(0)
    p_values = []
    for seed in range(SETS):
        probs, labels = distributions(300, 4, rng)
        order = np.argsort(labels)
        p_values.append(
            calibration_test(probs[order], labels[order], statistic="skce", width=0.5, seed=seed).p_value
        )
    assert_uniform(p_values)


@pytest.mark.slow
def test_p_values_of_any_statistic_are_uniform():
    rng = np.random.default_rng(0)
    assert_uniform(
        [
            calibration_test(
                *distributions(25, 3, rng), statistic=skce, n_resamples=19, seed=s, width=0.5
            ).p_value
            for s in range(SETS)
        ],
        step=0.05,
    )


@pytest.mark.parametrize(
    ("statistic", "options", "sizes"),
    [("ece", {}, (60, 400, 2500)), ("skce", {"width": 0.5}, (300, 2500, 12_000))],
)
def test_power_grows_with_the_samples_and_with_the_miscalibration(statistic, options, sizes):
    def power(n, sharpen):
        rng = np.random.default_rng(1)
        rejected = [
            calibration_test(
                *distributions(n, 3, rng, sharpen=sharpen),
                statistic=statistic,
                n_resamples=99,
                seed=s,
                **options,
            ).p_value
            <= 0.05
            for s in range(40)
        ]
        return sum(rejected) / 40

    by_size = [power(n, 3.0 if statistic == "skce" else 1.5) for n in sizes]
    by_spoiling = [power(sizes[1], sharpen) for sharpen in (1.0, 2.5, 8.0)]
    for powers in (by_size, by_spoiling):
        assert powers == sorted(powers)
        assert powers[-1] > max(0.9, powers[0] + 0.3)


@pytest.mark.parametrize("binning", ["width", "mass"])
def test_drawing_fine_bins_gives_the_p_value_of_drawing_samples(binning):
    data = outcomes(2000, np.random.default_rng(3), slope=0.985)
    fast = calibration_test(**data, binning=binning, n_resamples=10_000)
    plain = calibration_test(
        **data, statistic=expected_calibration_error, binning=binning, n_resamples=300, seed=1
    )
    assert fast.statistic == pytest.approx(plain.statistic, abs=1e-12)
    assert 0.01 < fast.p_value < 0.9
    error = math.sqrt(plain.p_value * (1 - plain.p_value) / 300)
    assert fast.p_value == pytest.approx(plain.p_value, abs=4 * error)


def test_probabilities_are_measured_by_their_predicted_class():
    probs, labels = distributions(500, 4, np.random.default_rng(0), sharpen=1.3)
    found = calibration_test(probs, labels)
    right = {"confidence": probs.max(axis=1), "correct": probs.argmax(axis=1) == labels}
    assert found == calibration_test(**right)
    assert found.statistic == pytest.approx(expected_calibration_error(probs, labels), abs=1e-12)
    assert (found.n_resamples, found.method) == (1000, "consistency resampling")


def test_drawn_labels_follow_the_predictions_which_stay_fixed():
    probs = np.array([[0.5, 0.3, 0.2], [0.0, 0.1, 0.9], [1.0, 0.0, 0.0]])
    drawn = []

    def note(p, y):
        assert p is probs or np.array_equal(p, probs)
        drawn.append(y)
        return 0.0

    assert calibration_test(probs, [0, 1, 2], statistic=note, n_resamples=4000).p_value == 1.0
    share = np.stack([np.bincount(column, minlength=3) for column in np.array(drawn[1:]).T]) / 4000
    assert share == pytest.approx(probs, abs=0.04)
    assert share[probs == 0] == pytest.approx(0)


def test_drawn_hits_follow_the_confidences():
    drawn = []

    def note(confidence, correct):
        drawn.append(correct.double())
        return float(len(confidence))

    confidence = torch.tensor([0.0, 0.3, 1.0])
    calibration_test(
        confidence=confidence, correct=torch.tensor([True, True, True]), statistic=note, n_resamples=2000
    )
    assert torch.stack(drawn[1:]).mean(dim=0).tolist() == pytest.approx([0.0, 0.3, 1.0], abs=0.05)


def test_the_kernel_test_reads_confidences_as_a_binary_problem():
    data = outcomes(400, np.random.default_rng(0), slope=0.8)
    found = calibration_test(**data, statistic="skce", width=0.5)
    binary = calibration_test(data["confidence"], data["correct"].astype(int), statistic="skce", width=0.5)
    assert found == binary
    assert (found.n_resamples, found.method) == (0, "asymptotic normal")
    assert found.p_value == pytest.approx(
        stats.norm.sf(found.statistic / standard_error(data, seed=0)), abs=1e-12
    )


def standard_error(data, *, seed):
    """Compute the kernel terms of the pairs for this seed, by the definition, for two classes."""
    c, a = data["confidence"], data["correct"].astype(float)
    order = np.random.default_rng(seed).permutation(len(c))
    terms = [
        2 * (a[i] - c[i]) * (a[j] - c[j]) * math.exp(-abs(c[i] - c[j]) / 0.5)
        for i, j in zip(order[0::2], order[1::2], strict=True)
    ]
    return np.std(terms, ddof=1) / math.sqrt(len(terms))


def test_certain_and_right_predictions_are_calibrated():
    probs = np.eye(3)[[0, 1, 2, 0]]
    for statistic in ("ece", "skce"):
        assert calibration_test(probs, [0, 1, 2, 0], statistic=statistic).p_value == 1.0


def test_a_resample_without_a_value_counts_against_rejection():
    data = {"confidence": [0.99, 0.98, 0.97, 0.96], "correct": [1, 1, 1, 0]}
    assert calibration_test(**data, statistic=auroc_correctness).p_value > 0.8


def test_equal_seeds_give_equal_p_values_and_progress_is_reported():
    data = outcomes(50, np.random.default_rng(0))
    steps = []
    one, same, other = (
        calibration_test(
            **data,
            statistic=expected_calibration_error,
            n_resamples=40,
            seed=seed,
            progress=lambda *step: steps.append(step),
        )
        for seed in (1, 1, 3)
    )
    assert one == same
    assert one.p_value != other.p_value
    assert steps[:40] == [("resamples", i + 1, 40) for i in range(40)]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"statistic": "mce"}, "^statistic: expected 'ece', 'skce', 'kuiper', 'ks' or a function, got 'mce'"),
        ({"statistic": top_label_bins}, "^statistic: expected a function that returns one number, got Bins"),
        (
            {"statistic": lambda **_: math.nan},
            "^statistic: expected a finite value on the whole sample, got nan",
        ),
        ({"statistic": "skce"}, "^probs: expected at least four samples, for two pairs, got 3"),
        ({"n_resamples": 0}, "^n_resamples: expected a whole number of at least 1, got 0"),
        ({"n_bins": 0}, "^n_bins: expected a whole number of at least 1, got 0"),
        ({"binning": "log"}, "^binning: expected 'width' or 'mass', got 'log'"),
        ({"confidence": [0.5], "correct": [1]}, "^confidence: expected at least two samples, got 1"),
        (
            {"labels": [0, 1, 1]},
            "^arguments: expected probs with labels or confidence with correct, got labels",
        ),
    ],
)
def test_wrong_input_is_refused_in_one_sentence(change, message):
    with pytest.raises(InputError, match=message):
        calibration_test(**({"confidence": [0.5, 0.6, 0.7], "correct": [1, 0, 1]} | change))
