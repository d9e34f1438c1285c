"""Answer or abstain: a threshold of the confidence with a guaranteed error rate on new data."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Annotated, Any, ClassVar

import numpy as np
import numpy.typing as npt
import scipy
import torch
from torch import Tensor

from calibrant.data.predictions import Predictions
from calibrant.decisions.rule import Rule, calibrated_log_probs, check_one_label
from calibrant.errors import InputError
from calibrant.evaluation.given import PredictionsLike, given_predictions
from calibrant.files import Allowed
from calibrant.inference.ratios import UnitRatios
from calibrant.inference.rows import check_level
from calibrant.inference.units import Units
from calibrant.inputs import Floats, Integers
from calibrant.outcomes import Outcomes, refuse_weights
from calibrant.posthoc.calibrator import Calibrator
from calibrant.posthoc.fitting.stored import declare, one_number
from calibrant.results import Result
from calibrant.show.numbers import Cell, percent, rows_of_units
from calibrant.show.table import Table

#: Shares of wrong answers that a table of thresholds offers.
RISKS = (0.005, 0.01, 0.02, 0.05, 0.1)

# Confidences whose log-odds differ by less are one decision: float32 may swap them.
TIE = 1e-4
# Log-odds beyond this are no surer.
_SUREST = 100.0
# More digits of a confidence than this are noise.
_DIGITS = 14
# Each start answers twice as many samples as the one before, and the last at most half of them.
_NEXT_START, _LAST_START = 2, 0.5
# With more samples, this many ranks are tested; coverage is then exact to one in ten thousand.
_MOST_RANKS = 10_000
# Ranks that are tested if samples belong to units, and for the guaranteed risk at each coverage: these tests
# cost more.
_MOST_RANKS_OF_UNITS, _MOST_RISKS_OF_UNITS = 500, 200
# Units of several samples are rarely free of mistakes, so the first start leaves room for some.
_FIRST_START_OF_UNITS = 1.5
# Risks that are tried for the guaranteed risk at each coverage.
_TRIED_RISKS = np.unique(np.round(np.geomspace(0.001, 0.999, 400), 4))

_SHARE = Allowed("a number between 0 and 1", lambda value: 0 < value < 1)
_RISK = Allowed("a number above 0 and at most 1", lambda value: 0 < value <= 1)
_THRESHOLD = Allowed("log-odds, or minus infinity", lambda x: bool((x < torch.inf).all()))


class ThresholdRule(Rule):
    r"""Answer if the confidence is at least a threshold, else abstain.

    The confidence is the probability of the predicted class, or the confidence of a black box, after the
    calibrator if there is one. It is compared as log-odds, which tell very high confidences apart in float32
    too.

    Args:
        threshold: The lowest confidence that is answered; 0 answers everything.
        risk: The guaranteed share of wrong answers among new answers.
        level: The probability with which this is guaranteed.
        n_classes: The number of classes; None for confidences of a black box.
        class_names: Their names.
        calibrator: What is applied before.

    Example:
        >>> rule = ThresholdRule(0.8, risk=0.05, level=0.95)
        >>> rule.decide(Predictions(confidence=[0.9, 0.8, 0.7])).columns["answer"]
        [True, True, False]
    """

    options = ("risk", "level")
    stored = declare(threshold=one_number(_THRESHOLD))
    # The confidence is an input of the graph of a black box, so the output has another name.
    outputs: ClassVar[tuple[str, ...]] = ("predicted", "probability", "answer")

    risk: Annotated[float, _RISK]
    level: Annotated[float, _SHARE]
    threshold: Tensor

    def __init__(
        self,
        threshold: float,
        *,
        risk: float,
        level: float,
        n_classes: int | None = None,
        class_names: tuple[str, ...] | None = None,
        calibrator: Calibrator | None = None,
    ) -> None:
        super().__init__(n_classes=n_classes, class_names=class_names, calibrator=calibrator)
        if not 0 <= threshold < 1:
            raise InputError(f"threshold: expected a confidence from 0 to below 1, got {threshold}")
        self.risk, self.level = risk, level
        self.register_buffer(
            "threshold", torch.tensor(float(scipy.special.logit(threshold)), dtype=torch.float64)
        )

    @property
    def confidence(self) -> float:
        """The lowest confidence that is answered."""
        return float(scipy.special.expit(float(self.threshold)))

    def forward(self, log_probs: Tensor) -> tuple[Tensor, ...]:
        """Return the predicted class, its probability, and whether to answer, each of shape ``(n,)``.

        The predicted class of a black box is always 1: its answer is right.
        """
        s = log_odds_of_answers(log_probs, of_pairs=self.n_classes is None)
        predicted = log_probs.argmax(dim=1)
        if self.n_classes is None:
            predicted = torch.ones_like(predicted)
        # A confidence that equals the threshold, but for rounding, is answered.
        return predicted, torch.sigmoid(s), s >= self.threshold.to(s) - TIE / 8

    def columns(self, outputs: Mapping[str, Tensor]) -> dict[str, list[Any]]:
        """Return the predicted class and its confidence, unless they are given, and whether to answer."""
        predicted, confidence, answer = (outputs[name].tolist() for name in self.outputs)
        if self.n_classes is None:
            repaired = {} if self.calibrator is None else {"confidence": confidence}
            return {**repaired, "answer": answer}
        if self.class_names is not None:
            predicted = [self.class_names[place] for place in predicted]
        return {"predicted": predicted, "confidence": confidence, "answer": answer}


@dataclass(frozen=True, eq=False)
class Threshold(Result):
    """A threshold of the confidence, with what is guaranteed for new data and what was observed.

    Attributes:
        n: Number of samples.
        risk: The guaranteed share of wrong answers: the one that was asked for, or the upper bound at the
            coverage that was asked for.
        level: The probability with which the risk is guaranteed, and that of ``coverage_low``.
        threshold: The lowest confidence that is answered; 0 if everything is, None if no threshold has the
            guarantee.
        answered: Number of samples that are answered.
        coverage: Their share.
        coverage_low: At least this share of new samples is answered.
        wrong: Number of wrong answers.
        observed: Their share of the answers; None if nothing is answered.
        rule: The rule that answers; None if no threshold has the guarantee.
        n_units: Number of units that the samples belong to, for new ones of which the guarantee holds; None
            if every sample is drawn by itself.
    """

    n: int
    risk: float
    level: float
    threshold: float | None
    answered: int
    coverage: float
    coverage_low: float
    wrong: int
    observed: float | None
    rule: ThresholdRule | None
    n_units: int | None = None

    not_in_json = ("rule",)
    also_in_json = ("sentence",)

    @property
    def sentence(self) -> str:
        """The threshold, what it answers and what is guaranteed, in words without a full stop."""
        promise = (
            f"at most {percent(self.risk, None)} of them wrong with {percent(self.level, None)} probability"
        )
        of_units = self.n_units is not None
        if self.rule is None:
            more = "units" if of_units else "samples"
            return (
                f"No threshold answers with {promise.replace(' of them', '')}: none that was tested on "
                f"{rows_of_units(self.n, self.n_units)} shows it; accept more wrong answers, or give more "
                f"{more}"
            )
        seen = f"(observed {percent(self.observed, None)} of {self.answered:,})"
        if of_units:
            seen += f", counted over the rows of new units like these {self.n_units:,} ({self.n:,} rows)"
        when = f"when the confidence is at least {self.threshold:.{_DIGITS}g}" if self.threshold else "always"
        return f"Answer {when}: {percent(self.coverage, None)} of new cases, {promise} {seen}"


@dataclass(frozen=True, eq=False)
class ThresholdTable(Result):
    """A threshold, and those that other risks would have.

    Attributes:
        chosen: The threshold that was asked for.
        others: A threshold for each of several risks.
    """

    chosen: Threshold
    others: tuple[Threshold, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON: the threshold, and the others as ``risks``."""
        return {**self.chosen.to_dict(), "risks": [each.to_dict() for each in self.others]}

    @property
    def sentences(self) -> tuple[str, ...]:
        """The threshold in words, and how much of new data it answers at least."""
        found = self.chosen
        if found.rule is None:
            return (f"{found.sentence}.",)
        drawn = f"{found.n:,}" if found.n_units is None else rows_of_units(found.n, found.n_units)
        return (
            f"{found.sentence}.",
            f"At least {percent(found.coverage_low, None)} of new cases are answered, with "
            f"{percent(found.level, None)} probability, if they are drawn like these {drawn}.",
        )

    def to_table(self) -> Table:
        """Return what other risks would answer."""
        rows = [
            [percent(each.risk, None), "none"]
            if each.rule is None
            else [
                percent(each.risk, None),
                Cell(each.threshold, f"{each.threshold:.{_DIGITS}g}"),
                percent(each.coverage, None),
                Cell(each.observed, f"{percent(each.observed, None)} of {each.answered:,}"),
            ]
            for each in self.others
        ]
        note = "Each row has its guarantee for a risk that is chosen in advance."
        columns = ["at most wrong", "confidence at least", "answered", "observed wrong"]
        return Table.of(columns, rows, title=self.sentences[0], notes=(note,))


def find_threshold(
    predictions: PredictionsLike,
    *,
    risk: float | None = None,
    coverage: float | None = None,
    level: float = 0.95,
    calibrator: Calibrator | None = None,
) -> ThresholdTable:
    """Find the threshold for a risk or for a coverage, and those for other risks.

    Args:
        predictions: Labelled predictions.
        risk: Accepted share of wrong answers.
        coverage: Share of the samples to answer, if no risk is given.
        level: Probability of the guarantee.
        calibrator: A calibrator to apply first, fitted on other samples.
    """
    thresholds = Thresholds.of(predictions, level=level, calibrator=calibrator)
    if risk is None:
        return ThresholdTable(thresholds.for_coverage(coverage or 0.0), thresholds.table())
    return ThresholdTable(thresholds.for_risk(risk), thresholds.table(sorted({*RISKS, risk})))


def threshold_for_risk(
    predictions: PredictionsLike,
    risk: float,
    *,
    level: float = 0.95,
    calibrator: Calibrator | None = None,
) -> Threshold:
    r"""Find the largest coverage whose error rate on new data is at most a risk, with a given probability.

    Samples are ranked by confidence, the surest first; equal confidences are one decision. For a rank that
    is fixed in advance, the samples above the next confidence are independent draws of all such samples, so
    their number of wrong answers is binomial, and the test of "the risk is larger" is exact:

    .. math:: p_j = P\big(\mathrm{Bin}(j, \mathrm{risk}) \le \mathrm{wrong}_j\big)

    The largest :math:`j` with a small p-value would be chosen by its luck. So tests go from the fewest
    answers that could show the risk to more, and stop at the first p-value that is too large. Since an early
    mistake would end this, :math:`\delta = 1 - \mathrm{level}` is shared between sequences that start at 1,
    2, 4, ... times as many answers. A sequence that reaches the next start adds its share to that one
    (fallback procedure). This is exact if the risk, once above the limit, stays above it as more is answered:
    this is what a confidence that ranks samples at all does.

    If samples belong to units (``units`` of the predictions), the guarantee is for new units drawn like these
    and no larger: among all answers to their samples, at most the risk is wrong. The p-value is then that
    of :class:`~calibrant.inference.ratios.UnitRatios`, which is the binomial one if each unit is one sample,
    and the number of answers is how many of the largest units they would fill. What this costs: 540 units
    of 5 samples, a confidence that is calibrated, and a risk of 5 % answer 54 % if samples of a unit agree
    much and 58 % if they are independent. 2,700 samples without units answer 61 %, and one sample of each
    unit 46 %. Very unequal units cost more, as the largest of them could have been lucky.

    Args:
        predictions: Labelled predictions, or the path of a file, **that neither the model nor the calibrator
            was fitted on**, drawn like the data that the rule will see.
        risk: Share of wrong answers that is accepted among the answers.
        level: Probability, over the drawing of these samples, that the risk on new data is no larger.
        calibrator: Applied before; a map that keeps the order of confidences changes the number of the
            threshold only.

    Raises:
        InputError: Samples have weights, or they or their units are too few for the guarantee even if no
            answer is wrong.

    Example:
        >>> confidence = [0.99] * 300 + [0.6] * 100
        >>> correct = [True] * 350 + [False] * 50
        >>> found = threshold_for_risk(Predictions(confidence=confidence, correct=correct), 0.02)
        >>> found.threshold, found.coverage, found.observed, found.risk
        (0.92, 0.75, 0.0, 0.02)

    References:
        Geifman and El-Yaniv, "Selective Classification for Deep Neural Networks", NeurIPS 2017.
        Angelopoulos, Bates, Candès, Jordan and Lei, "Learn then Test", Annals of Applied Statistics 2025.
        Wiens, "A fixed sequence Bonferroni procedure for testing multiple endpoints", Pharmaceutical
        Statistics 2003.
    """
    return Thresholds.of(predictions, level=level, calibrator=calibrator).for_risk(risk)


def threshold_for_coverage(
    predictions: PredictionsLike,
    coverage: float,
    *,
    level: float = 0.95,
    calibrator: Calibrator | None = None,
) -> Threshold:
    """Find the threshold that answers a share of the samples, and the bound of its risk on new data.

    The rank is known in advance, so the bound is that of Clopper and Pearson without a correction, or that of
    :class:`~calibrant.inference.ratios.UnitRatios` if samples belong to units. Samples with the confidence at
    the threshold are all answered, so that ties may answer more than asked for.

    Args:
        predictions: As for :func:`threshold_for_risk`.
        coverage: Share of the samples that are to be answered, above 0 and at most 1.
        level: Probability of the bound of the risk, and of that of the coverage of new samples.
        calibrator: As for :func:`threshold_for_risk`.

    Example:
        >>> confidence = [0.99] * 300 + [0.6] * 100
        >>> correct = [True] * 350 + [False] * 50
        >>> pairs = Predictions(confidence=confidence, correct=correct)
        >>> found = threshold_for_coverage(pairs, 0.7)
        >>> found.coverage, found.wrong, round(found.risk, 4)
        (0.75, 0, 0.0099)

    References:
        Clopper and Pearson, "The use of confidence or fiducial limits", Biometrika 1934.
    """
    return Thresholds.of(predictions, level=level, calibrator=calibrator).for_coverage(coverage)


@dataclass(frozen=True, eq=False)
class Thresholds:
    """Thresholds of labelled predictions for several risks or coverages; the samples are ranked once.

    Each guarantee holds by itself, for a risk that was chosen in advance.

    Attributes:
        predictions: As for :func:`threshold_for_risk`.
        level: As for :func:`threshold_for_risk`.
        calibrator: As for :func:`threshold_for_risk`.
    """

    predictions: Predictions
    level: float
    calibrator: Calibrator | None

    @classmethod
    def of(
        cls, predictions: PredictionsLike, *, level: float = 0.95, calibrator: Calibrator | None = None
    ) -> "Thresholds":
        """Return the thresholds of predictions, or of the file with such a path."""
        return cls(given_predictions(predictions), check_level(level), calibrator)

    def for_risk(self, risk: float) -> Threshold:
        """Find the threshold of a risk, as :func:`threshold_for_risk` does; too few samples are refused."""
        ranked, fewest = self._ranked, fewest_samples(risk, level=self.level)
        if ranked.most_evidence < fewest:
            what, got = ("samples", f"{ranked.n:,}") if ranked.units is None else self._few_units()
            raise InputError(
                f"predictions: expected at least {fewest:,} {what} to guarantee a risk of "
                f"{percent(risk, None)} with {percent(self.level, None)} probability, even if no answer is "
                f"wrong, got {got}; accept a larger risk, or give more {what}"
            )
        return self._for_risk(check_risk(risk))

    def _few_units(self) -> tuple[str, str]:
        """Return what is counted and how many there are, if these are units."""
        units, counted = self._units, math.floor(self._ranked.most_evidence)
        if counted >= units.n:
            return "units", f"{units.n:,}"
        largest = f"the largest has {units.sizes.max():,} of {len(units.code):,} rows"
        return "units", f"{units.n:,} that count as {counted:,}, as {largest}"

    def table(self, risks: Iterable[float] = RISKS) -> tuple[Threshold, ...]:
        """Find the threshold of each risk; where samples are too few, there is none."""
        return tuple(self._for_risk(check_risk(risk)) for risk in risks)

    def for_coverage(self, coverage: float) -> Threshold:
        """Find the threshold of a coverage, as :func:`threshold_for_coverage` does."""
        if not 0 < coverage <= 1:
            raise InputError(
                f"coverage: expected a number above 0 and at most 1, got {coverage}; 90 % is 0.9"
            )
        n = self.predictions.n
        wanted = min(n, max(1, math.ceil(coverage * n - 1e-9)))
        place = int(np.searchsorted(self._ranked.answered, wanted))
        seen = self._ranked.step(place)
        if self._ranked.units is None:
            bound = float(upper_bound(np.array(seen.wrong), np.array(seen.answered), self.level))
            low = 1 - float(upper_bound(np.array(n - seen.answered), np.array(n), self.level))
            return self._threshold(seen, bound, low)
        ((wrong, answered),) = self._ranked.unit_sums(np.array([place]))
        bound = float(UnitRatios.of([(wrong, answered)]).upper(self.level)[0])
        low = float(UnitRatios.of([(answered, self._units.sizes)]).lower(self.level)[0])
        return self._threshold(seen, bound, low)

    @cached_property
    def _units(self) -> Units:
        return Units.of(self.predictions.units, self.predictions.n)

    @cached_property
    def _ranked(self) -> "RankedAnswers":
        """The samples by the log-odds of their answers."""
        check_one_label(self.predictions)
        refuse_weights(self.predictions.weights, _BOUNDED)
        if self.predictions.outcome is not None:
            raise InputError(
                "outcome: expected yes or no for a guarantee on the share of wrong answers, got outcomes "
                "between 0 and 1; say which of them count as right"
            )
        if self.calibrator is None:
            self.predictions.outcomes()  # refuses scores that are no confidences
        stated = self.predictions.truth_for("without it nobody knows which answers were wrong")
        log_probs = calibrated_log_probs(self.predictions, self.calibrator)
        scores = log_odds_of_answers(log_probs, of_pairs=self.predictions.k is None).cpu().numpy()
        labels = self.predictions.labels
        right = stated if labels is None else log_probs.argmax(dim=1) == labels
        return RankedAnswers.of(scores, ~right.cpu().numpy(), units=self._units)

    def _for_risk(self, risk: float) -> Threshold:
        seen = self._ranked.step(self._ranked.certified(risk, self.level))
        # How far the coverage of all thresholds may be above that of the population (Massart).
        distance = math.sqrt(-math.log(min(1 - self.level, 0.5)) / (2 * self._units.effective))
        return self._threshold(seen, risk, max(0.0, seen.coverage - distance) if seen.answered else 0.0)

    def _threshold(self, seen: "AnswerStep", risk: float, coverage_low: float) -> Threshold:
        rule, threshold = None, None
        if seen.answered:
            threshold = between_log_odds(seen.lowest, seen.highest)
            rule = ThresholdRule(
                threshold,
                risk=risk,
                level=self.level,
                n_classes=self.predictions.k,
                class_names=self.predictions.class_names,
                calibrator=self.calibrator,
            )
        return Threshold(
            n=seen.n,
            risk=risk,
            level=self.level,
            threshold=threshold,
            answered=seen.answered,
            coverage=seen.coverage,
            coverage_low=coverage_low,
            wrong=seen.wrong,
            observed=seen.wrong / seen.answered if seen.answered else None,
            rule=rule,
            n_units=None if self._units.are_rows else self._units.n,
        )


@dataclass(frozen=True, eq=False)
class GuaranteedRisks(Result):
    """The risk that is guaranteed at each coverage.

    Attributes:
        level: The probability with which each is guaranteed, for a risk that is chosen in advance.
        coverage: Coverages in rising order, each the largest one with its risk.
        risk: The smallest risk that is guaranteed there, of those that were tried.
    """

    level: float
    coverage: tuple[float, ...]
    risk: tuple[float, ...]

    def at(self, coverage: Sequence[float]) -> tuple[float, ...]:
        """Return the risk that is guaranteed at other coverages; NaN where none is.

        Example:
            >>> GuaranteedRisks(0.95, (0.5, 1.0), (0.01, 0.2)).at([0.4, 0.6])
            (0.01, 0.2)
        """
        places = np.searchsorted(np.array(self.coverage), np.asarray(coverage) - 1e-9)
        return tuple(self.risk[place] if place < len(self.risk) else math.nan for place in places.tolist())


def guaranteed_risks(
    outcomes: Outcomes,
    *,
    level: float = 0.95,
    most_ranks: int = _MOST_RANKS,
) -> GuaranteedRisks:
    """Return the smallest risk that is guaranteed at each coverage.

    Args:
        outcomes: Confidences, and whether each prediction was right, without weights.
        level: As for :func:`threshold_for_risk`.
        most_ranks: With more samples, this many ranks are tested, fixed in advance.

    Example:
        >>> confidence, correct = [0.9] * 100 + [0.5] * 100, [True] * 150 + [False] * 50
        >>> pairs = Outcomes(torch.tensor(confidence), torch.tensor(correct))
        >>> found = guaranteed_risks(pairs)
        >>> found.coverage, [round(risk, 2) for risk in found.risk]
        ((0.5, 1.0), [0.03, 0.31])
    """
    level = check_level(level)
    c = outcomes.unweighed(_BOUNDED).confidence.double().cpu().numpy()
    ranking = RankedAnswers.of(
        c, ~outcomes.correct.cpu().numpy(), tie=0.0, units=Units.of(outcomes.units, len(c))
    )
    coverage: list[float] = []
    risks: list[float] = []
    most = most_ranks if ranking.units is None else min(most_ranks, _MOST_RISKS_OF_UNITS)
    tests = ranking.tests(most)
    for risk in _TRIED_RISKS.tolist():
        found = ranking.step(ranking.certified(risk, level, tests)).coverage
        if found > (coverage[-1] if coverage else 0.0):
            coverage.append(found)
            risks.append(risk)
        if found == 1:
            break
    return GuaranteedRisks(level, tuple(coverage), tuple(risks))


def fewest_samples(risk: float, *, level: float = 0.95) -> int:
    """Return the fewest answers that guarantee a risk, if none of them is wrong.

    Example:
        >>> fewest_samples(0.02), fewest_samples(0.001, level=0.99)
        (149, 4603)
    """
    return math.ceil(math.log(1 - check_level(level)) / math.log1p(-check_risk(risk)) - 1e-9)


def upper_bound(wrong: Integers, answered: Integers, level: float) -> Floats:
    """Return the upper bound of a probability by Clopper and Pearson, which is exact and one-sided.

    Example:
        >>> upper_bound(np.array([0, 5]), np.array([100, 100]), 0.95).round(3)
        array([0.03 , 0.102])
    """
    some = np.minimum(wrong, answered - 1)
    bound: Floats = np.where(
        wrong < answered, scipy.special.betaincinv(some + 1.0, answered - some, level), 1.0
    )
    return bound


def check_risk(risk: float, name: str = "risk") -> float:
    """Return a risk if it is a number between 0 and 1."""
    if not 0 < risk < 1:
        raise InputError(f"{name}: expected a number between 0 and 1, got {risk}; 2 % is 0.02")
    return float(risk)


def log_odds_of_answers(log_probs: Tensor, *, of_pairs: bool) -> Tensor:
    """Return the log-odds that answers are right, shape ``(n,)``: of the most probable class, or of a pair.

    They are computed from the other classes, because one minus a high confidence is only rounding.
    """
    if of_pairs:
        s = log_probs[:, 1] - log_probs[:, 0]
    else:
        others = log_probs.scatter(1, log_probs.argmax(dim=1, keepdim=True), -torch.inf)
        # A masked class has the logarithm minus infinity, from which no reference can be subtracted.
        reference = others.amax(dim=1, keepdim=True).clamp(min=-2 * _SUREST)
        s = log_probs.amax(dim=1) - reference.squeeze(1) - (others - reference).exp().sum(dim=1).log()
    return s.clamp(-_SUREST, _SUREST)


@dataclass(frozen=True)
class AnswerStep:
    """What one threshold answers; the scores are the lowest that is answered and the highest that is not."""

    n: int
    answered: int
    wrong: int
    lowest: float
    highest: float

    @property
    def coverage(self) -> float:
        """Share of the samples that are answered."""
        return self.answered / self.n

    @property
    def middle(self) -> float:
        """The score halfway between what is answered and what is not."""
        return (self.lowest + self.highest) / 2


@dataclass(frozen=True, eq=False)
class RankedAnswers:
    """Samples by their score, the surest first; a step is what one threshold answers.

    Attributes:
        scores: The scores in falling order.
        answered: Number of samples that each step answers.
        wrong: Number of wrong ones among them.
        units: Units of the samples in this order, and whether each sample is wrong; None if every sample is
            a unit.
    """

    scores: Floats
    answered: Integers
    wrong: Integers
    units: tuple[Units, Integers] | None = None

    @classmethod
    def of(
        cls, scores: Floats, wrong: npt.NDArray[np.bool_], *, tie: float = TIE, units: Units | None = None
    ) -> "RankedAnswers":
        """Rank scores; those that differ by no more than ``tie`` from the next are one step."""
        order = np.argsort(-scores, kind="stable")
        falling = scores[order]
        ends = np.flatnonzero(np.append(-np.diff(falling) > tie, True))
        mistakes = wrong[order].astype(np.int64)
        ranked = None
        if units is not None and not units.are_rows:
            ranked = (Units(units.code[order], units.n), mistakes)
        return cls(falling, ends + 1, np.cumsum(mistakes)[ends], ranked)

    @property
    def n(self) -> int:
        """Number of samples."""
        return len(self.scores)

    @property
    def most_evidence(self) -> float:
        """The most that any step has of what :class:`AnswerTests` counts."""
        return self.n if self.units is None else float(self._tests.evidence[-1])

    def step(self, place: int) -> AnswerStep:
        """Return a step by its place; the place -1 answers nothing."""
        if place < 0:
            return AnswerStep(self.n, 0, 0, math.inf, float(self.scores[0]))
        answered = int(self.answered[place])
        rejected = float(self.scores[answered]) if answered < self.n else -math.inf
        return AnswerStep(
            self.n, answered, int(self.wrong[place]), float(self.scores[answered - 1]), rejected
        )

    def certified(self, risk: float, level: float, tests: "AnswerTests | None" = None) -> int:
        """Return the place of the last step whose risk is shown to be at most ``risk``; -1 if none is.

        Args:
            risk: The bound on the risk.
            level: As for :func:`threshold_for_risk`.
            tests: Those of some steps, from :meth:`tests`; by default those of all, or of many.
        """
        tests = self._tests if tests is None else tests
        first = 1 if self.units is None else _FIRST_START_OF_UNITS
        starts, shares = _starts(tests.evidence[-1] if self.units else self.n, risk, level, first)
        p = tests.p_values(risk)
        edges = [*np.searchsorted(tests.evidence, starts).tolist(), len(p)]
        best, passed_on = -1, 0.0
        for (first_place, end), share in zip(pairwise(edges), shares, strict=True):
            failed = np.flatnonzero(p[first_place:end] > passed_on + share)
            stop = first_place + int(failed[0]) if len(failed) else end
            best = stop - 1 if stop > first_place else best
            passed_on = 0.0 if len(failed) else passed_on + share
        return int(tests.places[best]) if best >= 0 else -1

    def tests(self, most: int) -> "AnswerTests":
        """Return the tests of all steps, or of the steps of as many ranks, fixed in advance."""
        if self.n <= most:
            places = np.arange(len(self.answered))
        else:
            places = self._at_most(np.linspace(1, self.n, most).round().astype(np.int64))
        if self.units is None:
            return AnswerTests(places, self.answered[places], self.wrong[places])
        ratios = UnitRatios.of(self.unit_sums(places))
        # A larger unit can take evidence away; a sequence starts at the first step that has enough.
        return AnswerTests(places, np.maximum.accumulate(ratios.effective), ratios)

    def unit_sums(self, places: Integers) -> Iterator[tuple[Integers, Integers]]:
        """Yield the number of wrong answers and of answers of each unit at some steps, in rising order."""
        assert self.units is not None
        units, mistakes = self.units
        wrong, answered = np.zeros((2, units.n), dtype=np.int64)
        done = 0
        for end in self.answered[places].tolist():
            code, is_wrong = units.code[done:end], mistakes[done:end] > 0
            answered = answered + np.bincount(code, minlength=units.n)
            wrong = wrong + np.bincount(code[is_wrong], minlength=units.n)
            done = end
            yield wrong, answered

    @cached_property
    def _tests(self) -> "AnswerTests":
        return self.tests(_MOST_RANKS if self.units is None else _MOST_RANKS_OF_UNITS)

    def _at_most(self, ranks: Integers) -> Integers:
        """Return the place of the largest step that answers at most each number of samples."""
        places = np.unique(np.searchsorted(self.answered, ranks, side="right") - 1)
        return places[places >= 0]


@dataclass(frozen=True, eq=False)
class AnswerTests:
    """Tests of "the risk is larger" at some steps.

    Attributes:
        places: The steps.
        evidence: Number of answers at each step; of units, how many of the largest ones they would fill.
        wrong: Number of wrong answers at each step; or wrong answers and answers of each unit.
    """

    places: Integers
    evidence: Floats | Integers
    wrong: Integers | UnitRatios

    def p_values(self, risk: float) -> Floats:
        """Return the p-value at each step."""
        if isinstance(self.wrong, UnitRatios):
            return self.wrong.p_values(risk)
        return np.asarray(scipy.special.bdtr(self.wrong, self.evidence, risk))


def _starts(n: float, risk: float, level: float, first: float = 1) -> tuple[list[float], list[float]]:
    """Return how many answers each sequence starts with, and its share of one minus the level.

    Args:
        n: Number of samples.
        risk: The bound on the risk.
        level: As for :func:`threshold_for_risk`.
        first: The first start divided by the fewest answers that could show the risk, if there is room.
    """
    error, number = 1 - level, 1
    while True:
        more = number + 1
        last = first * fewest_samples(risk, level=1 - error / more) * _NEXT_START**number
        if last > _LAST_START * n:
            break
        number = more
    fewest = fewest_samples(risk, level=1 - error / number)
    begin = min(first * fewest, max(fewest, _LAST_START * n))
    return [begin * _NEXT_START**i for i in range(number)], [error / number] * number


def between_log_odds(lowest: float, highest: float) -> float:
    """Return the confidence with the fewest digits between the highest log-odds below and the lowest above.

    Both have a small distance to it, since float32 rounds them.

    Example:
        >>> between_log_odds(float(scipy.special.logit(0.9)), float(scipy.special.logit(0.8)))
        0.86
        >>> between_log_odds(1.0, -math.inf)
        0.0
    """
    if highest == -math.inf:
        return 0.0
    middle = (lowest + highest) / 2
    for digits in range(2, _DIGITS + 1):
        rounded = round(float(scipy.special.expit(middle)), digits)
        if 0 < rounded < 1 and highest + TIE / 4 < scipy.special.logit(rounded) < lowest - TIE / 4:
            return rounded
    return float(scipy.special.expit(middle))


_BOUNDED = "a threshold with a guarantee, whose binomial bounds need counts"
