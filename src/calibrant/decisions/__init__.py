"""Decisions on top of calibrated confidence: ship or block, answer or abstain, act on costs, adapt."""

from calibrant.decisions.gate import EXIT_CODES, Gate, Verdict, check_requirements, samples_needed
from calibrant.decisions.junit import junit_xml, write_junit
from calibrant.decisions.requirement import Requirement
from calibrant.decisions.rule import Decisions, Rule, load_rule

__all__ = ["Decisions", "Rule", "load_rule"]
