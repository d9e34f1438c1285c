"""All measures that a stream gives, as one value that can be merged, sent and saved."""

import base64
import json
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from operator import attrgetter
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from calibrant.bins import Bins
from calibrant.data.predictions import Predictions
from calibrant.errors import InputError
from calibrant.evaluation.evaluate import NO_WEIGHTS
from calibrant.evaluation.tables import remarks_on, title_of
from calibrant.files import parse_json, without_nan
from calibrant.inference.intervals import Interval
from calibrant.metrics.accuracy import confidences, hits, top_k_misses
from calibrant.metrics.measure import Measure
from calibrant.metrics.names import MEASURES
from calibrant.metrics.proper import log_losses, squared_errors
from calibrant.outcomes import Outcomes, weighted_like
from calibrant.results import FrozenDict, Result
from calibrant.show.numbers import NOTHING, Cell, measured, pair
from calibrant.show.table import Table
from calibrant.streams.accumulators import (
    ClasswiseAccumulator,
    MeanAccumulator,
    OutcomeAccumulator,
    ProperScoreAccumulator,
    TopKErrorAccumulator,
    applies,
)
from calibrant.streams.row_groups import LeftOut
from calibrant.streams.sketch import RankSketch, in_order
from calibrant.streams.sketch_bounds import Bounded
from calibrant.streams.sums import CheckedBatch, Form
from calibrant.streams.totals import Accumulator
from calibrant.streams.unit_sums import UnitAccumulator, UnitSums, Way

# Sketches with at most so many cells between 1/2 and 3/4 are those of many groups, which must be small.
_OF_GROUPS = 1024
# Buckets of units, cells of each, and units that are counted: of all rows, and of each of many groups.
_BUCKETS, _CELLS, _UNITS = (1024, 256), (4, 0), (1 << 17, 1 << 14)


def _mean_of_bins(bins: Bins, sums: Tensor) -> float:
    return float(sums.sum()) / float(bins.count.sum())


# Means that follow from the sums of every batch: their terms, what these read, their options, and the
# accumulator with the function that returns the mean from its result. Other means are summed term by term.
_SUMMED: tuple[tuple[Callable[..., Tensor], str, dict[str, Any], Way], ...] = (
    (hits, "outcomes", {}, ("outcomes", lambda bins: _mean_of_bins(bins, bins.correct_sum))),
    (confidences, "outcomes", {}, ("outcomes", lambda bins: _mean_of_bins(bins, bins.confidence_sum))),
    (log_losses, "logits", {}, ("scores", attrgetter("negative_log_likelihood"))),
    (squared_errors, "probs", {}, ("scores", attrgetter("brier_score"))),
    (top_k_misses, "probs", {"k": 5}, ("top", float)),
)


def streamed_measures() -> dict[str, Way]:
    """Return the measures that a stream gives, and how; others need all samples at once."""
    ways = {name: _way(name, measure) for name, measure in MEASURES.items()}
    return {name: way for name, way in ways.items() if way is not None}


def accumulators(*, n_bins: int, n_classes: int | None, resolution: int) -> dict[str, Accumulator]:
    """Return empty accumulators, by name, that give all measures of a stream."""
    parts: dict[str, Accumulator] = {
        "outcomes": OutcomeAccumulator(n_bins=n_bins),
        "ranks": RankSketch(resolution=resolution),
        "scores": ProperScoreAccumulator(),
        "classes": ClasswiseAccumulator(n_classes=n_classes, n_bins=n_bins),
        "top": TopKErrorAccumulator(k=5),
    }
    for name, (part, _) in streamed_measures().items():
        if part not in parts:
            parts[part] = MeanAccumulator(measure=name)
    return parts


def unit_accumulator(*, n_bins: int, resolution: int) -> UnitAccumulator:
    """Return an empty accumulator of sums by unit, which is smaller if there are many groups."""
    size = int(resolution <= _OF_GROUPS)
    terms = [name for name in streamed_measures() if MEASURES[name].terms is not None]
    return UnitAccumulator(
        n_bins=n_bins,
        buckets=_BUCKETS[size],
        resolution=_CELLS[size],
        most_units=_UNITS[size],
        terms=",".join(terms),
    )


def measures_of(
    parts: Mapping[str, Accumulator], *, k: int | None, n_bins: int
) -> dict[str, float | Bounded]:
    """Return the measures of ``k`` classes that follow from accumulators; NaN while these have no samples."""
    results: dict[str, Any] = {}
    for name, part in parts.items():
        if part.weight:
            results[name] = part.compute(n_bins=n_bins) if isinstance(part, RankSketch) else part.compute()
    values: dict[str, float | Bounded] = {}
    for name, (source, compute) in streamed_measures().items():
        if source not in parts or not applies(MEASURES[name], k):
            continue
        if source in results:
            value = compute(results[source])
            values[name] = value if isinstance(value, Bounded) else float(value)
        else:
            values[name] = Bounded(np.nan, np.nan, np.nan) if source == "ranks" else np.nan
    return values


def _way(name: str, measure: Measure) -> Way | None:
    """Return the accumulator that a measure follows from, and how; None if it needs all samples at once."""
    for terms, reads, options, way in _SUMMED:
        if (terms, reads, options) == (measure.terms, measure.reads, dict(measure.options)):
            return way
    if measure.cross_fits:
        return None
    if measure.options.get("binning") != "mass":
        if measure.of_bins is not None:
            return "outcomes", measure.of_bins
        if measure.of_class_bins is not None:
            return "classes", measure.of_class_bins
    if measure.of_ranks is not None:
        return "ranks", attrgetter(measure.of_ranks)
    return None if measure.terms is None else (f"mean_{name}", float)


@dataclass(frozen=True, eq=False)
class StreamEvaluation(Result):
    """How well calibrated the predictions of a stream are; all measures are fractions of one.

    Attributes:
        n: Number of samples.
        n_effective: Their effective number, which is smaller if they have unequal weights.
        k: Number of classes; none if only confidences are known.
        metrics: The measures by name; NaN where the data leave one undefined.
        bounds: For measures that depend on the order of all confidences, bounds that contain the exact value.
            All other measures are exact.
        bins: Confidence and accuracy in bins of equal width, for the reliability diagram.
        groups: The evaluation of each group, if the stream was grouped.
        left_out: Bad files and row groups that were left out.
        skipped: Measures that were not computed, with the reason: if samples have weights, those that take
            none.
        bin_sizes: Effective number of samples in each bin if they have weights.
        n_units: Number of units that the samples belong to; an estimate if there are more than 131,072, or
            16,384 in a group. None without units.
        intervals: If requested, 95 % intervals by name, made by drawing units again. Measures that need more
            than sums by unit have none: the classwise calibration error and, if the stream was grouped, those
            that have bounds.
        unit_sums: The sums by unit, from which intervals and tests of groups are made.
    """

    n: int
    n_effective: float
    k: int | None
    metrics: Mapping[str, float]
    bounds: Mapping[str, Bounded]
    bins: Bins
    groups: Mapping[str, "StreamEvaluation"] = field(default_factory=FrozenDict)
    left_out: tuple[LeftOut, ...] = ()
    skipped: Mapping[str, str] = field(default_factory=FrozenDict)
    bin_sizes: Tensor | None = None
    n_units: int | None = None
    intervals: Mapping[str, Interval] = field(default_factory=FrozenDict)
    unit_sums: UnitSums | None = None

    @property
    def is_weighted(self) -> bool:
        """Whether samples have weights."""
        return self.bins.count.is_floating_point()

    def only(self, names: Collection[str]) -> "StreamEvaluation":
        """Return the evaluation with these measures, also of its groups."""
        return replace(
            self,
            metrics=FrozenDict({name: self.metrics[name] for name in names if name in self.metrics}),
            bounds=FrozenDict({name: each for name, each in self.bounds.items() if name in names}),
            skipped=FrozenDict({name: why for name, why in self.skipped.items() if name in names}),
            intervals=FrozenDict({name: each for name, each in self.intervals.items() if name in names}),
            groups=FrozenDict({name: each.only(names) for name, each in self.groups.items()}),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON, as ``evaluate --json`` prints them; undefined ones are None."""
        answer: dict[str, Any] = {
            "n": self.n,
            "k": self.k,
            "metrics": dict(self.metrics),
            "bounds": {name: [each.low, each.high] for name, each in self.bounds.items()},
        }
        answer |= {} if self.n_units is None else {"n_units": self.n_units}
        answer |= {"n_effective": self.n_effective} if self.is_weighted else {}
        if self.intervals:
            answer["intervals"] = {name: [each.low, each.high] for name, each in self.intervals.items()}
        answer |= {"skipped": dict(self.skipped)} if self.skipped else {}
        own = ("groups", "left_out")
        groups = {
            name: {key: value for key, value in each.to_dict().items() if key not in own}
            for name, each in self.groups.items()
        }
        answer |= {"groups": groups, "left_out": [asdict(each) for each in self.left_out]}
        values: dict[str, Any] = without_nan(answer)
        return values

    def to_table(self) -> Table:
        """Return the measures; an approximate one with the bounds of its exact value."""
        rows = []
        for name, value in self.metrics.items():
            measure, bounds, interval = MEASURES[name], self.bounds.get(name), self.intervals.get(name)
            ends = NOTHING if bounds is None else _within(bounds.low, bounds.high, in_percent=measure.percent)
            row = [Cell(name, title_of(measure)), measured(value, in_percent=measure.percent), ends]
            if self.intervals:
                both = None if interval is None else (interval.low, interval.high)
                row.insert(2, NOTHING if both is None else pair(*both, " to ", in_percent=measure.percent))
            rows.append(row)
        notes = [*remarks_on(self.skipped), *(f"left out: {each.reason}" for each in self.left_out)]
        if without := [name for name in self.metrics if name not in self.intervals and self.intervals]:
            notes.append(
                f"no interval: {', '.join(without)}; for these, load a file with a sample of the units"
            )
        columns = ["measure", "value", *(["95 % interval"] if self.intervals else []), "exact value within"]
        return Table.of(columns, rows, title=self._title(), notes=tuple(notes))

    def _title(self) -> str:
        """Return the numbers of samples, units and classes in words."""
        about = "" if self.unit_sums is None or self.unit_sums.is_counted else "about "
        units = "" if self.n_units is None else f" of {about}{self.n_units:,} units"
        title = f"{self.n:,} predictions{units}" + ("" if self.k is None else f", {self.k} classes")
        return title + (f", {weighted_like(self.n_effective)}" if self.is_weighted else "")


def _within(low: float, high: float, *, in_percent: bool) -> Cell:
    """Write bounds with enough digits to show that they differ."""
    if math.isnan(low):
        return NOTHING
    if high - low < 1e-12:
        return Cell((low, high), "exact")
    scale, unit = (100, " %") if in_percent else (1, "")
    digits = min(12, max(2, 2 - math.floor(math.log10(max(scale * (high - low), 1e-12)))))
    return Cell((low, high), f"{scale * low:.{digits}f}{unit} to {scale * high:.{digits}f}{unit}")


class StreamMeasures:
    """All measures of the catalogue that can be computed in one pass and constant memory.

    Args:
        n_bins: Number of bins of the binned measures.
        resolution: Resolution of the :class:`~calibrant.streams.sketch.RankSketch`.

    Attributes:
        most_waiting: Samples are buffered (5 to 9 bytes each) and sorted in blocks of this size.

    Example:
        >>> left, right = StreamMeasures(n_bins=10), StreamMeasures(n_bins=10)
        >>> left.update(Predictions(probs=[[0.9, 0.1]], labels=[0]))
        >>> right.update(Predictions(probs=[[0.6, 0.4]], labels=[1]))
        >>> left.merge(right)
        >>> round(left.compute().metrics["ece"], 6), left.compute().bounds["auroc_correct"].low
        (0.35, 1.0)
    """

    def __init__(self, *, n_bins: int = 15, resolution: int = 8192) -> None:
        self._parts = accumulators(n_bins=n_bins, n_classes=None, resolution=resolution)
        self.n_bins = n_bins
        self.resolution = resolution
        self.most_waiting = 1 << 19
        self._waiting: list[Outcomes] = []

    def __getstate__(self) -> dict[str, Any]:
        self._settle()
        return self.__dict__

    @property
    def n(self) -> int:
        """Number of samples so far."""
        return self._parts["outcomes"].n + sum(map(len, self._waiting))

    @property
    def weight(self) -> float:
        """Sum of the weights of all samples so far; without weights their number."""
        self._settle()
        return self._parts["outcomes"].weight

    @property
    def k(self) -> int | None:
        """Number of classes; none if only confidences are known, or without samples."""
        classes = self._parts["classes"]
        return classes.n_classes if isinstance(classes, ClasswiseAccumulator) else None

    def update(self, predictions: Predictions) -> None:
        """Read a batch of predictions with labels, or of confidences with whether they were correct."""
        self.add(*tensors_of(predictions))

    def add(
        self,
        form: Form,
        outputs: Tensor,
        truth: Tensor,
        weights: Tensor | None = None,
        units: Tensor | None = None,
    ) -> None:
        """Read a batch that has been checked; the arguments are those of ``CheckedBatch``."""
        batch = CheckedBatch(form, outputs, truth, self.n_bins, weights, units)
        self._check_classes(batch.k)
        self._check_units(units is not None)
        for name, part in self._parts.items():
            if name not in ("outcomes", "ranks") and not part.why_not(batch.k):
                part.add(batch)
        outcomes = batch.outcomes
        if batch.form == "confidence":
            # A buffer must not keep alive the larger batch that it is a part of.
            outcomes = replace(
                outcomes, confidence=outcomes.confidence.clone(), correct=outcomes.correct.clone()
            )
        if batch.weights is not None:
            outcomes = replace(outcomes, weights=batch.weights.clone())
        self._waiting.append(outcomes)
        # Every block of samples is added to the whole sketch, so larger blocks cost less.
        if sum(map(len, self._waiting)) >= self.most_waiting:
            self._settle()

    def merge(self, other: Self) -> None:
        """Add the totals of other measures with the same settings, which do not change."""
        if not isinstance(other, StreamMeasures):
            raise InputError(
                f"merge: expected StreamMeasures, got {type(other).__name__}; read a state with "
                "StreamMeasures.from_state"
            )
        if other.n == 0:
            return
        self._check_classes(other.k)
        self._check_units("units" in other._parts)
        self._settle()
        other._settle()
        if self._parts.keys() != other._parts.keys():
            different = ", ".join(sorted(self._parts.keys() ^ other._parts.keys()))
            raise InputError(
                f"merge: expected the same measures, got some that differ in {different}; add the same "
                "measures to the catalogue in every process"
            )
        for name, part in self._parts.items():
            part.merge(other._parts[name])

    def compute(self, *, intervals: bool = False) -> StreamEvaluation:
        """Return the measures of all samples so far; intervals, if requested, need units."""
        self._settle()
        outcomes = self._parts["outcomes"]
        assert isinstance(outcomes, OutcomeAccumulator)
        bins, effective = outcomes.compute(), outcomes.effective
        values = measures_of(self._parts, k=self.k, n_bins=self.n_bins)
        refused = [name for name in values if effective is not None and not MEASURES[name].takes_weights]
        values = {name: value for name, value in values.items() if name not in refused}
        bounds = {name: value for name, value in values.items() if isinstance(value, Bounded)}
        metrics = {name: v.value if isinstance(v, Bounded) else v for name, v in values.items()}
        units, ranks = self._parts.get("units"), self._parts["ranks"]
        assert isinstance(ranks, RankSketch)
        sums = units.compute() if isinstance(units, UnitAccumulator) else None
        if intervals and sums is None:
            raise InputError(
                "intervals: expected units in a stream, got none; name the column of what rows belong to, or "
                "one with a name for each row if none depend on each other"
            )
        found = sums.intervals(metrics, streamed_measures(), ranks.cells()) if sums and intervals else {}
        return StreamEvaluation(
            n=self.n,
            n_effective=self.n if effective is None else effective,
            k=self.k,
            metrics=FrozenDict(metrics),
            bounds=FrozenDict(bounds),
            bins=bins,
            skipped=FrozenDict(dict.fromkeys(refused, NO_WEIGHTS)),
            bin_sizes=outcomes.sizes,
            n_units=None if sums is None else sums.n_units,
            intervals=FrozenDict(found),
            unit_sums=sums,
        )

    def state(self) -> str:
        """Return everything as JSON text for another process or a file; few filled cells make it small."""
        self._settle()
        return json.dumps({name: part.state() for name, part in self._parts.items()}, default=_encode)

    @classmethod
    def from_state(cls, state: str) -> Self:
        """Return the measures that had this ``state``."""
        try:
            stored = {
                part: {name: _decoded(value) for name, value in values.items()}
                for part, values in parse_json(state).items()
            }
            new = cls(n_bins=stored["outcomes"]["n_bins"], resolution=stored["ranks"]["resolution"])
            new._check_units("units" in stored)
            new._parts = {name: part.from_state(stored[name]) for name, part in new._parts.items()}
        except InputError as error:
            raise InputError(f"state: {str(error).removeprefix('state: ')}") from None
        except (KeyError, TypeError, AttributeError, ValueError, RuntimeError, MemoryError) as error:
            raise InputError(
                f"state: expected that of StreamMeasures, got something else ({error})"
            ) from None
        return new

    def _settle(self) -> None:
        """Sort the buffered outcomes for the two accumulators that need them sorted."""
        if self._waiting:
            confidence = torch.cat([each.confidence for each in self._waiting])
            correct = torch.cat([each.correct for each in self._waiting])
            weights = joined_weights([(each.weights, len(each)) for each in self._waiting])
            self._waiting = []
            ordered = in_order(Outcomes(confidence, correct, weights))
            for part in self._parts.values():
                if isinstance(part, OutcomeAccumulator | RankSketch):
                    part.add_sorted(ordered)

    def _check_units(self, given: bool) -> None:
        """Begin to sum by unit if the first samples have units; later ones have them if these do."""
        if given and not self.n:
            self._parts["units"] = unit_accumulator(n_bins=self.n_bins, resolution=self.resolution)
        elif given != ("units" in self._parts):
            before, now = ("units", "none") if "units" in self._parts else ("no units", "some")
            raise InputError(f"predictions: expected {before} as before, got {now}; measure them apart")

    def _check_classes(self, k: int | None) -> None:
        if self.n and self.k != k:
            before, now = ("pairs" if each is None else f"{each} classes" for each in (self.k, k))
            raise InputError(f"predictions: expected {before} as before, got {now}; measure them apart")


def tensors_of(predictions: Predictions) -> tuple[Form, Tensor, Tensor, Tensor | None, Tensor | None]:
    """Return form, outputs, truth, weights and units of predictions, as ``StreamMeasures.add`` takes them."""
    forms: tuple[Form, ...] = ("logits", "probs", "confidence")
    form = next(name for name in forms if getattr(predictions, name) is not None)
    truth = predictions.correct if form == "confidence" else predictions.labels
    if truth is None:
        raise InputError("labels: expected the true class of each sample, got none")
    return form, getattr(predictions, form), truth, predictions.weights, predictions.units


def joined_weights(parts: Sequence[tuple[Tensor | None, int]]) -> Tensor | None:
    """Return the weights of parts with these lengths; 1 where only other parts have weights.

    Example:
        >>> joined_weights([(None, 2), (torch.tensor([0.5]).double(), 1)])
        tensor([1.0000, 1.0000, 0.5000], dtype=torch.float64)
    """
    if all(weights is None for weights, _ in parts):
        return None
    return torch.cat([torch.ones(n).double() if weights is None else weights for weights, n in parts])


def _encode(tensor: Tensor) -> dict[str, Any]:
    """Write a tensor as exact text: JSON has no infinity, and digits would take several times the space."""
    array = tensor.numpy()
    array = np.ascontiguousarray(array.astype(array.dtype.newbyteorder("<")))
    text = base64.b64encode(array.tobytes()).decode("ascii")
    return {"type": array.dtype.str, "shape": list(tensor.shape), "data": text}


def _decoded(value: Any) -> Any:  # noqa: ANN401  # a setting or a tensor
    if not isinstance(value, dict):
        return value
    flat = np.frombuffer(base64.b64decode(value["data"], validate=True), dtype=value["type"])
    return torch.from_numpy(flat.astype(flat.dtype.newbyteorder("=")).reshape(value["shape"]).copy())
