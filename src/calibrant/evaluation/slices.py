"""Calibration of parts of the data: each class, and groups of samples with similar logit margins."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from calibrant.data.predictions import Predictions
from calibrant.errors import InputError
from calibrant.metrics.accuracy import accuracy, mean_confidence
from calibrant.metrics.classwise import class_bins
from calibrant.metrics.margin import MarginGroup, MarginSlice, margin_groups, margin_slices
from calibrant.outcomes import counts_of
from calibrant.results import FrozenDict


@dataclass(frozen=True)
class ClassRow:
    """Calibration of one class against all others.

    Attributes:
        name: Name or number of the class.
        n: Number of samples of this class.
        frequency: Share of samples of this class among all samples; like all that follows, by weight if
            samples have weights.
        mean_probability: Mean probability of this class over all samples.
        recall: Share of its samples that were predicted correctly; NaN without samples.
        ece: Binned gap between its probability and its frequency.
    """

    name: str
    n: int
    frequency: float
    mean_probability: float
    recall: float
    ece: float


def by_class(predictions: Predictions, *, n_bins: int = 15) -> tuple[ClassRow, ...]:
    """Measure the calibration of the probability of each class; samples of weight 0 are left out.

    Example:
        >>> from calibrant import Predictions
        >>> rows = by_class(Predictions(probs=[[0.9, 0.1], [0.6, 0.4]], labels=[0, 1]))
        >>> rows[0].name, rows[0].frequency, rows[0].mean_probability
        ('0', 0.5, 0.75)
    """
    predictions = predictions.classes("class probabilities with labels").counted()
    probs, labels, w = predictions.to_probs(), predictions.labels, predictions.weights
    assert labels is not None
    bins = class_bins(probs, labels, n_bins=n_bins, weights=w)
    errors, means = bins.expected_gap(), bins.confidence_sum.sum(dim=1) / bins.count.sum(dim=1)
    each = counts_of(w, len(labels)).to(labels.device)
    names = predictions.class_names or tuple(str(c) for c in range(probs.shape[1]))
    sizes, weights, right = (
        torch.bincount(labels, weight, minlength=len(names))
        for weight in (None, each, each * (probs.argmax(dim=1) == labels))
    )
    columns = (sizes, weights / weights.sum(), means, right / weights, errors)
    rows = zip(names, *(column.tolist() for column in columns), strict=True)
    return tuple(ClassRow(*row) for row in rows)


def by_margin(predictions: Predictions, *, n_groups: int = 5) -> tuple[MarginSlice, ...]:
    """Measure calibration in groups of samples, by the margin between the two largest logits."""
    if predictions.logits is None or predictions.labels is None:
        raise InputError("predictions: expected logits with labels, got none; margins need logits")
    given = predictions.logits, predictions.labels
    return margin_slices(*given, n_groups=n_groups, weights=predictions.weights)


def by_original_margin(
    models: Mapping[str, Predictions], *, n_groups: int = 5
) -> dict[str, tuple[MarginSlice, ...]]:
    """Measure accuracy and confidence of several models in the same groups, those of the first one's margins.

    Args:
        models: Predictions with labels for the same samples, the original ones first, then repaired ones.
        n_groups: Number of groups of equal count.
    """
    found: dict[str, list[MarginSlice]] = {name: [] for name in models}
    for group in original_groups(models, n_groups=n_groups):
        for name, model in models.items():
            part = model.classes().take(group.rows)
            given = {"probs": part.to_probs(), "labels": part.labels, "weights": part.weights}
            metrics = {"accuracy": accuracy(**given), "mean_confidence": mean_confidence(**given)}
            found[name].append(MarginSlice(group.low, group.high, part.n, FrozenDict(metrics)))
    return {name: tuple(slices) for name, slices in found.items()}


def original_groups(models: Mapping[str, Predictions], *, n_groups: int) -> tuple[MarginGroup, ...]:
    """Group the samples of several models by the margins of the first one."""
    sizes = {model.n for model in models.values()}
    if len(sizes) != 1:
        raise InputError(f"models: expected predictions for the same samples, got {sorted(sizes)} samples")
    first = next(iter(models.values())).classes()
    # Logarithms of probabilities have the margins of the logits.
    return margin_groups(first.to_logits(), n_groups=n_groups, weights=first.weights)
