"""From predictions to frozen results: measures with intervals, parts, comparisons, detection."""

from calibrant.evaluation.comparison import PairedComparison, paired_comparison
from calibrant.evaluation.detection import detect_ood
from calibrant.evaluation.measured import Evaluation, evaluate
from calibrant.evaluation.slices import ClassRow, by_class, by_margin

__all__ = [
    "ClassRow",
    "Evaluation",
    "PairedComparison",
    "by_class",
    "by_margin",
    "detect_ood",
    "evaluate",
    "paired_comparison",
]
