"""CalArena (arXiv 2605.30188): its benchmark files, our calibrators behind its API, and its comparison.

The workers ``arena`` and ``calarena`` compare all methods on the same tasks. A job of ``arena`` is one task,
a ``source``; a job of ``calarena`` is one ``part`` of the tasks in a ``file``. Both read ``methods`` from the
settings, with options as in ``"smart(settled=0)"``; the default is every method that needs no features. The
mean ``win_rate`` over jobs is CalArena's win rate; :mod:`calibrant.papers.rankings` computes ELO ratings from
the rows.

A file holds one group ``{dataset}/{model}`` for each task, with the arrays ``probas_cal``, ``labels_cal``,
``probas_test`` and ``labels_test``. Get the files from https://huggingface.co/datasets/probkit/CalArena.
"""

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt

from calibrant.data.predictions import Predictions
from calibrant.errors import FormatError, InputError
from calibrant.evaluation.calibrated import calibrated
from calibrant.evaluation.evaluate import evaluate
from calibrant.extras import optional
from calibrant.inputs import Floats
from calibrant.metrics.proper import post_hoc_improvement
from calibrant.papers.model_predictions import load_model_predictions
from calibrant.papers.posthoc import fit_or_identity
from calibrant.papers.rankings import task_win_rates
from calibrant.papers.rows import Record
from calibrant.posthoc.names import METHODS, canonical_name

if TYPE_CHECKING:
    from calibrant.posthoc.calibrator import Calibrator

_ARRAYS = ("probas_cal", "labels_cal", "probas_test", "labels_test")

# The score that decides a comparison, and what is measured.
_SCORE = "brier"
_MEASURES = ("accuracy", "nll", "brier", "ece")


@dataclass(frozen=True)
class CalArenaTask:
    """One model on one data set.

    Attributes:
        dataset: Name of the data set.
        model: Name of the model.
        calibration: Predictions to fit on.
        test: Predictions to measure on.
    """

    dataset: str
    model: str
    calibration: Predictions
    test: Predictions


def read_tasks(path: Path, *, part: int = 0, parts: int = 1) -> Iterator[CalArenaTask]:
    """Yield the tasks of a CalArena file one at a time, in the order of their names.

    Args:
        path: An HDF5 file.
        part: Number of the part to read, from 0; large files can be processed in parts.
        parts: Number of parts that the tasks are divided into.
    """
    with optional("CalArena"):
        import h5py
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
    """One of our methods with CalArena's interface: ``fit(p, y)`` and ``predict_proba(p)``.

    In CalArena's ``custom_calibrators.py``::

        CUSTOM_CALIBRATORS = {"SMART": lambda: CalArenaCalibrator("smart")}

    If a method cannot be fitted, the probabilities stay uncalibrated and :attr:`fitted_` is false.

    Args:
        method: Name of a method in :data:`calibrant.posthoc.names.METHODS` that needs no features, with
            options if it has any.
        seed: Seed of the method.
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
        self._calibrator, self.fitted_ = fit_or_identity(
            self.method, predictions, seed=self.seed, **self.options
        )
        return self

    def predict_proba(self, p: npt.ArrayLike) -> Floats:
        """Return calibrated probabilities of shape ``(n, k)``, two columns for two classes."""
        if self._calibrator is None:
            raise InputError("calibrator: expected one that is fitted, got one that is not; call fit first")
        logits = as_predictions(np.asarray(p)).to_logits().numpy()
        return np.asarray(self._calibrator.predict_proba(logits), dtype=np.float64)


def run_arena(
    key: Mapping[str, Any], settings: Mapping[str, Any], seed: int, data: Path | None
) -> Iterator[Record]:
    """Yield a record for each method on the task that the key names."""
    source = load_model_predictions(key["source"], seed=seed, data=data)
    yield from compare_on_task(source.validation, source.tests["test"], _methods(settings), seed)


def run_calarena(
    key: Mapping[str, Any], settings: Mapping[str, Any], seed: int, data: Path | None
) -> Iterator[Record]:
    """Yield a record for each method on each task of a part of a file."""
    if data is None:
        raise InputError(f"data: expected the folder that holds {key['file']}, got none")
    for task in read_tasks(data / key["file"], part=key.get("part", 0), parts=settings.get("parts", 1)):
        for record in compare_on_task(task.calibration, task.test, _methods(settings), seed):
            labels = {"dataset": task.dataset, "model": task.model, **record.labels}
            yield Record(labels, record.values)


def compare_on_task(
    fitting: Predictions, test: Predictions, methods: Sequence[str], seed: int
) -> list[Record]:
    """Fit every method on the same samples and measure it on the same test samples.

    ``phi_brier`` and ``phi_nll`` are the improvements over the uncalibrated model, as CalArena defines them.
    If a method cannot be fitted, the uncalibrated model is measured and ``fitted`` is 0.
    """
    found: dict[str, dict[str, float | None]] = {}
    before = test.to_probs()
    assert test.labels is not None
    for name in methods:
        start = time.process_time()
        calibrator, fitted = fit_or_identity(name, fitting, seed=seed)
        after = calibrated(calibrator, test)
        seconds = time.process_time() - start
        values: dict[str, float | None] = dict(evaluate(after, measures=_MEASURES).metrics)
        for score in ("brier", "nll"):
            gain = post_hoc_improvement(before, after.to_probs(), test.labels, score=score, relative=False)
            values[f"phi_{score}"] = gain if math.isfinite(gain) else None
        found[name] = {**values, "fitted": float(fitted), "run_seconds": seconds}
    scores = {name: float(values[_SCORE] or 0.0) for name, values in found.items()}
    rates = task_win_rates(scores)
    return [Record({"method": name}, {**values, "win_rate": rates[name]}) for name, values in found.items()]


def _methods(settings: Mapping[str, Any]) -> list[str]:
    every = [name for name, method in METHODS.items() if not method.calibrator.needs_features]
    return [canonical_name(name) for name in settings.get("methods", every)]


def as_predictions(p: npt.NDArray[Any], y: npt.NDArray[Any] | None = None) -> Predictions:
    """Return probabilities, clipped to at least 1e-12, as logits."""
    p = np.asarray(p, dtype=np.float64)
    if p.ndim == 2 and p.shape[1] == 1:
        p = p[:, 0]
    # Trees and nearest neighbours predict probabilities of exactly 0, which become finite logits.
    logits = Predictions(probs=p).to_logits()
    labels = None if y is None else np.asarray(y).astype(np.int64).reshape(-1)
    return Predictions(logits=logits, labels=labels)


def _task(path: Path, group: Mapping[str, Any], data: str, model: str) -> CalArenaTask:
    missing = [name for name in _ARRAYS if name not in group]
    if missing:
        raise FormatError(f"{path}: expected {missing[0]} in {data}/{model}, got {', '.join(group)}")
    arrays = [group[name][()] for name in _ARRAYS]
    return CalArenaTask(data, model, as_predictions(*arrays[:2]), as_predictions(*arrays[2:]))


def _models(path: Path, file: Mapping[str, Any], data: str) -> list[str]:
    if not hasattr(file[data], "keys"):
        raise FormatError(f"{path}: expected groups {{dataset}}/{{model}}, got an array {data!r}")
    return sorted(file[data])
