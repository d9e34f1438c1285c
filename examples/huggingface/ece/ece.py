"""Calibration measures as a module of ``evaluate``: ``evaluate.load("examples/huggingface/ece")``.

The folder is laid out as a Space of metrics, so that it can be pushed as it is.
"""

from typing import Any

import datasets
import evaluate

from calibrant import Predictions
from calibrant import evaluate as measure

_DESCRIPTION = """
How honest the probabilities of a classifier are: expected calibration error, and proper scores beside it.
"""

_INPUTS = """
Args:
    predictions: probabilities of all classes, one row for each sample
    references: the true class of each sample, counted from zero
    measures: names of measures of Calibrant (default: ece, nll, brier)
    n_bins: number of bins (default: 15)
Returns:
    the measures by name
"""

_CITATION = """
@software{calibrant, title = {Calibrant: honest confidence for classifiers}}
"""


class ECE(evaluate.Metric):  # type: ignore[misc]  # the package has no types
    """Measures of calibration by their names."""

    def _info(self) -> evaluate.MetricInfo:
        rows = {
            "predictions": datasets.Sequence(datasets.Value("float64")),
            "references": datasets.Value("int64"),
        }
        return evaluate.MetricInfo(
            description=_DESCRIPTION,
            citation=_CITATION,
            inputs_description=_INPUTS,
            features=datasets.Features(rows),
        )

    def _compute(
        self,
        predictions: Any,  # noqa: ANN401  # lists or arrays, as evaluate gives them
        references: Any,  # noqa: ANN401
        measures: tuple[str, ...] = ("ece", "nll", "brier"),
        n_bins: int = 15,
    ) -> dict[str, float]:
        given = Predictions(probs=predictions, labels=references)
        found = measure(given, measures=list(measures), n_bins=n_bins).metrics
        return {name: float(found[name]) for name in measures}
