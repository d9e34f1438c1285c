"""Compare post-hoc methods by cross-validation, and choose one; results keep every prediction."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from calibrant.data.predictions import Predictions
from calibrant.errors import CalibrantError, InputError
from calibrant.evaluation.calibrated import calibrated, fit_method
from calibrant.evaluation.evaluate import evaluate
from calibrant.inputs import Progress, check_count
from calibrant.metrics.paired import PairedDifference, paired_difference
from calibrant.metrics.proper import log_losses, negative_log_likelihood, squared_errors
from calibrant.posthoc.calibrator import Calibrator
from calibrant.posthoc.names import METHODS, Method, resolve_methods

ProperScore: TypeAlias = Literal["nll", "brier"]

SHOWN = ("accuracy", "nll", "brier", "ece", "ece_equal_mass", "classwise_ece", "smece")


@dataclass(frozen=True, eq=False)
class MethodResult:
    """How one method did.

    Attributes:
        name: Its name in :data:`calibrant.posthoc.names.METHODS`.
        calibrator: Fitted on the whole validation set.
        metrics: Measures of out-of-fold predictions of the validation set: every sample is calibrated by a
            fit that has not seen it.
        test_metrics: Measures on the test set, if one was given.
        improvement: Negative log-likelihood minus that of the uncalibrated model, on the test set if one was
            given, else out of fold; negative is better.
        fit_seconds: Time of the fit on the whole validation set.
        losses: Proper scores of each out-of-fold prediction, by score.
        held_out: The out-of-fold predictions of the validation set.
        test: The predictions of the test set by ``calibrator``, if a test set was given.
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
        """The predictions that a report shows: those of the test set if there is one, else out of fold."""
        return self.held_out if self.test is None else self.test


@dataclass(frozen=True, eq=False)
class Comparison:
    """Methods side by side, from simple to complex, and those that could not take part, with the reason."""

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
    """Fit every method on the validation set and measure it where it was not fitted.

    Args:
        validation: Logits or probabilities with labels, held out from training.
        test: Other samples of the same classes, to measure the final fits on.
        methods: ``"auto"`` (quick and strong ones), ``"all"``, or names from
            :data:`calibrant.posthoc.names.METHODS`.
        n_folds: Number of parts of the validation set, each calibrated by fits on the others.
        n_bins: Number of bins of the binned measures.
        n_resamples: Resamples of the paired interval of the improvement.
        seed: Equal seeds give equal parts, fits and intervals.
        progress: Called with the method at work, how many are done, and how many there are.
    """
    named = resolve_methods(methods)
    labels = _labels(validation, "validation")
    if test is not None:
        _labels(test, "test")
        if test.k != validation.k:
            raise InputError(f"test: expected the {validation.k} classes of validation, got {test.k}")
    folds = _folds(labels, check_count(n_folds, "n_folds", at_least=2), seed)
    results: list[MethodResult] = []
    skipped: dict[str, str] = {}
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
        len(np.unique(folds)),
        validation.n,
        None if test is None else test.n,
    )


def _measure(
    name: str,
    validation: Predictions,
    test: Predictions | None,
    folds: npt.NDArray[np.intp],
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


def _cross_fitted(
    method: Method, validation: Predictions, folds: npt.NDArray[np.intp], seed: int
) -> Predictions:
    """Calibrate every sample by a fit that has not seen it."""
    assert validation.k is not None
    logits = torch.empty(validation.n, validation.k, dtype=torch.float64)
    for fold in np.unique(folds):
        held, rest = np.flatnonzero(folds == fold), np.flatnonzero(folds != fold)
        fitted = fit_method(method, validation.take(rest), seed=seed)
        logits[torch.from_numpy(held)] = calibrated(fitted, validation.take(held)).to_logits().double().cpu()
    return Predictions(logits=logits, labels=validation.labels)


def _folds(labels: Tensor, n_folds: int, seed: int) -> npt.NDArray[np.intp]:
    """Give every sample a fold, at random and evenly within each class."""
    rng = np.random.default_rng(seed)
    n = len(labels)
    if n < 2 * n_folds:
        raise InputError(f"validation: expected at least {2 * n_folds} samples for {n_folds} folds, got {n}")
    # Shuffled, then sorted by class: dealing folds in turn spreads each class over all of them.
    order = rng.permutation(n)
    order = order[np.argsort(labels.cpu().numpy()[order], kind="stable")]
    folds = np.empty(n, dtype=np.intp)
    folds[order] = np.arange(n) % n_folds
    return folds


def _labels(predictions: Predictions, name: str) -> Tensor:
    if predictions.k is None or predictions.labels is None:
        raise InputError(f"{name}: expected logits or probs with labels, got predictions without them")
    return predictions.labels


def choose(comparison: Comparison, *, score: ProperScore = "nll") -> MethodResult:
    """Return the simplest method that is within one standard error of the best by a proper score.

    The standard error is that of the mean difference to the best method on the same out-of-fold samples, so
    what makes a sample hard for all methods does not blur the choice. Methods are ordered from simple to
    complex as :data:`calibrant.posthoc.names.METHODS` lists them.
    """
    if score not in ("nll", "brier"):
        raise InputError(f"score: expected 'nll' or 'brier', got {score!r}")
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
