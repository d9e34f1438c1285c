"""A gate: ship a model if its measures meet their requirements, beyond chance; block it if they do not."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, TypeAlias

import numpy as np
import scipy
import torch
from torch import Tensor

from calibrant.data.predictions import Predictions
from calibrant.decisions.requirement import Requirement
from calibrant.errors import InputError, did_you_mean
from calibrant.evaluation.calibrated import is_of_pairs
from calibrant.evaluation.evaluate import Evaluation, evaluate
from calibrant.evaluation.given import PredictionsLike, given_predictions
from calibrant.evaluation.paired import matched, paired_comparison
from calibrant.inference.bands import effective_size
from calibrant.inference.chance import Chance
from calibrant.inference.intervals import wilson_interval
from calibrant.inference.rows import check_level
from calibrant.inputs import Progress, check_count, check_number, check_seed
from calibrant.metrics.names import MEASURES
from calibrant.outcomes import counts_of
from calibrant.results import FrozenDict, Result
from calibrant.show.numbers import Cell, number, rows_of_units, span
from calibrant.show.table import Table

GateOutcome: TypeAlias = Literal["passed", "failed", "unknown"]

#: How a command ends; 0 only if every requirement is met beyond chance.
EXIT_CODES: Mapping[GateOutcome, int] = FrozenDict({"passed": 0, "failed": 3, "unknown": 4})

#: What is compared with a baseline if no requirement names a measure.
_COMPARED = ("nll", "ece")
# How much worse than the baseline is no harm: one percentage point, or this much of a measure that is none.
_MARGIN, _MARGINS = 0.01, {"nll": 0.02}
# The number of samples that is named suffices in this share of the cases, if the estimate is right.
_POWER = 0.8
# Models that agree on this many samples are taken to agree on all.
_ENOUGH_ANSWERS = 100
# More samples than this are no advice.
_MOST_NEEDED = 1e9


@dataclass(frozen=True)
class Verdict(Result):
    """Whether one requirement is met, decided on an interval.

    Attributes:
        requirement: The requirement as text.
        measure: Name of the measure.
        outcome: ``"passed"`` if everything from ``least`` to ``most`` meets the requirement, ``"failed"`` if
            no part of it does, else ``"unknown"``.
        value: The measure of the samples, or the difference from the baseline; NaN if there is none.
        low: Lower end of the interval, that of ``evaluate`` or ``paired_difference``.
        high: Upper end of the interval.
        level: Level of the interval.
        bound: What the value is compared with.
        needed: About how many samples (units, if samples belong to units) are needed to tell, if the outcome
            is unknown; None if no number helps.
        sentence: The outcome in words, with the reason.
        least: The lower end, extended by chance that resamples do not show.
        most: The upper end, extended likewise.
    """

    requirement: str
    measure: str
    outcome: GateOutcome
    value: float
    low: float
    high: float
    level: float
    bound: float
    needed: int | None
    sentence: str
    least: float
    most: float

    @property
    def is_cautious(self) -> bool:
        """Whether the interval alone would have decided."""
        return self.outcome == "unknown" and not (math.isnan(self.low) or self.low <= self.bound <= self.high)


@dataclass(frozen=True, eq=False)
class Gate(Result):
    """Whether a model meets all requirements.

    Attributes:
        n: Number of samples.
        level: One minus the largest probability that the gate fails a model that meets all requirements.
        verdicts: A verdict for each requirement.
        n_units: Number of units that samples belong to; None if none were given.
    """

    n: int
    level: float
    verdicts: tuple[Verdict, ...]
    n_units: int | None = None

    @property
    def outcome(self) -> GateOutcome:
        """``"failed"`` if a requirement failed, else ``"unknown"`` if one is unknown, else ``"passed"``."""
        found = {verdict.outcome for verdict in self.verdicts}
        order: tuple[GateOutcome, ...] = ("failed", "unknown", "passed")
        return next(outcome for outcome in order if outcome in found)

    @property
    def exit_code(self) -> int:
        """0 if passed, 3 if failed, 4 if unknown."""
        return EXIT_CODES[self.outcome]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON, with the outcome and the exit code."""
        values = super().to_dict()
        if self.n_units is None:
            del values["n_units"]
        return {"outcome": self.outcome, "exit_code": self.exit_code, **values}

    @property
    def sentence(self) -> str:
        """The outcome and the exit code, in words without a full stop."""
        words = {"passed": "passed", "failed": "failed", "unknown": "cannot tell"}[self.outcome]
        return f"Gate: {words} (exit code {self.exit_code})"

    def to_table(self) -> Table:
        """Return the verdicts, with the samples that are needed to tell."""
        undecided = [
            each
            for each in self.verdicts
            if each.outcome == "unknown" and (each.needed is None or each.is_cautious)
        ]
        return Table.of(
            [
                "requirement",
                "verdict",
                "value",
                f"{100 * self.verdicts[0].level:.3g} % interval",
                "samples needed" if self.n_units is None else "units needed",
            ],
            [
                (
                    each.requirement,
                    _OUTCOMES[each.outcome],
                    number(each.value),
                    span(each.low, each.high, number),
                    "" if each.needed is None else Cell(each.needed, f"about {each.needed:,}"),
                )
                for each in self.verdicts
            ],
            title=f"Gate of {rows_of_units(self.n, self.n_units)}",
            notes=(*(each.sentence for each in undecided), f"{self.sentence}."),
        )


_OUTCOMES = {
    "passed": Cell("passed", "passed", "good"),
    "failed": Cell("failed", "failed", "bad"),
    "unknown": Cell("unknown", "cannot tell", "unsure"),
}


def check_requirements(
    predictions: PredictionsLike,
    requirements: str | Requirement | Sequence[str | Requirement] = (),
    *,
    baseline: PredictionsLike | None = None,
    margin: float | Mapping[str, float] | None = None,
    paired: bool = True,
    level: float = 0.95,
    n_bins: int = 15,
    n_resamples: int = 1000,
    seed: int = 0,
    progress: Progress | None = None,
) -> Gate:
    r"""Check requirements: each passes, fails, or is undecided.

    A requirement passes if the whole interval of its measure meets it, fails if no part of the interval does,
    and is unknown otherwise. The point estimate decides nothing. The whole gate fails a model that meets
    all of :math:`m` requirements with a probability of at most ``1 - level``, also if samples depend on each
    other within units: the intervals are those of
    :func:`~calibrant.evaluation.evaluate` with a level of ``level`` for up to two requirements, and of
    :math:`1 - 2 (1 - \mathrm{level}) / m` for more.

    Resamples have no misses if the sample has none, though the population may have some. So the interval that
    decides is extended by the change of the measure if further hits were misses: as many as Wilson's interval
    of the error rate allows and the resamples lack. That of a calibration error also reaches down from its
    value by what a calibrated model shows by chance. Verdicts have both intervals.

    With a baseline, the measures of the requirements that have a better direction (NLL and ECE if there is
    none) may be worse by no more than a margin: the interval of the difference of
    :func:`~calibrant.inference.paired_difference` is compared with the margin. It is extended by the
    difference of what chance has added to both calibration errors, and by misses that did not occur, unless
    both models give the same answers to all of at least 100 samples. With a margin of 0, a model passes only
    if it is better beyond chance, and an equal one is never told from a slightly worse one.

    Args:
        predictions: Labelled predictions, or the path of a file of them.
        requirements: Such as ``"ece < 0.05"``, one or several.
        baseline: Predictions of the model to be no worse than, for the same samples: in the same order, or
            with ids.
        margin: How much worse than the baseline is accepted, for all measures or by name; by default 0.01
            (one percentage point), and 0.02 for NLL.
        paired: False if the baseline has other samples. Both must then be random samples of the same
            population, and the interval of the difference is that of two independent intervals, which is
            wider.
        level: One minus the largest probability that the gate fails a model that meets all requirements.
        n_bins: Number of bins of the binned measures.
        n_resamples: Number of bootstrap resamples; fewer for measures that would take too long.
        seed: Equal seeds give equal verdicts.
        progress: Called with what is being done, the number done, and the total.

    Example:
        >>> from calibrant import Predictions
        >>> answers = Predictions(confidence=[0.8, 0.6] * 200, correct=[True, True, True, False] * 100)
        >>> gate = check_requirements(answers, ["accuracy > 0.5", "brier < 0.16"])
        >>> gate.outcome, [verdict.outcome for verdict in gate.verdicts]
        ('unknown', ['passed', 'unknown'])
        >>> print(gate.verdicts[0].sentence)
        accuracy > 0.5: passed, 0.7500 (95 % interval 0.7075 to 0.7926, decided on 0.7050 to 0.7926)

    References:
        Zou and Donner, "Construction of confidence limits about effect measures: a general approach",
        Statistics in Medicine 2008.
    """
    given = [requirements] if isinstance(requirements, (str, Requirement)) else list(requirements)
    wanted = [each if isinstance(each, Requirement) else Requirement.parse(each) for each in given]
    margins = _margins(wanted, margin) if baseline is not None else {}
    if not wanted and baseline is None:
        raise InputError("requirements: expected at least one, or a baseline, got none; pass 'ece < 0.05'")
    n_resamples, seed = check_count(n_resamples, "n_resamples", at_least=2), check_seed(seed)
    predictions = given_predictions(predictions)
    error, count = 1 - check_level(level), len(wanted) + len(margins)
    gauge = _Gauge(
        level=1 - min(error, 2 * error / count),
        n_bins=n_bins,
        n_resamples=n_resamples,
        seed=seed,
        progress=progress,
    )
    names = list(dict.fromkeys(each.measure for each in wanted))
    spans = _of_units(gauge.spans(predictions, names) if names else {}, predictions)
    verdicts = [_decide(each, str(each), spans[each.measure], gauge.level) for each in wanted]
    if baseline is not None:
        other = given_predictions(baseline, name="baseline")
        both = _matched(predictions, other) if paired else (predictions, other)
        compared = gauge.paired if paired else gauge.unpaired
        found = _of_units(compared(*both, list(margins)), *both)
        verdicts += [_compare(name, margins[name], span, gauge.level) for name, span in found.items()]
    return Gate(predictions.n, float(level), tuple(verdicts), predictions.n_units)


def _matched(first: Predictions, other: Predictions) -> tuple[Predictions, Predictions]:
    """Return the samples that both models have; errors name the baseline."""
    try:
        return matched(first, other)
    except InputError as error:
        raise InputError(f"baseline: {error}") from None


def _of_units(spans: "Mapping[str, _Span]", *models: Predictions) -> "Mapping[str, _Span]":
    """Return spans that count units, if the samples of the first model belong to units."""
    if models[0].n_units is None:
        return spans
    n = min(each.n_independent for each in models)
    return {name: replace(span, n=n, counted="units") for name, span in spans.items()}


@dataclass(frozen=True)
class _Span:
    """A value with its interval, or the reason why there is none.

    Attributes:
        n: Number of samples, or of units.
        value: The measure, or a difference of two.
        low: Lower end of the interval.
        high: Upper end of the interval.
        least: The lower end that decides.
        most: The upper end that decides.
        floor: What a calibrated model would show by chance, on average.
        reach: How far chance can lift a calibration error, also where the interval ends at 0.
        reason: Why there is no interval; empty if there is one.
        counted: What ``n`` is a number of.
    """

    n: int
    value: float = math.nan
    low: float = math.nan
    high: float = math.nan
    least: float = math.nan
    most: float = math.nan
    floor: float = 0.0
    reach: float = 0.0
    reason: str = ""
    counted: Literal["samples", "units"] = "samples"

    def extended(self, shift: float) -> "_Span":
        """Return the span with one of the ends that decide moved away from the value."""
        if not math.isfinite(shift):
            return self
        return replace(self, least=self.least + min(0.0, shift), most=self.most + max(0.0, shift))


@dataclass(frozen=True)
class _Gauge:
    """How measures and differences get their intervals."""

    level: float
    n_bins: int
    n_resamples: int
    seed: int
    progress: Progress | None

    def spans(self, predictions: Predictions, names: Sequence[str]) -> dict[str, _Span]:
        """Return the interval of each measure, extended by misses that did not occur."""
        found = evaluate(
            predictions,
            measures=names,
            n_bins=self.n_bins,
            intervals=True,
            n_resamples=self.n_resamples,
            level=self.level,
            seed=self.seed,
            chance=True,
            progress=self.progress,
        )
        further = self._values_with_misses(predictions, names)
        spans = {}
        for name in names:
            span = self._span(found, name)
            wider = span.extended(further.get(name, math.nan) - span.value)
            spans[name] = replace(wider, least=max(0.0, wider.least)) if span.least >= 0 else wider
        return spans

    def paired(self, first: Predictions, other: Predictions, names: Sequence[str]) -> dict[str, _Span]:
        """Return the interval of the difference of each measure on the same samples."""
        try:
            found = paired_comparison(
                first,
                other,
                measures=names,
                n_bins=self.n_bins,
                n_resamples=self.n_resamples,
                level=self.level,
                seed=self.seed,
                progress=self.progress,
            )
        except InputError as error:
            raise InputError(
                f"baseline: {error}; compare other samples of the same population without pairs: paired=False"
            ) from None
        spans = {name: _Span(first.n, reason=reason) for name, reason in found.skipped.items()}
        spans |= {
            name: _Span(first.n, each.difference, each.low, each.high, each.low, each.high)
            for name, each in found.differences.items()
        }
        if not _agree(first, other):
            ours, theirs = first.outcomes().correct.cpu(), other.outcomes().correct.cpu()
            for model, alone, sign in ((first, theirs & ~ours, 1), (other, ours & ~theirs, -1)):
                after = self._values_with_misses(model, names, events=alone, among=ours & theirs)
                for name in after.keys() & found.differences.keys():
                    pair = found.differences[name]
                    before = pair.value_a if model is first else pair.value_b
                    spans[name] = spans[name].extended(sign * (after[name] - before))
        added = [self._added_by_chance(each, list(found.differences)) for each in (first, other)]
        for name in found.differences:
            spans[name] = spans[name].extended(added[1].get(name, 0.0) - added[0].get(name, 0.0))
        return {name: spans[name] for name in names}

    def _added_by_chance(self, predictions: Predictions, names: Sequence[str]) -> dict[str, float]:
        """Return about how much chance has added to each calibration error."""
        errors = [name for name in names if MEASURES[name].noise_floor]
        found = evaluate(predictions, measures=errors, n_bins=self.n_bins, seed=self.seed, chance=True)
        return {
            name: found.metrics[name] - _without_chance(found.metrics[name], chance.mean)
            for name, chance in found.by_chance.items()
        }

    def unpaired(self, first: Predictions, other: Predictions, names: Sequence[str]) -> dict[str, _Span]:
        """Return the interval of the difference of each measure on other samples (Zou and Donner)."""
        ours, theirs = self.spans(first, names), self.spans(other, names)
        spans = {}
        for name in names:
            a, b = ours[name], theirs[name]
            if a.reason or b.reason:
                spans[name] = _Span(first.n, reason=a.reason or f"{b.reason} (the baseline)")
                continue
            value = a.value - b.value
            spans[name] = _Span(
                min(first.n, other.n),
                value,
                value - math.hypot(a.value - a.low, b.high - b.value),
                value + math.hypot(a.high - a.value, b.value - b.low),
                value - math.hypot(a.value - a.least, b.most - b.value),
                value + math.hypot(a.most - a.value, b.value - b.least),
            )
        return spans

    def _span(self, found: Evaluation, name: str) -> _Span:
        if name in found.skipped:
            return _Span(found.n, reason=found.skipped[name])
        if not math.isfinite(found.metrics[name]):
            return _Span(found.n, reason="it is undefined for these samples")
        interval = found.intervals.get(name)
        if interval is None:
            return _Span(found.n, found.metrics[name], reason=found.remarks.get(name, "no interval"))
        span = _Span(found.n, interval.value, *2 * (interval.low, interval.high))
        return span if name not in found.by_chance else self._allowing_for(found.by_chance[name], span)

    def _allowing_for(self, chance: Chance, span: _Span) -> _Span:
        """Return an interval that reaches down from a calibration error by what chance can add to it.

        Errors are norms: that of the samples is at most the true one plus that of chance alone, which is
        about what a calibrated model shows.
        """
        deviations = float(scipy.special.ndtri((1 + self.level) / 2)) / float(scipy.special.ndtri(0.95))
        most = chance.mean + deviations * (chance.high - chance.mean)
        least = max(0.0, min(span.low, span.value - most))
        return replace(span, least=least, floor=chance.mean, reach=most)

    def _values_with_misses(
        self,
        predictions: Predictions,
        names: Sequence[str],
        *,
        events: Tensor | None = None,
        among: Tensor | None = None,
    ) -> Mapping[str, float]:
        """Return measures if more samples were misses (or hits, if these are rare); nothing if none were.

        Args:
            predictions: The samples.
            names: Names of the measures.
            events: The samples on which the rare event occurred; by default misses, or hits if fewer.
            among: Those on which it could have occurred instead; by default all others.
        """
        correct = predictions.outcomes().correct.cpu()
        if events is None or among is None:
            events = correct if 2 * int(correct.sum()) < len(correct) else ~correct
            among = ~events
        w = counts_of(predictions.weights, len(correct)).cpu()
        # Samples that depend on each other, or have unequal weights, count as fewer.
        rare = replace(predictions.outcomes(), correct=events.to(predictions.outcomes().correct.device))
        n = max(1, round(effective_size(rare, level=self.level)))
        share = float((w * events).sum() / w.sum())
        most = wilson_interval(share, n, level=self.level)[1]
        resampled = float(scipy.stats.binom.ppf((1 + self.level) / 2, n, share)) / n
        rows = among.nonzero().squeeze(1).numpy()
        further = min(len(rows), round(len(correct) * max(0.0, most - resampled)))
        if further == 0:
            return {}
        chosen = np.random.default_rng(self.seed).choice(rows, further, replace=False)
        changed = _with_other_outcome(predictions, torch.from_numpy(chosen))
        return evaluate(changed, measures=names, n_bins=self.n_bins).metrics


def _with_other_outcome(predictions: Predictions, rows: Tensor) -> Predictions:
    """Return the predictions with hits of some rows as misses, and misses as hits.

    A hit becomes a miss if the second most probable class is the true one.
    """
    weights = predictions.weights
    if is_of_pairs(predictions.k):
        correct = predictions.outcomes().correct.clone()
        rows = rows.to(correct.device)
        correct[rows] = ~correct[rows]
        return Predictions(confidence=predictions.confidence, correct=correct, weights=weights)
    scores = predictions.probs if predictions.logits is None else predictions.logits
    assert scores is not None
    assert predictions.labels is not None
    labels = predictions.labels.clone()
    rows = rows.to(labels.device)
    top = scores[rows].topk(2, dim=1)
    other = torch.where(labels[rows] == top.indices[:, 0], top.indices[:, 1], top.indices[:, 0])
    # A class that a sample does not have cannot be its label.
    exists = torch.isfinite(top.values[:, 1])
    labels[rows] = torch.where(exists, other, labels[rows])
    return Predictions(logits=predictions.logits, probs=predictions.probs, labels=labels, weights=weights)


def _agree(first: Predictions, other: Predictions) -> bool:
    """Return whether both models are taken to answer alike on all samples, also on those that are not here.

    They do if they say exactly the same, or if they give the same answers to at least 100 samples with other
    confidences, as a model does after calibration.
    """
    ours, theirs = first.outcomes(), other.outcomes()
    same = torch.equal(ours.correct.cpu(), theirs.correct.cpu())
    if not (is_of_pairs(first.k) or is_of_pairs(other.k)):
        p, q = first.to_probs().cpu(), other.to_probs().cpu()
        same = same and torch.equal(p.argmax(dim=1), q.argmax(dim=1))
        return same and (first.n_independent >= _ENOUGH_ANSWERS or torch.equal(p, q))
    alike = torch.equal(ours.confidence.cpu(), theirs.confidence.cpu())
    return same and (alike or first.n_independent >= _ENOUGH_ANSWERS)


def _margins(wanted: Sequence[Requirement], margin: float | Mapping[str, float] | None) -> dict[str, float]:
    """Return how much worse than the baseline each measure may be."""
    given = margin if isinstance(margin, Mapping) else {}
    names = [each.measure for each in wanted if MEASURES[each.measure].better != "neither"]
    names = list(dict.fromkeys([*names, *given])) or list(_COMPARED)
    for name in names:
        if name not in MEASURES or MEASURES[name].better == "neither":
            hint = did_you_mean(str(name), MEASURES) or "; name another one"
            raise InputError(f"margin: expected a measure that can get worse, got {name!r}{hint}")
    default = margin if isinstance(margin, (int, float)) else None
    margins = {name: _MARGINS.get(name, _MARGIN) if default is None else float(default) for name in names}
    return {
        name: check_number(value, "margin", at_least=0.0) for name, value in (margins | dict(given)).items()
    }


def _decide(requirement: Requirement, title: str, span: _Span, level: float) -> Verdict:
    """Return the verdict on a requirement."""
    decided = partial(_verdict, title, requirement.measure, requirement.bound, span, level)
    if span.reason:
        return decided("unknown", None)
    ends = [requirement.holds(end) for end in (span.least, span.most)]
    if all(ends):
        return decided("passed", None)
    if not any(ends):
        return decided("failed", None)
    sign = 1.0 if requirement.is_upper else -1.0
    beyond = span.most - span.value, max(span.value - span.least, span.reach)
    up, down = beyond if requirement.is_upper else beyond[::-1]
    needed = samples_needed(
        span.n,
        sign * span.value,
        sign * requirement.bound,
        up=up,
        down=down,
        floor=span.floor if requirement.is_upper else 0.0,
        level=level,
    )
    return decided("unknown", needed)


def _compare(name: str, margin: float, span: _Span, level: float) -> Verdict:
    """Return the verdict on a difference from the baseline."""
    lower = MEASURES[name].better == "lower"
    difference = _Difference(name, "<=" if lower else ">=", margin if lower else -margin)
    title = f"{name} {difference.operator} baseline {'+' if lower else '-'} {margin:g}"
    return _decide(difference, title, span, level)


class _Difference(Requirement):
    """A bound on a difference of a measure, which may be of any sign."""

    def __post_init__(self) -> None:
        """Accept any bound."""


def _verdict(
    title: str,
    measure: str,
    bound: float,
    span: _Span,
    level: float,
    outcome: GateOutcome,
    needed: int | None,
) -> Verdict:
    shown, decides = (f"{a:.4f} to {b:.4f}" for a, b in ((span.low, span.high), (span.least, span.most)))
    further = "" if shown == decides else f", decided on {decides}"
    found = f"{span.value:.4f} ({100 * level:.3g} % interval {shown}{further})"
    if outcome != "unknown":
        words = f"{outcome}, {found}"
    elif span.reason:
        words = f"cannot tell: {span.reason}"
    else:
        more = (
            f"about {needed:,} are needed" if needed else "no number is enough, because the value is so near"
        )
        words = f"cannot tell with {span.n:,} {span.counted}; {more}: {found}"
    sentence = f"{title}: {words}"
    return Verdict(
        requirement=title,
        measure=measure,
        outcome=outcome,
        value=span.value,
        low=span.low,
        high=span.high,
        level=level,
        bound=bound,
        needed=needed,
        sentence=sentence,
        least=span.least,
        most=span.most,
    )


def _without_chance(value: float, floor: float) -> float:
    """Return the error that becomes ``value`` by what a calibrated model shows: independent norms add up."""
    return math.sqrt(max(0.0, value**2 - floor**2))


def samples_needed(
    n: int,
    value: float,
    bound: float,
    *,
    up: float,
    down: float,
    floor: float = 0.0,
    level: float = 0.95,
) -> int | None:
    r"""Return about how many samples would tell on which side of an upper bound a value is.

    The parts of an interval shrink as :math:`1 / \sqrt m` with the number :math:`m` of samples. What chance
    adds to a calibration error shrinks too: if a calibrated model shows :math:`f`, a value :math:`v` comes
    from an error of about :math:`\sqrt{v^2 - f^2}`. With the returned number, which has two digits, the
    interval excludes the bound in four of five cases if that is right; it is None if the value is the bound.

    Args:
        n: Number of samples that there are.
        value: The measure.
        bound: The upper bound that it is compared with.
        up: Distance from the value to the upper end of its interval.
        down: Distance from the lower end of the interval to the value.
        floor: What a calibrated model would show by chance.
        level: Level of the interval.

    Example:
        >>> samples_needed(1000, 0.04, 0.05, up=0.02, down=0.02)
        8200
    """
    z = float(scipy.special.ndtri((1 + check_level(level)) / 2))
    longer = (z + float(scipy.special.ndtri(_POWER))) / z
    centre = _without_chance(value, floor) if floor > 0 else value

    def tells(m: float) -> bool:
        shrunk = math.sqrt(n / m)
        expected = math.hypot(centre, floor * shrunk) if floor > 0 else value
        if centre < bound:
            return expected + longer * up * shrunk <= bound
        return expected - longer * down * shrunk > bound

    if centre == bound:
        return None
    low, high = float(n), 2.0 * n
    while not tells(high):
        low, high = high, 2 * high
        if high > _MOST_NEEDED:
            return None
    while high - low > 0.001 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if tells(middle) else (middle, high)
    digits = 10 ** max(0, math.floor(math.log10(high)) - 1)
    return int(math.ceil(high / digits) * digits)
