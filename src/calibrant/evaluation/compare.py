"""Compare post-hoc methods by cross-validation, and choose one."""

import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, TypeAlias, get_args

from torch import Tensor

from calibrant.data.predictions import Predictions
from calibrant.errors import CalibrantError, InputError
from calibrant.evaluation.calibrated import calibrated, fit_method
from calibrant.evaluation.evaluate import evaluate
from calibrant.inputs import Progress, check_choice, check_count
from calibrant.metrics.paired import PairedDifference, paired_difference
from calibrant.metrics.proper import log_losses, negative_log_likelihood, squared_errors
from calibrant.posthoc.calibrator import Calibrator
from calibrant.posthoc.fitting.folds import cross_fit, stratified_folds
from calibrant.posthoc.names import METHODS, Method, resolve_methods
from calibrant.threads import one_thread_each

ProperScore: TypeAlias = Literal["nll", "brier"]

# Fits on fewer logits than this run on one thread: threads of small operations wait for each other.
_WORTH_THREADS = 1 << 22
SHOWN = ("accuracy", "nll", "brier", "ece", "ece_equal_mass", "classwise_ece", "smece")


@dataclass(frozen=True, eq=False)
class MethodResult:
    """Result of one method.

    Attributes:
        name: Name of the method in :data:`calibrant.posthoc.names.METHODS`.
        calibrator: The calibrator, fitted on the whole validation set.
        metrics: Measures of the out-of-fold predictions of the validation set: every sample is calibrated by
            a fit on the other folds.
        test_metrics: Measures on the test set, if one was given.
        improvement: Negative log-likelihood minus that of the uncalibrated model, on the test set if one was
            given, else out of fold; negative is better.
        fit_seconds: Time of the fit on the whole validation set.
        losses: Proper scores of each out-of-fold prediction, by name of the score.
        held_out: The out-of-fold predictions of the validation set.
        test: The predictions of the test set, calibrated by ``calibrator``, if a test set was given.
    """

    name: str
    calibrator: Calibrator
    metrics: Mapping[str, float]
    test_metrics: Mapping[str, float] | None
    improvement: PairedDifference
    fit_seconds: float
    losses: Mapping[ProperScore, Tensor]
    held_out: Predictions
    test: Predictions | None

    @property
    def measured(self) -> Predictions:
        """The predictions for reports: those of the test set if there is one, else the out-of-fold ones."""
        return self.held_out if self.test is None else self.test


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


def compare(
    validation: Predictions,
    *,
    test: Predictions | None = None,
    methods: str | Sequence[str] = "auto",
    n_folds: int = 5,
    n_bins: int = 15,
    n_resamples: int = 1000,
    seed: int = 0,
    progress: Progress | None = None,
) -> Comparison:
    """Fit every method on the validation set, and measure it out of fold and on the test set.

    Args:
        validation: Logits or probabilities with labels, held out from training.
        test: Other samples with the same classes, on which the final fits are measured.
        methods: ``"auto"`` (fast methods that work well), ``"all"``, or names from
            :data:`calibrant.posthoc.names.METHODS`.
        n_folds: Number of folds of the validation set; each is calibrated by a fit on the others.
        n_bins: Number of bins of the binned measures.
        n_resamples: Number of resamples for the paired interval of the improvement.
        seed: Equal seeds give equal folds, fits and intervals.
        progress: Called with the name of the current method, the number done, and the total.
    """
    named = resolve_methods(methods)
    labels = _labels(validation, "validation")
    if test is not None:
        _labels(test, "test")
        if test.k != validation.k:
            raise InputError(f"test: expected the {validation.k} classes of validation, got {test.k}")
    check_count(n_folds, "n_folds", at_least=2)
    if validation.n < 2 * n_folds:
        raise InputError(
            f"validation: expected at least {2 * n_folds} samples for {n_folds} folds, got {validation.n}"
        )
    folds = stratified_folds(labels, n_folds, seed=seed)
    results: list[MethodResult] = []
    skipped: dict[str, str] = {}
    with one_thread_each() if validation.n * (validation.k or 1) < _WORTH_THREADS else nullcontext():
        for done, name in enumerate(named):
            if progress is not None:
                progress(name, done, len(named))
            try:
                results.append(_measure(name, validation, test, folds, n_bins, n_resamples, seed))
            except CalibrantError as error:
                skipped[name] = str(error)
    return Comparison(
        tuple(results),
        MappingProxyType(skipped),
        n_folds,
        validation.n,
        None if test is None else test.n,
    )


def _measure(
    name: str,
    validation: Predictions,
    test: Predictions | None,
    folds: Tensor,
    n_bins: int,
    n_resamples: int,
    seed: int,
) -> MethodResult:
    method = METHODS[name]
    start = time.perf_counter()
    calibrator = fit_method(method, validation, seed=seed)
    seconds = time.perf_counter() - start
    held_out = _cross_fitted(method, validation, folds, seed)
    final = None if test is None else calibrated(calibrator, test)
    judged, before = (held_out, validation) if test is None or final is None else (final, test)
    assert judged.logits is not None
    assert held_out.labels is not None
    return MethodResult(
        name=name,
        calibrator=calibrator,
        metrics=evaluate(held_out, measures=SHOWN, n_bins=n_bins).metrics,
        test_metrics=None if final is None else evaluate(final, measures=SHOWN, n_bins=n_bins).metrics,
        improvement=paired_difference(
            negative_log_likelihood,
            judged.logits,
            before.to_logits(),
            judged.labels,
            reads="logits",
            n_resamples=n_resamples,
            seed=seed,
        ),
        fit_seconds=seconds,
        losses=MappingProxyType(
            {
                "nll": log_losses(held_out.labels, logits=held_out.logits),
                "brier": squared_errors(held_out.to_probs(), held_out.labels),
            }
        ),
        held_out=held_out,
        test=final,
    )


def _cross_fitted(method: Method, validation: Predictions, folds: Tensor, seed: int) -> Predictions:
    """Calibrate every sample by a fit that has not seen it."""

    def predict(rest: Tensor, held_out: Tensor) -> Tensor:
        fitted = fit_method(method, validation.take(rest), seed=seed)
        return calibrated(fitted, validation.take(held_out)).to_logits().double().cpu()

    return Predictions(logits=cross_fit(folds, predict), labels=validation.labels)


def _labels(predictions: Predictions, name: str) -> Tensor:
    if predictions.k is None or predictions.labels is None:
        raise InputError(f"{name}: expected logits or probs with labels, got predictions without them")
    return predictions.labels


def choose(comparison: Comparison, *, score: ProperScore = "nll") -> MethodResult:
    """Return the simplest method that is within one standard error of the best by a proper score.

    The standard error is that of the mean difference to the best method on the same out-of-fold samples, so
    samples that are hard for all methods do not affect the choice. The order from simple to complex is that
    of :data:`calibrant.posthoc.names.METHODS`.
    """
    check_choice(score, "score", get_args(ProperScore))
    if not comparison.results:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in comparison.skipped.items())
        raise InputError(
            f"comparison: expected at least one method that could be fitted, got none ({reasons})"
        )
    best = min(comparison.results, key=lambda result: float(result.losses[score].mean()))
    for result in comparison.results:
        behind = result.losses[score] - best.losses[score]
        if float(behind.mean()) <= float(behind.std()) / len(behind) ** 0.5:
            return result
    return best
