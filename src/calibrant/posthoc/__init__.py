"""Post-hoc calibration: maps from a trained model's logits to honest probabilities."""

from calibrant.posthoc.bbq import BBQ
from calibrant.posthoc.beta import BetaCalibration
from calibrant.posthoc.calibrator import Calibrator
from calibrant.posthoc.chain import Chain
from calibrant.posthoc.feature_clipping import FeatureClipping
from calibrant.posthoc.files import load_calibrator
from calibrant.posthoc.group import GroupCalibration
from calibrant.posthoc.histogram import HistogramBinning
from calibrant.posthoc.identity import Identity
from calibrant.posthoc.isotonic import IsotonicCalibration
from calibrant.posthoc.metacal import MetaCal
from calibrant.posthoc.model import CalibratedModel
from calibrant.posthoc.platt import PlattScaling
from calibrant.posthoc.proximity import ProximityCalibration
from calibrant.posthoc.spline import SplineCalibration
from calibrant.posthoc.temperature import TemperatureScaling
from calibrant.posthoc.venn_abers import VennAbers

__all__ = [
    "BBQ",
    "BetaCalibration",
    "CalibratedModel",
    "Calibrator",
    "Chain",
    "FeatureClipping",
    "GroupCalibration",
    "HistogramBinning",
    "Identity",
    "IsotonicCalibration",
    "MetaCal",
    "PlattScaling",
    "ProximityCalibration",
    "SplineCalibration",
    "TemperatureScaling",
    "VennAbers",
    "load_calibrator",
]
