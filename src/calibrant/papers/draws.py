"""Draws of the test samples: the same for every model, so that finished rows can be compared in pairs.

A measure of a model varies with the test samples, and so does its difference to that of another model. A row
keeps the measure on a few bootstrap draws. A sample is drawn equally often in the draws of all models, seeds
and splits, so the differences of two rows, draw by draw, are those of a paired bootstrap.
"""

import base64
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from calibrant.data.predictions import Predictions
from calibrant.errors import FormatError
from calibrant.evaluation.evaluate import inputs_of
from calibrant.inference.draws import terms_of, weighted_of
from calibrant.inputs import Floats
from calibrant.metrics.counted import Weighted, mean_weights
from calibrant.metrics.measure import Measure
from calibrant.metrics.names import MEASURES

#: Number of draws. A standard error from so many is known to 9 %.
DRAWS = 64

#: Draws as a row keeps them: the largest deviation from the mean, and each as a byte, in 127ths of it.
PackedDraws: TypeAlias = tuple[float, str]

_STEPS = 127
# Ids from this on are no numbers of rows; the table of draws is as long as the largest.
_LARGEST = 1 << 18
# Numbers in memory at once.
_BLOCK = 1 << 21


def drawn_measures(predictions: Predictions, measures: Iterable[str]) -> dict[str, Floats]:
    """Return measures on draws of the samples; those that are no function of counts are left out.

    A sample is known by its number in ``predictions.ids``, or else by its place.

    Example:
        >>> wrong = Predictions(probs=[[0.9, 0.1]] * 50, labels=[1] * 50)
        >>> float(drawn_measures(wrong, ["accuracy"])["accuracy"].max())
        0.0
    """
    counts = sample_counts(numbers_of(predictions))
    inputs = inputs_of(predictions, predictions.outcomes(), None)
    found = {}
    for name in measures:
        weighted = _of_counts(MEASURES[name], inputs[MEASURES[name].reads])
        if weighted is not None:
            found[name] = _in_blocks(weighted, counts)
    return found


def drawn_detection(inside: Predictions, outside: Predictions) -> Floats:
    """Return on draws of both sets how well the largest probability tells them apart (AUROC)."""
    scores = torch.cat([each.to_probs().amax(dim=1) for each in (inside, outside)])
    rows = {"confidence": scores, "correct": torch.arange(len(scores)) < inside.n}
    numbers = numbers_of(inside)
    everyone = np.concatenate([numbers, numbers.max() + 1 + numbers_of(outside)])
    weighted = _of_counts(MEASURES["auroc_correct"], rows)
    assert weighted is not None
    return _in_blocks(weighted, sample_counts(everyone))


def numbers_of(predictions: Predictions) -> npt.NDArray[np.int64]:
    """Return the number by which each sample is known: its id, or its place.

    Ids that are hashes of names become ranks, which are the same for all models of the same samples.
    """
    if predictions.ids is None:
        return np.arange(predictions.n)
    ids = predictions.ids.cpu().numpy()
    return ids if ids.min() >= 0 and ids.max() < _LARGEST else np.unique(ids, return_inverse=True)[1]


def sample_counts(numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return how often each sample is in each draw, shape ``(DRAWS, n)``, by its number alone."""
    return np.ascontiguousarray(_counts(int(numbers.max()) + 1)[numbers].T)


@lru_cache(maxsize=4)
def _counts(n: int) -> npt.NDArray[np.int64]:
    # A Poisson bootstrap: the counts of a sample do not depend on how many others there are.
    return np.random.default_rng(0).poisson(1.0, size=(n, DRAWS))


def _of_counts(measure: Measure, rows: Mapping[str, Any]) -> Weighted | None:
    terms = terms_of(measure, {**rows, **measure.options})
    if terms is not None:
        return mean_weights(terms)
    return weighted_of(measure, rows, measure.options)


def _in_blocks(weighted: Weighted, counts: npt.NDArray[np.int64]) -> Floats:
    """Return the measure of each row of counts, in bounded memory; NaN for a draw of no sample."""
    values = np.full(DRAWS, np.nan)
    drawn = np.flatnonzero(counts.any(axis=1))
    size = max(1, _BLOCK // max(weighted.n, weighted.held))
    for start in range(0, len(drawn), size):
        rows = drawn[start : start + size]
        values[rows] = weighted.of(counts[rows])
    return values


def packed_all(draws: Mapping[str, Floats]) -> dict[str, PackedDraws]:
    """Return draws by name as a row keeps them, without those that are undefined somewhere."""
    kept = {name: packed(each) for name, each in draws.items()}
    return {name: each for name, each in kept.items() if each is not None}


def packed(draws: Floats) -> PackedDraws | None:
    """Return draws as a row keeps them; None if some are undefined.

    Example:
        >>> unpacked(packed(np.array([0.1, 0.2, 0.3]))).round(3).tolist()
        [-0.1, 0.0, 0.1]
    """
    if not np.isfinite(draws).all():
        return None
    away = draws - draws.mean()
    largest = float(np.abs(away).max())
    steps = np.rint(away * (_STEPS / largest)) if largest > 0 else np.zeros(len(away))
    return float(f"{largest:.6g}"), base64.b64encode(steps.astype(np.int8).tobytes()).decode()


def unpacked(kept: PackedDraws) -> Floats:
    """Return the deviations of the draws from their mean."""
    largest, text = kept
    try:
        steps = np.frombuffer(base64.b64decode(text, validate=True), dtype=np.int8)
    except ValueError as error:
        raise FormatError(f"draws: expected bytes in base 64, got {text[:20]!r} ({error})") from None
    return steps.astype(np.float64) * (largest / _STEPS)
