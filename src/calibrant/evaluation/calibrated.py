"""Fit a method on predictions, and apply a fitted calibrator to predictions."""

from typing import Any

import numpy as np

from calibrant.data.predictions import Predictions
from calibrant.errors import InputError
from calibrant.posthoc.calibrator import Calibrator
from calibrant.posthoc.confidence import ConfidenceCalibrator, ends_of, within
from calibrant.posthoc.names import Method, method_for_pairs, method_named


def fit_named(name: str, predictions: Predictions, *, seed: int = 0) -> Calibrator:
    """Fit the method of a name, in the form in which it maps class scores, or repairs confidences."""
    method = method_for_pairs(name) if predictions.k is None else method_named(name)
    return fit_method(method, predictions, seed=seed)


def fit_method(method: Method, predictions: Predictions, *, seed: int = 0) -> Calibrator:
    """Fit a method on labelled predictions, and on their features if they have any."""
    problem = predictions.as_classes()
    if problem.labels is None:
        expected = (
            "correct: expected a hit or miss" if predictions.k is None else "labels: expected the class"
        )
        raise InputError(f"{expected} for each sample to fit on, got none")
    z, h = problem.to_logits(), predictions.beside
    if predictions.k is not None:
        return method.fit(z, problem.labels, features=h, seed=seed)
    ends = ends_of(z)
    return ConfidenceCalibrator(method.fit(within(z, ends), problem.labels, features=h, seed=seed), ends)


def calibrated(calibrator: Calibrator, predictions: Predictions) -> Predictions:
    """Return the predictions with calibrated log-probabilities as logits, or with repaired confidences.

    If the calibrator has a map for each group, samples of other groups, and predictions without groups, get
    the common map.
    """
    check_form(calibrator, predictions.k)
    groups = None if predictions.groups is None else predictions.groups.values
    log_probs = calibrator.predict_log_proba(
        predictions.as_classes().to_logits(), predictions.beside, np.asarray(groups) if groups else None
    )
    new: dict[str, Any] = {"logits": log_probs, "labels": predictions.labels}
    if predictions.k is None:
        new = {"confidence": log_probs[:, 1].exp().clamp(max=1.0), "correct": predictions.correct}
    return Predictions(
        **new,
        features=predictions.features,
        signals=predictions.signals,
        groups=predictions.groups,
        class_names=predictions.class_names,
        metadata=predictions.metadata,
    )


def check_form(calibrator: Calibrator, k: int | None) -> None:
    """Refuse class scores for a calibrator of confidences (``k`` is None), and the other way round."""
    is_pairs, for_pairs = k is None, isinstance(calibrator, ConfidenceCalibrator)
    if is_pairs != for_pairs:
        forms = ("class scores", "confidences")
        raise InputError(
            f"predictions: expected {forms[for_pairs]}, which the {type(calibrator).__name__} was fitted on, "
            f"got {forms[is_pairs]}; fit on such predictions"
        )
