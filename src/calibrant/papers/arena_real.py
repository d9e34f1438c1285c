"""The worker ``arena_real``: every method, and other libraries, on every file of predictions in a folder.

A job is a file, a number of fitting ``samples`` and a seed. The seed draws disjoint samples to fit and to
test: at most 5,000 to test, and at least 300 and a fifth of the fitting samples; a file takes part with the
sizes that leave it as many. Settings:

- ``methods``: names of :data:`calibrant.posthoc.names.METHODS`, of :data:`COMPARED` and of
  :data:`calibrant.papers.peers.PEERS`; by default all that need no features, do not take minutes and are
  installed. The uncalibrated model and temperature scaling always take part.
- ``seconds``: the CPU time that a fit may take, not counting what a comparison takes.

A method that cannot be fitted, needs too much memory or takes too long counts as the uncalibrated model;
``fitted`` is then 0, and the label ``reason`` says why. For the scores, no probability is smaller than 1e-12.

Where the choice of a comparison takes part, ``lead_nll``, ``lead_brier`` and ``lead_smece`` of each method
say how far the choice is ahead of it, in standard errors of the difference over test samples.
"""

import math
import signal
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from calibrant.data.files import FORMATS
from calibrant.data.predictions import Predictions
from calibrant.errors import CalibrantError, FitError, InputError
from calibrant.evaluation import choose, compare
from calibrant.evaluation.calibrated import calibrated
from calibrant.evaluation.evaluate import evaluate
from calibrant.inputs import Floats
from calibrant.metrics.proper import log_losses, squared_errors
from calibrant.metrics.smooth_ece import smooth_ece_terms
from calibrant.outcomes import LEAST_PROB, log_probs
from calibrant.papers.experiment import Job
from calibrant.papers.model_predictions import load_unweighed
from calibrant.papers.peers import PEERS, fit_peer, installed_peers
from calibrant.papers.posthoc import fit_by_name
from calibrant.papers.rows import Record
from calibrant.posthoc.names import METHODS, canonical_name, method_named

#: Results of a comparison: what it chooses, the same among methods that keep accuracy, and the pool of all.
CALIBRANT, KEEP_ACCURACY, POOL = COMPARED = ("calibrant", "calibrant (keep accuracy)", "pool")

REFERENCE_METHOD = "temperature"

#: The measures by which the choice is compared with single methods.
DUELS = ("nll", "brier", "smece")

_MEASURES = ("accuracy", "nll", "brier", "ece", "smece", "classwise_ece")

_MAX_TEST = 5000
_MIN_TEST = 300
_MIN_TEST_SHARE = 0.2

# A fit may need this much memory, as in a comparison.
_MEMORY = 1 << 30

# Takes predictions and returns their calibrated log-probabilities.
_Predict: TypeAlias = Callable[[Predictions], Tensor]


class OutOfTimeError(BaseException):
    """A fit took more CPU time than allowed; no ``except Exception`` in a library can hide it."""


@dataclass(frozen=True)
class _Attempt:
    """The test predictions of a method, or the reason why there are none."""

    name: str
    seconds: float
    test: Predictions | None
    reason: str = ""
    chosen: str = ""


def expand_files(jobs: Sequence[Job], data: Path | None) -> tuple[list[Job], dict[str, str]]:
    """Return each job for each file that is large enough, and why other files are left out, by their names.

    Args:
        jobs: Jobs that name a number of ``samples``.
        data: Folder of predictions; its subfolders are read too.
    """
    if data is None or not data.is_dir():
        raise InputError(f"data: expected a folder of predictions, got {'none' if data is None else data}")
    counts, left_out = _count_samples(data)
    expanded = [
        replace(job, key={"file": name, **job.key})
        for job in jobs
        for name, n in counts.items()
        if n >= job.key["samples"] + needed_to_test(job.key["samples"])
    ]
    smallest = min(job.key["samples"] for job in jobs)
    least = smallest + needed_to_test(smallest)
    left_out |= {
        name: f"expected at least {least} samples, {smallest} of them to fit, got {n}"
        for name, n in counts.items()
        if n < least
    }
    if not expanded:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in left_out.items())
        raise InputError(f"data: expected predictions with labels, got none in {data} ({reasons})")
    return expanded, left_out


def run_arena_real(
    key: Mapping[str, Any], settings: Mapping[str, Any], seed: int, data: Path | None
) -> Iterator[Record]:
    """Yield a record for each method on the file that the key names."""
    assert data is not None
    fitting, test = draw_samples(load_unweighed(data / key["file"]), key["samples"], seed=seed)
    before = _scored(test.to_logits(), test)
    records: list[Record] = []
    terms: dict[str, Mapping[str, Floats]] = {}
    for attempt in _attempts(fitting, test, settings, seed):
        after = before if attempt.test is None else attempt.test
        values: dict[str, float | None] = dict(evaluate(after, measures=_MEASURES).metrics)
        values |= {"fitted": float(attempt.test is not None), "fit_seconds": attempt.seconds}
        notes = {"reason": attempt.reason, "chosen": attempt.chosen}
        labels = {"method": attempt.name, "classes": test.k, "n_test": test.n}
        records.append(Record(labels | {name: note for name, note in notes.items() if note}, values))
        terms[attempt.name] = _terms(after)
    for record in records:
        own = terms[record.labels["method"]]
        behind, error = _difference(own["nll"], terms[REFERENCE_METHOD]["nll"])
        further = {"nll_behind_temperature": behind, "nll_behind_temperature_se": error}
        if CALIBRANT in terms:
            for measure in DUELS:
                behind, error = _difference(own[measure], terms[CALIBRANT][measure])
                further[f"lead_{measure}"] = behind / error if error > 0 else 0.0
        yield replace(record, values={**record.values, **further})


def _terms(predictions: Predictions) -> dict[str, Floats]:
    """Return for each measure of a duel a number per sample; their mean is the measure."""
    assert predictions.labels is not None
    outcomes = predictions.outcomes()
    return {
        "nll": log_losses(predictions.labels, logits=predictions.logits).numpy(),
        "brier": squared_errors(predictions.to_probs(), predictions.labels).numpy(),
        "smece": smooth_ece_terms(confidence=outcomes.confidence, correct=outcomes.correct),
    }


def _difference(first: Floats, second: Floats) -> tuple[float, float]:
    """Return the mean of the differences of terms, and its standard error."""
    terms = first - second
    return float(terms.mean()), float(terms.std(ddof=1)) / math.sqrt(len(terms))


def draw_samples(predictions: Predictions, n: int, *, seed: int) -> tuple[Predictions, Predictions]:
    """Draw ``n`` samples to fit, and at most 5,000 others to test."""
    order = np.random.default_rng(seed).permutation(predictions.n)
    return predictions.take(order[:n]), predictions.take(order[n : n + _MAX_TEST])


def _count_samples(data: Path) -> tuple[dict[str, int], dict[str, str]]:
    """Return the number of samples of each file of class scores, and why other files are left out."""
    counts, left_out = {}, {}
    for path in sorted(data.rglob("*")):
        if path.suffix.lower() not in FORMATS or not path.is_file():
            continue
        name = path.relative_to(data).as_posix()
        try:
            predictions = load_unweighed(path).classes("scores of all classes")
        except CalibrantError as error:
            left_out[name] = str(error).removeprefix(f"{path.name}: ").removeprefix("predictions: ")
            continue
        counts[name] = predictions.n
    return counts, left_out


def needed_to_test(n_fitting: int) -> int:
    """Return how many samples a task must have beside its fitting samples."""
    return max(_MIN_TEST, math.ceil(_MIN_TEST_SHARE * n_fitting))


def _attempts(
    fitting: Predictions, test: Predictions, settings: Mapping[str, Any], seed: int
) -> Iterator[_Attempt]:
    """Fit all methods on the same samples, the reference before those that are compared with it."""
    peers = installed_peers(fitting.classes().k)
    every = [
        name for name, method in METHODS.items() if not (method.calibrator.needs_features or method.slow)
    ]
    wanted = settings.get("methods", [*every, *COMPARED, *peers])
    others = (*COMPARED, *PEERS)
    own = [canonical_name(name) for name in wanted if name not in others]
    seconds = settings.get("seconds", 0.0)
    for name in dict.fromkeys((REFERENCE_METHOD, "uncalibrated", *own)):
        yield _attempt(name, partial(_fit_own, name, fitting, seed), test, seconds)
    yield from _compared(wanted, fitting, test, seed)
    for name in (name for name in peers if name in wanted):
        yield _attempt(name, partial(_fit_peer, name, fitting), test, seconds)


def _attempt(name: str, fit: Callable[[], _Predict], test: Predictions, seconds: float) -> _Attempt:
    """Fit within a limit of CPU seconds, and predict; a failure becomes a reason."""
    start = time.process_time()
    spent = None
    try:
        with _cpu_limit(seconds):
            predict = fit()
            spent = time.process_time() - start
            return _Attempt(name, spent, _scored(predict(test), test))
    except OutOfTimeError:
        reason = f"takes more than {seconds:g} seconds"
    except Exception as error:  # another library may raise anything; one method must not end the run
        reason = _reason(error)
    return _Attempt(name, time.process_time() - start if spent is None else spent, None, reason)


def _compared(names: Collection[str], fitting: Predictions, test: Predictions, seed: int) -> list[_Attempt]:
    """Return what comparisons find: each result takes the time of its whole comparison."""
    found = []
    for group, keep_accuracy in (((CALIBRANT, POOL), False), ((KEEP_ACCURACY,), True)):
        wanted = [name for name in group if name in names]
        start = time.process_time()
        try:
            found += _from_comparison(wanted, fitting, test, keep_accuracy=keep_accuracy, seed=seed)
        except Exception as error:  # reported as a failure of the method, as above
            seconds = time.process_time() - start
            found += [_Attempt(name, seconds, None, _reason(error)) for name in wanted]
    return found


def _from_comparison(
    names: Collection[str], fitting: Predictions, test: Predictions, *, keep_accuracy: bool, seed: int
) -> list[_Attempt]:
    if not names:
        return []
    start = time.process_time()
    comparison = compare(fitting, keep_accuracy=keep_accuracy, seed=seed)
    results = {name: choose(comparison) for name in names if name != POOL}
    results |= {each.name: each for each in comparison.results if each.name == POOL and POOL in names}
    seconds = time.process_time() - start
    return [
        _Attempt(
            name,
            seconds,
            _scored(calibrated(result.calibrator, test).to_logits(), test),
            chosen="" if name == POOL else result.name,
        )
        for name, result in results.items()
    ]


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, CalibrantError) else f"{type(error).__name__}: {error}"


def _fit_own(name: str, fitting: Predictions, seed: int) -> _Predict:
    needed = method_named(name).calibrator.memory(fitting.n, fitting.classes().k)
    if needed > _MEMORY:
        raise FitError(f"needs about {needed / 2**30:.1f} GB of memory, more than {_MEMORY / 2**30:.0f} GB")
    calibrator = fit_by_name(name, fitting, seed=seed)
    return lambda test: calibrated(calibrator, test).to_logits()


def _fit_peer(name: str, fitting: Predictions) -> _Predict:
    assert fitting.labels is not None
    predict = fit_peer(name, fitting.to_logits().double().numpy(), fitting.labels.numpy())

    def scores(test: Predictions) -> Tensor:
        probs = torch.from_numpy(predict(test.to_logits().double().numpy()))
        return log_probs(probs)

    return scores


def _scored(log_probs: Tensor, test: Predictions) -> Predictions:
    """Return predictions whose probabilities count as those of files do, in double precision."""
    shifted = torch.log_softmax(log_probs.double(), dim=1)
    return Predictions(logits=shifted.clamp_min(math.log(LEAST_PROB)), labels=test.labels)


@contextmanager
def _cpu_limit(seconds: float) -> Iterator[None]:
    """Raise :class:`OutOfTimeError` after this much CPU time; 0 is no limit."""
    if not hasattr(signal, "setitimer"):  # Windows has no such timer
        yield
        return

    def stop(_signal: int, _frame: FrameType | None) -> None:
        raise OutOfTimeError

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
