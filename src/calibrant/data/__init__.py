"""Predictions of a classifier, their files, and predictions that come with the package."""

import typing as _typing

from calibrant.lazy import import_when_used as _import_when_used

if _typing.TYPE_CHECKING:
    from calibrant.data.bundled import load_bundled
    from calibrant.data.columns import Columns
    from calibrant.data.files import load_answers, load_predictions, save_predictions
    from calibrant.data.labels import LabelPredictions
    from calibrant.data.predictions import Predictions
    from calibrant.data.rewriting import write_answers

__all__ = [
    "Columns",
    "LabelPredictions",
    "Predictions",
    "load_answers",
    "load_bundled",
    "load_predictions",
    "save_predictions",
    "write_answers",
]

_import_when_used(__name__)
