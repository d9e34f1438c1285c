"""Calibration of parts of the data: each class, and groups of samples with similar logit margins."""

from dataclasses import dataclass

from calibrant.data.predictions import Predictions
from calibrant.errors import InputError
from calibrant.metrics.classwise import class_bins
from calibrant.metrics.margin import MarginSlice, margin_slices


@dataclass(frozen=True)
class ClassRow:
    """Calibration of one class against all others.

    Attributes:
        name: Name or number of the class.
        n: Number of samples of this class.
        frequency: Share of samples of this class among all samples.
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
    """Measure the calibration of the probability of each class.

    Example:
        >>> from calibrant import Predictions
        >>> rows = by_class(Predictions(probs=[[0.9, 0.1], [0.6, 0.4]], labels=[0, 1]))
        >>> rows[0].name, rows[0].frequency, rows[0].mean_probability
        ('0', 0.5, 0.75)
    """
    if predictions.k is None or predictions.labels is None:
        raise InputError("predictions: expected class probabilities with labels, got neither or only one")
    probs, labels = predictions.to_probs(), predictions.labels
    bins = class_bins(probs, labels, n_bins=n_bins)
    errors, totals = bins.expected_gap(), bins.confidence_sum.sum(dim=1)
    predicted = probs.argmax(dim=1)
    names = predictions.class_names or tuple(str(c) for c in range(predictions.k))
    rows = []
    for c, name in enumerate(names):
        n = int((labels == c).sum())
        hits = int(((labels == c) & (predicted == c)).sum())
        rows.append(
            ClassRow(
                name,
                n,
                n / predictions.n,
                float(totals[c]) / predictions.n,
                hits / n if n else float("nan"),
                float(errors[c]),
            )
        )
    return tuple(rows)


def by_margin(predictions: Predictions, *, n_groups: int = 5) -> tuple[MarginSlice, ...]:
    """Measure calibration in groups of samples, by the margin between the two largest logits."""
    if predictions.logits is None or predictions.labels is None:
        raise InputError("predictions: expected logits with labels, got none; margins need logits")
    return margin_slices(predictions.logits, predictions.labels, n_groups=n_groups)
