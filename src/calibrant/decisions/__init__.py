"""Decisions on top of calibrated confidence: ship or block, answer or abstain, act on costs, adapt."""

import typing as _typing

from calibrant.lazy import import_when_used as _import_when_used

if _typing.TYPE_CHECKING:
    from calibrant.decisions.cascade_rule import CascadeRule
    from calibrant.decisions.cascades import cascade_for_risk
    from calibrant.decisions.conformal import coverage_law
    from calibrant.decisions.costs import CostRule, Costs, act_on_costs, cost_of_asking, read_costs
    from calibrant.decisions.expected import estimate_quality
    from calibrant.decisions.frequencies import estimate_frequencies, read_frequencies
    from calibrant.decisions.gate import check_requirements, samples_needed
    from calibrant.decisions.group_thresholds import GroupThresholdRule, find_group_thresholds
    from calibrant.decisions.judges import estimate_outcomes
    from calibrant.decisions.junit import write_junit
    from calibrant.decisions.requirement import Requirement
    from calibrant.decisions.rule import load_rule
    from calibrant.decisions.sets import PredictionSets, calibrate_part, compare_sets
    from calibrant.decisions.shift import AdaptedCalibrator
    from calibrant.decisions.thresholds import (
        ThresholdRule,
        guaranteed_risks,
        threshold_for_coverage,
        threshold_for_risk,
    )

__all__ = [
    "AdaptedCalibrator",
    "CascadeRule",
    "CostRule",
    "Costs",
    "GroupThresholdRule",
    "PredictionSets",
    "Requirement",
    "ThresholdRule",
    "act_on_costs",
    "calibrate_part",
    "cascade_for_risk",
    "check_requirements",
    "compare_sets",
    "cost_of_asking",
    "coverage_law",
    "estimate_frequencies",
    "estimate_outcomes",
    "estimate_quality",
    "find_group_thresholds",
    "guaranteed_risks",
    "load_rule",
    "read_costs",
    "read_frequencies",
    "samples_needed",
    "threshold_for_coverage",
    "threshold_for_risk",
    "write_junit",
]

_import_when_used(__name__)
