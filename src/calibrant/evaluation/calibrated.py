"""Fit a method on predictions, and apply a fitted calibrator to predictions."""

from dataclasses import fields

import numpy as np
from torch import Tensor

from calibrant.data.labels import LabelPredictions
from calibrant.data.predictions import Predictions, class_order
from calibrant.errors import InputError
from calibrant.outcomes import effective
from calibrant.posthoc.calibrator import Calibrator
from calibrant.posthoc.confidence import ConfidenceCalibrator, ends_of, within
from calibrant.posthoc.frequencies import frequencies_of
from calibrant.posthoc.labels import LabelCalibrator
from calibrant.posthoc.names import Method, method_for_pairs, method_named


def fit_named(name: str, predictions: Predictions, *, seed: int = 0) -> Calibrator:
    """Fit the method of a name, in the form in which it maps class scores, or repairs confidences."""
    method = method_for_pairs(name) if predictions.k is None else method_named(name)
    return fit_method(method, predictions, seed=seed)


def fit_method(method: Method, predictions: Predictions, *, seed: int = 0) -> Calibrator:
    """Fit a method on labelled predictions, on their features if they have any, and with their weights."""
    predictions = counted(predictions)
    problem, w = predictions.as_classes(), predictions.weights
    if problem.labels is None:
        expected = (
            "correct: expected a hit or miss" if predictions.k is None else "labels: expected the class"
        )
        raise InputError(f"{expected} for each sample to fit on, got none")
    z, h = problem.to_logits(), predictions.beside
    if predictions.k is not None:
        fitted = method.fit(z, problem.labels, features=h, weights=w, seed=seed)
        return of_classes(fitted, predictions)
    ends = ends_of(z)
    base = method.fit(within(z, ends), problem.labels, features=h, weights=w, seed=seed)
    return in_form(ConfidenceCalibrator(base, ends), predictions)


def of_classes(calibrator: Calibrator, predictions: Predictions) -> Calibrator:
    """Note the names and frequencies of the classes of labelled predictions in what was fitted on them."""
    calibrator.class_names = predictions.class_names
    if predictions.labels is not None and predictions.k is not None:
        calibrator.class_frequencies = frequencies_of(predictions.labels, predictions.k, predictions.weights)
    return calibrator


def in_form(calibrator: Calibrator, predictions: Predictions) -> Calibrator:
    """Return a calibrator of confidences in the form of predictions: of a label matrix if they are one."""
    if isinstance(predictions, LabelPredictions):
        return LabelCalibrator(calibrator, predictions.label_names)
    return calibrator


def counted(predictions: Predictions) -> Predictions:
    """Return the samples that count: those with a weight above 0. Equal weights are dropped.

    Example:
        >>> counted(Predictions(probs=[0.9, 0.6, 0.2], labels=[1, 0, 0], weights=[2, 2, 0]))
        Predictions(n=2, k=2, probs float64, labels)
    """
    if predictions.weights is None:
        return predictions
    if isinstance(predictions, LabelPredictions):
        return _counted_rows(predictions, predictions.weights[:: predictions.n_labels])
    used = effective(predictions.weights) > 0
    part = predictions if bool(used.all()) else predictions.take(used)
    assert part.weights is not None
    if float(part.weights.min()) < float(part.weights.max()):
        return part
    values = {each.name: getattr(part, each.name) for each in fields(Predictions)}
    return Predictions(**{**values, "weights": None})


def _counted_rows(predictions: LabelPredictions, weights: Tensor) -> LabelPredictions:
    used = weights > 0
    part = predictions if bool(used.all()) else predictions.take_rows(used)
    if float(weights[used].min()) < float(weights[used].max()):
        return part
    return LabelPredictions(**{**part.arguments(), "weights": None})


def calibrated(calibrator: Calibrator, predictions: Predictions) -> Predictions:
    """Return the predictions with calibrated log-probabilities as logits, or with repaired confidences.

    If the calibrator has a map for each group, samples of other groups, and predictions without groups, get
    the common map. Predictions whose class names are those of the calibrator in another order keep their own
    order; other names are refused.
    """
    if isinstance(predictions, LabelPredictions) and isinstance(calibrator, LabelCalibrator):
        _check_labels(calibrator, predictions)
        return repaired(predictions, calibrator.predict_log_proba(predictions.log_odds).exp())
    check_form(calibrator, predictions.k)
    groups = None if predictions.groups is None else predictions.groups.values
    order = class_order(calibrator.class_names, predictions.class_names)
    z = predictions.as_classes().to_logits()
    log_probs = calibrator.predict_log_proba(
        z if order is None else z[:, order], predictions.beside, np.asarray(groups) if groups else None
    )
    log_probs = log_probs if order is None else log_probs[:, order.argsort()]
    if predictions.k is None:
        return repaired(predictions, log_probs[:, 1].exp())
    values = {each.name: getattr(predictions, each.name) for each in fields(Predictions)}
    return Predictions(**{**values, "probs": None, "logits": log_probs})


def repaired(predictions: Predictions, confidence: Tensor) -> Predictions:
    """Return predictions of a black box, or of several labels at once, with other confidences."""
    c = confidence.clamp(max=1.0)
    if isinstance(predictions, LabelPredictions):
        return predictions.with_probs(c)
    values = {each.name: getattr(predictions, each.name) for each in fields(Predictions)}
    return Predictions(**{**values, "confidence": c})


def check_form(calibrator: Calibrator, k: int | None) -> None:
    """Refuse class scores for a calibrator of confidences (``k`` is None), and the other way round."""
    if isinstance(calibrator, LabelCalibrator):
        raise InputError(
            f"predictions: expected a column for each of the labels {', '.join(calibrator.names)}, got other "
            "predictions; pass LabelPredictions"
        )
    is_pairs, for_pairs = k is None, isinstance(calibrator, ConfidenceCalibrator)
    if is_pairs != for_pairs:
        forms = ("class scores", "confidences")
        raise InputError(
            f"predictions: expected {forms[for_pairs]}, which the {type(calibrator).__name__} was fitted on, "
            f"got {forms[is_pairs]}; fit on such predictions"
        )


def _check_labels(calibrator: LabelCalibrator, predictions: LabelPredictions) -> None:
    if tuple(calibrator.names) != predictions.label_names:
        raise InputError(
            f"predictions: expected the labels {', '.join(calibrator.names)} in this order, which the "
            f"calibrator was fitted on, got {', '.join(predictions.label_names)}"
        )
