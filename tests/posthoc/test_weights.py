"""Weights in the fits of calibrators: a common factor, absence, repetition, and methods that refuse them."""

from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from calibrant.errors import InputError
from calibrant.posthoc import (
    BBQ,
    SMART,
    BetaCalibration,
    Calibrator,
    ClassTemperatureScaling,
    Combination,
    ConfidenceCalibrator,
    DirichletCalibration,
    EnsembleTemperatureScaling,
    FeatureClipping,
    GroupCalibration,
    HistogramBinning,
    IntraOrderPreserving,
    IsotonicCalibration,
    LocalTemperature,
    LogisticSpline,
    MatrixScaling,
    MetaCal,
    MonotoneScaling,
    ParameterizedTemperatureScaling,
    PlattScaling,
    ProximityCalibration,
    PTSPaper,
    QuadraticCalibration,
    SegmentCalibration,
    SimplexIsotonicCalibration,
    SMARTPaper,
    SplineCalibration,
    StructuredMatrixScaling,
    StructuredSMART,
    StructuredVectorScaling,
    StructuredVectorSMART,
    TemperatureScaling,
    VectorScaling,
    VennAbers,
)
from calibrant.posthoc.fitting_set import FittingSet
from calibrant.posthoc.names import METHODS
from tests.conftest import softmax

N = 120


class Case(NamedTuple):
    """A method, options that leave no choice to folds, and what a sample of weight 3 equals.

    Attributes:
        thrice: The largest difference of probabilities from a fit with the sample three times. With ``"n"``
            the fits have a penalty, a prior or a number of bins that depends on the number of samples, and
            are compared at the same effective number.
    """

    method: type[Calibrator]
    options: dict[str, Any] = {}  # noqa: RUF012  # no case changes it
    thrice: float | None = 1e-6
    n: bool = False


CASES = [
    Case(TemperatureScaling),
    Case(TemperatureScaling, {"objective": "ece"}),
    Case(TemperatureScaling, {"objective": "ece_equal_mass"}),
    Case(TemperatureScaling, {"objective": "mse"}, 1e-5),
    Case(ClassTemperatureScaling),
    Case(EnsembleTemperatureScaling),
    # The knots of the curve are quantiles, and those of copies lie between other samples.
    Case(SMART, {"strength": 30.0, "settled": 0.0, "epochs": 10}, 5e-3, n=True),
    Case(SMARTPaper, {"epochs": 3, "batch_size": 10**4, "n_bins": 10}),
    Case(SMARTPaper, {"epochs": 3, "batch_size": 10**4, "objective": "charbonnier_pointwise"}),
    Case(ParameterizedTemperatureScaling, {"epochs": 5, "objective": "label_smoothing"}, n=True),
    Case(PTSPaper, {"steps": 5, "batch_size": 10**4}),
    Case(VectorScaling, {}, 1e-4, n=True),
    Case(MatrixScaling, {"strength": 1.0}, 1e-4, n=True),
    Case(DirichletCalibration, {"strength": 1.0}, 1e-4, n=True),
    Case(DirichletCalibration, {"off_diagonal": 0.1}, 1e-4, n=True),
    Case(StructuredMatrixScaling, {"strength": 1.0}, 1e-4, n=True),
    Case(StructuredVectorScaling, {"strength": 1.0}, 1e-4, n=True),
    Case(PlattScaling, {"shrinkage": 0.0}),
    Case(PlattScaling, n=True),
    Case(PlattScaling, {"smooth_targets": True}, n=True),
    Case(BetaCalibration, {"shrinkage": 0.0}),
    Case(BetaCalibration, n=True),
    Case(QuadraticCalibration, n=True),
    Case(LogisticSpline, {"ridge": 1.0}, n=True),
    Case(IsotonicCalibration, {"smoothing": 0.0}),
    Case(IsotonicCalibration, {"smoothing": 0.0, "centred": True, "mode": "one_vs_rest"}),
    Case(IsotonicCalibration, n=True),
    Case(HistogramBinning, {"n_bins": 4, "smoothing": 0.0}),
    Case(HistogramBinning, {"n_bins": 4, "smoothing": 0.0, "binning": "width", "mode": "one_vs_rest"}),
    Case(HistogramBinning, n=True),
    Case(BBQ, n=True),
    Case(SplineCalibration, n=True),
    Case(IntraOrderPreserving, {"strength": 100.0}, 1e-4, n=True),
    Case(IntraOrderPreserving, {"strength": 100.0, "variant": "diagonal"}, 1e-4, n=True),
    Case(MonotoneScaling, {}, 1e-5, n=True),
    # Folds are of samples, and the copies of one would be in several.
    Case(SimplexIsotonicCalibration, {}, None),
    Case(GroupCalibration, {"n_partitions": 1}, 1e-4, n=True),
    Case(GroupCalibration, {"n_partitions": 1, "hard": True}, 1e-4, n=True),
    Case(LocalTemperature, {}, 1e-4, n=True),
    Case(FeatureClipping),
    Case(FeatureClipping, {"objective": "ece"}),
    Case(Combination, {"ridge": 1.0}, 1e-5, n=True),
    Case(Combination, {}, 1e-4, n=True),
    # Three copies of a sample are three neighbours of others; a sample of weight 3 is one.
    Case(ProximityCalibration, {}, None),
    Case(ProximityCalibration, {"variant": "bin_mean_shift", "fallback": False}, None),
    Case(TemperatureScaling.then(EnsembleTemperatureScaling)),
    # Folds are of samples, and the copies of one would be in several.
    Case(SegmentCalibration, {}, None),
    Case(StructuredSMART, {"strength": 1.0, "smart_strength": 30.0}, None),
    Case(StructuredVectorSMART, {"strength": 1.0, "smart_strength": 30.0}, None),
]
FOR_FEATURES = (Combination, FeatureClipping, LocalTemperature, ProximityCalibration, SegmentCalibration)
REFUSING = (VennAbers, MetaCal)


@pytest.fixture(scope="module")
def samples():
    """Logits that are too large, from features by a linear map; labels; features; weights from 0 to 3."""
    rng = np.random.default_rng(5)
    features = rng.normal(size=(N, 4))
    logits = features @ rng.normal(size=(4, 3))
    labels = (softmax(logits).cumsum(axis=1) > rng.random((N, 1))).argmax(axis=1)
    every = (2.5 * logits, labels, features, rng.integers(0, 4, size=N).astype(float))
    return [torch.from_numpy(np.ascontiguousarray(each)) for each in every]


def probabilities(fit, case, samples, rows, weights=None):
    """Return predictions for all samples of a fit on some rows, with weights if given."""
    logits, labels, features, _ = samples
    options = dict(case.options)
    h = features if case.method in FOR_FEATURES else None
    if h is not None:
        options["features"] = h[rows]
    if weights is not None:
        options["weights"] = weights
    return fit(logits[rows], labels[rows], **options).predict_log_proba(logits, h).exp().double()


def unscaled(method):
    """The fit of a method with weights that are not scaled to the effective number of samples."""

    def fit(logits, labels, *, features=None, weights=None, **options):
        return method.fit(FittingSet(logits, labels, features, weights), **options)

    return fit


def apart(one, other):
    return float((one - other).abs().max())


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.method.__name__}-{case.options}")
def test_a_weight_counts_as_it_says(case, samples):
    method, w = case.method, samples[3]
    every, used = torch.arange(N), w.nonzero().squeeze(1)
    weighted = probabilities(method.fit, case, samples, every, w)
    plain = probabilities(method.fit, case, samples, every)
    # The best of few thresholds may be the same.
    assert apart(weighted, plain) > 1e-6 or method is FeatureClipping
    # Neither the samples of weight 0 nor a common factor matter.
    assert apart(probabilities(method.fit, case, samples, used, 7 * w[used]), weighted) < 1e-5
    if case.thrice is None:
        return
    if case.n:  # a fitting set takes the weights as they are: their sum is the number of rows below
        weighted = probabilities(unscaled(method), case, samples, used, w[used])
    repeated = probabilities(method.fit, case, samples, torch.repeat_interleave(every, w.long()))
    assert apart(weighted, repeated) <= case.thrice


def test_all_methods_that_take_weights_are_tested():
    taking = {method.calibrator for name, method in METHODS.items() if method.takes_weights}
    others = {METHODS["uncalibrated"].calibrator, METHODS["pool"].calibrator}
    assert taking - others <= {case.method for case in CASES}
    refusing = {method.calibrator for name, method in METHODS.items() if not method.takes_weights}
    assert refusing == set(REFUSING)


@pytest.mark.parametrize("method", [*REFUSING, TemperatureScaling.then(VennAbers)])
def test_what_needs_whole_samples_refuses_weights(method, samples):
    logits, labels, _, w = samples
    with pytest.raises(InputError, match=r"^weights: expected none for \w+, got some; .* or repeat rows$"):
        method.fit(logits, labels, weights=w)
    same = method.fit(logits, labels, weights=torch.full((N,), 2.0))
    assert torch.equal(same.predict_log_proba(logits), method.fit(logits, labels).predict_log_proba(logits))


@pytest.mark.parametrize("name", ["temperature", "smart"])
def test_shuffled_labels_of_weight_0_do_no_harm(name):
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(3000, 4)) * 2
    labels = (softmax(logits).cumsum(axis=1) > rng.random((3000, 1))).argmax(axis=1)
    spoiled = labels.copy()
    spoiled[:1500] = rng.permutation(labels[:1500])
    w = np.repeat([0.0, 1.0], 1500)
    with_weights = METHODS[name].fit(logits, spoiled, weights=w)
    of_the_rest = METHODS[name].fit(logits[1500:], labels[1500:])
    np.testing.assert_allclose(
        with_weights.predict_proba(logits), of_the_rest.predict_proba(logits), atol=1e-9
    )
    if name == "temperature":
        assert with_weights.temperature == pytest.approx(1, abs=0.1)
        assert TemperatureScaling.fit(logits, spoiled).temperature > 1.5


def test_weights_of_pairs():
    rng = np.random.default_rng(1)
    confidence, w = rng.random(300).round(2), rng.integers(0, 4, size=300)
    correct = rng.random(300) < confidence**2
    repeat = np.repeat(np.arange(300), w)
    options = {"method": "isotonic(smoothing=0)"}
    weighted = ConfidenceCalibrator.fit_pairs(confidence, correct, weights=w, **options)
    repeated = ConfidenceCalibrator.fit_pairs(confidence[repeat], correct[repeat], **options)
    plain = ConfidenceCalibrator.fit_pairs(confidence, correct, **options)
    grid = np.linspace(0, 1, 101)
    assert weighted.predict_confidence(grid) == pytest.approx(repeated.predict_confidence(grid), abs=1e-9)
    assert np.abs(weighted.predict_confidence(grid) - plain.predict_confidence(grid)).max() > 0.01


def test_features_and_groups_of_weight_0_are_left_out_too(samples):
    logits, labels, features, w = samples
    broken = torch.where((w == 0)[:, None], torch.nan, features)
    whole = ProximityCalibration.fit(logits, labels, features=broken, weights=w)
    used = w > 0
    rest = ProximityCalibration.fit(logits[used], labels[used], features=features[used], weights=w[used])
    assert torch.equal(whole.references, rest.references)
    np.testing.assert_allclose(whole.table, rest.table, atol=1e-9)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([1.0, 2.0], "^weights: expected"),
        (-torch.ones(N), "^weights: expected numbers of at least 0, got -1 in row 0"),
        (torch.zeros(N), "^weights: expected a weight above 0"),
    ],
)
def test_wrong_weights_get_one_sentence(weights, message, samples):
    with pytest.raises(InputError, match=message):
        TemperatureScaling.fit(samples[0], samples[1], weights=weights)
