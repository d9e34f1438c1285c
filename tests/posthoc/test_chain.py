"""Composition of methods."""

import numpy as np
import pytest
import torch

from calibrant.errors import InputError
from calibrant.posthoc import ByGroup, TemperatureScaling
from calibrant.posthoc.chain import Chain


def test_the_second_method_is_fitted_on_what_the_first_returns(overconfident):
    logits, labels = overconfident
    twice = TemperatureScaling.then(TemperatureScaling).fit(logits, labels)
    assert float(twice.first.temperature) == pytest.approx(3.0, rel=0.05)
    assert float(twice.second.temperature) == pytest.approx(1.0, abs=1e-5)
    assert twice.n_classes == 5


def test_a_chain_applies_one_after_the_other():
    z = torch.tensor([[3.0, 1.0, 0.0]])
    chained = Chain(TemperatureScaling(2.0), TemperatureScaling(3.0))
    assert torch.allclose(chained(z), TemperatureScaling(6.0)(z))


def test_a_chain_keeps_the_promises_that_both_make():
    assert TemperatureScaling.then(TemperatureScaling).preserves_accuracy
    assert not TemperatureScaling.then(TemperatureScaling).needs_features


def test_a_chain_without_methods_cannot_be_fitted():
    with pytest.raises(InputError, match="write A.then"):
        Chain.fit([[1.0, 0.0]], [0])


def test_a_chain_knows_the_groups_of_its_first_calibrator():
    rng = np.random.default_rng(0)
    groups = np.asarray(["ant", "bee"])[rng.integers(2, size=600)]
    labels = rng.integers(3, size=600)
    logits = rng.normal(size=(600, 3)) + np.where(groups == "ant", 3.0, 1.0)[:, None] * np.eye(3)[labels]
    first = ByGroup.fit(logits, labels, groups=groups)
    chained = Chain(first, TemperatureScaling(2.0))
    assert chained.group_names == first.group_names
    expected = torch.log_softmax(first.predict_log_proba(logits, groups=groups) / 2, dim=1)
    torch.testing.assert_close(chained.predict_log_proba(logits, groups=groups), expected)
    assert not torch.allclose(chained.predict_log_proba(logits), expected)
