"""What vector, matrix, Dirichlet, structured, ensemble and class-wise scaling all promise."""

import numpy as np
import pytest
import torch

from calibrant.errors import InputError
from calibrant.posthoc import Calibrator, load_calibrator
from calibrant.posthoc.class_temperature import ClassTemperatureScaling
from calibrant.posthoc.dirichlet import DirichletCalibration
from calibrant.posthoc.ensemble import EnsembleTemperatureScaling
from calibrant.posthoc.matrix import MatrixScaling
from calibrant.posthoc.structured import StructuredMatrixScaling, StructuredVectorScaling
from calibrant.posthoc.temperature import TemperatureScaling
from calibrant.posthoc.vector import VectorScaling
from tests.conftest import draw
from tests.rounding import assert_equal_up_to_rounding

pytestmark = pytest.mark.slow

LIKELIHOOD: list[type[Calibrator]] = [
    VectorScaling,
    MatrixScaling,
    DirichletCalibration,
    StructuredVectorScaling,
    StructuredMatrixScaling,
    EnsembleTemperatureScaling,
]
FAMILY: list[type[Calibrator]] = [*LIKELIHOOD, ClassTemperatureScaling]

every = pytest.mark.parametrize("method", FAMILY)


def nll(log_probs, labels):
    return -log_probs.double().gather(1, torch.as_tensor(labels)[:, None]).mean().item()


@pytest.fixture(scope="module")
def confused():
    """Logits too large, with one class favoured and two others mixed up."""
    logits, labels = draw(600, 5, seed=3, sharpen=2.5)
    return logits @ (np.eye(5) + 0.2 * np.eye(5)[[0, 2, 1, 3, 4]]) + [1.5, 0, 0, 0, -1], labels


@pytest.fixture(scope="module")
def fits(confused):
    """Each method, fitted once."""
    return {method: method.fit(*confused) for method in FAMILY}


@every
def test_distributions_come_out(method, fits, confused):
    fitted = fits[method]
    for n in (1, 7):
        out = fitted(torch.as_tensor(confused[0][:n]))
        assert torch.isfinite(out).all()
        assert torch.allclose(out.exp().sum(dim=1), torch.ones(n, dtype=torch.float64))


@every
def test_a_seed_gives_one_result(method, fits, confused):
    first, second = (fitted.state_dict() for fitted in (fits[method], method.fit(*confused, seed=0)))
    assert all(torch.equal(first[name], second[name]) for name in first)


@every
def test_what_is_loaded_is_what_was_saved(method, fits, confused, tmp_path):
    fitted = fits[method]
    fitted.save(tmp_path / "it.safetensors")
    z = torch.as_tensor(confused[0])
    loaded = load_calibrator(tmp_path / "it.safetensors")
    assert type(loaded) is method
    assert_equal_up_to_rounding(loaded(z), fitted(z))


@pytest.mark.parametrize("method", LIKELIHOOD)
def test_the_fitting_set_is_never_less_likely_than_before(method, confused):
    for logits, labels in (confused, (confused[0][:50], confused[1][:50]), draw(60, 8, seed=1)):
        z = torch.as_tensor(logits)
        # Smoothing gives up a little on the fitting set; the others are no worse than temperature scaling.
        structured = issubclass(method, StructuredMatrixScaling)
        before = torch.log_softmax(z, dim=1) if structured else TemperatureScaling.fit(z, labels)(z)
        assert nll(method.fit(z, labels)(z), labels) <= nll(before, labels) + 1e-9


@pytest.mark.slow
@every
def test_number_types_agree(method, confused):
    halves = torch.as_tensor(confused[0]).half()
    expected = method.fit(halves.double(), confused[1]).predict_proba(halves.double())
    for z in (halves, halves.float().tolist()):
        probs = method.fit(z, confused[1]).predict_proba(halves.float())
        assert np.asarray(probs) == pytest.approx(expected.numpy(), abs=2e-3)


@every
def test_half_precision_goes_in_and_at_least_single_comes_out(method, fits):
    fitted = fits[method]
    assert fitted(torch.ones(2, 5, dtype=torch.float16)).dtype == torch.float32
    assert fitted(torch.ones(2, 5, dtype=torch.float64)).dtype == torch.float64


@every
def test_a_class_may_be_missing_and_rows_may_repeat(method):
    logits, labels = draw(400, 4, seed=5, sharpen=2.0)
    keep = labels != 2
    logits, labels = np.tile(logits[keep][:50], (3, 1)), np.tile(labels[keep][:50], 3)
    out = method.fit(logits, labels)(torch.as_tensor(logits))
    assert torch.isfinite(out).all()


@every
@pytest.mark.parametrize("factor", [1e4, 1e-4])
def test_the_scale_of_the_logits_does_not_matter_much(method, fits, confused, factor):
    if method is ClassTemperatureScaling and factor < 1:
        factor = 0.5  # its grid of temperatures is absolute
    fitted = method.fit(confused[0] * factor, confused[1])
    out = fitted(torch.as_tensor(confused[0] * factor))
    assert torch.isfinite(out).all()
    assert torch.isfinite(fitted(torch.as_tensor(confused[0] * factor).float())).all()
    if method in LIKELIHOOD[:2]:
        assert out.exp().numpy() == pytest.approx(fits[method].predict_proba(confused[0]), abs=2e-3)


@pytest.mark.parametrize("method", LIKELIHOOD)
def test_constant_logits_become_the_frequencies_of_the_classes(method):
    probs = method.fit(np.ones((300, 3)), np.arange(300) % 3).predict_proba(np.ones((1, 3)))
    assert probs[0] == pytest.approx([1 / 3] * 3, abs=0.01)


@pytest.mark.slow
@every
def test_two_classes_and_many_classes(method):
    for n, k in ((200, 2), (120, 150)):
        logits, labels = draw(n, k, seed=7, spread=3.0, sharpen=1.5)
        assert np.isfinite(method.fit(logits.astype(np.float32), labels).predict_proba(logits)).all()


@every
def test_it_exports_with_any_number_of_rows(method, fits):
    fitted = fits[method]
    rows = torch.export.Dim("rows")
    program = torch.export.export(fitted, (torch.randn(6, 5),), dynamic_shapes=({0: rows},))
    z = torch.randn(11, 5)
    assert torch.allclose(program.module()(z), fitted(z), atol=1e-5)


@every
def test_bad_input_is_refused(method):
    with pytest.raises(InputError, match="^labels: expected classes from 0 to 1"):
        method.fit([[1.0, 0.0]], [2])
