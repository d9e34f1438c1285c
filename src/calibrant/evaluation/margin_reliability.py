"""Reliability within groups of the original logit margin, before and after a repair."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from calibrant.bins import Bins, top_label_bins
from calibrant.data.predictions import Predictions
from calibrant.evaluation.slices import original_groups
from calibrant.outcomes import margin
from calibrant.results import FrozenDict

# Groups along which the change of confidence is followed.
_FINE = 20


@dataclass(frozen=True, eq=False)
class MarginReliability:
    """Bins of confidence in groups of the margin that the samples had before any repair.

    Attributes:
        bins: For all samples and for each group, by its name, the bins of each model, by the model's name.
        margins: Mean original margin in finer groups of equal count.
        change: Mean confidence in these groups minus that of the first model, by the other models' names.
    """

    bins: Mapping[str, Mapping[str, Bins]]
    margins: Tensor
    change: Mapping[str, Tensor]


def margin_reliability(
    models: Mapping[str, Predictions], *, n_groups: int = 3, n_bins: int = 10
) -> MarginReliability:
    """Put the predictions of each margin group into bins of confidence.

    Args:
        models: Predictions with labels for the same samples, the original ones first, then repaired ones.
        n_groups: Number of groups of equal count.
        n_bins: Number of bins of equal width.
    """
    groups = original_groups(models, n_groups=n_groups)
    rows = {f"margin {group.low:.1f} to {group.high:.1f}": group.rows for group in groups}
    classes = {name: model.classes() for name, model in models.items()}
    bins = {"all samples": {name: _bins(model, n_bins) for name, model in classes.items()}}
    for title, own in rows.items():
        bins[title] = {name: _bins(model.take(own), n_bins) for name, model in classes.items()}
    first, *others = classes
    before = classes[first]
    fine = [group.rows for group in original_groups(models, n_groups=_FINE)]
    margins = margin(before.to_logits()).double()
    gains = {name: classes[name].outcomes().confidence - before.outcomes().confidence for name in others}
    return MarginReliability(
        FrozenDict(bins),
        torch.stack([margins[own].mean() for own in fine]).cpu(),
        FrozenDict({name: torch.stack([gain[own].mean() for own in fine]) for name, gain in gains.items()}),
    )


def _bins(predictions: Predictions, n_bins: int) -> Bins:
    seen = predictions.outcomes()
    return top_label_bins(
        confidence=seen.confidence, correct=seen.correct, weights=seen.weights, n_bins=n_bins
    )
