"""Parameterized temperature scaling: a small network on the largest logits."""

import math

import numpy as np
import pytest
import torch

from calibrant.data import load_bundled
from calibrant.errors import InputError
from calibrant.metrics import expected_calibration_error
from calibrant.posthoc import ParameterizedTemperatureScaling, PTSPaper
from tests.conftest import draw, softmax


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
    assert torch.allclose(fitted(logits)[:, shuffled], fitted(logits[:, shuffled]), atol=1e-5)


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


def test_the_method_of_the_paper_takes_the_paper_s_steps():
    """Keras's first weights, raw logits, the absolute value as temperature, Adam on batches of 1,000."""
    logits, labels = draw(1500, 12, sharpen=3.0)
    fitted = PTSPaper.fit(logits, labels, steps=30, seed=2)
    z, y = torch.tensor(logits), torch.tensor(labels)
    x = z.sort(dim=1, descending=True).values[:, :10]
    generator = torch.Generator().manual_seed(2)
    parts = []
    for into, out in ((10, 5), (5, 5), (5, 1)):
        random = 2 * torch.rand((out, into), generator=generator, dtype=torch.float64) - 1
        parts += [math.sqrt(6 / (into + out)) * random, torch.zeros(out, dtype=torch.float64)]
    parts = [part.requires_grad_() for part in parts]

    def temperature(seen):
        first = torch.relu(seen @ parts[0].T + parts[1])
        second = torch.relu(first @ parts[2].T + parts[3])
        return (second @ parts[4].T + parts[5]).squeeze(1).abs()

    adam = torch.optim.Adam(parts, lr=5e-5)
    generator = torch.Generator().manual_seed(2)
    for _ in range(15):  # two batches each
        for rows in torch.randperm(1500, generator=generator).split(1000):
            probs = torch.softmax(z[rows] / temperature(x[rows])[:, None], dim=1)
            loss = (probs - torch.nn.functional.one_hot(y[rows], 12)).square().sum(dim=1).mean()
            adam.zero_grad()
            loss.backward()
            adam.step()
    torch.testing.assert_close(fitted.temperature(z), temperature(x).detach(), atol=1e-8, rtol=0)
    assert not torch.equal(parts[4].detach(), torch.zeros(1, 5))


@pytest.mark.long
def test_trained_long_enough_the_method_of_the_paper_repairs_an_overconfident_model():
    logits, labels = draw(2000, 5, sharpen=3.0)
    fitted = PTSPaper.fit(logits, labels, steps=3000, learning_rate=1e-3)
    before = expected_calibration_error(softmax(logits), labels)
    assert expected_calibration_error(fitted.predict_proba(logits), labels) < before / 4


@pytest.mark.parametrize(
    ("method", "option"),
    [(ParameterizedTemperatureScaling, "steps"), (PTSPaper, "epochs"), (PTSPaper, "settled")],
)
def test_options_that_a_method_does_not_have_are_refused(method, option):
    with pytest.raises(TypeError, match=f"unexpected keyword argument '{option}'"):
        method.fit(*draw(50, 3), **{option: 5})
