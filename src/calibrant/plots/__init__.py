"""Figures: values in, axes out; matplotlib is imported when the first one is drawn."""

from calibrant.plots.adafocal_gammas import AdaFocalGammasDisplay
from calibrant.plots.bin_dynamics import BinErrorsDisplay, CorrespondenceDisplay
from calibrant.plots.class_reliability import ClassReliabilityDisplay
from calibrant.plots.confidence_histogram import ConfidenceHistogramDisplay
from calibrant.plots.corp_reliability import CorpReliabilityDisplay
from calibrant.plots.display import Display
from calibrant.plots.loss_shape import LossShapeDisplay
from calibrant.plots.margin_groups import MarginGroupsDisplay
from calibrant.plots.method_comparison import MethodComparisonDisplay
from calibrant.plots.ood_roc import OODRocDisplay
from calibrant.plots.reliability import ReliabilityDisplay
from calibrant.plots.risk_coverage import RiskCoverageDisplay
from calibrant.plots.smooth_reliability import SmoothReliabilityDisplay
from calibrant.plots.temperature_curve import TemperatureCurveDisplay
from calibrant.plots.training_dynamics import TrainingDynamicsDisplay
from calibrant.plots.validation_size import ValidationSizeDisplay

__all__ = [
    "AdaFocalGammasDisplay",
    "BinErrorsDisplay",
    "ClassReliabilityDisplay",
    "ConfidenceHistogramDisplay",
    "CorpReliabilityDisplay",
    "CorrespondenceDisplay",
    "Display",
    "LossShapeDisplay",
    "MarginGroupsDisplay",
    "MethodComparisonDisplay",
    "OODRocDisplay",
    "ReliabilityDisplay",
    "RiskCoverageDisplay",
    "SmoothReliabilityDisplay",
    "TemperatureCurveDisplay",
    "TrainingDynamicsDisplay",
    "ValidationSizeDisplay",
]
