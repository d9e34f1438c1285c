"""Compare post-hoc methods by cross-validation, and pool them."""

import ctypes
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from threading import Lock
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

from calibrant.data.predictions import Predictions, ScorePredictions
from calibrant.errors import CalibrantError, InputError, did_you_mean
from calibrant.evaluation.calibrated import FittingTask, calibrated, is_of_pairs
from calibrant.evaluation.evaluate import evaluate
from calibrant.evaluation.given import PredictionsLike, given_predictions
from calibrant.evaluation.large_sets import Parts, parts_of
from calibrant.evaluation.tables import methods_table, remarks_on
from calibrant.files import without_nan
from calibrant.inference.memory import remembering
from calibrant.inference.paired import Measured, PairedDifference, differences_from
from calibrant.inference.rows import as_rows
from calibrant.inference.units import Units
from calibrant.inputs import Progress, at_least_float32, check_count
from calibrant.metrics.names import MEASURES
from calibrant.metrics.proper import log_losses, negative_log_likelihood, squared_errors
from calibrant.outcomes import Pairs
from calibrant.posthoc.by_group import ByGroup, places_of_families
from calibrant.posthoc.calibrator import Calibrator, Identity
from calibrant.posthoc.fitting.folds import each_fold
from calibrant.posthoc.fitting.weighing import rows_of
from calibrant.posthoc.fitting_set import FOLDS, MANY_LOGITS, borrowed_seconds
from calibrant.posthoc.names import (
    BY_GROUP,
    METHODS,
    POOL,
    SEGMENTS,
    method_named,
    pool_members,
    resolve_for_pairs,
    resolve_methods,
    safe_method,
    that_take_weights,
    why_not_automatic,
)
from calibrant.posthoc.pool import Pool, pool_of
from calibrant.results import FrozenDict, Result
from calibrant.show.numbers import rows_of_units
from calibrant.show.table import Table
from calibrant.threads import SideBySide, one_thread_each

ProperScore: TypeAlias = Literal["nll", "brier"]

_UNCALIBRATED = "uncalibrated"

# A fit may need this much memory, or this many times the memory of the logits if that is more.
_MEMORY = 1 << 30
_TIMES_LOGITS = 16


@dataclass(frozen=True, eq=False)
class MethodResult(Result):
    """Result of one method.

    Attributes:
        name: Name of the method in :data:`calibrant.posthoc.names.METHODS`, with its options if it has any.
        calibrator: The calibrator, fitted on the whole validation set, or on a part of a large one.
        metrics: Measures of the out-of-fold predictions of the validation set: every sample is calibrated by
            a fit on the other folds.
        test_metrics: Measures on the test set, if one was given.
        improvement: Negative log-likelihood minus that of the uncalibrated model, on the test set if one was
            given, else out of fold; negative is better.
        fit_seconds: Time of the fit on the whole validation set, with what it shares with other methods; for
            the pool, the time of all fits with and without folds.
        losses: Proper scores of each out-of-fold prediction, by name of the score.
        held_out: The out-of-fold predictions of the validation set. Samples of weight 0 are in no fold:
            theirs are those of ``calibrator``, which has not seen them. Of a large set with a test set beside
            it, those of the part on which methods were chosen.
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

    def to_dict(self) -> dict[str, Any]:
        """Return the numbers as plain values for JSON, without predictions and the calibrator."""
        numbers = {
            "validation": self.metrics,
            "test": self.test_metrics,
            "nll_difference": asdict(self.improvement),
            "fit_seconds": self.fit_seconds,
            "parameters": self.calibrator.n_parameters,
            **self.pool_numbers,
        }
        plain: dict[str, Any] = without_nan(numbers)
        return plain

    @property
    def pool_numbers(self) -> dict[str, Any]:
        """What a pool consists of: weights, temperature, what follows them; nothing for other methods."""
        pool = pool_of(self.calibrator)
        if pool is None:
            return {}
        return {
            "weights": pool.weights,
            "temperature": float(pool.temperature),
            "then_temperatures": pool.has_curve,
        }

    @property
    def measured(self) -> Predictions:
        """The predictions for reports: those of the test set if there is one, else the out-of-fold ones."""
        test = self.test
        return self.held_out if test is None else test

    @property
    def measured_metrics(self) -> Mapping[str, float]:
        """The measures of :attr:`measured`."""
        return self.metrics if self.test_metrics is None else self.test_metrics


@dataclass(frozen=True, eq=False)
class Comparison(Result):
    """Results of all methods, from simple to complex, and the methods that were skipped, with the reason.

    Attributes:
        results: The result of each method.
        skipped: Why each other method was left out, by name.
        n_folds: Number of folds.
        n_validation: Number of validation samples.
        n_test: Number of test samples, if there are any.
        n_units: Number of units that validation samples belong to; None if none were given.
        parts: The validation samples that were used; None if all were.
    """

    results: tuple[MethodResult, ...]
    skipped: Mapping[str, str]
    n_folds: int
    n_validation: int
    n_test: int | None
    n_units: int | None = None
    parts: Parts | None = None

    def __getitem__(self, name: str) -> MethodResult:
        """Return the result of a method, by its name."""
        names = [result.name for result in self.results]
        if name in names:
            return self.results[names.index(name)]
        if name in self.skipped:
            raise InputError(f"comparison: expected a fitted method, got {name!r}: {self.skipped[name]}")
        raise InputError(
            f"comparison: expected one of {', '.join(names)}, got {name!r}{did_you_mean(str(name), names)}"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the numbers of all methods as plain values for JSON."""
        return {
            "n_validation": self.n_validation,
            "n_test": self.n_test,
            **({} if self.n_units is None else {"n_units": self.n_units}),
            "n_folds": self.n_folds,
            **({} if self.parts is None else self.parts.to_dict()),
            "methods": {result.name: result.to_dict() for result in self.results},
            "skipped": dict(self.skipped),
        }

    def to_table(self, chosen: MethodResult | None = None) -> Table:
        """Return the measures of each method, on the test set if there is one; the chosen one is marked."""
        return methods_table(
            self.results,
            where="out of fold" if self.n_test is None else "on test",
            shares={} if self.pool is None else self.pool.weights,
            chosen=chosen,
            title=f"Comparison: {len(self.results)} methods, "
            + rows_of_units(self.n_validation, self.n_units, "validation samples"),
            notes=[
                *remarks_on(self.skipped),
                *self._about_units,
                *([] if self.parts is None else [self.parts.sentence]),
            ],
        )

    @property
    def _about_units(self) -> list[str]:
        if self.n_units is None:
            return []
        return [f"{rows_of_units(self.n_validation, self.n_units)}: no fold splits a unit"]

    def _repr_html_(self) -> str:
        """Return what notebooks show: the table without times, which differ from run to run."""
        table = self.to_table()
        times = next(column for column in table.columns if column.heading == "fit s")
        return table.without(times)._repr_html_()

    @property
    def pool(self) -> Pool | None:
        """The mixture of all methods, if there is one."""
        return next((pool_of(result.calibrator) for result in self.results if result.name == POOL), None)


def compare(
    validation: PredictionsLike,
    *,
    test: PredictionsLike | None = None,
    methods: str | Sequence[str] = "auto",
    fast: bool = False,
    keep_accuracy: bool = False,
    segments: bool = False,
    all_samples: bool = False,
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
    drawn back to temperature scaling as far as its advantage may be chance. With more than two classes SMART
    follows the mixture. Its own out-of-fold predictions use shares and curves that were found on the other
    folds.

    Of large sets random samples are used (:mod:`calibrant.evaluation.large_sets`): at most 20,000 to
    cross-validate, choose and mix, and at most 100,000 for the final fits, which take over what was found by
    a search; more with fewer than ten classes, of confidences or two classes 500,000 for both. All samples of
    the test set are measured, and without one all validation samples: those outside the folds by fits that
    have not seen them. Sets with groups, graded outcomes or a search for segments are used whole.

    Args:
        validation: Logits or probabilities with labels, held out from training; or confidences with
            ``correct``, which methods for two classes, wrong and right, repair; or the path of a file of
            them. If it has groups, the pool is also corrected for each of them
            (:class:`~calibrant.posthoc.ByGroup`), and the correction is compared under the name
            ``by_group``. If it has weights, every fit, measure and standard error uses them, samples of
            weight 0 are left out, and methods that cannot take weights are skipped, or refused if they are
            named. If it has units, no unit is split between folds, and standard errors are those of units.
        test: Other samples with the same classes, on which the final fits are measured; or a path.
        methods: ``"auto"`` (fast methods that work well for this number of classes), ``"all"``, or names from
            :data:`calibrant.posthoc.names.METHODS`, with options as in ``"smart(settled=0)"``. A method that
            needs too much memory is skipped. ``"pool"`` mixes all others; alone, it mixes the automatic ones.
        fast: Whether ``"auto"`` means the quick methods only.
        keep_accuracy: Whether methods that can change the predicted class are left out; named ones are
            refused.
        segments: Whether segments of the features, or of the signals of a black box, are looked for and
            corrected, too: the method ``"segments"`` beside the others.
        all_samples: Whether large sets are used whole.
        n_folds: Number of folds of the validation set; each is calibrated by a fit on the others. By default
            5, or 3 if there are more than eight million logits.
        n_bins: Number of bins of the binned measures.
        n_resamples: Number of resamples for the paired interval of the improvement.
        seed: Equal seeds give equal folds, fits and intervals.
        progress: Called with what is being fitted or measured, the time spent, and the time that all of it
            will take by what was measured so far, both in milliseconds of one core.
    """
    rows = given_predictions(validation, name="validation")
    given = rows.split()
    validation = _labelled(given.counted(), "validation")
    if test is not None:
        rows_of_test = given_predictions(test, name="test")
        test = _labelled(rows_of_test.split(), "test")
        if test.k != validation.k:
            raise InputError(f"test: expected {validation.described}, as in validation, got {test.described}")
        n_test = rows_of_test.n
        test = test.in_order(validation.class_names, name="test")
    named = _resolved(validation, methods, fast=fast, keep_accuracy=keep_accuracy)
    named = _with_segments(named, validation, keep_accuracy=keep_accuracy) if segments else named
    parts = None if all_samples or SEGMENTS in named else parts_of(validation, seed=seed)
    n_folds = _checked_folds(validation, n_folds)
    work = _Work(validation, test, n_folds, parts, n_bins=n_bins, n_resamples=n_resamples, seed=seed)
    with remembering():
        work.run(named, progress, automatic=methods == "auto")
    results = [work.results[name] for name in (*named, BY_GROUP) if name in work.results]
    return Comparison(
        tuple(
            results
            if validation.n == given.n or (parts is not None and test is not None)
            else (_of_all_rows(each, given) for each in results)
        ),
        FrozenDict({name: work.skipped[name] for name in named if name in work.skipped}),
        n_folds,
        validation.n if rows.outcome is None else rows.n,
        None if test is None else n_test,
        rows.n_units,
        parts,
    )


def _with_segments(named: list[str], validation: Predictions, *, keep_accuracy: bool) -> list[str]:
    """Return the methods with that which looks for segments; refuse predictions that have none."""
    if validation.beside is None:
        raise InputError(
            "segments: expected features, or signals beside the confidence, in which segments can be looked "
            "for, got none; give such columns, or name groups"
        )
    if keep_accuracy:
        raise InputError(
            "segments: expected that accuracy may change, got keep_accuracy=True; leave out one of the two"
        )
    return [name for name in METHODS if name in (*named, SEGMENTS)] + [
        name for name in named if name not in METHODS
    ]


def _checked_folds(validation: Predictions, n_folds: int | None) -> int:
    """Return the number of folds: the given one, or as many as a fitting set has by default."""
    if n_folds is None:
        n_folds = FOLDS if validation.n * (validation.k or 2) <= MANY_LOGITS else 3
    check_count(n_folds, "n_folds", at_least=2)
    if validation.n_independent < 2 * n_folds:
        what = "samples" if validation.n_units is None else "units"
        raise InputError(
            f"validation: expected at least {2 * n_folds} {what} for {n_folds} folds, got "
            f"{validation.n_independent}"
        )
    return n_folds


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
        n_folds: int,
        parts: Parts | None,
        *,
        n_bins: int,
        n_resamples: int,
        seed: int,
    ) -> None:
        self._every, self._test, self._rows = validation, test, None if parts is None else parts.choice
        # The part on which methods are cross-validated, and that for final fits where that is another one.
        self._validation = validation = validation if parts is None else validation.take(parts.choice)
        self._final: FittingTask | None = None
        if parts is not None and len(parts.fitting) > len(parts.choice):
            self._final = FittingTask.of(self._every.take(parts.fitting), seed=seed)
        self._finals: dict[str, Calibrator] = {}
        self._n_bins, self._n_resamples, self._seed = n_bins, n_resamples, seed
        self._task = FittingTask.of(validation, seed=seed)
        self._data, self._logits = self._task.data, self._task.logits
        self._labels, self._weights = validation.truth_for("").long(), validation.weights
        # Of all samples, while those of the fitting set are of the samples that teach something.
        drawn = Units.of(validation.units, validation.n)
        self._units = None if drawn.are_rows else torch.from_numpy(drawn.code).to(self._labels.device)
        self._features = validation.beside
        # Fits on all samples keep their own folds, so that they are those of a fit alone.
        same = len(self._data.folds.unique()) == n_folds
        self._parts = self._data if same else self._data.in_folds(n_folds)
        # A sample that teaches nothing is predicted with the first fold: it has one class.
        self._folds = torch.zeros_like(self._labels)
        self._folds[slice(None) if self._data.rows is None else self._data.rows] = self._parts.folds
        self._fitted: dict[str, Calibrator] = {}
        self._held_out: dict[str, Tensor] = {}
        self._seconds: dict[_Job, float] = {}
        self._borrowed: dict[_Job, float] = {}
        self._waiting: set[_Job] = set()
        self._before: Measured | None = None
        self._one_at_a_time = Lock()
        self.results: dict[str, MethodResult] = {}
        self.skipped: dict[str, str] = {}

    def run(self, names: Sequence[str], progress: Progress | None, *, automatic: bool) -> None:
        """Do all jobs, as many at a time as there are cores; methods that cannot be fitted are skipped."""
        singles, self._automatic = [name for name in names if name != POOL], automatic
        self.skipped = {name: reason for name in singles if (reason := self._why_not(name))}
        wanted = [name for name in singles if name not in self.skipped]
        self._waiting = {
            _Job(name, fold) for name in wanted for fold in (None, *self._folds.unique().tolist())
        }
        side_by_side: SideBySide[_Job, Any] = SideBySide((self._final or self._task).logits.numel())
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
        # Blocks that fit into the cache are too small for torch's threads.
        with one_thread_each():
            fitted = [self.results[name] for name in wanted if name in self.results]
            if len(singles) < len(names):
                self._pool(fitted)
            if self._validation.groups is not None and fitted:
                self._by_group(POOL if POOL in self.results else fitted[-1].name)

    def _why_not(self, name: str) -> str:
        """Return why a method is not fitted; an empty string if it is."""
        if self._weights is not None and not self._task.method(name).takes_weights:
            return "it cannot take weights"
        if self._data.rows_masked and not self._task.method(name).takes_masked:
            return "it cannot take masked classes"
        z = (self._final or self._task).logits
        return _too_large(name, z) or (why_not_automatic(name, *z.shape) if self._automatic else "")

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
        method, features = self._task.method(job.name), self._features
        if job.measures:
            # Beside each other, the copies that measures make of many predictions would take much memory.
            with self._one_at_a_time if self._is_large() else nullcontext():
                return self._measure(job.name)
        if job.fold is None:
            found = method.fit(self._data)
            if self._final is not None:
                self._finals[job.name] = method.fit(self._final.data, options=found.for_folds)
            return found
        held_out = self._folds == job.fold
        part = self._parts.without(job.fold)
        calibrator = method.fit(part, options=self._fitted[job.name].for_folds)
        held_out_features = None if features is None else features[held_out]
        return calibrator.predict_log_proba(self._logits[held_out], held_out_features).cpu()

    def _pool(self, members: Sequence[MethodResult]) -> None:
        """Mix the methods that could be fitted."""
        if len(members) < 2:
            self.skipped[POOL] = "fewer than two methods could be fitted"
            return
        start = time.perf_counter()
        held_out, rows = [self._log_probs(member) for member in members], self._data.rows
        pool, mixed = Pool.of(
            {member.name: self._fitted[member.name] for member in members},
            held_out if rows is None else [each[rows] for each in held_out],
            self._data.labels,
            self._parts.folds,
            weights=self._data.weights,
            units=self._data.units,
            safe=safe_method([member.name for member in members], of_pairs=self._task.of_pairs),
        )
        self._fitted[POOL] = pool
        if self._final is not None:
            self._finals[POOL] = pool.with_members(self._finals)
        self._held_out[POOL] = mixed if rows is None else held_out[-1].index_copy(0, rows, mixed)
        spent = sum(seconds for job, seconds in self._seconds.items() if not job.measures)
        self._finish(POOL, spent + time.perf_counter() - start)

    def _by_group(self, name: str) -> None:
        """Correct a method for each group, by its out-of-fold predictions."""
        groups, start = self._validation.groups, time.perf_counter()
        assert groups is not None
        log_probs, families = self._log_probs(self.results[name]), groups.families
        names = [name for each in families for name in each.names]
        places = places_of_families(
            [each.codes for each in families], [len(each.names) for each in families]
        ).to(self._labels.device)
        w, units = self._weights, self._units
        whole = ByGroup.of(
            self._fitted[name],
            log_probs,
            self._labels,
            names,
            places,
            columns=groups.columns,
            weights=w,
            units=units,
        )
        held_out = torch.empty_like(log_probs)
        for rest, inside in each_fold(self._folds.to(places.device)):
            part = ByGroup.of(
                Identity(),
                log_probs[rest],
                self._labels[rest],
                names,
                places[rest],
                columns=groups.columns,
                weights=rows_of(w, rest),
                units=rows_of(units, rest),
                spreads=whole.spreads.tolist(),
            )
            held_out[inside] = part(log_probs[inside], None, places[inside])
        self._fitted[BY_GROUP], self._held_out[BY_GROUP] = whole, held_out
        self._finish(BY_GROUP, self._seconds[_Job(name)] + time.perf_counter() - start)

    def _finish(self, name: str, seconds: float) -> None:
        self._seconds[_Job(name)], self._borrowed[_Job(name)] = seconds, 0.0
        self.results[name] = self._measure(name)

    def _log_probs(self, result: MethodResult) -> Tensor:
        """Return the out-of-fold log-probabilities; the uncalibrated model has logits instead."""
        if result.name == _UNCALIBRATED:
            return torch.log_softmax(at_least_float32(self._logits), dim=1)
        log_probs = at_least_float32(result.held_out.problem.to_logits())
        return log_probs if len(log_probs) == len(self._logits) else log_probs[self._rows]

    def _measure(self, name: str) -> MethodResult:
        fitted, final_fit = self._task.finished(self._fitted[name]), self._finals.get(name)
        calibrator = fitted
        if self._final is not None and final_fit is not None:
            calibrator = self._final.finished(final_fit)
        held_out, before = self._predictions(name, self._held_out.pop(name)), self._validation
        if self._rows is not None and self._test is None:
            held_out, before = _with_others(held_out, name, fitted, self._every, self._rows), self._every
        # A repair of classes hardly changes their order; combining signals of a black box does. The accuracy
        # says little about the rare one of two classes.
        of_two = ("recall", "average_precision") if self._validation.k == 2 else ()
        also = ("auroc_correct",) if self._task.of_pairs else of_two
        shown = [key for key, measure in MEASURES.items() if measure.compared or key in also]
        predict_test: Callable[[], Predictions | None] = partial(_predicted, name, calibrator, self._test)
        final = predict_test()
        if final is not None and final.n * self._logits.shape[1] <= MANY_LOGITS:
            predict_test = partial(_itself, final)
        metrics, test_metrics = (
            None if each is None else evaluate(each, measures=shown, n_bins=self._n_bins).metrics
            for each in (held_out, final)
        )
        assert metrics is not None
        return MethodResult(
            name=name,
            calibrator=calibrator,
            metrics=metrics,
            test_metrics=test_metrics,
            improvement=self._improvement(held_out, metrics["nll"], before)
            if final is None or test_metrics is None or self._test is None
            else self._improvement(final, test_metrics["nll"], self._test),
            fit_seconds=self._seconds[_Job(name)] + self._borrowed[_Job(name)],
            losses=FrozenDict(_losses(held_out)),
            held_out=held_out,
            predict_test=predict_test,
        )

    def _predictions(self, name: str, log_probs: Tensor) -> Predictions:
        """Return out-of-fold log-probabilities as predictions; those of the model itself without a copy."""
        own = name == _UNCALIBRATED
        if self._task.of_pairs:
            return self._validation if own else self._validation.with_scores(log_probs)
        return _scored(self._validation, self._logits if own else log_probs)

    def _improvement(self, after: Predictions, nll: float, before: Predictions) -> PairedDifference:
        """Return the change of the NLL, as ``paired_difference`` does; the model itself is measured once."""
        if self._before is None:
            self._before = self._likelihood(before)
        # The NLL of logits is known already.
        models = {"after": self._likelihood(after, nll if after.logits is not None else None)}
        models["before"] = self._before
        found = differences_from(
            models, "before", units=after.units, n_resamples=self._n_resamples, seed=self._seed
        )
        return found["after"]

    def _likelihood(self, predictions: Predictions, value: float | None = None) -> Measured:
        if isinstance(predictions, ScorePredictions):
            predictions = predictions.base_rate()
        weights = predictions.weights
        if self._task.of_pairs:
            rows = as_rows(confidence=predictions.confidence, correct=predictions.correct, weights=weights)
        else:
            rows = as_rows(logits=predictions.to_logits(), labels=predictions.labels, weights=weights)
        return Measured.of(negative_log_likelihood, rows, {}, value=value)

    def _is_large(self) -> bool:
        """Whether the predictions that are measured have many logits."""
        n = self._every.n if self._test is None else max(self._validation.n, self._test.n)
        return n * self._logits.shape[1] > MANY_LOGITS

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
        if None not in folds_in_use:
            self._data.forget()
            for fold in set(self._folds.unique().tolist()) - folds_in_use:
                self._parts.forget(fold)
        if not self._waiting:
            self._data.forget_everything()
            self._parts.forget_everything()
        if not self._waiting or self._is_large():
            _return_memory()


def _return_memory() -> None:
    """Give the system back what fits have freed, where the C library keeps it unless it is told to."""
    with suppress(OSError, TypeError, AttributeError):  # other systems have no such call
        ctypes.CDLL(None).malloc_trim(0)


def _scored(predictions: Predictions, logits: Tensor) -> Predictions:
    """Return other scores of the same samples, without features, class names and metadata."""
    return Predictions(
        logits=logits,
        labels=predictions.labels,
        groups=predictions.groups,
        weights=predictions.weights,
        units=predictions.units,
    )


def _of_all_rows(result: MethodResult, validation: Predictions) -> MethodResult:
    """Return a result with out-of-fold predictions of the samples of weight 0 too, which no fit has seen."""
    assert validation.weights is not None
    rows = validation.weights > 0
    held_out = _with_others(result.held_out, result.name, result.calibrator, validation, rows)
    return replace(result, held_out=held_out, losses=FrozenDict(_losses(held_out)))


def _with_others(
    held_out: Predictions, name: str, calibrator: Calibrator, every: Predictions, rows: Tensor
) -> Predictions:
    """Return out-of-fold predictions of some rows, and those of the others by a fit without them."""
    whole = _predicted(name, calibrator, every)
    assert whole is not None
    form = "confidence" if is_of_pairs(whole.k) else "logits"
    values = getattr(held_out, form)
    scores = getattr(whole, form).to(values, copy=True)
    scores[rows.to(values.device)] = values
    return whole.replaced(confidence=scores) if is_of_pairs(whole.k) else _scored(every, scores)


def _losses(held_out: Predictions) -> dict[ProperScore, Tensor]:
    """Return the proper scores of each prediction."""
    if is_of_pairs(held_out.k):
        outcomes = held_out.outcomes()
        pairs = Pairs(confidence=outcomes.confidence, correct=outcomes.correct)
        return {"nll": log_losses(**pairs), "brier": squared_errors(**pairs)}
    return {
        "nll": log_losses(held_out.labels, logits=held_out.logits),
        "brier": squared_errors(held_out.to_probs(), held_out.labels),
    }


def _predicted(name: str, calibrator: Calibrator, test: Predictions | None) -> Predictions | None:
    if test is None or (name == _UNCALIBRATED and is_of_pairs(test.k)):
        return test
    return calibrated(calibrator, test)


def _itself(predictions: Predictions) -> Predictions:
    return predictions


def _labelled(predictions: Predictions, name: str) -> Predictions:
    """Return predictions with labels, or refuse others."""
    if predictions.truth is None:
        raise InputError(
            f"{name}: expected labels, or correct beside confidence, got predictions without them"
        )
    return predictions


def _resolved(
    validation: Predictions, methods: str | Sequence[str], *, fast: bool, keep_accuracy: bool
) -> list[str]:
    """Return the methods to compare; a pool alone is compared with its members."""
    if is_of_pairs(validation.k):
        signals = bool(validation.signals)
        score = validation.score is not None
        named = resolve_for_pairs(methods, fast=fast, signals=signals, score=score)
        members = [name for name in resolve_for_pairs("auto", signals=signals, score=score) if name != POOL]
    else:
        k = validation.classes().k
        named = resolve_methods(methods, n_classes=k, fast=fast, keep_accuracy=keep_accuracy)
        members = pool_members(POOL, n_classes=k, keep_accuracy=keep_accuracy)
    if validation.weights is not None and methods not in ("auto", "all"):
        that_take_weights(named, asked_for=True)
    return [*members, POOL] if named == [POOL] else named
