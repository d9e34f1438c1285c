"""Evaluate predictions: measures with intervals, parts of the data, comparisons, detection, curves."""

import typing as _typing

from calibrant.lazy import import_when_used as _import_when_used

if _typing.TYPE_CHECKING:
    from calibrant.evaluation.after_temperature import nll_after_temperature
    from calibrant.evaluation.answering import answer_when
    from calibrant.evaluation.calibrated import calibrated, fit_method
    from calibrant.evaluation.choose import choose, make_choice
    from calibrant.evaluation.compare import compare
    from calibrant.evaluation.detection import detect_ood
    from calibrant.evaluation.effect import effect_of
    from calibrant.evaluation.evaluate import evaluate
    from calibrant.evaluation.groups import by_group
    from calibrant.evaluation.loss_shape import loss_shape
    from calibrant.evaluation.margin_diagnosis import diagnose_margins
    from calibrant.evaluation.models import compare_models
    from calibrant.evaluation.paired import paired_comparison
    from calibrant.evaluation.slices import by_class, by_margin
    from calibrant.evaluation.temperature_curve import temperature_curve
    from calibrant.evaluation.validation_size import by_validation_size

__all__ = [
    "answer_when",
    "by_class",
    "by_group",
    "by_margin",
    "by_validation_size",
    "calibrated",
    "choose",
    "compare",
    "compare_models",
    "detect_ood",
    "diagnose_margins",
    "effect_of",
    "evaluate",
    "fit_method",
    "loss_shape",
    "make_choice",
    "nll_after_temperature",
    "paired_comparison",
    "temperature_curve",
]

_import_when_used(__name__)
