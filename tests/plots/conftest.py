"""Predictions in each of the three forms, and axes that pyplot does not know of."""

import matplotlib as mpl
import pytest
from matplotlib.figure import Figure

from calibrant import Predictions
from tests.conftest import draw, softmax

mpl.use("Agg")


@pytest.fixture(scope="session")
def logits():
    z, y = draw(600, 4, seed=3, sharpen=2.5)
    return Predictions(logits=z, labels=y, class_names=["ant", "bee", "cat", "dog"])


@pytest.fixture(scope="session")
def probs(logits):
    return Predictions(probs=softmax(logits.logits.numpy()), labels=logits.labels)


@pytest.fixture(scope="session")
def pairs(logits):
    outcomes = logits.outcomes()
    return Predictions(confidence=outcomes.confidence, correct=outcomes.correct)


@pytest.fixture(params=["logits", "probs", "pairs"])
def any_form(request):
    return request.getfixturevalue(request.param)


@pytest.fixture
def ax():
    return Figure().add_subplot()
