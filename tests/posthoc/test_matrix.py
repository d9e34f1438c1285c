"""Matrix scaling: as good as logistic regression, and no overfitting by default."""

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss

from calibrant.errors import InputError
from calibrant.posthoc.matrix import MatrixScaling
from calibrant.posthoc.temperature import TemperatureScaling
from tests.conftest import draw, softmax


@pytest.fixture(scope="module")
def mixed():
    """Logits of which each is partly another class's."""
    logits, labels = draw(3000, 4, seed=2)
    mixing = np.eye(4) * 2 + 0.6 * np.roll(np.eye(4), 1, axis=0)
    return logits @ mixing.T, labels


def test_without_a_penalty_it_is_logistic_regression(mixed):
    fitted = MatrixScaling.fit(*mixed, strength=1e-9)
    peer = LogisticRegression(C=1e9, max_iter=2000, tol=1e-8).fit(*mixed)
    assert fitted.predict_proba(mixed[0]) == pytest.approx(peer.predict_proba(mixed[0]), abs=2e-3)


@pytest.mark.parametrize("penalty", ["l2", "odir"])
def test_confusions_are_repaired_on_held_out_data(mixed, penalty):
    logits, labels = mixed
    half = len(labels) // 2
    fitted, scaled = (
        method.fit(logits[:half], labels[:half], **options)
        for method, options in ((MatrixScaling, {"penalty": penalty}), (TemperatureScaling, {}))
    )
    losses = [log_loss(labels[half:], m.predict_proba(logits[half:])) for m in (fitted, scaled)]
    assert losses[0] < losses[1] - 0.02


@pytest.mark.parametrize("seed", [0, 1])
def test_a_hundred_classes_and_a_thousand_samples_do_not_overfit(seed):
    logits, labels = draw(6000, 100, seed=seed, spread=3.0, sharpen=2.0)
    fitted = MatrixScaling.fit(logits[:1000], labels[:1000])
    scaled = TemperatureScaling.fit(logits[:1000], labels[:1000])
    losses = [log_loss(labels[1000:], m.predict_proba(logits[1000:])) for m in (fitted, scaled)]
    assert losses[0] <= losses[1] + 0.005


def test_the_output_is_the_softmax_of_an_affine_map(mixed):
    fitted = MatrixScaling.fit(*mixed, strength=1.0)
    expected = softmax(mixed[0] @ fitted.weight.numpy().T + fitted.intercept.numpy())
    assert fitted.predict_proba(mixed[0]) == pytest.approx(expected, abs=1e-12)


def test_odir_holds_back_off_diagonals_more_than_the_diagonal(mixed):
    fitted = MatrixScaling.fit(*mixed, penalty="odir", strength=1e9)
    off = fitted.weight.numpy() - np.diag(np.diag(fitted.weight.numpy()))
    assert np.abs(off).max() < 1e-4
    assert np.ptp(np.diag(fitted.weight.numpy())) > 1e-3


def test_an_unknown_penalty_is_refused():
    with pytest.raises(InputError, match="^penalty: expected 'l2' or 'odir', got 'l1'"):
        MatrixScaling.fit([[1.0, 0.0]], [0], penalty="l1")
