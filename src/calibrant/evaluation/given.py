"""What functions of predictions take: predictions, the path of a file, or probabilities with labels."""

import os
from typing import Any, TypeAlias, TypeGuard, cast

from calibrant.data.columns import FrameLike, Source
from calibrant.data.predictions import Predictions
from calibrant.errors import InputError
from calibrant.inputs import ArrayLike

PredictionsLike: TypeAlias = Predictions | Source


def is_source(given: object) -> TypeGuard[Source]:
    """Say whether predictions are to be read: from a file, an address or a frame."""
    return isinstance(given, (str, os.PathLike, FrameLike))


def given_predictions(
    given: PredictionsLike | ArrayLike,
    labels: ArrayLike | None = None,
    *,
    name: str = "predictions",
    **named: Any,  # noqa: ANN401  # fields of Columns
) -> Predictions:
    """Return predictions: those given, those of a file or a frame, or probabilities with labels.

    Whether an array holds probabilities or logits is never guessed: it must be probabilities.

    Args:
        given: Predictions, a path, a frame, or probabilities of shape ``(n, k)``, or ``(n,)`` for class 1.
        labels: The classes, if probabilities are given.
        name: What an error message calls the argument.
        **named: Which columns of a file or a frame hold what, as :class:`~calibrant.data.Columns` takes them.
    """
    # A frame beside labels holds probabilities.
    if is_source(given) and (labels is None or not isinstance(given, FrameLike)):
        _refuse_labels(labels, name)
        from calibrant.data.files import load_predictions

        return load_predictions(given, **named)
    if named:
        first = next(iter(named))
        raise InputError(
            f"{first}: expected none, because {name} are neither a file nor a frame, got {named[first]!r}; "
            "leave it out"
        )
    if isinstance(given, Predictions):
        _refuse_labels(labels, name)
        return given
    if labels is None:
        raise InputError(
            f"{name}: expected Predictions, a frame or the path of a file, got {type(given).__name__}; pass "
            "Predictions(probs=..., labels=...), or logits=... for logits"
        )
    return Predictions(probs=cast("ArrayLike", given), labels=labels)


def _refuse_labels(labels: ArrayLike | None, name: str) -> None:
    if labels is not None:
        raise InputError(f"labels: expected none, because {name} hold them, got some; leave them out")
