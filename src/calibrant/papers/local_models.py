"""Classifiers that are trained in seconds without a download, and their predictions.

Two kinds: overconfident classifiers, each with the same samples under noise, and an arena of common
classifiers on each of scikit-learn's small data sets.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from calibrant.data.bundled import load_bundled
from calibrant.data.predictions import Predictions
from calibrant.errors import InputError
from calibrant.inputs import Floats, check_choice
from calibrant.outcomes import LEAST_PROB

if TYPE_CHECKING:
    from sklearn.base import ClassifierMixin

ARENA_DATA = ("digits", "wine", "breast_cancer", "iris")
ARENA_MODELS = ("logistic", "naive_bayes", "forest", "boosting", "neighbours", "perceptron", "svm")


@dataclass(frozen=True)
class RealSet:
    """Predictions to split into fitting and test samples, and predictions under shift."""

    predictions: Predictions
    shifted: Predictions


@cache
def cifar10() -> RealSet:
    """Return the validation and test images of the bundled network together: 15,000 samples, 10 classes."""
    both = joined(load_bundled("cifar10_val"), load_bundled("cifar10_test"))
    return RealSet(both, load_bundled("cifar10_test_noise"))


@cache
def clinc150(folder: Path) -> RealSet:
    """Train a perceptron on 3,000 sentence embeddings for many epochs; return 7,500 samples of 150 classes.

    Args:
        folder: Holds ``minilm_embeddings.npz`` with ``x_train y_train x_val y_val x_test y_test``.
    """
    path = folder / "minilm_embeddings.npz"
    if not path.is_file():
        raise InputError(f"data: expected {path}, got no such file")
    data = np.load(path)
    x, y = torch.from_numpy(data["x_train"]).float(), torch.from_numpy(data["y_train"]).long()
    chosen = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))[:3000]
    model = _train(x[chosen], y[chosen], hidden=1024, n_classes=150, epochs=60)
    parts = [_predict(model, data[f"x_{part}"], data[f"y_{part}"]) for part in ("val", "test")]
    noise = np.random.default_rng(0).normal(scale=0.03, size=data["x_test"].shape)
    return RealSet(joined(*parts), _predict(model, data["x_test"] + noise, data["y_test"]))


@cache
def digits() -> RealSet:
    """Fit naive Bayes, which counts dependent pixels as independent, to 300 digits; return 1,497 samples."""
    from sklearn.datasets import load_digits
    from sklearn.naive_bayes import GaussianNB

    images, labels = load_digits(return_X_y=True)
    rng = np.random.default_rng(0)
    order = rng.permutation(len(labels))
    kept, held = order[:300], order[300:]
    model = GaussianNB(var_smoothing=0.03).fit(images[kept] / 16, labels[kept])

    def predict(ink: Floats) -> Predictions:
        logits = model.predict_joint_log_proba(ink)
        return Predictions(logits=logits, labels=labels[held], features=ink.astype(np.float32))

    clean = images[held] / 16
    noisy = (clean + rng.normal(scale=0.35, size=clean.shape)).clip(0, 1)
    return RealSet(predict(clean), predict(noisy))


def arena_tasks() -> list[str]:
    """Return the names of the arena's tasks, data set and classifier each.

    Example:
        >>> arena_tasks()[:2]
        ['digits/logistic', 'digits/naive_bayes']
    """
    return [f"{data}/{model}" for data in ARENA_DATA for model in ARENA_MODELS]


@cache
def arena(task: str, seed: int) -> tuple[Predictions, Predictions]:
    """Train a classifier on a third of a data set; return its predictions on the second and the last third.

    Args:
        task: One of :func:`arena_tasks`.
        seed: Decides the stratified split into thirds, and the training.
    """
    import sklearn.datasets
    from sklearn.model_selection import train_test_split

    data, name = check_choice(task, "source", arena_tasks()).split("/")
    x, y = getattr(sklearn.datasets, f"load_{data}")(return_X_y=True)
    train, rest = train_test_split(np.arange(len(y)), train_size=1 / 3, stratify=y, random_state=seed)
    cal, test = train_test_split(rest, train_size=0.5, stratify=y[rest], random_state=seed)
    model = _arena_models(seed)[name]()
    mean, deviation = x[train].mean(axis=0), x[train].std(axis=0)
    x = (x - mean) / np.where(deviation > 0, deviation, 1)
    model.fit(x[train], y[train])
    predicted = (Predictions(logits=_scores(model, x[part]), labels=y[part]) for part in (cal, test))
    return next(predicted), next(predicted)


def joined(a: Predictions, b: Predictions) -> Predictions:
    """Return the samples of both; features only if both have them."""

    def both(name: str) -> Tensor | None:
        one, other = getattr(a, name), getattr(b, name)
        return None if one is None or other is None else torch.cat([one, other])

    return Predictions(logits=both("logits"), labels=both("labels"), features=both("features"))


def _arena_models(seed: int) -> Mapping[str, Callable[[], Any]]:
    from sklearn.ensemble import GradientBoostingClassifier, RandomForestClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.naive_bayes import GaussianNB
    from sklearn.neighbors import KNeighborsClassifier
    from sklearn.neural_network import MLPClassifier
    from sklearn.svm import SVC

    return {
        "logistic": lambda: LogisticRegression(max_iter=2000),
        "naive_bayes": lambda: GaussianNB(var_smoothing=0.03),
        "forest": lambda: RandomForestClassifier(100, random_state=seed),
        "boosting": lambda: GradientBoostingClassifier(n_estimators=40, max_depth=2, random_state=seed),
        "neighbours": lambda: KNeighborsClassifier(10),
        # Memorises the training samples.
        "perceptron": lambda: MLPClassifier((64,), solver="lbfgs", max_iter=2000, random_state=seed),
        "svm": lambda: SVC(),
    }


def _scores(model: "ClassifierMixin", x: Floats) -> Floats:
    """Return logits: log-probabilities, or the decision function of the support vector machine."""
    if hasattr(model, "predict_proba"):
        return np.log(np.maximum(np.asarray(model.predict_proba(x), dtype=np.float64), LEAST_PROB))
    distances = np.asarray(model.decision_function(x), dtype=np.float64)
    return np.stack([-distances, distances], axis=1) / 2 if distances.ndim == 1 else distances


class _Perceptron(nn.Module):
    def __init__(self, n_in: int, hidden: int, n_classes: int) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(n_in, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU())
        self.head = nn.Linear(hidden, n_classes)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = self.body(x)
        return self.head(features), features


def _train(x: Tensor, y: Tensor, *, hidden: int, n_classes: int, epochs: int) -> _Perceptron:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = _Perceptron(x.shape[1], hidden, n_classes)
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(0)
    for _ in range(epochs):
        for rows in torch.randperm(len(x), generator=generator).split(128):
            loss = nn.functional.cross_entropy(model(x[rows])[0], y[rows])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    return model


@torch.inference_mode()
def _predict(model: _Perceptron, x: Floats, y: npt.NDArray[np.int64]) -> Predictions:
    logits, features = model(torch.from_numpy(x).float())
    return Predictions(logits=logits.clone(), labels=y.astype(np.int64), features=features.clone())
