"""What functions of predictions take: predictions, the path of a file, or probabilities with labels."""

import os
from typing import TypeAlias

from calibrant.data.predictions import Predictions
from calibrant.errors import InputError
from calibrant.inputs import ArrayLike

PredictionsLike: TypeAlias = Predictions | str | os.PathLike[str]


def given_predictions(
    given: PredictionsLike | ArrayLike, labels: ArrayLike | None = None, *, name: str = "predictions"
) -> Predictions:
    """Return predictions: those given, those of a file, or probabilities with labels.

    Whether an array holds probabilities or logits is never guessed: it must be probabilities.

    Args:
        given: Predictions, a path, or probabilities of shape ``(n, k)``, or ``(n,)`` for class 1.
        labels: The classes, if probabilities are given.
        name: What an error message calls the argument.
    """
    if isinstance(given, (Predictions, str, os.PathLike)):
        if labels is not None:
            raise InputError(f"labels: expected none, because {name} hold them, got some; leave them out")
        if isinstance(given, Predictions):
            return given
        from calibrant.data.files import load_predictions

        return load_predictions(given)
    if labels is None:
        raise InputError(
            f"{name}: expected Predictions or the path of a file, got {type(given).__name__}; pass "
            "Predictions(probs=..., labels=...), or logits=... for logits"
        )
    return Predictions(probs=given, labels=labels)
