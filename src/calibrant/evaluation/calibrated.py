"""Fit a method on predictions, and apply a fitted calibrator to predictions."""

from typing import TYPE_CHECKING

from calibrant.data.predictions import Predictions
from calibrant.errors import InputError
from calibrant.posthoc.calibrator import Calibrator

if TYPE_CHECKING:
    from calibrant.posthoc.names import Method


def fit_method(method: "Method", predictions: Predictions, *, seed: int = 0) -> Calibrator:
    """Fit a method on labelled predictions, and on their features if they have any."""
    if predictions.labels is None:
        raise InputError("labels: expected the true class of each sample to fit on, got none")
    return method.fit(predictions.to_logits(), predictions.labels, features=predictions.features, seed=seed)


def calibrated(calibrator: Calibrator, predictions: Predictions) -> Predictions:
    """Return the predictions with calibrated log-probabilities as logits."""
    return Predictions(
        logits=calibrator.predict_log_proba(predictions.to_logits(), predictions.features),
        labels=predictions.labels,
        features=predictions.features,
        class_names=predictions.class_names,
        metadata=predictions.metadata,
    )
