"""Evaluate predictions: compute all measures that the predictions allow."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any

from torch import Tensor

from calibrant.bins import Bins, check_bins, equal_mass_bins, equal_width_bins
from calibrant.data.predictions import Predictions, ScorePredictions
from calibrant.errors import InputError
from calibrant.evaluation.given import PredictionsLike, given_predictions
from calibrant.evaluation.tables import measures_table, remarks_on
from calibrant.files import without_nan
from calibrant.inference.chance import Chance, by_chance
from calibrant.inference.draws import RESAMPLES
from calibrant.inference.intervals import Interval, with_interval
from calibrant.inference.memory import remembering
from calibrant.inputs import ArrayLike, Progress
from calibrant.metrics.measure import Measure, Reads
from calibrant.metrics.names import MEASURES, resolve_measures
from calibrant.metrics.positive import positive_outcomes
from calibrant.outcomes import Outcomes
from calibrant.results import FrozenDict, Result
from calibrant.show.html import card, notes, reliability, table
from calibrant.show.numbers import rows_of_units
from calibrant.show.table import Table
from calibrant.threads import few_threads

# Numbers computed for the resamples of a measure: several seconds. It depends on the data alone, so equal
# seeds give equal intervals on every machine.
MAX_WORK = 1 << 30
# The same for samples of a calibrated model, which the command line always draws: under a second.
_CHANCE_WORK, _CHANCE_DRAWS = 1 << 26, 200
#: Why a measure is skipped if samples have weights.
NO_WEIGHTS = "takes no weights, because it depends on the number of samples"


@dataclass(frozen=True, eq=False)
class Evaluation(Result):
    """Measures of a classifier's confidence, as fractions.

    Attributes:
        n: Number of samples.
        n_effective: Their effective number, which is smaller if they have unequal weights.
        n_units: Number of units that samples belong to, which intervals and tests draw; None if none were
            given.
        k: Number of classes; None if the predictions are confidences only.
        metrics: The measures by name; NaN if a measure is undefined for these data.
        intervals: Bootstrap intervals by name, if requested and defined.
        skipped: Requested measures that were not computed, with the reason.
        bins: Confidence and accuracy in bins of equal width, for the reliability diagram.
        remarks: What to know about a measure: that ties left some of its bins of equal count empty, or that
            its interval was not computed, or from fewer resamples, and why.
        by_chance: What a perfectly calibrated model would show by chance with as many samples, by name of the
            calibration error, if requested.
        only_ranks: Whether predictions are scores that only rank; the bins are then those of ranks.
        positive: Probability and frequency of the positive one of two classes, in bins; None for others.
    """

    n: int
    n_effective: float
    k: int | None
    metrics: Mapping[str, float]
    intervals: Mapping[str, Interval]
    skipped: Mapping[str, str]
    bins: Bins
    remarks: Mapping[str, str]
    by_chance: Mapping[str, Chance] = field(default_factory=FrozenDict)
    n_units: int | None = None
    only_ranks: bool = False
    positive: Bins | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON, as ``evaluate --json`` prints them; undefined ones are None."""
        answer: dict[str, Any] = {"n": self.n, "k": self.k, "metrics": dict(self.metrics)}
        answer |= {"n_effective": self.n_effective} if self.is_weighted else {}
        answer |= {} if self.n_units is None else {"n_units": self.n_units}
        parts = {
            "intervals": {name: [each.low, each.high] for name, each in self.intervals.items()},
            "by_chance": {name: asdict(each) for name, each in self.by_chance.items()},
            "skipped": dict(self.skipped),
            "remarks": dict(self.remarks),
        }
        values: dict[str, Any] = without_nan(answer | {name: part for name, part in parts.items() if part})
        return values

    @property
    def is_weighted(self) -> bool:
        """Whether samples have weights."""
        return self.n_effective != self.n

    def to_table(self) -> Table:
        """Return the measures, their intervals, and what chance would show, if requested."""
        return measures_table(
            {"value": self.metrics},
            self.intervals,
            self.by_chance,
            of_scores=self.only_ranks,
            title=rows_of_units(self.n, self.n_units, "predictions")
            + (f", {self.k:,} classes" if self.k else ""),
            notes=remarks_on(self.skipped, self.remarks),
        )

    def _repr_html_(self) -> str:
        """Return what notebooks show: the measures, and a small reliability diagram."""
        shown = self.to_table()
        edges, accuracy = self.bins.edges.tolist(), self.bins.accuracy.tolist()
        diagram = reliability(edges, accuracy, "accuracy in bins of confidence")
        return card(f"Evaluation of {shown.title}", table(shown), diagram, notes(shown.remarks))


@remembering()
def evaluate(
    predictions: PredictionsLike | ArrayLike,
    labels: ArrayLike | None = None,
    *,
    measures: str | Sequence[str] = "core",
    n_bins: int = 15,
    intervals: bool = False,
    n_resamples: int = RESAMPLES,
    level: float = 0.95,
    seed: int = 0,
    chance: bool = False,
    progress: Progress | None = None,
    **columns: Any,  # noqa: ANN401  # fields of Columns
) -> Evaluation:
    """Compute measures of labelled predictions.

    Args:
        predictions: Logits or probabilities with labels, or confidences with ``correct``; or the path of a
            file of them, or a frame; or probabilities of shape ``(n, k)``, with ``labels``. Logits are
            passed as ``Predictions(logits=..., labels=...)``.
        labels: Classes of shape ``(n,)``, beside probabilities.
        measures: ``"core"``, ``"all"``, or names from :data:`calibrant.metrics.names.MEASURES`.
        n_bins: Number of bins of the binned measures.
        intervals: Whether to bootstrap an interval for each measure.
        n_resamples: Number of bootstrap resamples. A measure that would take more than about ten seconds
            gets fewer, at least 100; its interval and ``remarks`` show how many.
        level: Share of repeated samples whose interval should cover the true value.
        seed: Equal seeds give equal intervals.
        chance: Whether to draw what a perfectly calibrated model would show by chance, for each calibration
            error, with the p-value of :func:`~calibrant.inference.calibration_test`.
        progress: Called with the title of the current measure, the number done, and the total; during its
            resamples also with their number.
        **columns: Which columns of a file or a frame hold what, as :class:`~calibrant.data.Columns` takes
            them, such as ``confidence="stated"``.

    Example:
        >>> from calibrant import Predictions
        >>> result = evaluate(Predictions(confidence=[0.9, 0.8, 0.6], correct=[True, True, False]))
        >>> round(result.metrics["ece"], 3), result.k
        (0.3, None)
        >>> round(evaluate([[0.9, 0.1], [0.6, 0.4]], [0, 1], n_bins=10).metrics["ece"], 3)
        0.35
    """
    given_rows = given_predictions(predictions, labels, **columns)
    predictions = given_rows.ranked() if isinstance(given_rows, ScorePredictions) else given_rows
    predictions = predictions.split()
    n_bins = check_bins(n_bins)
    wanted = fitting_measures(measures, predictions)
    skipped: dict[str, str] = {}
    if given_rows.score is not None:
        wanted = [name for name in wanted if MEASURES[name].of_order]
        skipped["every other measure"] = "it needs a probability, which a score is not; repair it first"
    outcomes = predictions.outcomes()
    if len(outcomes) < 2:
        raise InputError(
            "predictions: expected at least two samples, got 1; calibration is a property of many predictions"
        )
    inputs = inputs_of(predictions, outcomes, predictions.weights)
    values: dict[str, float] = {}
    known: dict[str, Interval] = {}
    drawn_by_chance: dict[str, Chance] = {}
    remarks = _on_ties(wanted, outcomes, n_bins)
    for done, name in enumerate(wanted):
        measure = MEASURES[name]
        if progress is not None:
            progress(measure.title, done, len(wanted))
        reason = why_not(measure, predictions, asked_for=not isinstance(measures, str))
        if reason:
            skipped[name] = reason
            continue
        given = inputs[measure.reads] | measure.arguments(n_bins)
        numbers = predictions.n * (predictions.k or 1) if measure.max_samples is None else predictions.n**2
        split = {"units": predictions.units} if measure.cross_fits and predictions.units is not None else {}
        with few_threads(numbers):
            values[name] = measure.function(**given, **split)
        if chance and measure.noise_floor and math.isfinite(values[name]):
            shown, remark = _by_chance(measure, predictions, given, seed)
            drawn_by_chance |= {} if shown is None else {name: shown}
            remarks |= _joined(remarks, name, remark)
        if intervals and math.isfinite(values[name]):
            span, remark = _interval(
                measure,
                predictions,
                given,
                n_resamples=n_resamples,
                level=level,
                seed=seed,
                progress=during(progress, measure, done, len(wanted)),
            )
            known |= {} if span is None else {name: span}
            remarks |= _joined(remarks, name, remark)
    remarks |= _on_graded(given_rows, values) | _on_ordered(given_rows, values)
    return Evaluation(
        given_rows.n,
        given_rows.n
        if outcomes.weights is None or given_rows.weights is None
        else float(outcomes.weights.sum()),
        predictions.k,
        FrozenDict(values),
        FrozenDict(known),
        FrozenDict(skipped),
        equal_width_bins(outcomes, n_bins),
        FrozenDict(remarks),
        FrozenDict(drawn_by_chance),
        given_rows.n_units,
        only_ranks=given_rows.score is not None,
        positive=None if predictions.k != 2 else equal_width_bins(positive_of(predictions), n_bins),
    )


def positive_of(predictions: Predictions) -> Outcomes:
    """Return the probability of the positive one of two classes, and whether it was the true one."""
    seen = positive_outcomes(predictions.to_probs(), predictions.truth_for("without it nothing is known"))
    return seen.weighed(predictions.weights)


def _on_graded(predictions: Predictions, values: Mapping[str, float]) -> dict[str, str]:
    """Return how much of the proper scores is due to graded outcomes themselves."""
    shares = dict(zip(("nll", "brier"), predictions.own_entropy, strict=True))
    return {
        name: f"{share:.4f} of it is due to outcomes between 0 and 1, which no forecast can avoid"
        for name, share in shares.items()
        if share > 0 and name in values
    }


def _on_ordered(predictions: Predictions, values: Mapping[str, float]) -> dict[str, str]:
    """Return a remark if the names of at least three classes are numbers in rising order."""
    try:
        numbers = [float(name) for name in predictions.class_names or ()]
    except ValueError:
        return {}
    if len(numbers) < 3 or "rps" in values or any(b <= a for a, b in pairwise(numbers)):
        return {}
    return {
        "class names": "they are numbers in order; the measure rps counts how far a wrong class is, and the "
        "sets of method ordered have no holes"
    }


def _interval(
    measure: Measure,
    predictions: Predictions,
    given: Mapping[str, Any],
    *,
    n_resamples: int,
    **options: Any,  # noqa: ANN401
) -> tuple[Interval | None, str]:
    """Return the interval of a measure, or None; and that it was not computed or from fewer resamples."""
    if measure.max_samples is not None:
        # Repeated rows in a resample would also bias kernel measures.
        return None, "no interval, because resampling a measure with quadratic cost takes too long"
    try:
        span = with_interval(
            measure.function,
            **given,
            n_resamples=n_resamples,
            units=predictions.units,
            max_work=MAX_WORK,
            **options,
        )
    except InputError as error:  # undefined on most resamples
        return None, f"no interval: {error}"
    drawn = span.n_resamples + span.n_undefined
    fewer = f"interval from {drawn:,} resamples, because more would take too long"
    return span, fewer if drawn < n_resamples else ""


def _by_chance(
    measure: Measure, predictions: Predictions, given: Mapping[str, Any], seed: int
) -> tuple[Chance | None, str]:
    """Return what a calibrated model would show, or None and the reason."""
    shown = by_chance(
        measure.function,
        **given,
        units=predictions.units,
        n_draws=_CHANCE_DRAWS,
        seed=seed,
        max_work=_CHANCE_WORK,
    )
    return shown, "" if shown else "what chance would show is left out, because it would take too long"


def _joined(remarks: Mapping[str, str], name: str, remark: str) -> dict[str, str]:
    """Return the remarks on a measure with a further one, if there is one."""
    return {name: "; ".join(filter(None, (remarks.get(name), remark)))} if remark else {}


def _on_ties(names: Sequence[str], outcomes: Outcomes, n_bins: int) -> dict[str, str]:
    """Return a remark for each measure with bins of equal count, if ties leave some of these empty."""
    named = [name for name in names if MEASURES[name].equal_mass]
    if not named:
        return {}
    used = int((equal_mass_bins(outcomes, n_bins).count > 0).sum())
    # A sample whose weight is the share of several bins leaves some of them empty too.
    possible = min(n_bins, len(outcomes))
    if used == possible:
        return {}
    return dict.fromkeys(named, f"{used} of {n_bins} bins, because equal confidences share a bin")


def during(progress: Progress | None, measure: Measure, done: int, total: int) -> Progress | None:
    """Return a function for the progress of the resamples of one of several measures."""
    if progress is None:
        return None

    def resampled(_: str, drawn: int, n_resamples: int) -> None:
        what = f"{measure.title}, {drawn:,} of {n_resamples:,} resamples"
        progress(what, done * n_resamples + drawn, total * n_resamples)

    return resampled


def fitting_measures(measures: str | Sequence[str], predictions: Predictions) -> list[str]:
    """Return the names of measures; ``"core"`` and ``"all"`` leave out those for two classes elsewhere."""
    named = resolve_measures(measures)
    if measures not in ("core", "all"):
        return named
    return [name for name in named if MEASURES[name].max_classes in (None, predictions.k)]


def why_not(measure: Measure, predictions: Predictions, *, asked_for: bool) -> str:
    """Return why a measure cannot be computed from such predictions; an empty string if it can."""
    n, k = predictions.n, predictions.k
    if predictions.weights is not None and not measure.takes_weights:
        return NO_WEIGHTS
    if lacking := measure.lacks(k):
        return lacking
    if measure.max_samples is not None and n > measure.max_samples and not asked_for:
        return f"cost is quadratic in the samples; above {measure.max_samples:,} computed only if named"
    return ""


def inputs_of(
    predictions: Predictions, outcomes: Outcomes, weights: Tensor | None
) -> dict[Reads, dict[str, Any]]:
    """Return the inputs of measures by what they read; probabilities replace logits, and pairs both."""
    weighed = {} if weights is None else {"weights": weights}
    pairs = {"confidence": outcomes.confidence, "correct": outcomes.correct, **weighed}
    inputs: dict[Reads, dict[str, Any]] = {"outcomes": pairs, "probs": pairs, "logits": pairs}
    labelled = {"labels": predictions.labels, **weighed}
    if predictions.confidence is None:
        inputs["probs"] = inputs["logits"] = {"probs": predictions.to_probs(), **labelled}
    if predictions.logits is not None:
        inputs["logits"] = {"logits": predictions.logits, **labelled}
    return inputs
