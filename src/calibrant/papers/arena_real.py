"""The worker ``arena_real``: every method, and other libraries, on every file of predictions in a folder.

A file contains scores of classes, confidences with outcomes, or probabilities of several labels. A job is a
file, a number of fitting ``samples`` and a seed. The seed draws disjoint samples (for several labels: rows)
to fit and to test: at most 5,000 to test, and at least 300 and a fifth of the fitting samples; a file takes
part with the sizes that leave it as many. Settings:

- ``methods``: names of :data:`calibrant.posthoc.names.METHODS`, of :data:`COMPARED` and of
  :data:`calibrant.papers.peers.PEERS`; by default all that need no features, do not take minutes and are
  installed. The uncalibrated model and temperature scaling always take part. Of these, confidences and
  several labels are repaired by the methods that :func:`calibrant.evaluation.compare` knows for them; other
  libraries see them as two classes.
- ``seconds``: the CPU time that a fit may take, not counting what a comparison takes.

A method that cannot be fitted, needs too much memory or takes too long counts as the uncalibrated model;
``fitted`` is then 0, and the label ``reason`` says why. For the scores, no probability is smaller than 1e-12.

Where the choice of a comparison takes part, ``lead_nll``, ``lead_brier`` and ``lead_smece`` of each method
say how far the choice is ahead of it, in standard errors of the difference over test samples.

The label ``predictions`` is a digest of the predictions, by which the same file of two people is recognised.
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

from calibrant.data.files import FORMATS
from calibrant.data.labels import LabelPredictions
from calibrant.data.predictions import ClassPredictions, Predictions
from calibrant.errors import CalibrantError, FitError, InputError
from calibrant.evaluation import choose, compare
from calibrant.evaluation.calibrated import calibrated, fit_named
from calibrant.evaluation.evaluate import evaluate
from calibrant.files import digest
from calibrant.inputs import Floats
from calibrant.metrics.proper import log_losses, squared_errors
from calibrant.metrics.smooth_ece import smooth_ece_terms
from calibrant.outcomes import LEAST_PROB, Pairs, log_probs
from calibrant.papers.experiment import Job
from calibrant.papers.model_predictions import load_unweighed
from calibrant.papers.peers import PEERS, fit_peer, installed_peers
from calibrant.papers.posthoc import fit_by_name
from calibrant.papers.rows import Record
from calibrant.posthoc.names import (
    METHODS,
    POOL,
    canonical_name,
    method_named,
    method_term,
    resolve_for_pairs,
)

#: Results of a comparison: what it chooses, the same among methods that keep accuracy, and the pool of all.
CALIBRANT, KEEP_ACCURACY = "calibrant", "calibrant (keep accuracy)"
COMPARED = (CALIBRANT, KEEP_ACCURACY, POOL)

#: What a file may contain.
CLASSES, PAIRS, LABELS = KINDS = ("classes", "pairs", "labels")

REFERENCE_METHOD = "temperature"

#: The measures by which the choice is compared with single methods.
DUELS = ("nll", "brier", "smece")

_OF_CONFIDENCES = ("nll", "brier", "smece", "ece")

#: The measures by which methods are ranked, for each kind of predictions.
RANKED: Mapping[str, tuple[str, ...]] = {
    CLASSES: ("nll", "brier", "smece", "classwise_ece", "ece"),
    PAIRS: _OF_CONFIDENCES,
    LABELS: _OF_CONFIDENCES,
}

_MAX_TEST = 5000
_MIN_TEST = 300
_MIN_TEST_SHARE = 0.2

# A fit may need this much memory, as in a comparison.
_MEMORY = 1 << 30

# Takes predictions and returns them calibrated.
_Predict: TypeAlias = Callable[[Predictions], Predictions]

# What is no part of a task: methods that need features or groups do not take part.
_NOT_DIGESTED = ("features", "ids")


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
    whole = load_unweighed(data / key["file"])
    kind, known = kind_of(whole), digest_of(whole)
    fitting, test = draw_samples(whole, key["samples"], seed=seed)
    before = _scored(test)
    records: list[Record] = []
    terms: dict[str, Mapping[str, Floats]] = {}
    for attempt in _attempts(fitting, test, settings, seed):
        after = before if attempt.test is None else attempt.test
        values: dict[str, float | None] = dict(evaluate(after, measures=("accuracy", *RANKED[kind])).metrics)
        values |= {"fitted": float(attempt.test is not None), "fit_seconds": attempt.seconds}
        notes = {"reason": attempt.reason, "chosen": attempt.chosen}
        labels: dict[str, Any] = {
            "method": attempt.name,
            "classes": _n_classes(test),
            "n_test": _n_rows(test),
        }
        labels |= {"kind": kind, "predictions": known}
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
    outcomes = predictions.outcomes()
    pairs = Pairs(confidence=outcomes.confidence, correct=outcomes.correct)
    smece = smooth_ece_terms(**pairs)
    if isinstance(predictions, ClassPredictions):
        assert predictions.labels is not None
        nll = log_losses(predictions.labels, logits=predictions.logits)
        brier = squared_errors(predictions.to_probs(), predictions.labels)
    else:
        nll, brier = log_losses(**pairs), squared_errors(**pairs)
    terms = {"nll": nll.numpy(), "brier": brier.numpy(), "smece": smece}
    if isinstance(predictions, LabelPredictions):  # the labels of a row are not independent
        terms = {
            name: each.reshape(predictions.n_rows, predictions.n_labels).mean(axis=1)
            for name, each in terms.items()
        }
    return terms


def _difference(first: Floats, second: Floats) -> tuple[float, float]:
    """Return the mean of the differences of terms, and its standard error."""
    terms = first - second
    return float(terms.mean()), float(terms.std(ddof=1)) / math.sqrt(len(terms))


def draw_samples(predictions: Predictions, n: int, *, seed: int) -> tuple[Predictions, Predictions]:
    """Draw ``n`` samples to fit, and at most 5,000 others to test."""
    order = np.random.default_rng(seed).permutation(_n_rows(predictions))
    take = predictions.take_rows if isinstance(predictions, LabelPredictions) else predictions.take
    return take(order[:n]), take(order[n : n + _MAX_TEST])


def kind_of(predictions: Predictions) -> str:
    """Return what predictions are, one of :data:`KINDS`; refuse others, and those without the truth.

    Example:
        >>> kind_of(Predictions(confidence=[0.9, 0.4], correct=[1, 0]))
        'pairs'
    """
    if predictions.score is not None:
        raise InputError("predictions: expected confidences between 0 and 1, got scores that only rank")
    predictions.truth_for("methods are fitted to it")
    if isinstance(predictions, ClassPredictions):
        return CLASSES
    return LABELS if isinstance(predictions, LabelPredictions) else PAIRS


def digest_of(predictions: Predictions) -> str:
    """Return a digest of predictions and the truth: equal for the same numbers in files of any format."""
    stored = predictions.stored()
    arrays = {name: each for name, each in stored.arrays.items() if name not in _NOT_DIGESTED}
    named = [*sorted(arrays.items()), *stored.signals.items()]
    return digest(*(part for name, each in named for part in (name, each.double())))[:32]


def _n_rows(predictions: Predictions) -> int:
    return predictions.n_rows if isinstance(predictions, LabelPredictions) else predictions.n


def _n_classes(predictions: Predictions) -> int:
    """Return the number of classes or labels; right and wrong are two."""
    if isinstance(predictions, LabelPredictions):
        return predictions.n_labels
    return predictions.problem.k


def _count_samples(data: Path) -> tuple[dict[str, int], dict[str, str]]:
    """Return the number of samples of each file that takes part, and why other files are left out."""
    counts, left_out = {}, {}
    for path in sorted(data.rglob("*")):
        if path.suffix.lower() not in FORMATS or not path.is_file():
            continue
        name = path.relative_to(data).as_posix()
        try:
            predictions = load_unweighed(path)
            kind_of(predictions)
        except CalibrantError as error:
            left_out[name] = str(error).removeprefix(f"{path.name}: ").removeprefix("predictions: ")
            continue
        counts[name] = _n_rows(predictions)
    return counts, left_out


def needed_to_test(n_fitting: int) -> int:
    """Return how many samples a task must have beside its fitting samples."""
    return max(_MIN_TEST, math.ceil(_MIN_TEST_SHARE * n_fitting))


def _attempts(
    fitting: Predictions, test: Predictions, settings: Mapping[str, Any], seed: int
) -> Iterator[_Attempt]:
    """Fit all methods on the same samples, the reference before those that are compared with it."""
    kind = kind_of(fitting)
    peers = installed_peers(fitting.problem.k)
    every = [
        name for name, method in METHODS.items() if not (method.calibrator.needs_features or method.slow)
    ]
    wanted = settings.get("methods", [*every, *COMPARED, *peers])
    own = [canonical_name(name) for name in wanted if name not in (*COMPARED, *PEERS)]
    if kind != CLASSES:
        own = [name for name in own if method_term(name).name in resolve_for_pairs("all")]
        wanted = [name for name in wanted if name != KEEP_ACCURACY]  # no map of a confidence changes answers
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
            return _Attempt(name, spent, _scored(predict(test)))
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
            _scored(calibrated(result.calibrator, test)),
            chosen="" if name == POOL else result.name,
        )
        for name, result in results.items()
    ]


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, CalibrantError) else f"{type(error).__name__}: {error}"


def _fit_own(name: str, fitting: Predictions, seed: int) -> _Predict:
    problem = fitting.problem
    needed = method_named(name).calibrator.memory(problem.n, problem.k)
    if needed > _MEMORY:
        raise FitError(f"needs about {needed / 2**30:.1f} GB of memory, more than {_MEMORY / 2**30:.0f} GB")
    fit = fit_by_name if isinstance(fitting, ClassPredictions) else fit_named
    return partial(calibrated, fit(name, fitting, seed=seed))


def _fit_peer(name: str, fitting: Predictions) -> _Predict:
    """Fit a method of another library to scores of classes, or to wrong and right as two classes."""
    labels = fitting.problem.labels
    assert labels is not None
    predict = fit_peer(name, _scores(fitting), labels.numpy())
    return lambda test: test.with_scores(log_probs(torch.from_numpy(predict(_scores(test)))))


def _scores(predictions: Predictions) -> Floats:
    scores: Floats = predictions.problem.to_logits().double().numpy()
    return scores


def _scored(predictions: Predictions) -> Predictions:
    """Return predictions whose probabilities count as those of files do, in double precision."""
    if not isinstance(predictions, ClassPredictions):
        return predictions
    shifted = torch.log_softmax(predictions.to_logits().double(), dim=1)
    return Predictions(logits=shifted.clamp_min(math.log(LEAST_PROB)), labels=predictions.labels)


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
