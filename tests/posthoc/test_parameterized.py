"""Parameterized temperature scaling: a small network on the largest logits."""

import numpy as np
import pytest
import torch

from calibrant.data import load_bundled
from calibrant.errors import InputError
from calibrant.metrics import expected_calibration_error
from calibrant.posthoc import ParameterizedTemperatureScaling
from tests.conftest import draw


@pytest.fixture(scope="module")
def fitted():
    val = load_bundled("cifar10_val")
    return ParameterizedTemperatureScaling.fit(val.logits, val.labels)


def test_real_predictions_are_repaired_on_new_images(fitted):
    test = load_bundled("cifar10_test")
    assert expected_calibration_error(fitted.predict_proba(test.logits), test.labels) < 0.02  # 0.123 before


def test_the_order_of_the_classes_does_not_matter(fitted):
    logits = load_bundled("cifar10_test").logits[:100]
    shuffled = torch.randperm(10, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(fitted(logits)[:, shuffled], fitted(logits[:, shuffled]), atol=1e-6)


def test_only_the_largest_logits_are_read():
    logits, labels = draw(500, 8, sharpen=3.0)
    calibrator = ParameterizedTemperatureScaling.fit(logits, labels, top=3, epochs=20)
    z = torch.as_tensor(logits)[:50]
    low = z.argsort(dim=1)[:, :5]
    other = z.scatter(1, low, z.gather(1, low) - 1.0)
    assert torch.allclose(calibrator.temperature(z), calibrator.temperature(other))


def test_with_fewer_classes_than_it_reads_it_reads_all():
    logits, labels = draw(500, 3, sharpen=3.0)
    probs = ParameterizedTemperatureScaling.fit(logits, labels, top=10, epochs=20).predict_proba(logits)
    assert np.allclose(probs.sum(axis=1), 1)


@pytest.mark.parametrize("options", [{"top": 0}, {"epochs": -1}, {"objective": "accuracy"}, {"settled": -1}])
def test_options_are_checked(options):
    logits, labels = draw(50, 3)
    with pytest.raises(InputError, match=f"^{next(iter(options))}: expected"):
        ParameterizedTemperatureScaling.fit(logits, labels, **options)
