"""Names of what Calibrant offers: the command line, the contract tests and the benchmarks iterate these."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from calibrant import metrics
from calibrant.posthoc import Calibrator, TemperatureScaling


@dataclass(frozen=True)
class Measure:
    """A measure by name: what it reads, what it is called in a table, and which direction is better."""

    function: Callable[..., float]
    title: str
    reads: Literal["outcomes", "probs", "logits"]
    better: Literal["lower", "higher", "neither"] = "lower"
    options: Mapping[str, str] | None = None
    takes_bins: bool = False
    percent: bool = True


MEASURES: Mapping[str, Measure] = {
    "accuracy": Measure(metrics.accuracy, "accuracy", "outcomes", "higher"),
    "mean_confidence": Measure(metrics.mean_confidence, "mean confidence", "outcomes", "neither"),
    "nll": Measure(metrics.negative_log_likelihood, "negative log-likelihood", "logits", percent=False),
    "brier": Measure(metrics.brier_score, "Brier score", "probs", percent=False),
    "ece": Measure(metrics.expected_calibration_error, "ECE, equal width", "outcomes", takes_bins=True),
    "ece_equal_mass": Measure(
        metrics.expected_calibration_error,
        "ECE, equal mass",
        "outcomes",
        takes_bins=True,
        options={"binning": "mass"},
    ),
    "classwise_ece": Measure(metrics.classwise_calibration_error, "classwise ECE", "probs", takes_bins=True),
    "mce": Measure(
        metrics.maximum_calibration_error, "largest gap of a bin (MCE)", "outcomes", takes_bins=True
    ),
    "aurc": Measure(metrics.aurc, "area under risk-coverage (AURC)", "outcomes"),
    "auroc_correct": Measure(metrics.auroc_correctness, "AUROC of correctness", "outcomes", "higher"),
}

CALIBRATORS: Mapping[str, type[Calibrator]] = {
    "temperature": TemperatureScaling,
}
