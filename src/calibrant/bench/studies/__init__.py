"""The papers' statements that are not tables: figures, theorems and propositions, checked by numbers."""

from calibrant.bench.studies.bound import bound_study
from calibrant.bench.studies.indicators import indicator_study
from calibrant.bench.studies.mismatch import mismatch_study
from calibrant.bench.studies.sensitivity import sensitivity_study

__all__ = ["bound_study", "indicator_study", "mismatch_study", "sensitivity_study"]
