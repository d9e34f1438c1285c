"""Fit a method on predictions, and apply a fitted calibrator to predictions."""

from calibrant.data.predictions import Predictions
from calibrant.errors import InputError
from calibrant.posthoc.calibrator import Calibrator
from calibrant.posthoc.names import Method


def fit_method(method: Method, predictions: Predictions, *, seed: int = 0) -> Calibrator:
    """Fit a method of the catalogue on labelled predictions, with their features if there are any."""
    if predictions.labels is None:
        raise InputError("labels: expected the true class of each sample to fit on, got none")
    return method.fit(predictions.to_logits(), predictions.labels, features=predictions.features, seed=seed)


def calibrated(calibrator: Calibrator, predictions: Predictions) -> Predictions:
    """Replace the logits or probabilities by calibrated log-probabilities, which are logits too."""
    return Predictions(
        logits=calibrator.predict_log_proba(predictions.to_logits(), predictions.features),
        labels=predictions.labels,
        features=predictions.features,
        class_names=predictions.class_names,
        metadata=predictions.metadata,
    )
