"""Measures of calibration and of what goes with it: pure functions from predictions to a number."""

from calibrant.bins import Bins, top_label_bins
from calibrant.metrics.accuracy import accuracy, mean_confidence, top_k_error
from calibrant.metrics.binned import expected_calibration_error, maximum_calibration_error
from calibrant.metrics.classwise import classwise_calibration_error
from calibrant.metrics.discrimination import auroc_correctness
from calibrant.metrics.proper import brier_score, negative_log_likelihood
from calibrant.metrics.selective import aurc

__all__ = [
    "Bins",
    "accuracy",
    "aurc",
    "auroc_correctness",
    "brier_score",
    "classwise_calibration_error",
    "expected_calibration_error",
    "maximum_calibration_error",
    "mean_confidence",
    "negative_log_likelihood",
    "top_k_error",
    "top_label_bins",
]
