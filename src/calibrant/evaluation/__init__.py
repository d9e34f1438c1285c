"""Evaluate predictions: measures with intervals, parts of the data, comparisons, detection, curves."""

from calibrant.evaluation.answering import Answering, answer_when
from calibrant.evaluation.calibrated import calibrated, fit_method
from calibrant.evaluation.choose import Choice, choose, make_choice
from calibrant.evaluation.compare import Comparison, MethodResult, compare
from calibrant.evaluation.detection import detect_ood
from calibrant.evaluation.effect import Effect, effect_of
from calibrant.evaluation.evaluate import Evaluation, evaluate
from calibrant.evaluation.groups import GroupRow, GroupTable, by_group
from calibrant.evaluation.loss_shape import LossShape, loss_shape
from calibrant.evaluation.margin_diagnosis import MarginDiagnosis, diagnose_margins
from calibrant.evaluation.paired import PairedComparison, paired_comparison
from calibrant.evaluation.slices import ClassRow, by_class, by_margin
from calibrant.evaluation.temperature_curve import FeasibleGroup, TemperatureCurve, temperature_curve
from calibrant.evaluation.validation_size import SizeCurve, ValidationSizes, by_validation_size

__all__ = [
    "Answering",
    "Choice",
    "ClassRow",
    "Comparison",
    "Effect",
    "Evaluation",
    "FeasibleGroup",
    "GroupRow",
    "GroupTable",
    "LossShape",
    "MarginDiagnosis",
    "MethodResult",
    "PairedComparison",
    "SizeCurve",
    "TemperatureCurve",
    "ValidationSizes",
    "answer_when",
    "by_class",
    "by_group",
    "by_margin",
    "by_validation_size",
    "calibrated",
    "choose",
    "compare",
    "detect_ood",
    "diagnose_margins",
    "effect_of",
    "evaluate",
    "fit_method",
    "loss_shape",
    "make_choice",
    "paired_comparison",
    "temperature_curve",
]
