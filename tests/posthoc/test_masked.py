"""Masked classes, logits of -inf: probability 0 before and after, and nothing to learn from them."""

import functools
import itertools
import math
from typing import NamedTuple

import numpy as np
import pytest
import torch
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import LogisticRegression

from calibrant import Predictions, compare, evaluate, load_predictions, save_predictions
from calibrant.errors import FitError, InputError
from calibrant.integrations.onnx import export_onnx
from calibrant.metrics import negative_log_likelihood
from calibrant.posthoc import (
    BetaCalibration,
    ByGroup,
    ConfidenceCalibrator,
    FeatureClipping,
    GroupCalibration,
    HistogramBinning,
    IntraOrderPreserving,
    IsotonicCalibration,
    LabelCalibrator,
    MatrixScaling,
    MetaCal,
    ParameterizedTemperatureScaling,
    PlattScaling,
    Pool,
    SplineCalibration,
    StructuredMatrixScaling,
    TemperatureScaling,
    VectorScaling,
    load_calibrator,
)
from calibrant.posthoc.fitting.order_preserving import (
    StretchLikelihood,
    first_parameters,
    stretched,
    unpacked,
)
from calibrant.posthoc.fitting.weighing import per_question
from calibrant.posthoc.fitting_set import FittingSet
from calibrant.posthoc.names import METHODS, method_named
from calibrant.streams import evaluate_stream, open_stream
from tests.conftest import at_length
from tests.rounding import assert_equal_up_to_rounding

K = 6

# Methods whose defaults take long are fitted with fewer steps.
QUICK = {
    "parameterized_paper": "parameterized_paper(steps=20)",
    "smart_paper": "smart_paper(epochs=5)",
    "group_paper": "group_paper(n_partitions=2)",
    "metacal_accuracy": "metacal_accuracy(bound=0.6)",
}
EVERY = [
    *(QUICK.get(name, name) for name in METHODS),
    *("intra_order(variant='diagonal')", "bbq(mode='one_vs_rest')", "venn_abers(mode='one_vs_rest')"),
    *("smart(indicator='max_minus_mean')", "smart_paper(indicator='logits')"),
    *("histogram(binning='width')", "platt(smooth_targets=True)"),
]

# These can be less likely than the model on new samples: recipes as printed, and costs that are promised.
CAN_LOSE = {
    *("parameterized_paper(steps=20)", "smart_paper(epochs=5)", "feature_clipping"),
    *("metacal", "metacal_accuracy(bound=0.6)"),
}

# To these a masked class is the limit of one that is very improbable. The others ask about the classes that
# exist only, mix in the uniform distribution or read all classes.
LIMITS = [
    *("uncalibrated", "temperature", "temperature_ece", "temperature_ece_equal_mass", "spline", "smart"),
    *("quadratic_top", "isotonic_top", "isotonic_centred_top", "histogram_top", "bbq", "venn_abers"),
    *("vector", "class_temperature", "class_temperature_paper", "intra_order(variant='diagonal')"),
    *("combination", "proximity", "proximity_bins", "proximity_paper", "local_temperature"),
]

# A class that no sample has is not the same as no class for these. Ridges of matrices grow with the number of
# classes; groups depend on all logits; the head of a class is unknown without a sample of it.
COUNT_CLASSES = {
    *("matrix", "dirichlet", "structured_matrix", "structured_matrix_paper", "structured_smart"),
    *("structured_vector", "structured_vector_smart", "pool"),
    *("group", QUICK["group_paper"], "smart_paper(indicator='logits')", "feature_clipping"),
}


class Asked(NamedTuple):
    """Logits of an overconfident model, in which some classes are masked, with labels and features."""

    logits: np.ndarray
    labels: np.ndarray
    features: np.ndarray
    masked: np.ndarray

    def fit(self, name, **options):
        method = method_named(name)
        return method.fit(self.logits, self.labels, features=self.beside(method.calibrator), **options)

    def beside(self, calibrator):
        """Return the features for methods that need them."""
        return self.features if calibrator.needs_features else None


@functools.cache
def questions(n, seed, *, fewest=2, k=K):
    """Draw samples, each with at least so many classes; the logits are linear in the features."""
    rng = np.random.default_rng(seed)
    head = np.random.default_rng(k).normal(size=(k, 4))
    features = rng.normal(size=(n, 4))
    order = rng.random((n, k)).argsort(axis=1)
    masked = order >= rng.integers(fewest, k + 1, n)[:, None]
    true = np.where(masked, -np.inf, features @ head.T)
    labels = (true + rng.gumbel(size=true.shape)).argmax(axis=1)
    return Asked(2.5 * true, labels, features, masked)


@functools.cache
def fitted(name):
    return questions(300, 0, fewest=1).fit(name)


def improbable(logits, distance):
    """The same logits with masked classes so far below the others that exist."""
    lowest = np.where(np.isinf(logits), np.inf, logits).min(axis=1, keepdims=True)
    return np.where(np.isinf(logits), lowest - distance, logits)


def log_odds(logits):
    """Log-odds of each class against the others that exist; -inf for a masked one."""
    probs = np.exp(logits - logits.max(axis=1, keepdims=True))
    rest = probs.sum(axis=1, keepdims=True) - probs
    with np.errstate(divide="ignore"):
        return np.log(probs) - np.log(rest)


def new_log_probs(name):
    new = questions(200, 1, fewest=1)
    calibrator = fitted(name)
    return calibrator.predict_log_proba(new.logits, new.beside(calibrator)).numpy()


@pytest.mark.parametrize("name", EVERY)
def test_probabilities_stay_distributions_over_the_classes_that_exist(name):
    log_probs, masked = new_log_probs(name), questions(200, 1, fewest=1).masked
    assert (log_probs[masked] == -np.inf).all()
    assert np.isfinite(log_probs[~masked]).all()
    np.testing.assert_allclose(np.exp(log_probs).sum(axis=1), 1, atol=1e-9)
    alone = (~masked).sum(axis=1) == 1
    assert alone.any()
    assert (log_probs[alone].max(axis=1) == 0).all()


@pytest.mark.parametrize("name", [name for name in EVERY if name not in CAN_LOSE])
def test_new_samples_become_likelier(name):
    logits, labels, _, _ = questions(200, 1, fewest=1)
    calibrated = negative_log_likelihood(logits=new_log_probs(name), labels=labels)
    assert calibrated <= negative_log_likelihood(logits=logits, labels=labels) + 1e-9


@pytest.mark.parametrize("name", [name for name in EVERY if method_named(name).preserves_accuracy])
def test_the_predicted_class_stays_where_that_is_promised(name):
    logits = questions(200, 1, fewest=1).logits
    assert (new_log_probs(name).argmax(axis=1) == logits.argmax(axis=1)).all()


@pytest.mark.parametrize("name", EVERY)
def test_a_file_of_a_fit_with_masked_classes_gives_the_same(name, tmp_path):
    fitted(name).save(tmp_path / "saved.safetensors")
    loaded, new = load_calibrator(tmp_path / "saved.safetensors"), questions(200, 1, fewest=1)
    found = loaded.predict_log_proba(new.logits, new.beside(loaded)).numpy()
    assert_equal_up_to_rounding(found, new_log_probs(name))


@pytest.mark.parametrize("name", LIMITS)
def test_a_masked_class_is_the_limit_of_an_improbable_one(name):
    given = questions(300, 0)
    calibrator = given.fit(name)
    probs = calibrator.predict_proba(given.logits, given.beside(calibrator))
    for distance in (1e4, 1e7):
        far = given._replace(logits=improbable(given.logits, distance))
        of_far = far.fit(name)
        np.testing.assert_allclose(probs, of_far.predict_proba(far.logits, far.beside(of_far)), atol=1e-6)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if name.startswith("logistic_spline") else ())
        for name in EVERY
        if name not in COUNT_CLASSES
    ],
)
def test_a_class_that_no_sample_has_changes_nothing(name):
    # Networks read the ten largest of more classes.
    few = questions(200, 0, k=12)
    more = few._replace(
        logits=np.insert(few.logits, 5, -np.inf, axis=1), labels=few.labels + (few.labels > 4)
    )
    expected, calibrator = few.fit(name), more.fit(name)
    found = calibrator.predict_proba(more.logits, more.beside(calibrator))
    assert (found[:, 5] == 0).all()
    expected = expected.predict_proba(few.logits, few.beside(expected))
    np.testing.assert_allclose(np.delete(found, 5, axis=1), expected, atol=1e-4 if name == "vector" else 1e-6)


@pytest.mark.parametrize("weighted", [False, True])
def test_the_curve_of_a_class_is_fitted_to_the_samples_that_have_it(weighted):
    logits, labels, _, masked = questions(300, 0)
    weights = np.linspace(1, 3, 300) if weighted else None
    fitted = IsotonicCalibration.fit(logits, labels, mode="one_vs_rest", smoothing=0, weights=weights)
    scores, heights = log_odds(logits), np.zeros_like(logits)
    for c in range(K):
        has = ~masked[:, c]
        curve = IsotonicRegression(out_of_bounds="clip")
        curve.fit(scores[has, c], labels[has] == c, sample_weight=weights[has] if weighted else None)
        heights[has, c] = curve.predict(scores[has, c])
    assert fitted.active.all()
    expected = heights / heights.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(fitted.predict_proba(logits), expected, atol=1e-6)


@pytest.mark.parametrize("weighted", [False, True])
def test_the_regression_of_a_class_is_fitted_to_the_samples_that_have_it(weighted):
    logits, labels, _, masked = questions(300, 0)
    weights = np.linspace(1, 3, 300) if weighted else None
    fitted = PlattScaling.fit(logits, labels, shrinkage=0, weights=weights)
    scores, heights = log_odds(logits), np.zeros_like(logits)
    for c in range(K):
        has, x = ~masked[:, c], scores[:, [c]]
        model = LogisticRegression(C=np.inf, tol=1e-10)
        model.fit(x[has], labels[has] == c, sample_weight=weights[has] if weighted else None)
        heights[has, c] = model.predict_proba(x[has])[:, 1]
    assert bool(fitted.active)
    expected = heights / heights.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(fitted.predict_proba(logits), expected, atol=1e-5)


def test_the_bins_of_a_class_hold_equally_many_samples_that_have_it():
    logits, labels, _, masked = questions(300, 0, fewest=4)
    fitted = HistogramBinning.fit(logits, labels, mode="one_vs_rest")
    scores, heights = log_odds(logits), np.zeros_like(logits)
    for c in range(K):
        has = np.flatnonzero(~masked[:, c])
        has = has[scores[has, c].argsort()]
        n_bins = math.ceil(len(has) ** (1 / 3))
        stops = [math.ceil(len(has) * number / n_bins) for number in range(n_bins + 1)]
        for start, stop in itertools.pairwise(stops):
            rows = has[start:stop]
            heights[rows, c] = ((labels[rows] == c).sum() + 0.5) / (len(rows) + 1)
    assert fitted.active.all()
    expected = heights / heights.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(fitted.predict_proba(logits), expected, atol=1e-9)


def test_a_class_gets_as_sure_as_the_samples_that_have_it_can_show():
    logits, labels, _, masked = questions(300, 0)
    fitted = SplineCalibration.fit(logits, labels, mode="one_vs_rest")
    np.testing.assert_allclose(fitted.limit, np.log((~masked).sum(axis=0) + 1))


def test_the_samples_that_are_asked_have_an_effective_number_of_their_own():
    weights = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    asked = torch.tensor([[True, False, False], [True, True, False], [False, True, False]])
    expected = [[1 * 3 / 5, 0, 0], [2 * 3 / 5, 2 * 5 / 13, 0], [0, 3 * 5 / 13, 0]]
    np.testing.assert_allclose(per_question(weights, asked, asked), expected)
    assert torch.equal(per_question(None, asked, asked), asked.double())


def test_a_class_that_is_always_right_where_it_exists_keeps_its_own_log_odds():
    logits, labels, _, _ = questions(300, 0)
    logits = np.where((labels != 2)[:, None] & (np.arange(K) == 2), -np.inf, logits)
    rows = np.isfinite(logits).sum(axis=1) > 1
    fitted = IsotonicCalibration.fit(logits[rows], labels[rows], mode="one_vs_rest")
    assert fitted.active.tolist() == [True, True, False, True, True, True]


@pytest.mark.parametrize("name", ["intra_order(variant='diagonal', strength=3.0)"])
def test_a_function_of_every_log_probability_does_not_see_masked_classes(name):
    logits, _, _, masked = questions(100, 1)
    fitted = questions(300, 0).fit(name)
    assert np.ptp(fitted.slopes.numpy()) > 0.1
    probs = fitted.predict_proba(logits)
    for row, gone, found in zip(logits, masked, probs, strict=True):
        alone = fitted(torch.tensor(row[~gone])[None]).exp()[0]
        np.testing.assert_allclose(found[~gone], alone, atol=1e-9)


def test_gaps_are_those_between_the_classes_that_exist():
    logits, _, _, masked = questions(100, 1)
    fitted = IntraOrderPreserving.fit(*questions(300, 0)[:2], strength=3.0)
    first, second = ((getattr(fitted, f"weight_{i}"), getattr(fitted, f"bias_{i}")) for i in range(2))
    probs = fitted.predict_proba(logits)
    spread = []
    for row, gone, found in zip(logits, masked, probs, strict=True):
        y = np.sort(row[~gone])[::-1] / float(fitted.temperature)
        log_p = y - np.log(np.exp(y).sum())
        read = torch.tensor(np.append(log_p, [log_p[-1]] * (K - len(y))))
        m = second[0] @ torch.tanh(first[0] @ read + first[1]) + second[1]
        m = np.exp(math.log(8) * np.tanh(m.numpy() / math.log(8)))
        scores = -np.cumsum(np.append(0.0, (y[:-1] - y[1:]) * m[: len(y) - 1]))
        spread.append(np.ptp(m))
        np.testing.assert_allclose(
            np.sort(found[~gone])[::-1], np.exp(scores) / np.exp(scores).sum(), atol=1e-9
        )
    assert max(spread) > 0.1


@pytest.mark.parametrize("k", [3, 12, 40])
def test_the_likelihood_of_an_order_preserving_network_is_that_of_its_map(k):
    logits, labels, _, _ = (torch.tensor(each) for each in questions(60, 0, k=k))
    top = min(10, k)
    widths = (top, 8, min(top, k - 1))
    parameters = first_parameters(widths, seed=0)
    parameters += 0.3 * torch.randn(len(parameters), generator=torch.Generator().manual_seed(1))
    parameters.requires_grad_()
    likelihood = StretchLikelihood(FittingSet(logits, labels), widths=widths, top=top)
    scores = stretched(logits, unpacked(parameters, widths), top=top)
    expected = torch.nn.functional.cross_entropy(scores, labels, reduction="none")
    torch.testing.assert_close(likelihood.nll(parameters), expected, atol=1e-6, rtol=0)
    rows = torch.tensor([3, 8, 30])
    torch.testing.assert_close(likelihood.take(rows).nll(parameters), expected[rows], atol=1e-6, rtol=0)
    (gradient,) = torch.autograd.grad(likelihood.nll(parameters).sum(), parameters)
    assert gradient.isfinite().all()


def test_a_network_reads_the_lowest_logit_in_place_of_missing_ones():
    given = questions(300, 0)
    fitted = ParameterizedTemperatureScaling.fit(*given[:2], settled=0.0)
    ordered = np.sort(improbable(given.logits, 0.0), axis=1)[:, ::-1]
    np.testing.assert_array_equal(fitted.inputs(torch.tensor(given.logits)), ordered)
    assert np.ptp(fitted.temperature(torch.tensor(given.logits)).numpy()) > 0.1


def test_groups_depend_on_masked_classes_as_on_the_least_likely_one():
    logits, labels, features, masked = questions(300, 0)
    logits = np.where(features[:, :1] > 0, 4 * logits, logits)
    fitted = GroupCalibration.fit(logits, labels, n_partitions=1)
    places = improbable(logits, 0.0) @ fitted.weight[0].numpy().T + fitted.bias[0].numpy()
    shares = np.exp(places) / np.exp(places).sum(axis=1, keepdims=True)
    expected = np.zeros_like(logits)
    for share, temperature in zip(shares.T, fitted.temperature[0].tolist(), strict=True):
        heights = np.where(masked, 0, np.exp((logits - logits.max(axis=1, keepdims=True)) / temperature))
        expected += share[:, None] * heights / heights.sum(axis=1, keepdims=True)
    assert np.ptp(shares[:, 0]) > 0.1
    np.testing.assert_allclose(fitted.predict_proba(logits), expected, atol=2e-5)


def test_uniform_rows_are_uniform_over_the_classes_that_exist():
    logits, labels, _, masked = questions(300, 0)
    fitted = MetaCal.fit(logits, labels, bound=0.3)
    uniform = fitted.abstains(torch.tensor(logits)).numpy()
    assert 0.05 < uniform.mean() < 0.95
    probs = np.exp(logits - logits.max(axis=1, keepdims=True))
    probs /= probs.sum(axis=1, keepdims=True)
    entropy = [-sum(p * math.log(p) for p in row if p > 0) for row in probs]
    assert ((np.array(entropy) >= float(fitted.threshold)) == uniform).all()
    expected = (~masked / (~masked).sum(axis=1, keepdims=True))[uniform]
    np.testing.assert_allclose(fitted.predict_proba(logits)[uniform], expected, atol=1e-12)


def test_the_head_is_recovered_from_the_classes_that_exist():
    given = questions(300, 0)
    weight = FeatureClipping.fit(given.logits, given.labels, features=given.features).head_weight.numpy()
    true = 2.5 * np.random.default_rng(K).normal(size=(K, 4))
    np.testing.assert_allclose(weight - weight.mean(axis=0), true - true.mean(axis=0), atol=1e-7)
    # A number for each row, as log-probabilities have it, makes no difference.
    shifted = given.logits + np.linspace(-9, 9, 300)[:, None]
    again = FeatureClipping.fit(shifted, given.labels, features=given.features).head_weight.numpy()
    np.testing.assert_allclose(again - again.mean(axis=0), true - true.mean(axis=0), atol=1e-7)


def test_a_given_head_is_checked_against_the_classes_that_exist():
    given = questions(300, 0)
    head = 2.5 * np.random.default_rng(K).normal(size=(K, 4))
    options = {"features": given.features, "head_weight": head}
    bias = np.arange(K)
    for moved, extra in ((given.logits + bias, {}), (given.logits + bias, {"head_bias": bias})):
        fitted = FeatureClipping.fit(moved, given.labels, **options, **extra)
        np.testing.assert_array_equal(fitted.head_weight, head)
    with pytest.raises(FitError, match="not a linear function"):
        FeatureClipping.fit(given.logits + 9 * bias, given.labels, **options, head_bias=bias)
    with pytest.raises(FitError, match="not a linear function"):
        FeatureClipping.fit(given.logits, given.labels, features=given.features[::-1].copy())


def test_a_head_that_too_few_samples_show_is_refused():
    given = questions(300, 0)
    rare = np.where((np.arange(300) > 20)[:, None] & (np.arange(K) == 3), -np.inf, given.logits)
    rows = np.flatnonzero(
        (np.isfinite(rare).sum(axis=1) > 1) & np.isfinite(rare[np.arange(300), given.labels])
    )
    assert np.isfinite(rare[rows, 3]).sum() > 4
    FeatureClipping.fit(rare[rows], given.labels[rows], features=given.features[rows])
    rarer = np.where((np.arange(300) > 4)[:, None] & (np.arange(K) == 3), -np.inf, rare)
    rows = rows[np.isfinite(rarer[rows, given.labels[rows]]) & (np.isfinite(rarer[rows]).sum(axis=1) > 1)]
    with pytest.raises(
        FitError, match="samples in which class 3 is not masked are too few to recover its head"
    ):
        FeatureClipping.fit(rarer[rows], given.labels[rows], features=given.features[rows])


@pytest.mark.parametrize("method", ["temperature", "beta"])
def test_a_correction_by_group_leaves_masked_classes_alone(method):
    logits, labels, _, masked = questions(400, 0, fewest=1)
    groups = np.array(["sharp", "flat"])[np.arange(400) % 2]
    logits = np.where((groups == "sharp")[:, None], 3 * logits, logits)
    fitted = ByGroup.fit(logits, labels, groups=groups, method=method)
    assert np.ptp(fitted.slopes.numpy()) > 0.1
    for given in (groups, None):
        log_probs = fitted.predict_log_proba(logits, groups=given).numpy()
        assert (log_probs[masked] == -np.inf).all()
        assert np.isfinite(log_probs[~masked]).all()
        np.testing.assert_allclose(np.exp(log_probs).sum(axis=1), 1, atol=1e-9)
    several = (~masked).sum(axis=1) > 1
    if method == "temperature":
        far = improbable(logits, 1e4)[several]
        other = ByGroup.fit(far, labels[several], groups=groups[several], method=method)
        np.testing.assert_allclose(fitted.slopes, other.slopes, atol=1e-6)


@pytest.mark.parametrize("name", ["platt", "isotonic", "histogram", "spline_classes", "combination", "group"])
def test_of_two_classes_the_one_that_exists_is_certain(name):
    full = questions(200, 0, k=2)
    assert not full.masked.any()
    calibrator = full.fit(name)
    logits = np.array([[1.0, -np.inf], [-np.inf, 1.0], [1.0, 0.5]])
    probs = calibrator.predict_proba(logits, full.features[:3] if calibrator.needs_features else None)
    assert probs[:2].tolist() == [[1.0, 0.0], [0.0, 1.0]]
    assert 0 < probs[2, 0] < 1


def test_an_affine_map_is_fitted_to_the_classes_that_exist():
    logits, labels, _, masked = questions(400, 0)
    fitted = VectorScaling.fit(logits, labels)
    more = VectorScaling.fit(np.concatenate([logits, np.full((400, 2), -np.inf)], axis=1), labels)
    torch.testing.assert_close(more.scale[:K], fitted.scale, rtol=1e-4, atol=1e-5)
    temperature = float(TemperatureScaling.fit(logits, labels).temperature)
    scale, intercept = fitted.scale.numpy(), fitted.intercept.numpy()

    def objective(s, b):
        total = 5 * (((temperature * s - 1) ** 2).sum() + (b**2).sum())
        for z, y, gone in zip(logits, labels, masked, strict=True):
            u = (s * np.where(gone, 0, z) + b)[~gone]
            total += np.log(np.exp(u).sum()) - s[y] * z[y] - b[y]
        return total

    least, rng = objective(scale, intercept), np.random.default_rng(0)
    for _ in range(10):
        s, b = scale + 0.01 * rng.normal(size=K), intercept + 0.01 * rng.normal(size=K)
        assert objective(s, b) > least


def test_to_other_classes_a_masked_one_is_as_the_least_likely():
    logits, labels, _, masked = questions(400, 0)
    fitted = MatrixScaling.fit(logits, labels, strength=0.1)
    scores = improbable(logits, 0.0) @ fitted.weight.numpy().T + fitted.intercept.numpy()
    weights = np.where(masked, 0, np.exp(scores))
    expected = weights / weights.sum(axis=1, keepdims=True)
    assert not torch.equal(fitted.weight, torch.diag(fitted.weight.diagonal()))
    np.testing.assert_allclose(fitted.predict_proba(logits), expected, atol=1e-9)


def test_samples_with_one_class_teach_nothing():
    logits, labels, _, masked = questions(400, 0, fewest=1)
    several = (~masked).sum(axis=1) > 1
    weights = np.linspace(1, 2, 400)
    for given in ({}, {"weights": weights}):
        rows = {name: value[several] for name, value in given.items()}
        every = StructuredMatrixScaling.fit(logits, labels, strength=1.0, **given)
        some = StructuredMatrixScaling.fit(logits[several], labels[several], strength=1.0, **rows)
        torch.testing.assert_close(every.state_dict(), some.state_dict())


def test_a_masked_class_is_never_the_label():
    logits, labels = [[1.0, -np.inf, 0.0], [0.0, 1.0, -np.inf]], [0, 2]
    message = "^labels: expected a class that is not masked, got class 2 in row 1, whose logit is -inf"
    for refuses in (
        lambda: Predictions(logits=logits, labels=labels),
        lambda: negative_log_likelihood(logits=logits, labels=labels),
        lambda: TemperatureScaling.fit(logits, labels),
    ):
        with pytest.raises(InputError, match=message):
            refuses()


def test_every_measure_is_that_of_very_improbable_classes(tmp_path):
    logits, labels, _, _ = questions(300, 0)
    given = Predictions(logits=logits, labels=labels)
    same = Predictions(logits=improbable(logits, 1e3), labels=labels)
    found = evaluate(given, measures="all", intervals=False).metrics
    expected = evaluate(same, measures="all", intervals=False).metrics
    assert dict(found) == pytest.approx(dict(expected), rel=1e-9, abs=1e-12, nan_ok=True)
    for ending in ("npz", "csv", "parquet", "jsonl", "safetensors"):
        path = tmp_path / f"masked.{ending}"
        save_predictions(given, path)
        assert torch.equal(load_predictions(path).logits, given.logits)
    streamed = evaluate_stream(open_stream(tmp_path / "masked.parquet")).metrics
    assert streamed["nll"] == pytest.approx(found["nll"])
    assert streamed["ece"] == pytest.approx(found["ece"])


def test_every_method_takes_masked_classes_and_maps_of_a_stated_confidence_refuse_them():
    assert [name for name, method in METHODS.items() if not method.takes_masked] == []
    # The two classes of a confidence are right and wrong: neither can be missing.
    logits, labels = [[0.5, -np.inf], [1.0, 2.0], [2.0, 1.0]], [0, 1, 0]
    message = "^logits: expected finite numbers for {}, got -inf, which masks a class"
    with pytest.raises(InputError, match=message.format("ConfidenceCalibrator")):
        ConfidenceCalibrator.fit(logits, labels)
    with pytest.raises(InputError, match=message.format("LabelCalibrator")):
        LabelCalibrator.fit(logits, labels, groups=["a", "a", "b"])


def test_chains_pools_and_corrections_by_group_refuse_what_one_of_their_parts_refuses(monkeypatch):
    logits, labels, _, _ = questions(60, 0)
    finite, groups = improbable(logits, 9.0), labels % 2
    made = [
        TemperatureScaling.then(BetaCalibration).fit(finite, labels),
        ByGroup.fit(finite, labels, groups=groups, method="beta"),
        Pool({"beta": BetaCalibration.fit(finite, labels)}, [1.0]),
    ]
    monkeypatch.setattr(BetaCalibration, "masks", False)
    for calibrator in made:
        with pytest.raises(InputError, match="masks a class"):
            calibrator.predict_proba(logits)
    with pytest.raises(InputError, match="masks a class"):
        TemperatureScaling.then(BetaCalibration).fit(logits, labels)
    with pytest.raises(InputError, match="masks a class"):
        ByGroup.fit(logits, labels, groups=groups, method="beta")


def test_a_comparison_leaves_out_what_cannot_take_them(monkeypatch):
    logits, labels, _, _ = questions(100, 0)
    monkeypatch.setattr(BetaCalibration, "masks", False)
    comparison = compare(
        Predictions(logits=logits, labels=labels), methods=["temperature", "beta"], n_folds=2, n_resamples=20
    )
    assert comparison.skipped == {"beta": "it cannot take masked classes"}


def test_a_comparison_corrects_by_group_and_its_calibrator_can_be_saved(tmp_path):
    logits, labels, _, masked = questions(300, 0, fewest=1)
    names = ["uncalibrated", "temperature", "spline", "structured_matrix(strength=1.0)", "beta", "pool"]
    groups = np.array(["sharp", "flat"])[np.arange(300) % 2]
    logits = np.where((groups == "sharp")[:, None], 3 * logits, logits)
    given = Predictions(logits=logits, labels=labels, groups=groups)
    comparison = compare(given, methods=names, n_folds=2, n_resamples=20)
    assert comparison.skipped == {}
    by_group = next(each for each in comparison.results if each.name == "by_group").calibrator
    assert isinstance(by_group, ByGroup)
    by_group.save(tmp_path / "by_group.safetensors")
    loaded = load_calibrator(tmp_path / "by_group.safetensors")
    for of_samples in (None, groups):
        probs = loaded.predict_proba(logits, groups=of_samples)
        assert (probs[masked] == 0).all()
        np.testing.assert_allclose(probs.sum(axis=1), 1, atol=1e-9)


EXPORTED = ["pool(methods=['temperature', 'beta', 'ensemble'])", "histogram"]
EXPORTED += ["intra_order(strength=3.0)", "group(n_partitions=1)"]


@pytest.mark.slow
@pytest.mark.parametrize("name", at_length(EXPORTED, EXPORTED[:1]))
def test_graphs_of_onnx_keep_masked_classes_at_exactly_zero(name, tmp_path):
    runtime = pytest.importorskip("onnxruntime")
    calibrator = questions(300, 0, fewest=1).fit(name)
    new = questions(100, 1, fewest=1)
    export_onnx(calibrator, tmp_path / "graph.onnx")
    session = runtime.InferenceSession(tmp_path / "graph.onnx")
    logits = new.logits.astype(np.float32)
    exported = np.exp(session.run(None, {"logits": logits})[0])
    assert (exported[new.masked] == 0).all()
    np.testing.assert_allclose(exported, calibrator.predict_proba(logits), atol=1e-5)
