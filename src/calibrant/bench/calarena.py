"""CalArena's benchmark files, and our calibrators as it takes them (arXiv 2605.30188).

A file holds one group ``{dataset}/{model}`` for each task, with the arrays ``probas_cal``, ``labels_cal``,
``probas_test`` and ``labels_test``. Get the files from https://huggingface.co/datasets/probkit/CalArena.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt

from calibrant.bench.fitting import fit_or_leave
from calibrant.data.predictions import Predictions
from calibrant.errors import FormatError, InputError, MissingPackageError

if TYPE_CHECKING:
    from calibrant.posthoc.calibrator import Calibrator

_ARRAYS = ("probas_cal", "labels_cal", "probas_test", "labels_test")

# Trees and neighbours say 0 where they mean seldom.
_SMALLEST = 1e-12


@dataclass(frozen=True)
class Task:
    """One model on one data set.

    Attributes:
        dataset: Name of the data set.
        model: Name of the model.
        calibration: Its predictions to fit on.
        test: Its predictions to measure on.
    """

    dataset: str
    model: str
    calibration: Predictions
    test: Predictions


def read_tasks(path: Path, *, part: int = 0, parts: int = 1) -> Iterator[Task]:
    """Yield the tasks of a CalArena file one at a time, in the order of their names.

    Args:
        path: An HDF5 file.
        part: Which of ``parts`` shares of the tasks, from 0: large files can be done in pieces.
        parts: How many shares there are.
    """
    h5py = _h5py()
    if not path.is_file():
        raise InputError(f"file: expected a CalArena file, got {path}, which does not exist")
    if not 0 <= part < parts:
        raise InputError(f"part: expected a number from 0 to {parts - 1}, got {part}")
    try:
        file = h5py.File(path, "r")
    except OSError as error:
        raise FormatError(f"{path}: expected an HDF5 file, got another ({error})") from None
    with file:
        names = [(data, model) for data in sorted(file) for model in _models(path, file, data)]
        for data, model in names[part::parts]:
            yield _task(path, file[data][model], data, model)


class CalArenaCalibrator:
    """One of our methods behind CalArena's two calls, ``fit(p, y)`` and ``predict_proba(p)``.

    In CalArena's ``custom_calibrators.py``::

        CUSTOM_CALIBRATORS = {"SMART": lambda: CalArenaCalibrator("smart")}

    Where a method cannot be fitted the probabilities stay as they are, and :attr:`fitted_` is false.

    Args:
        method: Name of a method in :data:`calibrant.posthoc.names.METHODS` that needs no features.
        seed: Of the method.
        options: Keyword arguments of the method's ``fit``.

    Example:
        >>> p = np.repeat([[0.99, 0.01], [0.9, 0.1]], 50, axis=0)
        >>> y = np.arange(100) % 5 == 0
        >>> calibrated = CalArenaCalibrator("temperature").fit(p, y.astype(int)).predict_proba(p)
        >>> bool(calibrated.max() < 0.99)
        True
    """

    def __init__(self, method: str, *, seed: int = 0, **options: Any) -> None:  # noqa: ANN401  # of any method
        self.method = method
        self.seed = seed
        self.options = options
        self.fitted_ = False
        self._calibrator: Calibrator | None = None

    def fit(self, p: npt.ArrayLike, y: npt.ArrayLike) -> Self:
        """Fit to probabilities of shape ``(n, k)``, or ``(n,)`` for class 1, and integer labels."""
        predictions = as_predictions(np.asarray(p), np.asarray(y))
        self._calibrator, self.fitted_ = fit_or_leave(
            self.method, predictions, seed=self.seed, **self.options
        )
        return self

    def predict_proba(self, p: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """Return calibrated probabilities of shape ``(n, k)``, two columns for two classes."""
        if self._calibrator is None:
            raise InputError("calibrator: expected one that is fitted, got one that is not; call fit first")
        logits = as_predictions(np.asarray(p)).to_logits().numpy()
        return np.asarray(self._calibrator.predict_proba(logits), dtype=np.float64)


def as_predictions(p: npt.NDArray[Any], y: npt.NDArray[Any] | None = None) -> Predictions:
    """Return probabilities as logits, none of them for a probability below one in a trillion."""
    p = np.asarray(p, dtype=np.float64)
    if p.ndim == 2 and p.shape[1] == 1:
        p = p[:, 0]
    checked = Predictions(probs=p).to_probs().numpy()
    labels = None if y is None else np.asarray(y).astype(np.int64).reshape(-1)
    return Predictions(logits=np.log(np.maximum(checked, _SMALLEST)), labels=labels)


def _task(path: Path, group: Mapping[str, Any], data: str, model: str) -> Task:
    missing = [name for name in _ARRAYS if name not in group]
    if missing:
        raise FormatError(f"{path}: expected {missing[0]} in {data}/{model}, got {', '.join(group)}")
    arrays = [group[name][()] for name in _ARRAYS]
    return Task(data, model, as_predictions(*arrays[:2]), as_predictions(*arrays[2:]))


def _models(path: Path, file: Mapping[str, Any], data: str) -> list[str]:
    if not hasattr(file[data], "keys"):
        raise FormatError(f"{path}: expected groups {{dataset}}/{{model}}, got an array {data!r}")
    return sorted(file[data])


def _h5py() -> ModuleType:
    try:
        return import_module("h5py")
    except ImportError:
        raise MissingPackageError("CalArena", "h5py", "bench") from None
