"""Predictions in each of the three forms, lines of a run, and axes that pyplot does not manage."""

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.figure import Figure

from calibrant import Predictions
from tests.conftest import draw, softmax

mpl.use("Agg")

#: Columns of ``metrics.jsonl`` by the title of the panel that shows them.
COLUMNS = {
    "loss": ("train_loss",),
    "accuracy": ("train_accuracy", "val_accuracy"),
    "confidence": ("train_mean_confidence", "val_mean_confidence"),
    "NLL (nats)": ("train_nll", "val_nll"),
    "Brier": ("val_brier",),
    "ECE": ("train_ece", "val_ece", "val_ece_equal_mass"),
    "entropy (nats)": ("train_entropy", "val_entropy"),
    "KL to the rest of the class (nats)": ("train_kl", "val_kl"),
    "cosine to the class mean": ("train_cosine", "val_cosine"),
}


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


def line(ax, label):
    """Return the x and y of the line with this label."""
    return next(each for each in ax.lines if each.get_label() == label).get_data()


def dynamics_rows(n_epochs, n_bins, *, gammas=False, seed=0, first=1):
    """Return lines of ``dynamics.jsonl`` with random numbers."""
    rng = np.random.default_rng(seed)
    made = []
    for epoch in range(first, first + n_epochs):
        confidence = np.sort(rng.random(n_bins))
        bins = {
            "edges": [0.0, *confidence.tolist()],
            "confidence": confidence.tolist(),
            "accuracy": rng.random(n_bins).tolist(),
            "gap": rng.uniform(-0.3, 0.3, n_bins).tolist(),
            "count": rng.integers(1, 30, n_bins).tolist(),
            "train_true": np.sort(rng.random(n_bins)).tolist(),
            "train_true_count": rng.integers(1, 30, n_bins).tolist(),
        }
        entry = {"gammas": rng.uniform(-2, 20, n_bins).tolist()} if gammas else None
        made.append({"epoch": epoch, "bins": bins, "adafocal": entry})
    return made


def metric_rows(n_epochs, *, stage="train", first=1, seed=0):
    """Return lines of ``metrics.jsonl`` with random numbers."""
    rng = np.random.default_rng(seed)
    names = [name for each in COLUMNS.values() for name in each]
    return [
        {"stage": stage, "epoch": epoch, "lr": 0.1, "seconds": 1.0} | {name: rng.random() for name in names}
        for epoch in range(first, first + n_epochs)
    ]
