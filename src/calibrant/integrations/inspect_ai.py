"""Calibration inside a run of Inspect: a scorer that adds confidences to another one, and their measures.

``Task(scorer=with_confidence(match()), ...)`` shows the measures beside the accuracy, and the log keeps the
confidences where :func:`calibrant.load_predictions` finds them.
"""

import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from calibrant.data.predictions import Predictions
from calibrant.errors import MissingPackageError
from calibrant.evaluation.evaluate import evaluate
from calibrant.signals import token_confidence

try:
    from inspect_ai.model import ModelOutput
    from inspect_ai.scorer import Metric, SampleScore, Score, Scorer, Target, accuracy, metric, scorer, stderr
    from inspect_ai.solver import TaskState
except ModuleNotFoundError as error:
    raise MissingPackageError("Inspect", "inspect-ai", command="pip install inspect-ai") from error

#: A number, perhaps in percent, after the word "confidence".
STATED = r"confidence\W{0,9}(\d+(?:\.\d+)?|\.\d+)\s*(%?)"

_MARKS = {"C": True, "I": False, "N": False, 1: True, 0: False}


@metric  # type: ignore[untyped-decorator]  # the package is not installed where types are checked
def calibration(measures: Sequence[str] = ("ece", "brier", "nll", "auroc_correct")) -> Metric:
    """Measure how honest the confidences in the metadata of the scores are.

    Samples without a confidence, and those that are neither right nor wrong, are left out; ``n`` is the
    number of the others. All measures are NaN if there are fewer than two.

    Args:
        measures: Names of measures that read confidences, as ``calibrant measures`` lists them.
    """

    def measured(scores: list[SampleScore]) -> Any:  # noqa: ANN401  # Inspect's type of values
        pairs = [
            (confidence, _MARKS[each.score.value])
            for each in scores
            if (confidence := (each.score.metadata or {}).get("confidence")) is not None
            and isinstance(each.score.value, (str, int, float))
            and each.score.value in _MARKS
        ]
        if len(pairs) < 2:
            return {"n": len(pairs), **dict.fromkeys(measures, math.nan)}
        confidence, correct = map(list, zip(*pairs, strict=True))
        found = evaluate(Predictions(confidence=confidence, correct=correct), measures=list(measures))
        return {"n": len(pairs), **{name: found.metrics[name] for name in measures}}

    return measured


@scorer(metrics=[accuracy(), stderr(), calibration()])  # type: ignore[untyped-decorator]  # as above
def with_confidence(by: Scorer, stated: str = STATED) -> Scorer:
    """Score by another scorer, and add the confidence of the answer to the metadata of the score.

    The confidence is the last one that the model states in its answer, else that of its tokens if the model
    gives their log-probabilities (``GenerateConfig(logprobs=True)``).

    Args:
        by: The scorer that decides whether an answer is right.
        stated: Pattern of a stated confidence: a number, and a group that is not empty if it is in percent.
    """
    pattern = re.compile(stated, re.IGNORECASE)

    async def score(state: TaskState, target: Target) -> Score | None:
        found = await by(state, target)
        if found is None:
            return None
        confidence = stated_confidence(state.output.completion, pattern)
        if confidence is None:
            confidence = confidence_of_tokens(state.output)
        return found.model_copy(update={"metadata": {**(found.metadata or {}), "confidence": confidence}})

    return score


def stated_confidence(text: str, pattern: re.Pattern[str]) -> float | None:
    """Return the last confidence that a text states; None if there is none, or none between 0 and 1."""
    matches = list(pattern.finditer(text))
    if not matches:
        return None
    number, percent = matches[-1].groups()
    # "Confidence: 85" can only mean percent.
    confidence = float(number) / (100 if percent or float(number) > 1 else 1)
    return confidence if confidence <= 1 else None


def confidence_of_tokens(output: ModelOutput) -> float | None:
    """Return the confidence that the log-probabilities of the tokens give; None without them."""
    found = output.choices[0].logprobs if output.choices else None
    if found is None or not found.content:
        return None
    return float(np.asarray(token_confidence([[token.logprob for token in found.content]]))[0])
