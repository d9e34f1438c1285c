"""SMART: the margin decides the temperature; indicators; temperatures that a margin allows."""

import math

import numpy as np
import pytest
import torch
from scipy.optimize import brentq
from scipy.stats import entropy

from calibrant.data import load_bundled
from calibrant.errors import InputError
from calibrant.metrics import expected_calibration_error, negative_log_likelihood
from calibrant.outcomes import margin
from calibrant.posthoc import ParameterizedTemperatureScaling, TemperatureScaling, load_calibrator
from calibrant.posthoc.smart import INDICATORS, SMART, SMARTPaper, feasible_temperatures, indicator_values
from calibrant.surrogates import OBJECTIVES, LogProbForecasts, objective_value
from tests.conftest import draw, softmax
from tests.rounding import assert_equal_up_to_rounding

pytestmark = pytest.mark.slow


def bent(n, k=5, seed=0):
    """Logits of a calibrated model, scaled up where the margin is large: T(m) = 0.5 + m_true, known."""
    logits, labels = draw(n, k, seed=seed)
    top = np.sort(logits, axis=1)
    factor = 0.5 + (top[:, -1] - top[:, -2])
    return logits * factor[:, None], labels, factor


def ece(calibrator, logits, labels):
    return expected_calibration_error(calibrator.predict_proba(logits), labels)


def method_for(indicator):
    """The default where it is possible: a curve needs one number per sample."""
    return SMARTPaper if indicator == "logits" else SMART


@pytest.fixture(scope="module")
def fitted():
    logits, labels, _ = bent(4000)
    return SMART.fit(logits, labels)


def test_a_temperature_that_grows_with_the_margin_is_found(fitted):
    logits, _, factor = bent(4000, seed=1)
    learned = fitted.temperature(torch.tensor(logits)).numpy()
    typical = (factor > 0.7) & (factor < 4)
    assert np.corrcoef(learned[typical], factor[typical])[0, 1] > 0.95
    assert np.median(np.abs(learned / factor - 1)[typical]) < 0.25


def test_it_repairs_what_one_temperature_cannot(fitted):
    logits, labels, _ = bent(8000, seed=1)
    one = TemperatureScaling.fit(*bent(4000)[:2])
    assert ece(fitted, logits, labels) < 0.5 * ece(one, logits, labels)


def test_the_curve_is_the_temperature_of_samples_with_that_margin(fitted):
    margins = [0.0, 0.5, 3.0, 100.0]
    samples = torch.tensor([[m, 0.0, -1.0, -1.0, -1.0] for m in margins])
    curve = fitted.temperature_curve(margins)
    assert isinstance(curve, list)
    assert curve == pytest.approx(fitted.temperature(samples).tolist())


@pytest.mark.parametrize(("method", "n_parameters"), [(SMART, 19), (SMARTPaper, 49)])
def test_the_number_of_parameters_is_the_same_for_any_number_of_classes(method, n_parameters):
    for k in (3, 40):
        fitted = method.fit(*draw(300, k, sharpen=2.0), epochs=1)
        assert fitted.n_parameters == n_parameters


def test_no_epoch_changes_nothing(overconfident):
    logits, labels = overconfident
    same = SMART.fit(logits, labels, epochs=0)
    assert set(same.temperature_curve(np.linspace(0, 50, 7))) == {1.0}
    np.testing.assert_allclose(same.predict_proba(logits), softmax(logits), atol=1e-12)


def test_a_wrong_scale_is_a_constant_curve(overconfident):
    curve = SMART.fit(*overconfident).temperature_curve([0.0, 3.0, 30.0])
    assert curve == pytest.approx([3.0] * 3, rel=0.05)


# SMART refuses what the pointwise objective wants: it costs too much likelihood.
@pytest.mark.parametrize("objective", [name for name in OBJECTIVES if name != "charbonnier_pointwise"])
def test_every_objective_ends_lower_than_it_began(objective):
    logits, labels, _ = bent(1000)
    calibrator = SMART.fit(logits, labels, objective=objective, epochs=40)
    y = torch.tensor(labels)

    def value(log_probs):
        return float(objective_value(objective, LogProbForecasts(log_probs, y)))

    before = torch.log_softmax(torch.tensor(logits), dim=1)
    assert value(calibrator(torch.tensor(logits))) < value(before)


@pytest.mark.parametrize("indicator", INDICATORS)
def test_every_indicator_repairs_an_overconfident_model(indicator, overconfident):
    logits, labels = overconfident
    calibrator = method_for(indicator).fit(logits, labels, indicator=indicator)
    assert ece(calibrator, logits, labels) < 0.3 * expected_calibration_error(softmax(logits), labels)
    assert calibrator.indicator == indicator


def test_real_predictions_are_repaired_on_new_images():
    val, test = load_bundled("cifar10_val"), load_bundled("cifar10_test")
    calibrator = SMART.fit(val.logits, val.labels)
    probs = calibrator.predict_proba(test.logits)
    assert expected_calibration_error(probs, test.labels) < 0.013  # 0.123 before, 0.019 with one temperature
    assert negative_log_likelihood(probs, test.labels) < 0.55  # 0.917 before


@pytest.mark.parametrize("method", [SMART, SMARTPaper])
def test_a_fit_is_the_same_for_the_same_seed(method):
    logits, labels, _ = bent(1000)
    one, two, other = (method.fit(logits, labels, epochs=20, seed=seed) for seed in (1, 1, 2))
    assert all(torch.equal(a, b) for a, b in zip(one.buffers(), two.buffers(), strict=True))
    # A curve has no random first weights; only its folds depend on the seed.
    assert method is SMART or not torch.equal(one.weight_1, other.weight_1)


def test_the_predicted_class_never_changes_and_ties_stay_ties(fitted):
    logits = np.round(bent(2000, seed=3)[0])
    logits[:10] = 2.0
    probs = fitted.predict_proba(logits)
    assert (probs.argmax(axis=1) == logits.argmax(axis=1)).all()
    np.testing.assert_allclose(probs[:10], 0.2)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_narrow_types_are_as_good_as_their_rounding(dtype):
    logits, labels, _ = bent(1000)
    narrow = SMART.fit(logits.astype(dtype), labels)
    wide = SMART.fit(logits.astype(dtype).astype(np.float64), labels)
    margins = np.linspace(0, 8, 20)
    np.testing.assert_allclose(narrow.temperature_curve(margins), wide.temperature_curve(margins), rtol=1e-2)
    assert narrow.predict_proba(logits.astype(dtype)).dtype == np.float32
    assert narrow(torch.tensor(logits).half()).dtype == torch.float32


def test_what_is_loaded_is_what_was_saved(fitted, tmp_path):
    fitted.save(tmp_path / "smart.safetensors")
    loaded = load_calibrator(tmp_path / "smart.safetensors")
    logits = torch.tensor(bent(50)[0])
    assert type(loaded) is SMART
    assert loaded.indicator == "margin"
    assert_equal_up_to_rounding(loaded(logits), fitted(logits))


HARD = {
    "constant logits": (np.zeros((60, 3)), np.arange(60) % 3),
    "all right": (4 * np.eye(3)[np.arange(60) % 3], np.arange(60) % 3),
    "one sample": ([[5.0, 0.0]], [1]),
    "equal margins": (np.tile([[2.0, 0.0, -1.0]], (80, 1)), np.arange(80) % 2),
    "fifty samples": draw(50, 5, sharpen=3.0),
    "logits of ten thousand": draw(300, 4, sharpen=1e4),
    "tiny logits": draw(300, 4, sharpen=1e-4),
    "a thousand classes": draw(400, 1000, sharpen=2.0),
    "log-odds": (draw(200, 2)[0][:, 0] * 3, draw(200, 2)[1]),
}


@pytest.mark.parametrize("case", HARD)
def test_hard_data_are_never_made_worse(case):
    logits, labels = HARD[case]
    calibrator = SMART.fit(logits, labels)
    probs = np.asarray(calibrator.predict_proba(logits))
    before = np.asarray(TemperatureScaling(1.0).predict_proba(logits))
    assert np.isfinite(np.log(probs.clip(1e-300))).all()
    np.testing.assert_allclose(probs.sum(axis=1), 1, atol=1e-9)
    assert negative_log_likelihood(probs, labels) <= negative_log_likelihood(before, labels) + 0.02


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"objective": "hinge"}, "^objective: expected one of charbonnier"),
        ({"indicator": "shape"}, "^indicator: expected one of margin"),
        ({"epochs": -1}, "^epochs: expected a whole number of at least 0, got -1"),
        ({"settled": -0.5}, "^settled: expected a number of at least 0, got -0.5"),
    ],
)
def test_options_are_checked(options, message):
    with pytest.raises(InputError, match=message):
        SMART.fit([[1.0, 0.0], [0.0, 1.0]], [0, 1], **options)


def test_a_curve_needs_one_number_per_sample(overconfident, fitted):
    logits, labels = overconfident
    with pytest.raises(InputError, match="^indicator: expected a single number per sample for a curve"):
        SMARTPaper.fit(logits, labels, indicator="logits", epochs=1).temperature_curve([1.0])
    with pytest.raises(InputError, match=r"^margins: expected shape \(m,\), got shape \(1, 1\)"):
        fitted.temperature_curve([[1.0]])


@pytest.mark.parametrize("indicator", INDICATORS)
def test_it_can_be_exported_as_a_graph(indicator):
    class Plain(torch.nn.Module):
        def __init__(self, calibrator):
            super().__init__()
            self.calibrator = calibrator

        def forward(self, logits):
            return self.calibrator(logits)

    logits, labels, _ = bent(300)
    calibrator = method_for(indicator).fit(logits, labels, indicator=indicator, epochs=3)
    batch = {"logits": {0: torch.export.Dim("batch", min=1, max=1 << 16)}}
    example = torch.tensor(logits[:8], dtype=torch.float32)
    graph = torch.export.export(Plain(calibrator), (example,), dynamic_shapes=batch).module()
    new = torch.tensor(logits[20:23], dtype=torch.float32)
    torch.testing.assert_close(graph(new), calibrator(new))


@pytest.fixture(scope="module", params=[SMART, ParameterizedTemperatureScaling])
def plain(request):
    return request.param.fit(*bent(4000)[:2])


@pytest.mark.slow
@pytest.mark.parametrize("scale", [1e-3, 0.01, 100.0])
def test_the_scale_of_the_logits_does_not_matter(plain, scale, tmp_path):
    # LogitNorm trains logits so small that they need temperatures near zero.
    logits, labels, _ = bent(4000)
    new, new_labels, _ = bent(4000, seed=1)
    scaled = type(plain).fit(scale * logits, labels)
    one = ece(TemperatureScaling.fit(logits, labels), new, new_labels)
    assert ece(scaled, scale * new, new_labels) == pytest.approx(ece(plain, new, new_labels), abs=0.015)
    assert ece(scaled, scale * new, new_labels) < one
    scaled.save(tmp_path / "scaled.safetensors")
    again = load_calibrator(tmp_path / "scaled.safetensors")
    assert_equal_up_to_rounding(again.predict_proba(scale * new), scaled.predict_proba(scale * new))


def test_the_curve_of_small_logits_is_that_of_their_margins():
    logits, labels, _ = bent(4000)
    scaled = SMART.fit(0.001 * logits, labels)
    assert scaled.unit < 0.01
    margins = np.sort(0.001 * logits[:50], axis=1)
    curve = scaled.temperature_curve(margins[:, -1] - margins[:, -2])
    expected = scaled.temperature(torch.tensor(0.001 * logits[:50])).numpy()
    np.testing.assert_allclose(curve, expected, rtol=1e-6)


def as_printed(logits, labels, *, epochs, seed, sgd=False, batch_size=1024):
    """Algorithm 1 of the paper in torch's own parts, with Adam or SGD; returns each sample's temperature."""
    z, y = torch.tensor(logits), torch.tensor(labels)
    m = margin(z)
    x = ((m - m.mean()) / m.std(correction=0))[:, None]
    generator = torch.Generator().manual_seed(seed)
    first, last = (torch.nn.Linear(*widths, dtype=torch.float64) for widths in ((1, 16), (16, 1)))
    for layer in (first, last):
        for part in (layer.weight, layer.bias):
            random = torch.rand(part.shape, generator=generator, dtype=torch.float64)
            part.data = (2 * random - 1) / math.sqrt(layer.in_features)

    def temperature(rows):
        return torch.nn.functional.softplus(last(torch.relu(first(x[rows])))).squeeze(1) + 0.1

    optimizer = (torch.optim.SGD if sgd else torch.optim.Adam)(
        [*first.parameters(), *last.parameters()], lr=5e-3
    )
    generator = torch.Generator().manual_seed(seed)
    for _ in range(epochs):
        for rows in torch.randperm(len(z), generator=generator).split(batch_size):
            p, predicted = torch.softmax(z[rows] / temperature(rows)[:, None], dim=1).max(dim=1)
            w = torch.exp(-200 * (p[:, None] - (torch.arange(15) + 0.5) / 15) ** 2)
            w = w / w.sum(dim=1, keepdim=True)
            gap = (w * (p - (predicted == y[rows]).double())[:, None]).sum(dim=0) / w.sum(dim=0)
            optimizer.zero_grad()
            mean = (w.sum(dim=0) / len(rows) * torch.sqrt(gap**2 + 1e-6)).sum()
            (len(rows) * mean if sgd else mean).backward()
            optimizer.step()
    with torch.no_grad():
        return temperature(torch.arange(len(z)))


def test_the_method_of_the_paper_is_its_algorithm():
    logits, labels, _ = bent(1500)
    fitted = SMARTPaper.fit(logits, labels, epochs=5, seed=4)
    expected = as_printed(logits, labels, epochs=5, seed=4)
    torch.testing.assert_close(fitted.temperature(torch.tensor(logits)), expected, atol=1e-6, rtol=0)
    assert fitted.n_parameters == 49
    assert fitted.unit == 1


@pytest.mark.parametrize("batch_size", [1024, 1500])
def test_plain_gradient_steps_follow_the_sum_over_samples_as_algorithm_1_prints(batch_size):
    logits, labels, _ = bent(1500)
    options = {"epochs": 5, "seed": 4, "batch_size": batch_size}
    fitted = SMARTPaper.fit(logits, labels, optimizer="sgd", **options)
    expected = as_printed(logits, labels, sgd=True, **options)
    torch.testing.assert_close(fitted.temperature(torch.tensor(logits)), expected, atol=1e-6, rtol=0)


def test_the_method_of_the_paper_repairs_what_one_temperature_cannot():
    logits, labels, _ = bent(4000)
    new, new_labels, _ = bent(8000, seed=1)
    printed = SMARTPaper.fit(logits, labels)
    one = TemperatureScaling.fit(logits, labels)
    assert ece(printed, new, new_labels) < 0.5 * ece(one, new, new_labels)


def test_the_method_of_the_paper_takes_nothing_back(overconfident):
    logits, labels = overconfident
    untrained = SMARTPaper.fit(logits, labels, epochs=0)
    assert len(set(untrained.temperature_curve([0.0, 3.0, 9.0]))) == 3  # first weights are random
    hard, answers = HARD["fifty samples"]
    first, second = (SMARTPaper.fit(hard, answers, epochs=n).weight_1 for n in (20, 21))
    assert not torch.equal(first, second)  # no best epoch is kept


def test_the_constants_of_the_paper_are_its_defaults_and_can_be_changed():
    logits, labels, _ = bent(1500)
    printed = SMARTPaper.fit(logits, labels, epochs=3)
    stated = {
        "learning_rate": 5e-3,
        "hidden": 16,
        "n_bins": 15,
        "sigma": 0.05,
        "delta": 1e-3,
        "batch_size": 1024,
    }
    same = SMARTPaper.fit(logits, labels, epochs=3, **stated)
    assert torch.equal(printed.weight_1, same.weight_1)
    others = {"learning_rate": 1e-3, "n_bins": 10, "sigma": 0.2, "delta": 0.1, "batch_size": 100}
    for name, value in others.items():
        other = SMARTPaper.fit(logits, labels, epochs=3, **{name: value})
        assert not torch.equal(printed.weight_1, other.weight_1), name
    assert SMARTPaper.fit(logits, labels, epochs=3, hidden=7).n_parameters == 22


def test_equation_6_to_the_letter_makes_a_calibrated_model_certain():
    logits, labels = draw(3000, 4)
    before = expected_calibration_error(softmax(logits), labels)
    failed = SMARTPaper.fit(logits, labels, objective="charbonnier_pointwise")
    probs = failed.predict_proba(logits)
    confidence = probs.max(axis=1)
    assert expected_calibration_error(probs, labels) > 0.15 > 5 * before
    assert ((confidence > 0.99) | (confidence < 0.3)).mean() > 0.6
    binned = SMARTPaper.fit(logits, labels)
    assert ece(binned, logits, labels) < 0.03


@pytest.mark.parametrize(
    ("method", "options"),
    [
        (SMART, {"hidden": 1}),
        (SMART, {"sigma": 0.1}),
        (SMARTPaper, {"settled": 0}),
        (SMARTPaper, {"strength": 3}),
    ],
)
def test_options_that_a_method_does_not_have_are_refused(method, options):
    with pytest.raises(TypeError, match=f"unexpected keyword argument '{next(iter(options))}'"):
        method.fit([[1.0, 0.0], [0.0, 1.0]], [0, 1], **options)


@pytest.mark.parametrize(
    "options",
    [
        {"batch_size": 0},
        {"hidden": 0},
        {"n_bins": 0},
        {"sigma": -1.0},
        {"delta": 0},
        {"learning_rate": 0},
        {"optimizer": "lbfgs"},
    ],
)
def test_constants_of_the_paper_are_checked(options):
    with pytest.raises(InputError, match=f"^{next(iter(options))}: expected"):
        SMARTPaper.fit([[1.0, 0.0], [0.0, 1.0]], [0, 1], **options)


LOGITS = torch.tensor([[3.0, 1.0, 2.5], [1.0, 1.0, 0.0], [-1.0, 4.0, 0.5]], dtype=torch.float64)


def test_the_margin_separates_the_two_largest():
    assert margin(LOGITS).tolist() == [0.5, 0.0, 3.5]


def test_indicators_are_those_of_the_definitions():
    probs = torch.softmax(LOGITS, dim=1)
    expected = {
        "margin": [0.5, 0.0, 3.5],
        "entropy": entropy(probs, axis=1),
        "confidence": probs.max(dim=1).values.tolist(),
        "max_logit": [3.0, 1.0, 4.0],
        "max_minus_mean": [3 - 6.5 / 3, 1 - 2 / 3, 4 - 3.5 / 3],
    }
    for name, values in expected.items():
        assert indicator_values(name, LOGITS).squeeze(1).tolist() == pytest.approx(list(values))
    assert torch.equal(indicator_values("logits", LOGITS), LOGITS)
    assert set(expected) | {"logits"} == set(INDICATORS)


def test_an_unknown_indicator_is_named():
    with pytest.raises(InputError, match="^indicator: expected one of margin, .*, got 'shape'"):
        SMART.fit([[1.0, 0.0]], [0], indicator="shape")


def needed_temperature(logits, confidence):
    return brentq(lambda t: softmax(logits[None] / t).max() - confidence, 1e-3, 1e3)


@pytest.mark.parametrize("confidence", [0.3, 0.5, 0.8, 0.99])
def test_the_temperature_that_is_needed_lies_within_the_bounds(confidence):
    rng = np.random.default_rng(0)
    for _ in range(200):
        logits = rng.normal(size=6) * 3
        top = np.sort(logits)
        interval = feasible_temperatures([top[-1] - top[-2]], confidence=confidence, n_classes=6)
        assert (
            interval.lowest[0] - 1e-9 <= needed_temperature(logits, confidence) <= interval.highest[0] + 1e-9
        )


def test_the_bounds_are_reached():
    crowd = np.array([2.0, 0, 0, 0, 0])
    duel = np.array([2.0, 0, -1e4, -1e4, -1e4])
    interval = feasible_temperatures(np.array([2.0]), confidence=0.8, n_classes=5)
    assert interval.lowest[0] == pytest.approx(needed_temperature(crowd, 0.8))
    assert interval.highest[0] == pytest.approx(needed_temperature(duel, 0.8))


def test_two_classes_leave_one_temperature():
    interval = feasible_temperatures([1.0, 3.0], confidence=0.9, n_classes=2)
    assert interval.lowest == pytest.approx(interval.highest)
    assert interval.lowest == pytest.approx([1 / math.log(9), 3 / math.log(9)])


def test_a_confidence_of_half_or_less_has_no_upper_bound():
    assert feasible_temperatures([1.0], confidence=0.5, n_classes=3).highest == [math.inf]


@pytest.mark.parametrize(
    ("margins", "options", "message"),
    [
        ([1.0], {"confidence": 1.0}, "^confidence: expected a number between 1/2 and 1, got 1.0"),
        (
            [1.0],
            {"confidence": 0.1, "n_classes": 10},
            "^confidence: expected a number between 1/10 and 1, got",
        ),
        ([-1.0], {"confidence": 0.9}, "^margins: expected finite numbers of at least 0"),
        (
            [1.0],
            {"confidence": 0.9, "n_classes": 1},
            "^n_classes: expected a whole number of at least 2, got 1",
        ),
    ],
)
def test_arguments_are_checked(margins, options, message):
    with pytest.raises(InputError, match=message):
        feasible_temperatures(margins, **options)
