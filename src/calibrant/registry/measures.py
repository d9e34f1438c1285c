"""The measures by name: what each reads, how a table shows it, and which direction is better."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from calibrant import metrics
from calibrant.inputs import ArrayLike


@dataclass(frozen=True)
class Measure:
    """A measure by name: what it reads, how a table shows it, and which direction is better.

    Attributes:
        function: Takes what it ``reads`` by keyword, and ``options``.
        title: Its name in a table.
        reads: ``"outcomes"`` (confidence and correct), ``"probs"``, or ``"logits"`` where there are any.
        better: Which direction is better.
        core: Whether it is shown when nothing else is asked for.
        options: Keyword arguments that make it this measure.
        takes_bins: Whether it has an argument ``n_bins``.
        percent: Whether a table shows it times 100.
        most_samples: It grows with the square of the samples: beyond this many it is left out, unless named.
        fewest_classes: It says nothing with fewer classes than this.
    """

    function: Callable[..., float]
    title: str
    reads: Literal["outcomes", "probs", "logits"] = "outcomes"
    better: Literal["lower", "higher", "neither"] = "lower"
    core: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)
    takes_bins: bool = False
    percent: bool = True
    most_samples: int | None = None
    fewest_classes: int = 2


def _brier_calibration(probs: ArrayLike, labels: ArrayLike) -> float:
    return metrics.decompose_brier(probs, labels, method="corp").calibration


def _brier_refinement(probs: ArrayLike, labels: ArrayLike) -> float:
    return metrics.decompose_brier(probs, labels, method="corp").refinement


MEASURES: Mapping[str, Measure] = {
    "accuracy": Measure(metrics.accuracy, "accuracy", better="higher", core=True),
    "mean_confidence": Measure(metrics.mean_confidence, "mean confidence", better="neither", core=True),
    "nll": Measure(
        metrics.negative_log_likelihood, "negative log-likelihood", "logits", core=True, percent=False
    ),
    "brier": Measure(metrics.brier_score, "Brier score", "probs", core=True, percent=False),
    "ece": Measure(metrics.expected_calibration_error, "ECE, equal width", core=True, takes_bins=True),
    "ece_equal_mass": Measure(
        metrics.expected_calibration_error,
        "ECE, equal mass",
        core=True,
        takes_bins=True,
        options={"binning": "mass"},
    ),
    "classwise_ece": Measure(
        metrics.classwise_calibration_error, "classwise ECE", "probs", core=True, takes_bins=True
    ),
    "mce": Measure(
        metrics.maximum_calibration_error, "largest gap of a bin (MCE)", core=True, takes_bins=True
    ),
    "aurc": Measure(metrics.aurc, "area under risk-coverage (AURC)", core=True),
    "auroc_correct": Measure(metrics.auroc_correctness, "AUROC of correctness", better="higher", core=True),
    "top_5_error": Measure(metrics.top_k_error, "top-5 error", "probs", options={"k": 5}, fewest_classes=6),
    "smece": Measure(metrics.smooth_ece, "smooth ECE (smECE)"),
    "smce": Measure(metrics.smooth_calibration_error, "smooth calibration error (smCE)"),
    "ece_debiased": Measure(
        metrics.debiased_calibration_error,
        "debiased ECE, equal mass",
        takes_bins=True,
        options={"norm": "l1"},
    ),
    "rmsce_debiased": Measure(
        metrics.debiased_calibration_error, "debiased RMSCE, equal mass", takes_bins=True
    ),
    "ece_sweep": Measure(metrics.sweep_calibration_error, "ECE-sweep, equal mass"),
    "ece_sweep_width": Measure(
        metrics.sweep_calibration_error, "ECE-sweep, equal width", options={"binning": "width"}
    ),
    "rmsce": Measure(metrics.rms_calibration_error, "root mean square (RMSCE)", takes_bins=True),
    "ace": Measure(metrics.average_calibration_error, "average over bins (ACE)", takes_bins=True),
    "ks": Measure(metrics.ks_error, "Kolmogorov-Smirnov (KS)"),
    "mmce": Measure(metrics.mmce, "kernel error (MMCE)"),
    "kde_ece": Measure(metrics.kde_calibration_error, "kernel density ECE", most_samples=20_000),
    "overconfidence": Measure(metrics.overconfidence, "overconfident part of ECE", takes_bins=True),
    "underconfidence": Measure(metrics.underconfidence, "underconfident part of ECE", takes_bins=True),
    "classwise_ece_equal_mass": Measure(
        metrics.classwise_calibration_error,
        "classwise ECE, equal mass",
        "probs",
        takes_bins=True,
        options={"binning": "mass"},
    ),
    "adaptive_ece": Measure(
        metrics.adaptive_calibration_error, "adaptive, per class (Nixon's ACE)", "probs", takes_bins=True
    ),
    "sce_true_class": Measure(
        metrics.static_calibration_error,
        "SCE per true class (SECA)",
        "probs",
        takes_bins=True,
        options={"definition": "true_class"},
    ),
    "skce": Measure(metrics.skce, "squared kernel error (SKCE)", "probs", percent=False, most_samples=20_000),
    "skce_linear": Measure(
        metrics.skce, "SKCE, linear estimate", "probs", percent=False, options={"estimator": "linear"}
    ),
    "brier_calibration": Measure(_brier_calibration, "Brier: calibration (CORP)", "probs", percent=False),
    "brier_refinement": Measure(_brier_refinement, "Brier: refinement (CORP)", "probs", percent=False),
    "excess_aurc": Measure(metrics.excess_aurc, "excess AURC"),
    "augrc": Measure(metrics.augrc, "generalised risk (AUGRC)"),
    "auroc_ovo": Measure(metrics.auroc_ovo, "AUROC, one against one", "probs", better="higher"),
    "auroc_ovr": Measure(metrics.auroc_ovr, "AUROC, one against rest", "probs", better="higher"),
    "charbonnier": Measure(
        metrics.charbonnier_error, "Charbonnier H (no calibration error)", better="neither"
    ),
}
