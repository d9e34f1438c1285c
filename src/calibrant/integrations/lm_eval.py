"""Calibration inside a run of lm-evaluation-harness, for tasks whose answer is one of several options.

A task names functions of a file beside it, in which these two lines make them::

    process_results = of_options("answer", measures=["ece", "nll"])
    ece, nll = over_samples("ece"), over_samples("nll")

Neither needs the harness: they read what it hands them.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch

from calibrant.data.predictions import Predictions
from calibrant.errors import InputError
from calibrant.evaluation.evaluate import evaluate
from calibrant.posthoc.files import load_calibrator

#: The log-probabilities of the options of a question, and the place of the right one.
Answered: TypeAlias = tuple[list[float], int]


def of_options(
    right: str | Callable[[Mapping[str, Any]], int],
    *,
    measures: Sequence[str],
    calibrator: str | os.PathLike[str] | None = None,
) -> Callable[[Mapping[str, Any], Sequence[tuple[float, bool]]], dict[str, Any]]:
    """Return a ``process_results`` that gives the accuracy and what the measures read.

    Args:
        right: The field of a question that holds the place of the right option, counted from zero, or a
            function that returns it.
        measures: The names under which ``metric_list`` has :func:`over_samples`.
        calibrator: File of a calibrator that repairs the log-likelihoods first.
    """
    repair = None if calibrator is None else load_calibrator(calibrator)

    def process_results(doc: Mapping[str, Any], results: Sequence[tuple[float, bool]]) -> dict[str, Any]:
        scores = torch.tensor([score for score, _ in results], dtype=torch.float64)
        place = doc[right] if isinstance(right, str) else right(doc)
        if not isinstance(place, int) or not 0 <= place < len(scores):
            raise InputError(
                f"right: expected the place of one of {len(scores)} options, got {place!r}; give a function "
                "that finds it"
            )
        log_probs = scores.log_softmax(0) if repair is None else repair.predict_one(scores).log()
        answered: Answered = (log_probs.tolist(), place)
        return {"acc": float(int(log_probs.argmax()) == place), **dict.fromkeys(measures, answered)}

    return process_results


def over_samples(measure: str) -> Callable[[Sequence[Answered]], float]:
    """Return the aggregation that measures all questions; those with fewer options have masked classes.

    Args:
        measure: A name that ``calibrant measures`` lists.
    """

    def aggregation(answers: Sequence[Answered]) -> float:
        most = max(len(log_probs) for log_probs, _ in answers)
        logits = [log_probs + [-torch.inf] * (most - len(log_probs)) for log_probs, _ in answers]
        predictions = Predictions(logits=logits, labels=[place for _, place in answers])
        return float(evaluate(predictions, measures=[measure]).metrics[measure])

    aggregation.__name__ = measure
    return aggregation
