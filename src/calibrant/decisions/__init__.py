"""Decisions on top of calibrated confidence: ship or block, answer or abstain, act on costs, adapt."""

from calibrant.decisions.conformal import CoverageLaw, coverage_law
from calibrant.decisions.costs import (
    Acting,
    BreakEven,
    CostDifference,
    CostResult,
    CostRule,
    Costs,
    act_on_costs,
    read_costs,
)
from calibrant.decisions.expected import (
    ConfidenceChange,
    Estimate,
    ExpectedQuality,
    ExpectedRisk,
    estimate_quality,
)
from calibrant.decisions.frequencies import FrequencyShift, estimate_frequencies, read_frequencies
from calibrant.decisions.rule import Decisions, Rule, load_rule
from calibrant.decisions.set_measures import SetMeasures, SetRow
from calibrant.decisions.sets import PredictionSets, SetComparison, SetResult, calibrate_part, compare_sets
from calibrant.decisions.thresholds import (
    GuaranteedRisks,
    Threshold,
    ThresholdRule,
    guaranteed_risks,
    threshold_for_coverage,
    threshold_for_risk,
    thresholds_for_risks,
)

__all__ = [
    "Acting",
    "BreakEven",
    "ConfidenceChange",
    "CostDifference",
    "CostResult",
    "CostRule",
    "Costs",
    "CoverageLaw",
    "Decisions",
    "Estimate",
    "ExpectedQuality",
    "ExpectedRisk",
    "FrequencyShift",
    "GuaranteedRisks",
    "PredictionSets",
    "Rule",
    "SetComparison",
    "SetMeasures",
    "SetResult",
    "SetRow",
    "Threshold",
    "ThresholdRule",
    "act_on_costs",
    "calibrate_part",
    "compare_sets",
    "coverage_law",
    "estimate_frequencies",
    "estimate_quality",
    "guaranteed_risks",
    "load_rule",
    "read_costs",
    "read_frequencies",
    "threshold_for_coverage",
    "threshold_for_risk",
    "thresholds_for_risks",
]
