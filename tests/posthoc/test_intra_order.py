"""Intra-order-preserving maps: gaps between sorted logits are stretched, the ranking stays."""

import math
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from calibrant.errors import InputError
from calibrant.metrics import negative_log_likelihood
from calibrant.posthoc import IntraOrderPreserving, TemperatureScaling, load_calibrator
from calibrant.posthoc.fitting import order_preserving
from calibrant.posthoc.fitting.order_preserving import (
    KNOTS,
    MonotoneLikelihood,
    StretchLikelihood,
    first_parameters,
    unpacked,
)
from calibrant.posthoc.fitting_set import FittingSet
from tests.conftest import at_length, draw, softmax
from tests.rounding import assert_equal_up_to_rounding

VARIANTS = ["invariant", "diagonal"]


def bent(n, k=6, seed=0):
    """Logits of a calibrated model whose gaps below the runner-up were trebled, then all doubled."""
    logits, labels = draw(n, k, seed=seed)
    order = np.argsort(-logits, axis=1)
    y = np.take_along_axis(logits, order, axis=1)
    gaps = -np.diff(y, axis=1) * np.where(np.arange(k - 1) > 0, 6.0, 2.0)
    scores = np.concatenate([np.zeros((n, 1)), -gaps.cumsum(axis=1)], axis=1)
    spoiled = np.empty_like(scores)
    np.put_along_axis(spoiled, order, scores, axis=1)
    return spoiled, labels


def nll(calibrator, logits, labels):
    return negative_log_likelihood(logits=calibrator.predict_log_proba(logits), labels=labels)


@pytest.fixture(scope="module")
def fitted():
    """Both variants with a weak ridge, so that the map is far from temperature scaling."""
    logits, labels = bent(600)
    return {
        variant: IntraOrderPreserving.fit(logits, labels, variant=variant, strength=1.0)
        for variant in VARIANTS
    }


def sorted_map(logits, calibrator):
    """The formula of the paper, row by row."""
    rows = []
    t = float(calibrator.temperature)
    layers = [getattr(calibrator, name).numpy() for name in ("weight_0", "bias_0", "weight_1", "bias_1")]
    for z in logits / t:
        k = len(z)
        order = sorted(range(k), key=lambda c: -z[c])
        y = z[order]
        seen = (y - math.log(sum(math.exp(v - y[0]) for v in y)) - y[0])[: calibrator.top]
        hidden = np.tanh(layers[0] @ seen + layers[1])
        scores = layers[2] @ hidden + layers[3]
        m = [math.exp(math.log(8) * math.tanh(u / math.log(8))) for u in scores]
        w = [(y[i] - y[i + 1]) * m[min(i, len(m) - 1)] for i in range(k - 1)] + [0.0]
        f = np.triu(np.ones((k, k))) @ w
        permutation = np.eye(k)[order]
        rows.append(permutation.T @ f)
    return np.array(rows)


@pytest.mark.parametrize(("k", "top"), [(2, 10), (6, 3), (6, 10), (15, 10)])
def test_the_invariant_map_is_the_formula_of_the_paper(k, top):
    logits, labels = draw(300, k, sharpen=2.0)
    calibrator = IntraOrderPreserving.fit(logits, labels, top=top, strength=0.5)
    assert calibrator.for_folds["strength"] == 0.5  # not the fallback
    expected = softmax(sorted_map(logits[:20], calibrator))
    np.testing.assert_allclose(calibrator.predict_proba(logits[:20]), expected, atol=1e-9)


def test_the_diagonal_map_is_one_function_of_each_log_probability(fitted):
    calibrator = fitted["diagonal"]
    logits, _ = bent(20, seed=1)
    slopes = calibrator.slopes.numpy()
    scores = []
    for log_probs in np.log(softmax(logits / float(calibrator.temperature))):
        row = []
        for value in log_probs:
            g = 0.0
            for b, slope in enumerate(slopes):
                end = KNOTS[b + 1] if b + 1 < len(KNOTS) else math.inf
                if -value > KNOTS[b]:
                    g -= slope * (min(-value, end) - KNOTS[b])
            row.append(g)
        scores.append(row)
    np.testing.assert_allclose(calibrator.predict_proba(logits), softmax(np.array(scores)), atol=1e-9)
    assert np.ptp(slopes) > 0.1


@pytest.mark.parametrize("k", [2, 5, 12, 40])
def test_the_likelihood_of_the_network_is_that_of_its_map(k):
    logits, labels = (torch.tensor(x) for x in draw(50, k))
    top = min(10, k)
    widths = (top, 8, min(top, k - 1))
    parameters = first_parameters(widths, seed=0)
    parameters += 0.3 * torch.randn(len(parameters), generator=torch.Generator().manual_seed(1))
    scores = order_preserving.stretched(logits, unpacked(parameters, widths), top=top)
    expected = torch.nn.functional.cross_entropy(scores, labels, reduction="none")
    likelihood = StretchLikelihood(FittingSet(logits, labels), widths=widths, top=top)
    assert torch.allclose(likelihood.nll(parameters), expected, atol=1e-6)
    rows = torch.tensor([3, 8, 30])
    assert torch.allclose(likelihood.take(rows).nll(parameters), expected[rows], atol=1e-6)


def test_the_likelihood_of_the_monotone_map_is_that_of_its_map():
    logits, labels = (torch.tensor(x) for x in draw(50, 7, sharpen=3.0))
    parameters = torch.linspace(-1, 1, len(KNOTS), dtype=torch.float64)
    log_probs = torch.log_softmax(logits, dim=1)
    scores = order_preserving.monotone_scores(log_probs, order_preserving.factor(parameters))
    expected = torch.nn.functional.cross_entropy(scores, labels, reduction="none")
    assert torch.allclose(MonotoneLikelihood.of(FittingSet(logits, labels)).nll(parameters), expected)


@given(
    logits=arrays(
        np.float64,
        st.tuples(st.integers(1, 4), st.just(6)),
        elements=st.one_of(st.integers(-3, 3).map(float), st.floats(-1e4, 1e4)),
    ),
    variant=st.sampled_from(VARIANTS),
    dtype=st.sampled_from([np.float32, np.float64]),
)
@settings(max_examples=150)
def test_no_pair_of_classes_changes_places_and_ties_stay_ties(fitted, logits, variant, dtype):
    logits = logits.astype(dtype)
    log_probs = fitted[variant].predict_log_proba(logits).numpy()
    assert np.isfinite(log_probs).all()
    before = logits[:, :, None] - logits[:, None, :]
    after = log_probs[:, :, None] - log_probs[:, None, :]
    assert (after[before > 0] >= 0).all()
    assert (after[before == 0] == 0).all()
    predicted = np.take_along_axis(log_probs, logits.argmax(axis=1)[:, None], axis=1)
    assert (predicted[:, 0] == log_probs.max(axis=1)).all()


@pytest.mark.parametrize("variant", VARIANTS)
def test_clear_differences_stay_differences(fitted, variant):
    logits, _ = bent(500, seed=2)
    ranks = np.argsort(np.argsort(logits, axis=1), axis=1)
    probs = fitted[variant].predict_proba(logits)
    assert (np.argsort(np.argsort(probs, axis=1), axis=1) == ranks).all()


def test_it_repairs_gaps_that_one_temperature_cannot():
    logits, labels = bent(3000)
    new_logits, new_labels = bent(5000, seed=1)
    one = nll(TemperatureScaling.fit(logits, labels), new_logits, new_labels)
    truth = negative_log_likelihood(logits=draw(5000, 6, seed=1)[0], labels=new_labels)
    stretched = nll(IntraOrderPreserving.fit(logits, labels), new_logits, new_labels)
    assert stretched - truth < 0.2 * (one - truth)
    diagonal = nll(IntraOrderPreserving.fit(logits, labels, variant="diagonal"), new_logits, new_labels)
    assert diagonal < one


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("k", [2, 10, 100])
def test_few_samples_give_little_more_loss_than_temperature_scaling(variant, k):
    new = draw(4000, k, seed=100, sharpen=2.0)
    for seed in range(3):
        logits, labels = draw(200, k, seed=seed, sharpen=2.0)
        one = nll(TemperatureScaling.fit(logits, labels), *new)
        calibrator = IntraOrderPreserving.fit(logits, labels, variant=variant, seed=seed)
        assert nll(calibrator, *new) < one + 0.01


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_fitting_set_is_never_less_likely_than_with_one_temperature(variant):
    logits, labels = bent(400)
    one = nll(TemperatureScaling.fit(logits, labels), logits, labels)
    for strength in (None, 1000.0, 1.0):
        calibrator = IntraOrderPreserving.fit(logits, labels, variant=variant, strength=strength)
        assert nll(calibrator, logits, labels) <= one + 1e-9


@pytest.mark.parametrize("variant", VARIANTS)
def test_an_infinite_ridge_is_temperature_scaling(variant, overconfident):
    logits, labels = overconfident
    calibrator = IntraOrderPreserving.fit(logits, labels, variant=variant, strength=math.inf)
    one = TemperatureScaling.fit(logits, labels)
    np.testing.assert_allclose(calibrator.predict_proba(logits), one.predict_proba(logits), atol=1e-9)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_chosen_strength_gives_the_same_fit_again(variant):
    logits, labels = bent(500)
    first = IntraOrderPreserving.fit(logits, labels, variant=variant)
    assert first.for_folds["strength"] < math.inf
    again = IntraOrderPreserving.fit(logits, labels, variant=variant, **first.for_folds)
    assert all(torch.equal(a, b) for a, b in zip(first.buffers(), again.buffers(), strict=True))


def test_another_seed_begins_with_another_network():
    logits, labels = bent(300)
    one, other = (IntraOrderPreserving.fit(logits, labels, strength=10.0, seed=seed) for seed in (0, 1))
    assert not torch.equal(one.weight_0, other.weight_0)


@pytest.mark.parametrize("variant", VARIANTS)
def test_many_logits_are_thinned(variant, monkeypatch):
    logits, labels = bent(900)
    monkeypatch.setattr(order_preserving, "MOST_ENTRIES", 300 * 6)
    rows = []
    of = StretchLikelihood.__init__ if variant == "invariant" else MonotoneLikelihood.__init__

    def seen(self, *samples, **options):
        rows.append(len(samples[-1]))
        of(self, *samples, **options)

    kind = StretchLikelihood if variant == "invariant" else MonotoneLikelihood
    monkeypatch.setattr(kind, "__init__", seen)
    IntraOrderPreserving.fit(logits, labels, variant=variant, strength=10.0)
    assert max(rows) == 300


@pytest.mark.parametrize("variant", VARIANTS)
def test_it_comes_back_from_a_file_the_same(fitted, variant, tmp_path):
    fitted[variant].save(tmp_path / "saved.safetensors")
    loaded = load_calibrator(tmp_path / "saved.safetensors")
    logits, _ = bent(50, seed=3)
    assert_equal_up_to_rounding(loaded.predict_proba(logits), fitted[variant].predict_proba(logits))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variant", "k"),
    at_length([*((variant, 6) for variant in VARIANTS), (VARIANTS[0], 2)], [(VARIANTS[0], 6)]),
)
def test_it_is_exported_to_onnx(variant, k, tmp_path):
    from calibrant.integrations.onnx import export_onnx

    pytest.importorskip("onnxruntime")
    calibrator = IntraOrderPreserving.fit(*draw(300, k, sharpen=2.0), variant=variant, strength=1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own
        export_onnx(calibrator, tmp_path / "map.onnx")  # compares the graph with the module
    assert (tmp_path / "map.onnx").exists()


HARD = {
    "separable": (4 * np.eye(3)[np.arange(60) % 3], np.arange(60) % 3),
    "no better than chance": (draw(200, 4)[0], np.random.default_rng(0).integers(4, size=200)),
    "constant logits": (np.zeros((60, 3)), np.arange(60) % 3),
    "logits of ten thousand": draw(300, 4, sharpen=1e4),
    "a thousand classes": draw(200, 1000, sharpen=2.0),
    "one sample": ([[5.0, 0.0]], [1]),
    "log-odds": (draw(200, 2)[0][:, 0] * 3, draw(200, 2)[1]),
}


@pytest.mark.parametrize("case", HARD)
@pytest.mark.parametrize("variant", VARIANTS)
def test_hard_data_are_fitted_without_nan(variant, case):
    logits, labels = HARD[case]
    calibrator = IntraOrderPreserving.fit(logits, labels, variant=variant)
    assert np.isfinite(calibrator.predict_log_proba(logits).numpy()).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"variant": "free"}, "^variant: expected 'invariant' or 'diagonal', got 'free'"),
        ({"top": 0}, "^top: expected a whole number of at least 1, got 0"),
        ({"strength": -1.0}, "^strength: expected a positive number, got -1.0"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        IntraOrderPreserving.fit(*draw(50, 3), **options)
