"""Decisions on top of calibrated confidence: ship or block, answer or abstain, act on costs, adapt."""

from calibrant.decisions.expected import (
    ConfidenceChange,
    Estimate,
    ExpectedQuality,
    ExpectedRisk,
    estimate_quality,
)
from calibrant.decisions.frequencies import FrequencyShift, estimate_frequencies, read_frequencies
from calibrant.decisions.rule import Decisions, Rule, load_rule

__all__ = [
    "ConfidenceChange",
    "Decisions",
    "Estimate",
    "ExpectedQuality",
    "ExpectedRisk",
    "FrequencyShift",
    "Rule",
    "estimate_frequencies",
    "estimate_quality",
    "load_rule",
    "read_frequencies",
]
