"""Windows: consecutive rows that are measured together, with intervals from shared resamples."""

import hashlib
import zlib
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from calibrant.bins import equal_width_index
from calibrant.data.joined import UNKNOWN, PartlyLabelled
from calibrant.data.labels import LabelPredictions
from calibrant.data.predictions import Predictions
from calibrant.inference.chance import could_be_calibrated, redrawn
from calibrant.inference.draws import mean_resampler
from calibrant.inference.intervals import Interval, corrected_ends, with_interval
from calibrant.inference.rows import generator
from calibrant.inference.units import Spread, Units
from calibrant.inputs import Floats, Integers
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
        nll: Negative log-likelihood; None if the Brier score is None, if infinite, or if all rows are one
            unit.
        log_e_value: Logarithm of the evidence, after the last row, that calibration has changed.
        alarm: Whether an alarm was raised at this row or before.
        n_units: Number of units that the rows belong to, which are drawn for the intervals; None without
            units. The intervals of a single unit contain all values that a measure can have.
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
    n_units: int | None = None


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
    return predictions.outcomes().unweighed("monitoring")


@dataclass(frozen=True, eq=False)
class ReadRows:
    """What a monitoring needs to know of rows that were read.

    Attributes:
        columns: As :func:`columns_of` returns them; ``correct`` is -1 in rows without a label.
        units: The number of the unit of each row; None if rows have none.
        groups: The name of the group of each row; None if rows have none.
        ids: The number of the id of each row, if rows wait for their labels.
        predicted: The predicted class of each row, if rows wait; 1 for an answer.
        truth: The class of each row, or 1 and 0, if rows wait; -1 in rows without a label.
    """

    columns: Floats
    units: Integers | None
    groups: npt.NDArray[np.object_] | None = None
    ids: Integers | None = None
    predicted: Integers | None = None
    truth: Integers | None = None

    def __len__(self) -> int:
        return int(self.columns.shape[1])

    @property
    def pairs(self) -> Floats:
        """What must not change when a file is written again: the confidence, and the outcome or the class."""
        second = self.columns[1] if self.predicted is None else self.predicted
        return np.stack([self.columns[0], second])

    def take(self, rows: slice | npt.NDArray[np.bool_]) -> "ReadRows":
        """Return some of the rows."""
        names = ("units", "groups", "ids", "predicted", "truth")
        own = {name: None if (each := getattr(self, name)) is None else each[rows] for name in names}
        return ReadRows(self.columns[:, rows], **own)


def read_rows(
    rows: PartlyLabelled | Predictions,
    groups: npt.NDArray[np.object_] | None = None,
    *,
    waits: bool = False,
    units_before: int = 0,
) -> ReadRows:
    """Return what a monitoring needs to know of rows.

    Args:
        rows: The rows, of which some may have no label.
        groups: The name of the group of each row, if rows have groups.
        waits: Whether rows without a label wait for it.
        units_before: Number of units before, which numbers those of several labels at once.
    """
    outputs = rows.outputs if isinstance(rows, PartlyLabelled) else rows
    units = units_of(outputs, before=units_before)
    if not waits and not isinstance(rows, PartlyLabelled):
        return ReadRows(columns_of(rows), units, groups)
    rows = rows if isinstance(rows, PartlyLabelled) else PartlyLabelled.of(rows)
    columns = np.full((len(COLUMNS), outputs.n), np.nan)
    columns[0], predicted = stated_by(rows.outputs)
    columns[1] = np.where(rows.truth == UNKNOWN, -1, rows.truth == predicted)
    if waits:
        assert outputs.ids is not None
        return ReadRows(columns, units, groups, outputs.ids.cpu().numpy(), predicted, rows.truth)
    if (labelled := rows.labelled()) is not None:
        columns[:, rows.truth != UNKNOWN] = columns_of(labelled)
    return ReadRows(columns, units, groups)


def group_names(rows: PartlyLabelled | Predictions) -> npt.NDArray[np.object_] | None:
    """Return the name of the group of each row; None if rows have none."""
    groups = (rows.outputs if isinstance(rows, PartlyLabelled) else rows).groups
    return None if groups is None else np.array(groups.values, dtype=object)


def stated_by(outputs: Predictions) -> tuple[Floats, Integers]:
    """Return the confidence of each prediction and its class; 1 for an answer, which is right or wrong."""
    if outputs.k is None:
        predicted: Integers = np.ones(outputs.n, dtype=np.int64)
        found = outputs.replaced(correct=predicted == 1)
    else:
        scores = outputs.probs if outputs.logits is None else outputs.logits
        assert scores is not None
        predicted = scores.argmax(dim=1).cpu().numpy()
        found = outputs.replaced(labels=predicted)
    return unweighed_outcomes(found).confidence.cpu().numpy().astype(np.float64), predicted


def units_of(predictions: Predictions, *, before: int = 0) -> Integers | None:
    """Return the number of the unit of each row; None if rows have none.

    With several labels at once, each sample is a unit, unless samples belong to units; they are counted from
    ``before`` on, so that those of different files differ.
    """
    if predictions.units is None:
        return None
    own = isinstance(predictions, LabelPredictions) and predictions.row_units is None
    units: Integers = predictions.units.cpu().numpy()
    return units + before if own else units


def digest_of(predictions: Predictions, *, by_group: bool = False) -> str:
    """Return a hash of confidences, correctness, units and groups, by which references are distinguished."""
    digest = hashlib.sha256(np.ascontiguousarray(columns_of(predictions)[:2], dtype="<f8").tobytes())
    if (units := units_of(predictions)) is not None:
        digest.update(units.astype("<i8").tobytes())
    if by_group and predictions.groups is not None:
        digest.update("\n".join(predictions.groups.values).encode(errors="surrogatepass"))
    return digest.hexdigest()


def check_sum(columns: Floats, before: int = 0) -> int:
    """Return the checksum of all rows so far, given that of the rows before, in blocks of any size."""
    return zlib.crc32(np.ascontiguousarray(columns[:2].T, dtype="<f8").tobytes(), before)


# A state of an earlier version is believed, whatever its numbers.
@np.errstate(over="ignore", invalid="ignore")
def measure_window(
    rows: Floats, units: Integers | None, *, last: int, n_bins: int, log_e_value: float, alarm: bool
) -> Window:
    """Measure the rows of a window, which have the form that ``columns_of`` returns."""
    confidence, correct, nll, brier = rows
    if np.isnan(brier).all():
        pairs = Pairs(confidence=confidence, correct=correct == 1)
        nll, brier = log_losses(**pairs).numpy(), squared_errors(**pairs).numpy()
    known = {"accuracy": correct, "mean_confidence": confidence, "brier": brier, "nll": nll}
    known = {name: terms for name, terms in known.items() if np.isfinite(terms).all()}
    n, n_units = len(confidence), None if units is None else len(np.unique(units))
    # The seed depends on the window alone, so intervals do not depend on how the stream was cut.
    means, ece = with_intervals(
        np.stack(list(known.values())), correct, confidence, units, n_bins=n_bins, seed=last // n
    )
    measures: dict[str, Any] = {"brier": None, "nll": None, "ece": ece} | dict(zip(known, means, strict=True))
    if n_units == 1:
        measures = {name: _of_one_unit(name, each) for name, each in measures.items()}
    return Window(
        first=last - n + 1, last=last, n=n, log_e_value=log_e_value, alarm=alarm, n_units=n_units, **measures
    )


def with_intervals(
    terms: Floats,
    correct: Floats,
    confidence: Floats,
    numbers: Integers | None = None,
    *,
    n_bins: int,
    seed: int,
) -> _Means:
    """Return the mean of each row of ``terms``, shape ``(m, n)``, and the ECE, with 95 % intervals.

    Args:
        terms: What is averaged.
        correct: Whether each prediction was right.
        confidence: The confidences.
        numbers: The unit of each row, if rows depend on each other.
        n_bins: Number of bins of the ECE.
        seed: Equal seeds give equal intervals.
    """
    is_one = numbers is not None and len(np.unique(numbers)) == 1
    units = Units.of(None if is_one else numbers, len(confidence))
    if len(confidence) > _FEW:
        return _of_many(terms, correct, confidence, units, n_bins=n_bins, seed=seed)
    gaps = np.zeros((n_bins, len(confidence)))
    place = equal_width_index(confidence, n_bins)
    gaps[place, np.arange(len(confidence))] = correct - confidence
    ece = float(np.abs(gaps.sum(axis=1)).sum()) / len(confidence)
    drawn = _means(np.concatenate([terms, gaps]), units, seed)
    # The mean over units of unequal size is a ratio of sums, which has a bias.
    biased = not units.are_rows and bool(np.ptp(units.sizes))
    means = [
        _interval(float(of.mean()), means, units.spread(of), biased=biased)
        for of, means in zip(terms, drawn.T[: len(terms)], strict=True)
    ]
    spread = units.spread(correct - confidence)
    found = _interval(ece, np.abs(drawn[:, len(terms) :]).sum(axis=1), spread, biased=True)
    rng, n = generator(seed), len(confidence)
    redraw = redrawn({"confidence": confidence, "correct": correct == 1}, units)

    def if_calibrated() -> float:
        error = np.asarray(redraw(rng)["correct"]) - confidence
        return float(np.abs(np.bincount(place, weights=error, minlength=n_bins)).sum()) / n

    low = max(found.low, 0.0)
    return means, replace(found, low=0.0 if could_be_calibrated(ece, if_calibrated, level=_LEVEL) else low)


def _means(terms: Floats, units: Units, seed: int) -> Floats:
    """Return the means of all terms in each resample, shape ``(resamples, terms)``."""
    rng, step = generator(seed), max(1, _BLOCK // units.n)
    sums = np.stack([units.sums(of) for of in terms])
    blocks = []
    for start in range(0, _RESAMPLES, step):
        # With the number of times each unit was drawn, one matrix product gives the means of all terms.
        times = units.draw_counts(min(step, _RESAMPLES - start), rng).astype(np.float64)
        n = units.n if units.are_rows else (times @ units.sizes)[:, None]
        blocks.append(times @ sums.T / n)
    return np.concatenate(blocks)


def _of_many(
    terms: Floats, correct: Floats, confidence: Floats, units: Units, *, n_bins: int, seed: int
) -> _Means:
    resamplers = [mean_resampler(of, None, units) for of in terms]
    means = [
        _interval(r.value, r.replicates(_RESAMPLES, generator(seed)), r.spread, biased=not r.is_mean)
        for r in resamplers
    ]
    ece = with_interval(
        expected_calibration_error,
        confidence=confidence,
        correct=correct == 1,
        units=None if units.are_rows else units.code,
        n_bins=n_bins,
        n_resamples=_RESAMPLES,
        level=_LEVEL,
        seed=seed,
    )
    return means, ece


def _of_one_unit(name: str, found: Interval | None) -> Interval | None:
    """Return a measure of a single unit, which shows no variation: between all values that it can have."""
    if found is None or name == "nll":  # which has no bound
        return None
    high = max(2.0 if name == "brier" else 1.0, found.value)
    return replace(found, low=0.0, high=high, standard_error=high / 2)


def _interval(value: float, drawn: Floats, spread: Spread, *, biased: bool = False) -> Interval:
    low, high = corrected_ends(value, drawn, level=_LEVEL, biased=biased, spread=spread)
    return Interval(value, low, high, _LEVEL, float(drawn.std(ddof=1)), len(drawn), 0)
