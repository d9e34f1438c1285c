"""Measures of calibration and of what goes with it: pure functions from predictions to a number."""

from calibrant.bins import Bins, top_label_bins
from calibrant.metrics.accuracy import accuracy, mean_confidence, top_k_error
from calibrant.metrics.binned import (
    average_calibration_error,
    expected_calibration_error,
    maximum_calibration_error,
    rms_calibration_error,
)
from calibrant.metrics.charbonnier import charbonnier_error, smoothing_bias, smoothing_bias_bound
from calibrant.metrics.classwise import (
    adaptive_calibration_error,
    class_bins,
    classwise_calibration_error,
    static_calibration_error,
)
from calibrant.metrics.debiased import debiased_calibration_error
from calibrant.metrics.discrimination import auroc_correctness
from calibrant.metrics.kde import kde_calibration_error
from calibrant.metrics.kernel import mmce, skce, skce_pairs
from calibrant.metrics.ks import ks_error
from calibrant.metrics.proper import brier_score, negative_log_likelihood
from calibrant.metrics.selective import aurc
from calibrant.metrics.smooth_calibration import Probe, smooth_calibration_error, worst_case_probe
from calibrant.metrics.smooth_ece import SmoothReliability, smooth_ece, smooth_reliability
from calibrant.metrics.sweep import sweep_calibration_error

__all__ = [
    "Bins",
    "Probe",
    "SmoothReliability",
    "accuracy",
    "adaptive_calibration_error",
    "aurc",
    "auroc_correctness",
    "average_calibration_error",
    "brier_score",
    "charbonnier_error",
    "class_bins",
    "classwise_calibration_error",
    "debiased_calibration_error",
    "expected_calibration_error",
    "kde_calibration_error",
    "ks_error",
    "maximum_calibration_error",
    "mean_confidence",
    "mmce",
    "negative_log_likelihood",
    "rms_calibration_error",
    "skce",
    "skce_pairs",
    "smooth_calibration_error",
    "smooth_ece",
    "smooth_reliability",
    "smoothing_bias",
    "smoothing_bias_bound",
    "static_calibration_error",
    "sweep_calibration_error",
    "top_k_error",
    "top_label_bins",
    "worst_case_probe",
]
