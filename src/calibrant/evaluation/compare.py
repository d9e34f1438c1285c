"""Compare post-hoc methods by cross-validation, and pool them."""

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

from calibrant.data.predictions import Predictions
from calibrant.errors import CalibrantError, InputError
from calibrant.evaluation.calibrated import calibrated
from calibrant.evaluation.evaluate import evaluate
from calibrant.inputs import Progress, at_least_float32, check_count
from calibrant.metrics.names import MEASURES
from calibrant.metrics.paired import PairedDifference, paired_difference
from calibrant.metrics.proper import log_losses, negative_log_likelihood, squared_errors
from calibrant.posthoc.calibrator import Calibrator, Identity
from calibrant.posthoc.fitting.folds import random_folds
from calibrant.posthoc.fitting.shared import borrowed_seconds, in_folds, part_of, without_fold
from calibrant.posthoc.names import POOL, method_named, pool_members, resolve_methods
from calibrant.posthoc.pool import Pool
from calibrant.threads import SideBySide

ProperScore: TypeAlias = Literal["nll", "brier"]

# With more logits than this, three folds are enough: each still leaves many samples to fit on.
_MANY_LOGITS = 1 << 23

# A fit may need this much memory, or this many times the memory of the logits if that is more.
_MEMORY = 1 << 30
_TIMES_LOGITS = 16


@dataclass(frozen=True, eq=False)
class MethodResult:
    """Result of one method.

    Attributes:
        name: Name of the method in :data:`calibrant.posthoc.names.METHODS`, with its options if it has any.
        calibrator: The calibrator, fitted on the whole validation set.
        metrics: Measures of the out-of-fold predictions of the validation set: every sample is calibrated by
            a fit on the other folds.
        test_metrics: Measures on the test set, if one was given.
        improvement: Negative log-likelihood minus that of the uncalibrated model, on the test set if one was
            given, else out of fold; negative is better.
        fit_seconds: Time of the fit on the whole validation set, with what it shares with other methods; for
            the pool, the time of all fits with and without folds.
        losses: Proper scores of each out-of-fold prediction, by name of the score.
        held_out: The out-of-fold predictions of the validation set.
        predict_test: Returns the predictions of the test set, see :attr:`test`.
    """

    name: str
    calibrator: Calibrator
    metrics: Mapping[str, float]
    test_metrics: Mapping[str, float] | None
    improvement: PairedDifference
    fit_seconds: float
    losses: Mapping[ProperScore, Tensor]
    held_out: Predictions
    predict_test: Callable[[], Predictions | None]

    @property
    def test(self) -> Predictions | None:
        """The predictions of the test set, calibrated by ``calibrator``; None without a test set.

        Those of a test set with more than eight million logits are not kept, but made again on each access.
        """
        return self.predict_test()

    @property
    def measured(self) -> Predictions:
        """The predictions for reports: those of the test set if there is one, else the out-of-fold ones."""
        test = self.test
        return self.held_out if test is None else test


@dataclass(frozen=True, eq=False)
class Comparison:
    """Results of all methods, from simple to complex, and the methods that were skipped, with the reason."""

    results: tuple[MethodResult, ...]
    skipped: Mapping[str, str]
    n_folds: int
    n_validation: int
    n_test: int | None

    def __getitem__(self, name: str) -> MethodResult:
        return next(result for result in self.results if result.name == name)

    @property
    def pool(self) -> Pool | None:
        """The mixture of all methods, if there is one."""
        found = (result.calibrator for result in self.results if result.name == POOL)
        return next((pool for pool in found if isinstance(pool, Pool)), None)


def compare(
    validation: Predictions,
    *,
    test: Predictions | None = None,
    methods: str | Sequence[str] = "auto",
    fast: bool = False,
    keep_accuracy: bool = False,
    n_folds: int | None = None,
    n_bins: int = 15,
    n_resamples: int = 1000,
    seed: int = 0,
    progress: Progress | None = None,
) -> Comparison:
    """Fit every method on the validation set, and measure it out of fold and on the test set.

    A method is fitted once on all samples and once without each fold. What it finds there by a search of its
    own, such as the strength of a ridge, is used without the folds too, and what several methods have in
    common is computed once. Fits on more than half a million logits run side by side, one thread each, on as
    many cores as ``torch.get_num_threads()`` allows; their number does not change the results.

    The pool mixes the other methods in the shares that make their out-of-fold predictions likeliest, and is
    drawn back to temperature scaling as far as its advantage may be chance. Its own out-of-fold predictions
    use shares that were found on the other folds.

    Args:
        validation: Logits or probabilities with labels, held out from training.
        test: Other samples with the same classes, on which the final fits are measured.
        methods: ``"auto"`` (fast methods that work well for this number of classes), ``"all"``, or names from
            :data:`calibrant.posthoc.names.METHODS`, with options as in ``"smart(settled=0)"``. A method that
            needs too much memory is skipped. ``"pool"`` mixes all others; alone, it mixes the automatic ones.
        fast: Whether ``"auto"`` means the quick methods only.
        keep_accuracy: Whether methods that can change the predicted class are left out; named ones are
            refused.
        n_folds: Number of folds of the validation set; each is calibrated by a fit on the others. By default
            5, or 3 if there are more than eight million logits.
        n_bins: Number of bins of the binned measures.
        n_resamples: Number of resamples for the paired interval of the improvement.
        seed: Equal seeds give equal folds, fits and intervals.
        progress: Called with what is being fitted or measured, the time spent, and the time that all of it
            will take by what was measured so far, both in milliseconds of one core.
    """
    _labels(validation, "validation")
    assert validation.k is not None
    if test is not None:
        _labels(test, "test")
        if test.k != validation.k:
            raise InputError(f"test: expected the {validation.k} classes of validation, got {test.k}")
    named = resolve_methods(methods, n_classes=validation.k, fast=fast, keep_accuracy=keep_accuracy)
    if named == [POOL]:
        named = [*pool_members(named, n_classes=validation.k, keep_accuracy=keep_accuracy), POOL]
    if n_folds is None:
        n_folds = 5 if validation.n * validation.k <= _MANY_LOGITS else 3
    check_count(n_folds, "n_folds", at_least=2)
    if validation.n < 2 * n_folds:
        raise InputError(
            f"validation: expected at least {2 * n_folds} samples for {n_folds} folds, got {validation.n}"
        )
    folds = random_folds(validation.n, n_folds, seed=seed)
    work = _Work(validation, test, folds, n_bins=n_bins, n_resamples=n_resamples, seed=seed)
    work.run(named, progress)
    return Comparison(
        tuple(work.results[name] for name in named if name in work.results),
        MappingProxyType({name: work.skipped[name] for name in named if name in work.skipped}),
        n_folds,
        validation.n,
        None if test is None else test.n,
    )


def _too_large(name: str, logits: Tensor) -> str:
    """Return why the fit of a method would not fit in memory; an empty string if it does."""
    n, k = logits.shape
    needed = method_named(name).calibrator.memory(n, k)
    limit = max(_MEMORY, _TIMES_LOGITS * logits.numel() * logits.element_size())
    if needed <= limit:
        return ""
    return (
        f"a fit with {k:,} classes needs about {needed / 2**30:,.0f} GB of memory, more than the "
        f"{limit / 2**30:,.0f} GB allowed for {n:,} samples"
    )


@dataclass(frozen=True)
class _Job:
    """A fit of a method on all samples, a fit without a fold, or the measurement of the method."""

    name: str
    fold: int | None = None
    measures: bool = False

    def __str__(self) -> str:
        if self.measures:
            return f"measuring {self.name}"
        return self.name if self.fold is None else f"{self.name}, fold {self.fold + 1}"


class _Work:
    """The fits and measurements of a comparison, each done once."""

    def __init__(
        self,
        validation: Predictions,
        test: Predictions | None,
        folds: Tensor,
        *,
        n_bins: int,
        n_resamples: int,
        seed: int,
    ) -> None:
        self._validation, self._test, self._folds = validation, test, folds
        self._n_bins, self._n_resamples, self._seed = n_bins, n_resamples, seed
        self._labels = _labels(validation, "validation")
        self._logits = in_folds(validation.to_logits(), folds)
        self._fitted: dict[str, Calibrator] = {}
        self._held_out: dict[str, Tensor] = {}
        self._seconds: dict[_Job, float] = {}
        self._borrowed: dict[_Job, float] = {}
        self._waiting: set[_Job] = set()
        self.results: dict[str, MethodResult] = {}
        self.skipped: dict[str, str] = {}

    def run(self, names: Sequence[str], progress: Progress | None) -> None:
        """Do all jobs, as many at a time as there are cores; methods that cannot be fitted are skipped."""
        singles = [name for name in names if name != POOL]
        self.skipped = {name: reason for name in singles if (reason := _too_large(name, self._logits))}
        wanted = [name for name in singles if name not in self.skipped]
        self._waiting = {
            _Job(name, fold) for name in wanted for fold in (None, *self._folds.unique().tolist())
        }
        side_by_side: SideBySide[_Job, Any] = SideBySide(self._logits.numel())
        with side_by_side:
            # The slowest methods stand last; begun first, they do not keep all others waiting.
            for name in reversed(wanted):
                side_by_side.add(_Job(name), partial(self._timed, _Job(name)))
            if progress is not None and wanted:
                progress(wanted[-1], 0, 1)
            for job, ended in side_by_side.ended():
                for following in self._note(job, ended):
                    side_by_side.add(following, partial(self._timed, following))
                self._forget_parts()
                if progress is not None:
                    progress(str(next(iter(side_by_side.running()), job)), *self._times(wanted))
        if len(singles) < len(names):
            self._pool([self.results[name] for name in wanted if name in self.results])

    def _note(self, job: _Job, ended: Future[Any]) -> list[_Job]:
        """Keep the result of a job, or why it failed, and return the jobs that can begin now."""
        try:
            result = ended.result()
        except CalibrantError as error:
            self.skipped.setdefault(job.name, str(error))
        self._waiting.discard(job)
        if job.name in self.skipped:
            self._waiting = {other for other in self._waiting if other.name != job.name}
            return []
        if job.measures:
            self.results[job.name] = result
            return []
        if job.fold is None:
            self._fitted[job.name] = result
            return [_Job(job.name, fold) for fold in self._folds.unique().tolist()]
        rows = (self._folds == job.fold).nonzero().squeeze(1)
        if job.name not in self._held_out:
            self._held_out[job.name] = result.new_empty(self._logits.shape)
        self._held_out[job.name][rows] = result
        unfinished = any(other.name == job.name for other in self._waiting)
        return [] if unfinished else [_Job(job.name, measures=True)]

    def _timed(self, job: _Job) -> Any:  # noqa: ANN401  # as _do
        start = time.perf_counter()
        with borrowed_seconds() as borrowed:
            result = self._do(job)
        self._seconds[job] = time.perf_counter() - start
        self._borrowed[job] = borrowed()
        return result

    def _do(self, job: _Job) -> Any:  # noqa: ANN401  # a calibrator, predictions or a MethodResult
        method, features = method_named(job.name), self._validation.features
        if job.measures:
            return self._measure(job.name)
        if job.fold is None:
            return method.fit(self._logits, self._labels, features=features, seed=self._seed)
        rest, held_out = self._folds != job.fold, self._folds == job.fold
        calibrator = method.fit(
            *without_fold(self._logits, self._labels, job.fold),
            features=None if features is None else features[rest],
            seed=self._seed,
            **self._fitted[job.name].searched,
        )
        held_out_features = None if features is None else features[held_out]
        return calibrator.predict_log_proba(self._logits[held_out], held_out_features).cpu()

    def _pool(self, members: Sequence[MethodResult]) -> None:
        """Mix the methods that could be fitted."""
        if len(members) < 2:
            self.skipped[POOL] = "fewer than two methods could be fitted"
            return
        start = time.perf_counter()
        self._fitted[POOL], self._held_out[POOL] = Pool.of(
            {member.name: member.calibrator for member in members},
            [_log_probs(member) for member in members],
            self._labels,
            self._folds,
        )
        spent = sum(seconds for job, seconds in self._seconds.items() if not job.measures)
        self._seconds[_Job(POOL)] = spent + time.perf_counter() - start
        self._borrowed[_Job(POOL)] = 0.0
        self.results[POOL] = self._measure(POOL)

    def _measure(self, name: str) -> MethodResult:
        calibrator = self._fitted[name]
        predicted = self._held_out.pop(name)
        if isinstance(calibrator, Identity):
            predicted = self._logits  # the same predictions without a copy
        held_out = Predictions(logits=predicted, labels=self._labels)
        assert held_out.labels is not None
        shown = [key for key, measure in MEASURES.items() if measure.compared]
        metrics = evaluate(held_out, measures=shown, n_bins=self._n_bins).metrics
        losses: dict[ProperScore, Tensor] = {
            "nll": log_losses(held_out.labels, logits=held_out.logits),
            "brier": squared_errors(held_out.to_probs(), held_out.labels),
        }
        predict_test: Callable[[], Predictions | None] = partial(_predicted, calibrator, self._test)
        final = predict_test()
        if final is not None and not self._is_large():
            predict_test = partial(_itself, final)
        return MethodResult(
            name=name,
            calibrator=calibrator,
            metrics=metrics,
            test_metrics=None
            if final is None
            else evaluate(final, measures=shown, n_bins=self._n_bins).metrics,
            improvement=self._improvement(held_out, self._validation)
            if final is None or self._test is None
            else self._improvement(final, self._test),
            fit_seconds=self._seconds[_Job(name)] + self._borrowed[_Job(name)],
            losses=MappingProxyType(losses),
            held_out=held_out,
            predict_test=predict_test,
        )

    def _improvement(self, after: Predictions, before: Predictions) -> PairedDifference:
        return paired_difference(
            negative_log_likelihood,
            after.to_logits(),
            before.to_logits(),
            after.labels,
            reads="logits",
            n_resamples=self._n_resamples,
            seed=self._seed,
        )

    def _is_large(self) -> bool:
        return self._test is not None and self._test.n * self._logits.shape[1] > _MANY_LOGITS

    def _times(self, names: Sequence[str]) -> tuple[int, int]:
        """Return the milliseconds that were spent, and those that everything will take at this rate."""
        known = dict(self._seconds)
        n_folds, to_come = len(self._folds.unique()), 0.0
        fits = [seconds for job, seconds in known.items() if job == _Job(job.name)]
        for name in (name for name in names if name not in self.skipped):
            fit = known.get(_Job(name), sum(fits) / max(len(fits), 1))
            folds = [known[job] for fold in range(n_folds) if (job := _Job(name, fold)) in known]
            to_come += fit if _Job(name) not in known else 0.0
            to_come += (n_folds - len(folds)) * (sum(folds) / len(folds) if folds else fit)
        spent = sum(known.values())
        return int(1000 * spent), int(1000 * (spent + to_come))

    def _forget_parts(self) -> None:
        """Drop shared results that no fit will use again; fits on all samples may use those of any part."""
        folds_in_use = {job.fold for job in self._waiting}
        part = part_of(self._logits)
        assert part is not None
        if None not in folds_in_use:
            part.forget()
            for fold in set(self._folds.unique().tolist()) - folds_in_use:
                part.forget(fold)


def _log_probs(result: MethodResult) -> Tensor:
    """Return the out-of-fold log-probabilities; the uncalibrated model has logits instead."""
    logits = at_least_float32(result.held_out.to_logits())
    return torch.log_softmax(logits, dim=1) if isinstance(result.calibrator, Identity) else logits


def _predicted(calibrator: Calibrator, test: Predictions | None) -> Predictions | None:
    return None if test is None else calibrated(calibrator, test)


def _itself(predictions: Predictions) -> Predictions:
    return predictions


def _labels(predictions: Predictions, name: str) -> Tensor:
    if predictions.k is None or predictions.labels is None:
        raise InputError(f"{name}: expected logits or probs with labels, got predictions without them")
    return predictions.labels
