"""The baseline: the model's own word."""

import numpy as np
import pytest
import torch

from calibrant.errors import InputError
from calibrant.posthoc.calibrator import Identity
from tests.conftest import softmax


def test_it_returns_the_softmax(overconfident):
    logits, labels = overconfident
    assert Identity.fit(logits, labels).predict_proba(logits) == pytest.approx(softmax(logits), abs=1e-12)


def test_half_precision_is_widened():
    logits = torch.tensor([[1.0, 2.0, 2.0]], dtype=torch.float16)
    assert Identity()(logits).dtype == torch.float32


def test_it_checks_what_it_is_given():
    with pytest.raises(InputError, match="^labels: expected classes from 0 to 1, got 2"):
        Identity.fit(np.zeros((1, 2)), [2])
