"""Figures: values in, axes out; matplotlib is imported when the first figure is drawn."""

from calibrant.plots.bin_dynamics import BinErrorsDisplay, CorrespondenceDisplay
from calibrant.plots.confidence_histogram import ConfidenceHistogramDisplay
from calibrant.plots.decided import (
    CascadeDisplay,
    CostOfAskingDisplay,
    ExpectedRiskDisplay,
    FrequencyShiftDisplay,
    GateDisplay,
    GuaranteedRiskDisplay,
    SetSizesDisplay,
)
from calibrant.plots.detectors import BoxMapDisplay, BoxThresholdsDisplay
from calibrant.plots.display import Display
from calibrant.plots.gap_map import GapMapDisplay
from calibrant.plots.loss_shape import LossShapeDisplay
from calibrant.plots.margin_diagnosis import MarginDiagnosisDisplay
from calibrant.plots.margins import (
    IndicatorsDisplay,
    MarginGroupsDisplay,
    MarginReliabilityDisplay,
    TemperatureCurveDisplay,
)
from calibrant.plots.method_comparison import MethodComparisonDisplay, ValidationSizeDisplay
from calibrant.plots.model_honesty import ModelHonestyDisplay
from calibrant.plots.ood_roc import OODRocDisplay
from calibrant.plots.reliability import ClassReliabilityDisplay, ReliabilityDisplay
from calibrant.plots.reliability_curves import CorpReliabilityDisplay, SmoothReliabilityDisplay
from calibrant.plots.risk_coverage import RiskCoverageDisplay
from calibrant.plots.training_dynamics import AdaFocalGammasDisplay, TrainingDynamicsDisplay

__all__ = [
    "AdaFocalGammasDisplay",
    "BinErrorsDisplay",
    "BoxMapDisplay",
    "BoxThresholdsDisplay",
    "CascadeDisplay",
    "ClassReliabilityDisplay",
    "ConfidenceHistogramDisplay",
    "CorpReliabilityDisplay",
    "CorrespondenceDisplay",
    "CostOfAskingDisplay",
    "Display",
    "ExpectedRiskDisplay",
    "FrequencyShiftDisplay",
    "GapMapDisplay",
    "GateDisplay",
    "GuaranteedRiskDisplay",
    "IndicatorsDisplay",
    "LossShapeDisplay",
    "MarginDiagnosisDisplay",
    "MarginGroupsDisplay",
    "MarginReliabilityDisplay",
    "MethodComparisonDisplay",
    "ModelHonestyDisplay",
    "OODRocDisplay",
    "ReliabilityDisplay",
    "RiskCoverageDisplay",
    "SetSizesDisplay",
    "SmoothReliabilityDisplay",
    "TemperatureCurveDisplay",
    "TrainingDynamicsDisplay",
    "ValidationSizeDisplay",
]
