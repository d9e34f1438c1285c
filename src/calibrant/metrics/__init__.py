"""Measures of calibration, discrimination and selective prediction: pure functions of predictions."""

import typing as _typing

from calibrant.lazy import import_when_used as _import_when_used

if _typing.TYPE_CHECKING:
    from calibrant.bins import Bins, top_label_bins
    from calibrant.metrics.accuracy import accuracy, mean_confidence, top_k_error
    from calibrant.metrics.binned import (
        average_calibration_error,
        expected_calibration_error,
        maximum_calibration_error,
        overconfidence,
        rms_calibration_error,
        underconfidence,
    )
    from calibrant.metrics.charbonnier import charbonnier_error, smoothing_bias, smoothing_bias_bound
    from calibrant.metrics.classwise import (
        adaptive_calibration_error,
        class_bins,
        classwise_calibration_error,
        static_calibration_error,
    )
    from calibrant.metrics.corp import corp_reliability
    from calibrant.metrics.cumulative import averaged_two_bin_error, ks_error, kuiper_error
    from calibrant.metrics.debiased import debiased_calibration_error
    from calibrant.metrics.decomposition import (
        brier_calibration,
        brier_refinement,
        decompose_brier,
        decompose_nll,
    )
    from calibrant.metrics.discrimination import auroc_correctness, auroc_ovo, auroc_ovr
    from calibrant.metrics.kde import kde_calibration_error
    from calibrant.metrics.kernel import mmce, skce
    from calibrant.metrics.margin import margin_slices
    from calibrant.metrics.measure import Measure
    from calibrant.metrics.names import MEASURES
    from calibrant.metrics.ood import ood_curve, ood_scores
    from calibrant.metrics.positive import (
        average_precision,
        base_rate,
        calibration_intercept,
        calibration_slope,
        integrated_calibration_index,
        net_benefit,
        precision,
        recall,
    )
    from calibrant.metrics.proper import (
        brier_score,
        negative_log_likelihood,
        post_hoc_improvement,
        ranked_probability_score,
    )
    from calibrant.metrics.scores import SCORES, confidence_score
    from calibrant.metrics.selective import (
        augrc,
        aurc,
        coverage_at_risk,
        excess_aurc,
        risk_at_coverage,
        risk_coverage_curve,
    )
    from calibrant.metrics.smooth_calibration import smooth_calibration_error, worst_case_probe
    from calibrant.metrics.smooth_ece import smooth_ece, smooth_reliability
    from calibrant.metrics.sweep import sweep_calibration_error
    from calibrant.metrics.variational import variational_calibration_error

__all__ = [
    "MEASURES",
    "SCORES",
    "Bins",
    "Measure",
    "accuracy",
    "adaptive_calibration_error",
    "augrc",
    "aurc",
    "auroc_correctness",
    "auroc_ovo",
    "auroc_ovr",
    "average_calibration_error",
    "average_precision",
    "averaged_two_bin_error",
    "base_rate",
    "brier_calibration",
    "brier_refinement",
    "brier_score",
    "calibration_intercept",
    "calibration_slope",
    "charbonnier_error",
    "class_bins",
    "classwise_calibration_error",
    "confidence_score",
    "corp_reliability",
    "coverage_at_risk",
    "debiased_calibration_error",
    "decompose_brier",
    "decompose_nll",
    "excess_aurc",
    "expected_calibration_error",
    "integrated_calibration_index",
    "kde_calibration_error",
    "ks_error",
    "kuiper_error",
    "margin_slices",
    "maximum_calibration_error",
    "mean_confidence",
    "mmce",
    "negative_log_likelihood",
    "net_benefit",
    "ood_curve",
    "ood_scores",
    "overconfidence",
    "post_hoc_improvement",
    "precision",
    "ranked_probability_score",
    "recall",
    "risk_at_coverage",
    "risk_coverage_curve",
    "rms_calibration_error",
    "skce",
    "smooth_calibration_error",
    "smooth_ece",
    "smooth_reliability",
    "smoothing_bias",
    "smoothing_bias_bound",
    "static_calibration_error",
    "sweep_calibration_error",
    "top_k_error",
    "top_label_bins",
    "underconfidence",
    "variational_calibration_error",
    "worst_case_probe",
]

_import_when_used(__name__)
