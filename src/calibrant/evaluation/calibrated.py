"""Fit a method on predictions, and apply a fitted calibrator to predictions."""

import warnings
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from torch import Tensor

from calibrant.data.labels import LabelPredictions
from calibrant.data.predictions import FALLING, ClassPredictions, Predictions
from calibrant.errors import InputError
from calibrant.inputs import class_order
from calibrant.posthoc.calibrator import Calibrator, GroupsLike
from calibrant.posthoc.confidence import (
    ConfidenceCalibrator,
    ScoreCalibrator,
    ends_of,
    place_of,
    placed,
    within,
)
from calibrant.posthoc.fitting_set import FittingSet
from calibrant.posthoc.frequencies import frequencies_of
from calibrant.posthoc.labels import LabelCalibrator
from calibrant.posthoc.names import Method, method_for_pairs, method_named


@dataclass(frozen=True, eq=False)
class FittingTask:
    """Labelled predictions as what methods are fitted to: scores of classes, or wrong and right.

    Attributes:
        predictions: The predictions.
        data: Their logits, labels, features and weights.
        logits: The logits of all samples, also of those that teach a fit nothing.
        ends: The log-odds at which confidences are cut off; None for scores of classes.
        place: The median and the width of a score that only ranks; None for others.
    """

    predictions: Predictions
    data: FittingSet
    logits: Tensor
    ends: Tensor | None
    place: Tensor | None = None

    @classmethod
    def of(
        cls, predictions: Predictions, *, seed: int = 0, purpose: str = "methods are fitted to it"
    ) -> "FittingTask":
        """Prepare predictions, or refuse those without labels."""
        predictions.truth_for(purpose)
        problem = predictions.problem
        assert problem.labels is not None
        z = problem.to_logits()
        place = None if predictions.score is None else place_of(predictions.score)
        if place is not None:
            _refuse_one_outcome(problem.labels)
            t = placed(z[:, 1] - z[:, 0], place)
            z = torch.stack([-t / 2, t / 2], dim=1)
        ends = ends_of(z) if is_of_pairs(predictions.k) else None
        z = z if ends is None else within(z, ends)
        data = FittingSet.of(
            z,
            problem.labels,
            features=predictions.beside,
            weights=predictions.weights,
            units=predictions.units,
            seed=seed,
        )
        return cls(predictions, data, data.logits if data.rows is None else z, ends, place)

    @property
    def of_pairs(self) -> bool:
        """Whether confidences are repaired, and not scores of classes."""
        return self.ends is not None

    def method(self, name: str) -> Method:
        """Return the method of a name, in the form in which it maps class scores or repairs confidences."""
        return method_for_pairs(name) if self.of_pairs else method_named(name)

    def finished(self, fitted: Calibrator) -> Calibrator:
        """Return what was fitted in the form of the predictions, with the names of classes or signals."""
        if self.ends is None:
            return of_classes(fitted, self.predictions.problem)
        if self.place is None:
            repair = ConfidenceCalibrator(fitted, self.ends)
        else:
            falling = FALLING in self.predictions.metadata
            repair = ScoreCalibrator(fitted, self.ends, self.place, falling=falling)
        if fitted.uses_features:
            repair.signal_names = tuple(self.predictions.signals) or None
        names = getattr(self.predictions, "label_names", None)
        return repair if names is None else LabelCalibrator(repair, names)


def is_of_pairs(k: int | None) -> bool:
    """Whether predictions of ``k`` classes are confidences, which methods repair as wrong and right."""
    return k is None


def fit_named(name: str, predictions: Predictions, *, seed: int = 0) -> Calibrator:
    """Fit the method of a name, in the form in which it maps class scores, or repairs confidences."""
    task = FittingTask.of(predictions.counted(), seed=seed)
    return task.finished(task.method(name).fit(task.data))


def fit_method(method: Method, predictions: Predictions, *, seed: int = 0) -> Calibrator:
    """Fit a method on labelled predictions, on their features if they have any, and with their weights."""
    task = FittingTask.of(predictions.counted(), seed=seed)
    return task.finished(method.fit(task.data))


def of_classes(calibrator: Calibrator, predictions: ClassPredictions) -> Calibrator:
    """Note the names and frequencies of the classes of labelled predictions in what was fitted on them."""
    calibrator.class_names = predictions.class_names
    if predictions.labels is not None:
        calibrator.class_frequencies = frequencies_of(predictions.labels, predictions.k, predictions.weights)
    return calibrator


def calibrated(calibrator: Calibrator, predictions: Predictions) -> Predictions:
    """Return the predictions with calibrated log-probabilities as logits, or with repaired confidences.

    Predictions whose class names are those of the calibrator in another order keep their own order; other
    names are refused. For groups and signals see :func:`mapped_log_probs`.
    """
    if isinstance(predictions, LabelPredictions) and isinstance(calibrator, LabelCalibrator):
        _check_labels(calibrator, predictions)
        return predictions.with_probs(calibrator.predict_log_proba(predictions.log_odds).exp())
    return predictions.with_scores(mapped_log_probs(calibrator, predictions))


def _refuse_one_outcome(labels: Tensor) -> None:
    """Refuse outcomes that are all the same, which say nothing about a score without a unit."""
    if len(labels) and bool((labels == labels[0]).all()):
        raise InputError(
            f"outcome: expected some that came true and some that did not, got {int(labels[0])} in all "
            f"{len(labels):,} rows; give more rows"
        )


def mapped_log_probs(calibrator: Calibrator, predictions: Predictions) -> Tensor:
    """Return calibrated log-probabilities of class scores, or of wrong and right, shape ``(n, k)``.

    If the calibrator has a map for each group, samples of other groups get the common map; so do predictions
    without groups, with a warning. Signals must have the names of the fit, in the same order.
    """
    check_form(calibrator, predictions.k)
    _check_score(calibrator, predictions)
    _check_signals(calibrator, predictions)
    if calibrator.group_names is not None and predictions.groups is None:
        _warn_without_groups(type(calibrator).__name__)
    groups = _groups_for(calibrator, predictions)
    order = class_order(calibrator.class_names, predictions.class_names)
    z = predictions.problem.to_logits()
    log_probs = calibrator.predict_log_proba(z if order is None else z[:, order], predictions.beside, groups)
    return log_probs if order is None else log_probs[:, order.argsort()]


def _groups_for(calibrator: Calibrator, predictions: Predictions) -> GroupsLike | None:
    """Return the groups of predictions as a calibrator takes them; refuse other columns."""
    groups, columns = predictions.groups, calibrator.group_columns
    if groups is None or calibrator.group_names is None:
        return None
    if columns:
        return {**groups.by(columns).by_column}
    if groups.columns:
        raise InputError(
            f"groups: expected the one column that the calibrator was fitted on, got "
            f"{' and '.join(groups.columns)}; name that one"
        )
    return np.asarray(groups.values)


@cache  # once for each kind: a stream comes in many batches
def _warn_without_groups(kind: str) -> None:
    warnings.warn(
        f"groups: expected them, because the {kind} has a map for each, got none; all samples get the common "
        "map: name the column of the groups",
        stacklevel=4,
    )


def check_form(calibrator: Calibrator, k: int | None) -> None:
    """Refuse class scores for a calibrator of confidences, which have no ``k``, and the other way round."""
    if isinstance(calibrator, LabelCalibrator):
        raise InputError(
            f"predictions: expected a column for each of the labels {', '.join(calibrator.names)}, got other "
            "predictions; pass LabelPredictions"
        )
    is_pairs, for_pairs = is_of_pairs(k), isinstance(calibrator, ConfidenceCalibrator)
    if is_pairs != for_pairs:
        forms = ("class scores", "confidences")
        raise InputError(
            f"predictions: expected {forms[for_pairs]}, which the {type(calibrator).__name__} was fitted on, "
            f"got {forms[is_pairs]}; fit on such predictions"
        )


def _check_score(calibrator: Calibrator, predictions: Predictions) -> None:
    of_score, given = isinstance(calibrator, ScoreCalibrator), predictions.score is not None
    if is_of_pairs(predictions.k) and of_score != given:
        forms = ("confidences between 0 and 1", "a score")
        raise InputError(
            f"predictions: expected {forms[of_score]}, which the calibrator was fitted on, got {forms[given]}"
        )
    if isinstance(calibrator, ScoreCalibrator) and calibrator.falling != (FALLING in predictions.metadata):
        fitted = "falls" if calibrator.falling else "rises"
        raise InputError(
            f"score: expected one that {fitted} with the outcome, as in the fit, got the reverse; read it as "
            "for the fit"
        )


def _check_signals(calibrator: Calibrator, predictions: Predictions) -> None:
    expected, given = calibrator.signal_names, tuple(predictions.signals)
    if expected is not None and given != expected:
        raise InputError(
            f"signals: expected {', '.join(expected)} in this order, which the calibrator was fitted on, got "
            f"{', '.join(given) or 'none'}; name them so, in a file by --confidence {','.join(expected)}"
        )


def _check_labels(calibrator: LabelCalibrator, predictions: LabelPredictions) -> None:
    if tuple(calibrator.names) != predictions.label_names:
        raise InputError(
            f"predictions: expected the labels {', '.join(calibrator.names)} in this order, which the "
            f"calibrator was fitted on, got {', '.join(predictions.label_names)}"
        )
