"""Differentiable stand-ins for calibration measures, shared by losses and by calibrators that are trained."""

from calibrant.surrogates.charbonnier import charbonnier_soft_ece
from calibrant.surrogates.objectives import (
    OBJECTIVES,
    Forecasts,
    LogProbForecasts,
    Objective,
    check_objective,
    objective_value,
)
from calibrant.surrogates.soft_bins import SoftBins, soft_bins, soft_ece, soft_membership

__all__ = [
    "OBJECTIVES",
    "Forecasts",
    "LogProbForecasts",
    "Objective",
    "SoftBins",
    "charbonnier_soft_ece",
    "check_objective",
    "objective_value",
    "soft_bins",
    "soft_ece",
    "soft_membership",
]
