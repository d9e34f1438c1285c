"""A window: some rows in a row, measured together."""

from dataclasses import dataclass

import numpy as np

from calibrant.inputs import Floats
from calibrant.metrics.intervals import Interval
from calibrant.monitoring.resampling import with_intervals


@dataclass(frozen=True)
class Window:
    """What a number of rows in a row say, with 95 % intervals, and the evidence after them.

    Attributes:
        first: Number of the first row, counted from 1 since monitoring began.
        last: Number of the last row.
        n: Number of rows.
        accuracy: Share of correct predictions.
        mean_confidence: Mean stated confidence.
        ece: Expected calibration error; where resampling, which adds noise, only gave larger ones, its
            interval is widened to the value.
        brier: Brier score; None unless class probabilities were known for every row.
        nll: Negative log-likelihood; None where the Brier score is, or if infinite.
        log_e_value: Logarithm of the evidence, after the last row, that calibration is not what it was.
        alarm: Whether the evidence has sufficed for an alarm at this row or before.
    """

    first: int
    last: int
    n: int
    accuracy: Interval
    mean_confidence: Interval
    ece: Interval
    brier: Interval | None
    nll: Interval | None
    log_e_value: float
    alarm: bool


def measured(rows: Floats, *, last: int, n_bins: int, log_e_value: float, alarm: bool) -> Window:
    """Measure the rows of a window.

    Args:
        rows: What ``columns_of`` tells of each row.
        last: Number of the last row.
        n_bins: Number of bins of the ECE.
        log_e_value: Logarithm of the evidence after the last row.
        alarm: Whether it has sufficed.
    """
    confidence, correct, nll, brier = rows
    known = {"accuracy": correct, "mean_confidence": confidence, "brier": brier, "nll": nll}
    known = {name: terms for name, terms in known.items() if np.isfinite(terms).all()}
    n = len(confidence)
    # Each window has resamples of its own, which are the same however the stream was cut.
    means, ece = with_intervals(
        np.stack(list(known.values())), correct, confidence, n_bins=n_bins, seed=last // n
    )
    of = dict(zip(known, means, strict=True))
    return Window(
        first=last - n + 1,
        last=last,
        n=n,
        accuracy=of["accuracy"],
        mean_confidence=of["mean_confidence"],
        ece=ece,
        brier=of.get("brier"),
        nll=of.get("nll"),
        log_e_value=log_e_value,
        alarm=alarm,
    )
