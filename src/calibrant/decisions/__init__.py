"""Decisions on top of calibrated confidence: ship or block, answer or abstain, act on costs, adapt."""

from calibrant.decisions.conformal import CoverageLaw, coverage_law
from calibrant.decisions.costs import (
    Acting,
    BreakEven,
    CostDifference,
    CostOfAsking,
    CostResult,
    CostRule,
    Costs,
    act_on_costs,
    cost_of_asking,
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
from calibrant.decisions.gate import EXIT_CODES, Gate, Verdict, check_requirements, samples_needed
from calibrant.decisions.junit import junit_xml, write_junit
from calibrant.decisions.requirement import Requirement
from calibrant.decisions.rule import Decisions, Rule, load_rule
from calibrant.decisions.set_measures import SetMeasures, SetRow
from calibrant.decisions.sets import PredictionSets, SetComparison, SetResult, calibrate_part, compare_sets
from calibrant.decisions.thresholds import (
    GuaranteedRisks,
    Threshold,
    ThresholdRule,
    Thresholds,
    guaranteed_risks,
    threshold_for_coverage,
    threshold_for_risk,
)

__all__ = [
    "EXIT_CODES",
    "Acting",
    "BreakEven",
    "ConfidenceChange",
    "CostDifference",
    "CostOfAsking",
    "CostResult",
    "CostRule",
    "Costs",
    "CoverageLaw",
    "Decisions",
    "Estimate",
    "ExpectedQuality",
    "ExpectedRisk",
    "FrequencyShift",
    "Gate",
    "GuaranteedRisks",
    "PredictionSets",
    "Requirement",
    "Rule",
    "SetComparison",
    "SetMeasures",
    "SetResult",
    "SetRow",
    "Threshold",
    "ThresholdRule",
    "Thresholds",
    "Verdict",
    "act_on_costs",
    "calibrate_part",
    "check_requirements",
    "compare_sets",
    "cost_of_asking",
    "coverage_law",
    "estimate_frequencies",
    "estimate_quality",
    "guaranteed_risks",
    "junit_xml",
    "load_rule",
    "read_costs",
    "read_frequencies",
    "samples_needed",
    "threshold_for_coverage",
    "threshold_for_risk",
    "write_junit",
]
