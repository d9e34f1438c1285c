"""Post-hoc calibration: maps from a trained model's logits to calibrated probabilities."""

import typing as _typing

from calibrant.lazy import import_when_used as _import_when_used

if _typing.TYPE_CHECKING:
    from calibrant.posthoc.bbq import BBQ
    from calibrant.posthoc.beta import BetaCalibration
    from calibrant.posthoc.by_group import ByGroup
    from calibrant.posthoc.calibrator import Calibrator, Identity
    from calibrant.posthoc.class_temperature import ClassTemperatureScaling
    from calibrant.posthoc.combination import Combination
    from calibrant.posthoc.confidence import ConfidenceCalibrator, ScoreCalibrator
    from calibrant.posthoc.dirichlet import DirichletCalibration
    from calibrant.posthoc.ensemble import EnsembleTemperatureScaling
    from calibrant.posthoc.feature_clipping import FeatureClipping
    from calibrant.posthoc.files import load_calibrator
    from calibrant.posthoc.fitting_set import FittingSet
    from calibrant.posthoc.frequencies import FrequencyCorrection
    from calibrant.posthoc.group import GroupCalibration
    from calibrant.posthoc.histogram import HistogramBinning
    from calibrant.posthoc.intra_order import IntraOrderPreserving
    from calibrant.posthoc.isotonic import IsotonicCalibration
    from calibrant.posthoc.labels import LabelCalibrator
    from calibrant.posthoc.local_temperature import LocalTemperature
    from calibrant.posthoc.logistic_spline import LogisticSpline
    from calibrant.posthoc.matrix import MatrixScaling
    from calibrant.posthoc.metacal import MetaCal
    from calibrant.posthoc.methods import METHODS
    from calibrant.posthoc.model import CalibratedModel
    from calibrant.posthoc.monotone import MonotoneScaling
    from calibrant.posthoc.parameterized import ParameterizedTemperatureScaling, PTSPaper
    from calibrant.posthoc.pixelwise import PixelCalibration
    from calibrant.posthoc.platt import PlattScaling
    from calibrant.posthoc.pool import Pool
    from calibrant.posthoc.proximity import ProximityCalibration
    from calibrant.posthoc.quadratic import QuadraticCalibration
    from calibrant.posthoc.score_maps import PixelSample
    from calibrant.posthoc.segments import SegmentCalibration
    from calibrant.posthoc.simplex_isotonic import SimplexIsotonicCalibration
    from calibrant.posthoc.smart import SMART, SMARTPaper
    from calibrant.posthoc.spline import SplineCalibration
    from calibrant.posthoc.structured import StructuredMatrixScaling, StructuredVectorScaling
    from calibrant.posthoc.structured_smart import StructuredSMART, StructuredVectorSMART
    from calibrant.posthoc.temperature import TemperatureScaling
    from calibrant.posthoc.vector import VectorScaling
    from calibrant.posthoc.venn_abers import VennAbers

__all__ = [
    "BBQ",
    "METHODS",
    "SMART",
    "BetaCalibration",
    "ByGroup",
    "CalibratedModel",
    "Calibrator",
    "ClassTemperatureScaling",
    "Combination",
    "ConfidenceCalibrator",
    "DirichletCalibration",
    "EnsembleTemperatureScaling",
    "FeatureClipping",
    "FittingSet",
    "FrequencyCorrection",
    "GroupCalibration",
    "HistogramBinning",
    "Identity",
    "IntraOrderPreserving",
    "IsotonicCalibration",
    "LabelCalibrator",
    "LocalTemperature",
    "LogisticSpline",
    "MatrixScaling",
    "MetaCal",
    "MonotoneScaling",
    "PTSPaper",
    "ParameterizedTemperatureScaling",
    "PixelCalibration",
    "PixelSample",
    "PlattScaling",
    "Pool",
    "ProximityCalibration",
    "QuadraticCalibration",
    "SMARTPaper",
    "ScoreCalibrator",
    "SegmentCalibration",
    "SimplexIsotonicCalibration",
    "SplineCalibration",
    "StructuredMatrixScaling",
    "StructuredSMART",
    "StructuredVectorSMART",
    "StructuredVectorScaling",
    "TemperatureScaling",
    "VectorScaling",
    "VennAbers",
    "load_calibrator",
]

_import_when_used(__name__)
