"""Real predictions of overconfident classifiers, to compare post-hoc methods on, each with a shifted twin.

Three sets: the bundled CIFAR-10 network (shift: noisy images); a multilayer perceptron on 3,000 sentence
embeddings of CLINC150 (needs ``minilm_embeddings.npz`` with ``x_train y_train x_val y_val x_test y_test``;
shift: noisy embeddings); Gaussian naive Bayes on 300 of scikit-learn's digits (shift: noisy images).
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from calibrant import Predictions
from calibrant.data import load_bundled


@dataclass(frozen=True)
class RealSet:
    """Predictions to divide into fitting and test samples, and predictions under shift."""

    predictions: Predictions
    shifted: Predictions


def cifar10() -> RealSet:
    """Return the validation and test images of the bundled network together: 15,000 samples, 10 classes."""
    both = _join(load_bundled("cifar10_val"), load_bundled("cifar10_test"))
    return RealSet(both, load_bundled("cifar10_test_noise"))


def clinc150(folder: Path) -> RealSet:
    """Train a perceptron on few embeddings for many epochs; return 7,500 samples of 150 classes."""
    data = np.load(folder / "minilm_embeddings.npz")
    x, y = torch.from_numpy(data["x_train"]).float(), torch.from_numpy(data["y_train"]).long()
    chosen = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))[:3000]
    model = _train(x[chosen], y[chosen], hidden=1024, n_classes=150, epochs=60)
    parts = [_predict(model, data[f"x_{part}"], data[f"y_{part}"]) for part in ("val", "test")]
    noise = np.random.default_rng(0).normal(scale=0.03, size=data["x_test"].shape)
    return RealSet(_join(*parts), _predict(model, data["x_test"] + noise, data["y_test"]))


def digits() -> RealSet:
    """Fit naive Bayes, which counts dependent pixels as independent, to 300 digits; return 1,497 samples."""
    from sklearn.datasets import load_digits
    from sklearn.naive_bayes import GaussianNB

    images, labels = load_digits(return_X_y=True)
    rng = np.random.default_rng(0)
    order = rng.permutation(len(labels))
    kept, held = order[:300], order[300:]
    model = GaussianNB(var_smoothing=0.03).fit(images[kept] / 16, labels[kept])

    def predict(ink: np.ndarray) -> Predictions:
        logits = model.predict_joint_log_proba(ink)
        return Predictions(logits=logits, labels=labels[held], features=ink.astype(np.float32))

    clean = images[held] / 16
    noisy = (clean + rng.normal(scale=0.35, size=clean.shape)).clip(0, 1)
    return RealSet(predict(clean), predict(noisy))


def prediction_sets(clinc: Path | None) -> dict[str, Callable[[], RealSet]]:
    """Return the sets that can be had, by name."""
    sets: dict[str, Callable[[], RealSet]] = {"cifar10": cifar10, "digits": digits}
    if clinc is not None:
        sets["clinc150"] = lambda: clinc150(clinc)
    return sets


def split(
    predictions: Predictions, seed: int, *, n_validation: int | None = None
) -> tuple[Predictions, Predictions]:
    """Divide at random into a part to fit on (half, or up to 5,000) and a part to measure on."""
    order = np.random.default_rng(seed).permutation(predictions.n)
    n = n_validation or min(predictions.n // 2, 5000)
    return predictions.take(order[:n]), predictions.take(order[n:])


class _Perceptron(nn.Module):
    def __init__(self, n_in: int, hidden: int, n_classes: int) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(n_in, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU())
        self.head = nn.Linear(hidden, n_classes)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = self.body(x)
        return self.head(features), features


def _train(x: Tensor, y: Tensor, *, hidden: int, n_classes: int, epochs: int) -> _Perceptron:
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
def _predict(model: _Perceptron, x: np.ndarray, y: np.ndarray) -> Predictions:
    logits, features = model(torch.from_numpy(x).float())
    return Predictions(logits=logits.clone(), labels=y.astype(np.int64), features=features.clone())


def _join(a: Predictions, b: Predictions) -> Predictions:
    def both(name: str) -> Tensor:
        return torch.cat([getattr(a, name), getattr(b, name)])

    return Predictions(logits=both("logits"), labels=both("labels"), features=both("features"))
