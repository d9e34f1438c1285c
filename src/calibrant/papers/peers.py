"""Calibration by other libraries, for comparison; each takes part if it is installed.

A peer is a function ``fit(logits, labels)`` that returns ``predict(logits)``, which returns probabilities.
"""

import contextlib
import io
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from importlib import import_module
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from scipy.special import softmax

from calibrant.inputs import Floats

Ints: TypeAlias = npt.NDArray[np.int64]
Predict: TypeAlias = Callable[[Floats], Floats]
Fit: TypeAlias = Callable[[Floats, Ints], Predict]


@dataclass(frozen=True)
class Peer:
    """A method of another library.

    Attributes:
        fit: Takes logits and labels, and returns a function from logits to probabilities.
        packages: The modules it needs.
        two_classes: Whether it takes part for two classes only.
        keeps_accuracy: Whether the predicted class never changes.
    """

    fit: Fit
    packages: tuple[str, ...]
    two_classes: bool = False
    keeps_accuracy: bool = False

    @property
    def is_installed(self) -> bool:
        """Whether its packages can be imported; this imports them, so that no fit has to."""
        return all(map(_is_installed, self.packages))


def installed_peers(n_classes: int) -> list[str]:
    """Return the names of the peers that are installed and can calibrate this number of classes."""
    return [
        name for name, peer in PEERS.items() if (n_classes == 2 or not peer.two_classes) and peer.is_installed
    ]


def fit_peer(name: str, logits: Floats, labels: Ints) -> Predict:
    """Fit a peer and return a function from logits to probabilities; hide its warnings and prints."""
    with _silenced():
        predict = PEERS[name].fit(logits, labels)

    def quiet(logits: Floats) -> Floats:
        with _silenced():
            return predict(logits)

    return quiet


@contextlib.contextmanager
def _silenced() -> Iterator[None]:
    with (
        warnings.catch_warnings(),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        warnings.simplefilter("ignore")
        yield


def _probmetrics(method: str, logits: Floats, labels: Ints) -> Predict:
    from probmetrics.calibrators import get_calibrator
    from probmetrics.distributions import CategoricalLogits

    # These functions pass logits on to the methods that can use them, and probabilities to the others.
    found = get_calibrator(method)
    found.fit_torch(CategoricalLogits(torch.from_numpy(logits)), torch.from_numpy(labels))

    def predict(logits: Floats) -> Floats:
        after = found.predict_proba_torch(CategoricalLogits(torch.from_numpy(logits)))
        return np.asarray(after.get_probs().numpy(), dtype=np.float64)

    return predict


def _netcal(method: str, logits: Floats, labels: Ints) -> Predict:
    from netcal import scaling

    def read(logits: Floats) -> Floats:
        probs: Floats = softmax(logits, axis=1)
        return probs[:, 1] if probs.shape[1] == 2 else probs

    found = getattr(scaling, method)()
    found.fit(read(logits), labels)

    def predict(logits: Floats) -> Floats:
        after = np.asarray(found.transform(read(logits)), dtype=np.float64)
        return np.stack([1 - after, after], axis=1) if after.ndim == 1 else after

    return predict


def _scikit_learn(logits: Floats, labels: Ints) -> Predict:
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.calibration import CalibratedClassifierCV
    from sklearn.frozen import FrozenEstimator
    from sklearn.model_selection import KFold

    class Model(ClassifierMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
        """A classifier whose inputs are its logits."""

        def __init__(self) -> None:
            self.classes_ = np.arange(logits.shape[1])

        def fit(self, _logits: Floats, _labels: Ints) -> "Model":
            return self

        def decision_function(self, logits: Floats) -> Floats:
            return logits if logits.shape[1] > 2 else logits[:, 1] - logits[:, 0]

        def predict(self, logits: Floats) -> Ints:
            return np.asarray(logits.argmax(axis=1), dtype=np.int64)

    # A frozen model is the same in every fold; a list of folds need not hold two samples of each class.
    folds = list(KFold(2).split(logits))
    found = CalibratedClassifierCV(FrozenEstimator(Model()), method="temperature", cv=folds)
    found.fit(logits, labels)
    return lambda logits: np.asarray(found.predict_proba(logits), dtype=np.float64)


@cache
def _is_installed(package: str) -> bool:
    try:
        with _silenced():
            import_module(package)
    except ImportError:
        return False
    return True


_PROBMETRICS = ("probmetrics.calibrators",)
_NETCAL = ("netcal.scaling",)
_SCIKIT_LEARN = ("sklearn.calibration", "sklearn.frozen")

PEERS: dict[str, Peer] = {
    "probmetrics temperature": Peer(partial(_probmetrics, "ts-mix"), _PROBMETRICS, keeps_accuracy=True),
    "probmetrics SVS": Peer(partial(_probmetrics, "svs"), _PROBMETRICS),
    "probmetrics SMS": Peer(partial(_probmetrics, "sms"), _PROBMETRICS),
    "probmetrics isotonic": Peer(partial(_probmetrics, "isotonic"), _PROBMETRICS),
    "probmetrics linear": Peer(partial(_probmetrics, "linear-scaling"), _PROBMETRICS, two_classes=True),
    "probmetrics affine": Peer(partial(_probmetrics, "affine-scaling"), _PROBMETRICS, two_classes=True),
    "probmetrics quadratic": Peer(partial(_probmetrics, "quadratic-scaling"), _PROBMETRICS, two_classes=True),
    "probmetrics beta": Peer(partial(_probmetrics, "beta"), (*_PROBMETRICS, "betacal"), two_classes=True),
    "probmetrics cir": Peer(partial(_probmetrics, "cir"), (*_PROBMETRICS, "cir_model"), two_classes=True),
    "netcal temperature": Peer(partial(_netcal, "TemperatureScaling"), _NETCAL, keeps_accuracy=True),
    "netcal logistic": Peer(partial(_netcal, "LogisticCalibration"), _NETCAL, two_classes=True),
    "netcal beta": Peer(partial(_netcal, "BetaCalibration"), _NETCAL, two_classes=True),
    "scikit-learn temperature": Peer(_scikit_learn, _SCIKIT_LEARN, keeps_accuracy=True),
}
