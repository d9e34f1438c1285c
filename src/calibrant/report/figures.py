"""What the charts draw of one set of predictions, reduced to a few hundred numbers however many samples."""

import math
from collections.abc import Iterable

from torch import Tensor

from calibrant.bins import equal_width_bins
from calibrant.data.predictions import Predictions
from calibrant.evaluation.slices import by_class, by_margin
from calibrant.metrics.accuracy import accuracy, mean_confidence
from calibrant.metrics.reliability_band import accuracy_band
from calibrant.metrics.selective import risk_coverage_curve
from calibrant.outcomes import Outcomes
from calibrant.report.page import Binned, ClassLine, Figures, MarginGroup, Numbers, Risk

#: Numbers of bins that the reader can choose from.
BIN_NUMBERS = (5, 10, 15, 20, 25, 30, 50)
#: Most points of a curve.
POINTS = 200
MARGIN_GROUPS = 8
#: Most classes in the table.
CLASSES = 1000
_RESAMPLES = 400


def figures(predictions: Predictions, *, seed: int = 0) -> Figures:
    """Bin, group and thin labelled predictions."""
    outcomes = predictions.outcomes()
    return Figures(
        accuracy=accuracy(confidence=outcomes.confidence, correct=outcomes.correct),
        mean_confidence=mean_confidence(confidence=outcomes.confidence, correct=outcomes.correct),
        bins=tuple(binned(outcomes, n_bins, seed=seed) for n_bins in BIN_NUMBERS),
        risk=_risk(outcomes),
        margins=_margins(predictions),
    )


def binned(outcomes: Outcomes, n_bins: int, *, seed: int = 0) -> Binned:
    """Return a reliability diagram with its bootstrap band."""
    bins = equal_width_bins(outcomes, n_bins)
    band = accuracy_band(bins, n_resamples=_RESAMPLES, seed=seed)
    return Binned(
        n_bins=n_bins,
        ece=float(bins.expected_gap()),
        count=tuple(bins.count.tolist()),
        confidence=numbers(bins.confidence),
        accuracy=numbers(bins.accuracy),
        band_low=numbers(band.low),
        band_high=numbers(band.high),
    )


def class_lines(before: Predictions, after: Predictions | None) -> tuple[ClassLine, ...]:
    """Return the classes, the least calibrated first; those beyond the first thousand are left out."""
    if before.k is None:
        return ()
    rows = by_class(before)
    repaired = [None] * len(rows) if after is None else by_class(after)
    lines = [
        ClassLine(
            name=row.name,
            n=row.n,
            frequency=row.frequency,
            recall=number(row.recall),
            mean_probability=row.mean_probability,
            ece=row.ece,
            mean_probability_after=None if other is None else other.mean_probability,
            ece_after=None if other is None else other.ece,
        )
        for row, other in zip(rows, repaired, strict=True)
    ]
    return tuple(sorted(lines, key=lambda line: -line.ece)[:CLASSES])


def numbers(values: Tensor | Iterable[float]) -> Numbers:
    """Return plain numbers with nine digits, more than any screen shows; undefined ones are none."""
    return tuple(number(round_digits(float(value))) for value in values)


def number(value: float) -> float | None:
    """Return the value, or none if it is undefined or infinite."""
    return value if math.isfinite(value) else None


def round_digits(value: float) -> float:
    """Round to nine significant digits."""
    return float(f"{value:.9g}")


def _risk(outcomes: Outcomes) -> Risk:
    curve = risk_coverage_curve(confidence=outcomes.confidence, correct=outcomes.correct, max_points=POINTS)
    columns = (curve.coverage, curve.risk, curve.threshold)
    return Risk(*(tuple(round_digits(value) for value in column.tolist()) for column in columns))


def _margins(predictions: Predictions) -> tuple[MarginGroup, ...]:
    if predictions.k is None:
        return ()
    # Logarithms of probabilities have the margins of the logits.
    scored = Predictions(logits=predictions.to_logits(), labels=predictions.labels)
    return tuple(
        MarginGroup(part.low, part.high, part.n, part.metrics["accuracy"], part.metrics["mean_confidence"])
        for part in by_margin(scored, n_groups=MARGIN_GROUPS)
    )
