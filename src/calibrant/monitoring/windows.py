"""Windows: consecutive rows that are measured together, with intervals from shared resamples."""

import hashlib
import zlib
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from calibrant.bins import equal_width_index
from calibrant.data.predictions import Predictions
from calibrant.errors import InputError
from calibrant.inference.chance import could_be_calibrated
from calibrant.inference.draws import TermResampler
from calibrant.inference.intervals import Interval, corrected_ends, with_interval
from calibrant.inference.rows import generator
from calibrant.inference.units import Units
from calibrant.inputs import Floats
from calibrant.metrics.binned import expected_calibration_error
from calibrant.metrics.proper import log_losses, squared_errors
from calibrant.outcomes import Outcomes, Pairs

_Means: TypeAlias = tuple[list[Interval], Interval]

#: What the test and the windows need to know of each row.
COLUMNS = ("confidence", "correct", "nll", "brier")
_LEVEL = 0.95
_RESAMPLES = 200
# With more rows than this, bins and cells are resampled instead of rows, which then costs less.
_FEW = 1 << 15
_BLOCK = 1 << 20


@dataclass(frozen=True)
class Window:
    """The measures of consecutive rows, with 95 % intervals, and the evidence of drift after them.

    Attributes:
        first: Number of the first row, counted from 1 since monitoring began.
        last: Number of the last row.
        n: Number of rows.
        accuracy: Share of correct predictions.
        mean_confidence: Mean stated confidence.
        ece: Expected calibration error; its interval allows for the error that chance adds.
        brier: Brier score; None if the window has both class scores and confidences without classes, of
            which it means different things.
        nll: Negative log-likelihood; None if the Brier score is None, or if infinite.
        log_e_value: Logarithm of the evidence, after the last row, that calibration has changed.
        alarm: Whether an alarm was raised at this row or before.
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


def columns_of(predictions: Predictions) -> Floats:
    """Return confidence, correctness, log loss and squared error of each row.

    The last two are those of class probabilities, and NaN for confidences without classes.
    """
    outcomes = unweighed_outcomes(predictions)
    columns = np.full((len(COLUMNS), len(outcomes)), np.nan)
    columns[0], columns[1] = outcomes.confidence.cpu().numpy(), outcomes.correct.cpu().numpy()
    if predictions.labels is not None:
        probs = predictions.probs if predictions.logits is None else None
        columns[2] = log_losses(predictions.labels, probs=probs, logits=predictions.logits).cpu().numpy()
        columns[3] = squared_errors(predictions.to_probs(), predictions.labels).cpu().numpy()
    return columns


def unweighed_outcomes(predictions: Predictions) -> Outcomes:
    """Return the outcomes of predictions without weights: a test by betting counts every row once."""
    if predictions.units is not None:
        raise InputError(
            "predictions: expected one prediction per row, got several labels, which are not independent; "
            "monitor each label by itself"
        )
    return predictions.outcomes().unweighed("monitoring")


def digest_of_rows(columns: Floats) -> str:
    """Return a hash of confidences and correctness, by which references are distinguished."""
    return hashlib.sha256(np.ascontiguousarray(columns[:2], dtype="<f8").tobytes()).hexdigest()


def check_sum(columns: Floats, before: int = 0) -> int:
    """Return the checksum of all rows so far, given that of the rows before, in blocks of any size."""
    return zlib.crc32(np.ascontiguousarray(columns[:2].T, dtype="<f8").tobytes(), before)


def measure_window(rows: Floats, *, last: int, n_bins: int, log_e_value: float, alarm: bool) -> Window:
    """Measure the rows of a window, which have the form that ``columns_of`` returns."""
    confidence, correct, nll, brier = rows
    if np.isnan(brier).all():
        pairs = Pairs(confidence=confidence, correct=correct == 1)
        nll, brier = log_losses(**pairs).numpy(), squared_errors(**pairs).numpy()
    known = {"accuracy": correct, "mean_confidence": confidence, "brier": brier, "nll": nll}
    known = {name: terms for name, terms in known.items() if np.isfinite(terms).all()}
    n = len(confidence)
    # The seed depends on the window alone, so intervals do not depend on how the stream was cut.
    means, ece = with_intervals(
        np.stack(list(known.values())), correct, confidence, n_bins=n_bins, seed=last // n
    )
    measures: dict[str, Any] = {"brier": None, "nll": None, "ece": ece} | dict(zip(known, means, strict=True))
    return Window(first=last - n + 1, last=last, n=n, log_e_value=log_e_value, alarm=alarm, **measures)


def with_intervals(terms: Floats, correct: Floats, confidence: Floats, *, n_bins: int, seed: int) -> _Means:
    """Return the mean of each row of ``terms``, shape ``(m, n)``, and the ECE, with 95 % intervals."""
    if len(confidence) > _FEW:
        return _of_many(terms, correct, confidence, n_bins=n_bins, seed=seed)
    gaps = np.zeros((n_bins, len(confidence)))
    place = equal_width_index(confidence, n_bins)
    gaps[place, np.arange(len(confidence))] = correct - confidence
    ece = float(np.abs(gaps.sum(axis=1)).sum()) / len(confidence)
    drawn = _means(np.concatenate([terms, gaps]), seed)
    means = [
        _interval(float(of.mean()), means) for of, means in zip(terms, drawn.T[: len(terms)], strict=True)
    ]
    found = _interval(ece, np.abs(drawn[:, len(terms) :]).sum(axis=1), biased=True)
    rng, n = generator(seed), len(confidence)

    def if_calibrated() -> float:
        error = (rng.random(n) < confidence) - confidence
        return float(np.abs(np.bincount(place, weights=error, minlength=n_bins)).sum()) / n

    low = max(found.low, 0.0)
    return means, replace(found, low=0.0 if could_be_calibrated(ece, if_calibrated, level=_LEVEL) else low)


def _means(terms: Floats, seed: int) -> Floats:
    """Return the means of all terms in each resample, shape ``(resamples, terms)``."""
    rng, n = generator(seed), terms.shape[1]
    units, step = Units.of(None, n), max(1, _BLOCK // n)
    blocks = []
    for start in range(0, _RESAMPLES, step):
        # With the number of times each row was drawn, one matrix product gives the means of all terms.
        times = units.draw_counts(min(step, _RESAMPLES - start), rng)
        blocks.append(times.astype(np.float64) @ terms.T / n)
    return np.concatenate(blocks)


def _of_many(terms: Floats, correct: Floats, confidence: Floats, *, n_bins: int, seed: int) -> _Means:
    resamplers = [TermResampler(of) for of in terms]
    means = [_interval(r.value, r.replicates(_RESAMPLES, generator(seed))) for r in resamplers]
    ece = with_interval(
        expected_calibration_error,
        confidence=confidence,
        correct=correct == 1,
        n_bins=n_bins,
        n_resamples=_RESAMPLES,
        level=_LEVEL,
        seed=seed,
    )
    return means, ece


def _interval(value: float, drawn: Floats, *, biased: bool = False) -> Interval:
    low, high = corrected_ends(value, drawn, level=_LEVEL, biased=biased)
    return Interval(value, low, high, _LEVEL, float(drawn.std(ddof=1)), len(drawn), 0)
