"""Which questions a cheap model may answer, and which a dearer one or a person must, with a guarantee."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import scipy

from calibrant.data.predictions import Predictions
from calibrant.decisions.cascade_rule import PERSON, CascadeRule, answers_of
from calibrant.decisions.thresholds import (
    TIE,
    between_log_odds,
    check_risk,
    fewest_samples,
    upper_bound,
)
from calibrant.errors import InputError
from calibrant.evaluation.given import PredictionsLike, given_predictions
from calibrant.evaluation.paired import all_matched, check_pair
from calibrant.inference.ratios import UnitRatios
from calibrant.inference.rows import check_level
from calibrant.inference.units import Units
from calibrant.inputs import Floats, Integers, check_number, check_seed
from calibrant.outcomes import refuse_weights
from calibrant.results import FrozenDict, Result
from calibrant.show.numbers import Cell, number, percent, rows_of_units
from calibrant.show.table import Column, Table

# With several thresholds, this share of the questions finds the path, and the others test it.
_FOR_THE_PATH = 0.3
# Cells of the grid of thresholds that are tried, and most thresholds of one model.
_MOST_CELLS, _MOST_CUTS = 100_000, 101
# More thresholds than this have too coarse a grid.
_MOST_THRESHOLDS = 6
# With more steps along a path of one threshold, so many stretches of it are tested, each at its worst.
_MOST_STRETCHES, _MOST_STRETCHES_OF_UNITS = 10_000, 200
# Points of the frontier that are measured.
_POINTS = 21

_BOUNDED = "a cascade with a guarantee, whose bounds need counts"


@dataclass(frozen=True)
class CascadePoint:
    """What a cascade with certain thresholds does.

    Attributes:
        thresholds: The lowest confidence at which each stage but the last answers; 0 answers everything, None
            is a model that is not asked.
        shares: Share of the questions that each stage answers.
        cost: Mean cost of a question.
        cost_low: Lower end of its interval.
        cost_high: Upper end of its interval.
        accuracy: Share of right answers among all questions.
        accuracy_low: Lower end of its interval.
        accuracy_high: Upper end of its interval.
        wrong: Number of wrong answers.
        guaranteed: The smallest share of wrong answers on new questions that would have been guaranteed here,
            had it been asked for; of a model alone, that of its own bound.
    """

    thresholds: tuple[float | None, ...]
    shares: tuple[float, ...]
    cost: float
    cost_low: float
    cost_high: float
    accuracy: float
    accuracy_low: float
    accuracy_high: float
    wrong: int
    guaranteed: float


@dataclass(frozen=True, eq=False)
class Cascade(Result):
    """Thresholds at which questions are passed on, with what is guaranteed, and what else could be had.

    Attributes:
        models: Names of the stages in the order in which they are asked, the last may be ``"person"``.
        prices: What asking each stage costs.
        n: Number of questions that the numbers are about.
        n_units: Number of units that they belong to; None if each is drawn by itself.
        n_for_path: Number of other questions that were used to find the order of tests.
        left_out: Number of questions of each model that another model does not have.
        risk: The share of wrong answers among all answers that was asked for.
        level: The probability with which it is guaranteed, and that of intervals.
        chosen: The cheapest thresholds that keep the guarantee; None if none do.
        safest: The first thresholds that were tested, which guarantee the least.
        alone: What each stage alone would give.
        frontier: Thresholds from the cheapest to the most accurate; none is beaten by a cheaper one.
        rule: The rule of the chosen thresholds; None if none keep the guarantee.
    """

    not_in_json = ("rule",)
    also_in_json = ("sentence",)

    models: tuple[str, ...]
    prices: tuple[float, ...]
    n: int
    n_units: int | None
    n_for_path: int
    left_out: Mapping[str, int]
    risk: float
    level: float
    chosen: CascadePoint | None
    safest: CascadePoint
    alone: tuple[CascadePoint, ...]
    frontier: tuple[CascadePoint, ...]
    rule: CascadeRule | None

    @property
    def sentence(self) -> str:
        """The thresholds and what is guaranteed, in words without a full stop."""
        promise = (
            f"at most {percent(self.risk, None)} of all answers wrong with {percent(self.level, None)} "
            "probability"
        )
        on = rows_of_units(self.n, self.n_units, None if self.n_units else "questions")
        if self.chosen is None:
            best = self.safest
            return (
                f"No cascade of {' and '.join(self.models)} gives {promise}: the least that {on} guarantee "
                f"is {percent(best.guaranteed, None)} ({self._stages(best)}, observed "
                f"{percent(1 - best.accuracy, None)}); accept that risk, or add a better model or a person"
            )
        found = self.chosen
        seen = f"(observed {percent(1 - found.accuracy, None)} of {on})"
        return f"{self._steps(found)}; mean cost {found.cost:.4g}, {promise} {seen}"

    @property
    def sentences(self) -> tuple[str, ...]:
        """The sentence, what the last stage alone costs, and how many questions were left out."""
        found = [f"{self.sentence}."]
        if self.chosen is not None:
            last = self.alone[-1]
            share = self.chosen.cost / last.cost if last.cost else math.nan
            found.append(
                f"{self._named(len(self.models) - 1)} alone costs {last.cost:.4g} and is right in "
                f"{percent(last.accuracy, None)}; the cascade costs {percent(share, None)} of that and is "
                f"right in {percent(self.chosen.accuracy, None)}."
            )
        if self.n_for_path:
            found.append(
                f"{self.n_for_path:,} other questions chose which thresholds to test; these {self.n:,} "
                "tested them."
            )
        gone = [f"{count:,} of {name}" for name, count in self.left_out.items() if count]
        if gone:
            found.append(f"Left out, because another model does not have them: {', '.join(gone)}.")
        return tuple(found)

    def to_table(self) -> Table:
        """Return what each stage alone and the cascade give."""
        points = {self._named(place): each for place, each in enumerate(self.alone)}
        if self.chosen is not None:
            points["cascade"] = self.chosen
        rows = [[name, *_measures(each), percent(each.guaranteed, None)] for name, each in points.items()]
        if self.chosen is not None:
            rows[-1][-1] = percent(self.risk, None)
        note = "Each row has its guarantee for a choice that is made in advance."
        columns = [*_columns(self.level), "at most wrong"]
        return Table.of(["alone", *columns], rows, title=self.sentences[0], notes=(note,))

    @property
    def tables(self) -> tuple[Table, ...]:
        """The frontier of cost against accuracy, every second point."""
        asked = self.models[:-1]
        rows = [
            [
                *_measures(each),
                percent(each.guaranteed, None),
                *(_threshold(value) for value in each.thresholds),
                *(percent(share, 0) for share in each.shares),
            ]
            for each in self.frontier[::2]
        ]
        columns = [
            *_columns(self.level),
            "at most wrong",
            *(f"{name}\nanswers from" for name in asked),
            *(Column(f"{name}\nanswers", optional=1) for name in self.models),
        ]
        note = "at most wrong: the smallest risk that guarantees this row, if it is chosen in advance"
        return (Table.of(columns, rows, title="Frontier of cost against accuracy", notes=(note,)),)

    def _named(self, place: int) -> str:
        return f"a {PERSON}" if self.models[place] == PERSON else self.models[place]

    def _stages(self, point: CascadePoint) -> str:
        """Return the stages that answer at a point, in words."""
        used = [place for place, share in enumerate(point.shares) if share > 0]
        alone = " alone" if len(used) == 1 else ""
        return " and ".join(self._named(place) for place in used) + alone

    def _steps(self, point: CascadePoint) -> str:
        """Return what to do, stage by stage, in words."""
        steps = []
        for place, share in enumerate(point.shares):
            limit = point.thresholds[place] if place < len(point.thresholds) else 0.0
            if limit is None:
                continue
            when = f" when its confidence is at least {limit:.14g}" if limit else ""
            keep = f"keep its answer{when}" if when else "keep all its answers"
            who = f"ask {self._named(place)}"
            said = f"{who} and {keep}" if self.models[place] != PERSON else who
            steps.append(f"{said} ({percent(share, None)})")
            if not limit:
                break
        text = ", else ".join(steps)
        return text[:1].upper() + text[1:]


def _measures(point: CascadePoint) -> list[object]:
    return [
        number(point.cost, None),
        Cell((point.cost_low, point.cost_high), f"{point.cost_low:.4g} to {point.cost_high:.4g}"),
        percent(point.accuracy),
        Cell(
            (point.accuracy_low, point.accuracy_high),
            f"{100 * point.accuracy_low:.2f} to {100 * point.accuracy_high:.2f} %",
        ),
    ]


def _columns(level: float) -> list[str | Column]:
    interval = f"{100 * level:g} % interval"
    return ["cost", Column(interval, optional=2), "accuracy", interval]


def _threshold(value: float | None) -> Cell:
    if value is None:
        return Cell(None, "not asked")
    return Cell(value, f"{value:.14g}" if value else "always")


def cascade_for_risk(
    models: Mapping[str, PredictionsLike],
    cost: Sequence[float],
    risk: float,
    *,
    person: float | None = None,
    level: float = 0.95,
    seed: int = 0,
) -> Cascade:
    r"""Find the cheapest cascade of models whose share of wrong answers on new questions is at most a risk.

    Each model is asked in turn. Its answer is kept if its confidence is at least its threshold; otherwise the
    question is passed on. The last stage keeps all its answers; a model that would keep none is not asked.
    The risk is the share of wrong answers among *all* questions, since the cascade answers them all.

    For fixed thresholds the number of wrong answers of :math:`n` questions is binomial, so that "the risk is
    larger" has an exact test. To choose thresholds on the same questions, they are tested in an order that is
    fixed in advance, and the tests stop at the first one that fails (fixed-sequence testing):

    - **One threshold** (two models, or a model and a person): from passing everything on to passing nothing
      on, at *every* threshold. The first threshold on this way whose risk is too large is a fixed number, at
      which the test passes with a probability of at most 1 - ``level``; to choose it or any later one, the
      test must pass there. So this is exact without any assumption on how the risk changes.
    - **Several thresholds**: 30 % of the questions (of the units) find the thresholds with the least risk at
      each cost; these are tested on the other 70 %, from the least risk to the least cost (Pareto testing).

    If questions have several rows (``units``), the guarantee is for new units drawn like these: of all
    answers to their rows, at most the risk is wrong. The test is that of
    :class:`~calibrant.inference.ratios.UnitRatios`.

    Only the order of confidences matters, so that they need no calibration.

    Args:
        models: Labelled predictions of each model by name, or paths of files, in the order in which they are
            asked. They are matched by ids if they have them, otherwise row by row. None of them may be fitted
            on these questions.
        cost: What asking each model once costs, in any unit.
        risk: Share of wrong answers that is accepted among all answers.
        person: What asking a person costs, who is right; None if there is no such person.
        level: Probability, over the drawing of these questions, that the risk on new ones is no larger.
        seed: Seed of the random part that finds the path of several thresholds.

    Raises:
        InputError: Models do not have the same questions, costs do not fit, samples have weights, or there
            are too few questions for the guarantee even if no answer is wrong.

    Example:
        >>> sure, right = [0.9] * 300 + [0.4] * 100, [1] * 300 + [0] * 60 + [1] * 40
        >>> cheap = Predictions(confidence=sure, correct=right)
        >>> dear = Predictions(confidence=[0.8] * 400, correct=[1] * 390 + [0] * 10)
        >>> found = cascade_for_risk({"cheap": cheap, "dear": dear}, [1, 20], 0.05)
        >>> found.chosen.thresholds, found.chosen.cost, found.chosen.accuracy
        ((0.71,), 6.0, 0.975)

    References:
        Angelopoulos, Bates, Candès, Jordan and Lei, "Learn then Test", Annals of Applied Statistics 2025.
        Laufer-Goldshtein, Fisch, Barzilay and Jaakkola, "Efficiently Controlling Multiple Risks with Pareto
        Testing", ICLR 2023.
        Chen, Zaharia and Zou, "FrugalGPT", TMLR 2024.
    """
    return Cascades.of(models, cost, person=person, level=level, seed=seed).for_risk(risk)


@dataclass(frozen=True, eq=False)
class Cascades:
    """Cascades of some models for several risks; the path of thresholds is tested once.

    Each guarantee holds by itself, for a risk that was chosen in advance.

    Attributes:
        models: Names of the stages.
        path: The thresholds in the order of their tests, with what they do.
        answers: Answers of all stages to the questions that test them.
        level: As for :func:`cascade_for_risk`.
        n_for_path: Number of other questions that found the path.
        left_out: Number of questions of each model that another one does not have.
    """

    models: tuple[str, ...]
    path: "_Path"
    answers: "_Answers"
    level: float
    n_for_path: int
    left_out: Mapping[str, int]

    @classmethod
    def of(
        cls,
        models: Mapping[str, PredictionsLike],
        cost: Sequence[float],
        *,
        person: float | None = None,
        level: float = 0.95,
        seed: int = 0,
    ) -> "Cascades":
        """Match the models and test the thresholds; arguments are those of :func:`cascade_for_risk`."""
        check_level(level), check_seed(seed)
        prices = _check_cost(cost, models, person)
        given = {name: given_predictions(each, name=name) for name, each in models.items()}
        matched = all_matched(given)
        answers = _Answers.of(list(matched.values()), prices)
        names = (*given, *(() if person is None else (PERSON,)))
        left_out = FrozenDict({name: each.n - matched[name].n for name, each in given.items()})
        if len(names) == 2:
            return cls(names, _Path.along(answers, level), answers, level, 0, left_out)
        part = answers.units.draw_part(_FOR_THE_PATH, np.random.default_rng(seed))
        rest = np.setdiff1d(np.arange(answers.n), part)
        thresholds = _frontier_thresholds(answers.take(part))
        tested = answers.take(rest)
        return cls(names, _Path.through(tested, thresholds, level), tested, level, len(part), left_out)

    def for_risk(self, risk: float) -> Cascade:
        """Find the cheapest thresholds that guarantee a risk, as :func:`cascade_for_risk` does."""
        check_risk(risk)
        answers, path = self.answers, self.path
        evidence, fewest = answers.evidence, fewest_samples(risk, level=self.level)
        if evidence < fewest:
            what = "questions" if answers.units.are_rows else "units, counted as the largest"
            raise InputError(
                f"models: expected at least {fewest:,} {what} to guarantee a risk of {percent(risk, None)} "
                f"with {percent(self.level, None)} probability, even if no answer is wrong, got "
                f"{math.floor(evidence):,}; accept a larger risk, or give more"
            )
        chosen = rule = None
        if (best := path.cheapest(risk)) is not None:
            chosen = self._point(path.limits(best), path.guaranteed[best])
            rule = CascadeRule(
                chosen.thresholds,
                models=self.models,
                cost=answers.prices.tolist(),
                risk=risk,
                level=self.level,
            )
        return Cascade(
            models=self.models,
            prices=tuple(answers.prices.tolist()),
            n=answers.n,
            n_units=None if answers.units.are_rows else answers.units.n,
            n_for_path=self.n_for_path,
            left_out=self.left_out,
            risk=risk,
            level=self.level,
            chosen=chosen,
            safest=self._point(path.limits(0), path.guaranteed[0]),
            alone=self._alone,
            frontier=self._frontier,
            rule=rule,
        )

    @cached_property
    def _alone(self) -> tuple[CascadePoint, ...]:
        last = len(self.models) - 1
        points = []
        for place in range(last + 1):
            thresholds = np.full(last, np.inf)
            thresholds[place:] = -np.inf
            points.append(self._point(thresholds, None))
        return tuple(points)

    @cached_property
    def _frontier(self) -> tuple[CascadePoint, ...]:
        path = self.path
        kept = _pareto(path.costs, path.wrong)
        costs = path.costs[kept]
        wanted = np.linspace(costs[0], costs[-1], _POINTS)
        few = np.unique(np.abs(costs[:, None] - wanted).argmin(axis=0))
        return tuple(self._point(path.limits(each), path.guaranteed[each]) for each in kept[few].tolist())

    def _point(self, thresholds: Floats, guaranteed: float | None) -> CascadePoint:
        """Return what a cascade does, with intervals; without a guarantee, that of a single test."""
        answers, level = self.answers, self.level
        stage = answers.stages(thresholds)
        costs, wrong = answers.costs(thresholds)[stage], answers.wrong_at(stage)
        low, high = answers.bounds(wrong, (1 + level) / 2)
        if guaranteed is None:
            guaranteed = answers.bounds(wrong, level)[1]
        if answers.has_person and (stage == len(self.models) - 1).all():
            low = high = guaranteed = 0.0  # a person is right, which needs no data
        cost, aside = answers.mean(costs, level)
        least, most = float(costs.min()), float(costs.max())
        return CascadePoint(
            thresholds=tuple(
                None if each == np.inf else _confidence(float(each)) for each in thresholds.tolist()
            ),
            shares=tuple((np.bincount(stage, minlength=len(self.models)) / answers.n).tolist()),
            cost=cost,
            cost_low=max(least, cost - aside),
            cost_high=min(most, cost + aside),
            accuracy=1 - int(wrong.sum()) / answers.n,
            accuracy_low=1 - high,
            accuracy_high=1 - low,
            wrong=int(wrong.sum()),
            guaranteed=float(guaranteed),
        )


@dataclass(frozen=True, eq=False)
class _Answers:
    """Answers of all stages to the same questions.

    Attributes:
        scores: Log-odds of the answers of each stage but the last, shape ``(n, d)``.
        wrong: Whether the answer of each stage is wrong, shape ``(n, d + 1)``.
        prices: What asking each stage costs.
        units: Units of the questions.
        has_person: Whether the last stage is a person, who is right.
    """

    scores: Floats
    wrong: npt.NDArray[np.bool_]
    prices: Floats
    units: Units
    has_person: bool = False

    @classmethod
    def of(cls, models: Sequence[Predictions], prices: Floats) -> "_Answers":
        """Return the answers of models to the same questions; with one more price, also of a person."""
        first = models[0]
        for other in models[1:]:
            if other.n != first.n:
                raise InputError(
                    f"models: expected the same questions of each model in the same order, got {first.n:,} "
                    f"and {other.n:,}; name questions with ids="
                )
            check_pair(first, other)
        scores, wrong = [], []
        for each in models:
            refuse_weights(each.weights, _BOUNDED)
            stated = each.outcomes().correct  # refuses predictions without labels
            log_odds, predicted = answers_of(each)
            right = stated if each.labels is None else predicted == each.labels
            scores.append(log_odds)
            wrong.append(~right.cpu().numpy())
        has_person = len(prices) > len(models)
        if has_person:
            wrong.append(np.zeros(first.n, dtype=bool))
        units = next((each.units for each in models if each.units is not None), None)
        stacked = np.stack(scores, axis=1)[:, : len(prices) - 1]
        return cls(stacked, np.stack(wrong, axis=1), prices, Units.of(units, first.n), has_person)

    @property
    def n(self) -> int:
        """Number of questions."""
        return len(self.scores)

    @property
    def evidence(self) -> float:
        """Number of questions; of units, how many of the largest they would fill."""
        return self.n if self.units.are_rows else self.n / float(self.units.sizes.max())

    def take(self, rows: npt.NDArray[np.intp]) -> "_Answers":
        """Return the answers to some questions."""
        units = Units.of(self.units.code[rows], len(rows))
        return _Answers(self.scores[rows], self.wrong[rows], self.prices, units, self.has_person)

    def stages(self, thresholds: Floats) -> npt.NDArray[np.intp]:
        """Return the stage that answers each question."""
        answers = np.ones((self.n, len(self.prices)), dtype=bool)
        answers[:, :-1] = self.scores >= thresholds - TIE / 8
        found: npt.NDArray[np.intp] = answers.argmax(axis=1)
        return found

    def wrong_at(self, stage: npt.NDArray[np.intp]) -> npt.NDArray[np.bool_]:
        """Return whether the answers of some stages are wrong."""
        return np.take_along_axis(self.wrong, stage[:, None], axis=1)[:, 0]

    def costs(self, thresholds: Floats) -> Floats:
        """Return what a question costs that each stage answers; models that answer nothing are not asked."""
        return np.cumsum(np.append(np.where(thresholds == np.inf, 0.0, self.prices[:-1]), self.prices[-1]))

    def bounds(self, wrong: npt.NDArray[np.bool_], level: float) -> tuple[float, float]:
        """Return one-sided bounds of the risk, each with this level."""
        if self.units.are_rows:
            count, n = np.array([wrong.sum(), self.n - wrong.sum()]), np.array([self.n, self.n])
            high, not_low = upper_bound(count, n, level).tolist()
            return 1 - not_low, high
        sums = np.bincount(self.units.code, weights=wrong, minlength=self.units.n).astype(np.int64)
        ratios = UnitRatios.of([(sums, self.units.sizes)])
        return float(ratios.lower(level)[0]), float(ratios.upper(level)[0])

    def mean(self, values: Floats, level: float) -> tuple[float, float]:
        """Return the mean of values and half the length of its interval."""
        mean = float(values.mean())
        error = math.sqrt(float(np.square(self.units.sums(values - mean)).sum())) / self.n
        return mean, float(scipy.special.ndtri((1 + level) / 2)) * error * self.units.spread(values).ratio(
            level
        )


@dataclass(frozen=True, eq=False)
class _Path:
    """Thresholds in the order in which they are tested.

    Attributes:
        thresholds: Log-odds, shape ``(p, d)``; infinity is a model that is not asked.
        costs: Mean cost of each.
        wrong: Number of wrong answers of each.
        guaranteed: The smallest risk for which no test fails until there: the largest upper bound so far.
        around: Of a single threshold, the lowest score that is answered and the highest that is not.
    """

    thresholds: Floats
    costs: Floats
    wrong: Integers
    guaranteed: Floats
    around: Floats | None = None

    def limits(self, place: int) -> Floats:
        """Return the thresholds at a place; a single one has as few digits as tell the same scores apart."""
        if self.around is None or place == 0:
            return np.asarray(self.thresholds[place])
        with np.errstate(divide="ignore"):
            return np.array([scipy.special.logit(between_log_odds(*self.around[place].tolist()))])

    def cheapest(self, risk: float) -> int | None:
        """Return the place of the cheapest thresholds that guarantee a risk; None if there are none."""
        safe = np.flatnonzero(self.guaranteed <= risk)
        return int(safe[np.argmin(self.costs[safe])]) if len(safe) else None

    @classmethod
    def along(cls, answers: _Answers, level: float) -> "_Path":
        """Test every value of one threshold, from passing everything on to passing nothing on."""
        order = np.argsort(-answers.scores[:, 0], kind="stable")
        falling = answers.scores[order, 0]
        steps = _step_ends(falling)
        change = answers.wrong[order, 0].astype(np.int64) - answers.wrong[order, 1]
        most = _MOST_STRETCHES if answers.units.are_rows else _MOST_STRETCHES_OF_UNITS
        last = np.unique(np.linspace(0, len(steps) - 1, most).round().astype(np.int64))
        ends = steps[last]
        at_start = int(answers.wrong[:, 1].sum())
        wrong = np.append(at_start, at_start + np.cumsum(change)[ends - 1])
        if answers.units.are_rows:
            # The most wrong answers at any step of each stretch.
            worst = np.maximum.reduceat(np.cumsum(change)[steps - 1], np.append(0, last[:-1] + 1))
            counts = np.append(at_start, at_start + worst)
            upper = upper_bound(counts, np.full(len(counts), answers.n), level)
        else:
            sums = _unit_sums(answers, order, change, ends, np.diff(last, prepend=-1) == 1)
            upper = UnitRatios.of((each, answers.units.sizes) for each in sums).upper(level)
        lowest = np.concatenate([[np.inf], falling[ends - 1]])
        highest = np.concatenate([falling[:1], falling[ends[:-1]], [-np.inf]])
        around = np.stack([lowest, highest], axis=1)
        first, second = answers.prices.tolist()
        costs = np.append(second, first + second * (1 - ends / answers.n))
        return cls(around.mean(axis=1, keepdims=True), costs, wrong, np.maximum.accumulate(upper), around)

    @classmethod
    def through(cls, answers: _Answers, thresholds: Floats, level: float) -> "_Path":
        """Test thresholds that were found on other questions, in their order."""
        costs, wrong, sums = [], [], []
        for each in thresholds:
            stage = answers.stages(each)
            is_wrong = answers.wrong_at(stage)
            costs.append(float(answers.costs(each)[stage].mean()))
            wrong.append(int(is_wrong.sum()))
            if not answers.units.are_rows:
                units = answers.units
                sums.append(np.bincount(units.code[is_wrong], minlength=units.n))
        counts = np.array(wrong)
        if answers.units.are_rows:
            upper = upper_bound(counts, np.full(len(counts), answers.n), level)
        else:
            upper = UnitRatios.of((each, answers.units.sizes) for each in sums).upper(level)
        return cls(thresholds, np.array(costs), counts, np.maximum.accumulate(upper))


def _unit_sums(
    answers: _Answers,
    order: npt.NDArray[np.intp],
    change: Integers,
    ends: Integers,
    single: npt.NDArray[np.bool_],
) -> Iterator[Integers]:
    """Yield the wrong answers of each unit when everything is passed on, and after each stretch.

    Within a stretch of several steps a unit counts as if all its answers that become wrong did so first, so
    that no step of the stretch has more.
    """
    units = answers.units
    code = units.code[order]
    wrong = np.bincount(units.code[answers.wrong[:, 1]], minlength=units.n)
    yield wrong
    for (start, end), exact in zip(pairwise([0, *ends.tolist()]), single.tolist(), strict=True):
        part, moved = code[start:end], change[start:end]
        worse = np.bincount(part[moved > 0], minlength=units.n)
        better = np.bincount(part[moved < 0], minlength=units.n)
        yield wrong + worse - (better if exact else 0)
        wrong = wrong + worse - better


def _frontier_thresholds(answers: _Answers) -> Floats:
    """Return the thresholds of a grid with the least risk at each cost, from the least risk on, ``(p, d)``.

    Cells of the grid hold the questions between two thresholds of each model, so that sums over cells give
    the wrong answers and the cost of all combinations of thresholds at once.
    """
    d = answers.scores.shape[1]
    most = min(_MOST_CUTS, int(_MOST_CELLS ** (1 / d)))
    cuts = [_cuts(answers.scores[:, place], most) for place in range(d)]
    sizes = tuple(len(each) for each in cuts)
    # The place of the first threshold, in falling order, that a score reaches.
    reached = [
        np.searchsorted(-each, -(answers.scores[:, place] + TIE / 8)) for place, each in enumerate(cuts)
    ]
    wrong, cost = np.zeros(sizes), np.zeros(sizes)
    for stage in range(d + 1):
        # Answered here: no earlier model reaches its threshold, and this one does (the last always does).
        axes = min(stage + 1, d)
        shape = sizes[:axes]
        place = np.ravel_multi_index(tuple(reached[:axes]), shape)
        # Answers of models count as one mistake more, shared by all questions: where no answer was wrong, the
        # path to fewer questions for a person still has many steps.
        by_model = stage < d or not answers.has_person
        mistakes = answers.wrong[:, stage] * answers.n + by_model
        for weights, into in ((mistakes, wrong), (None, cost)):
            sums = (
                np.bincount(place, weights=weights, minlength=math.prod(shape)).reshape(shape).astype(float)
            )
            for axis in range(axes):
                upto = np.cumsum(sums, axis=axis)
                sums = upto if axis == stage else upto.take([-1], axis=axis) - upto
            if weights is None:
                sums = sums * _prices_until(answers.prices, cuts, stage)
            into += sums.reshape(sums.shape + (1,) * (d - axes))
    kept = _pareto(cost.ravel() / answers.n, wrong.ravel())[::-1]
    places = np.unravel_index(kept, sizes)
    return np.stack([each[place] for each, place in zip(cuts, places, strict=True)], axis=1)


def _prices_until(prices: Floats, cuts: Sequence[Floats], stage: int) -> Floats:
    """Return what a question costs that a stage answers, by the thresholds until there."""
    axes = min(stage + 1, len(cuts))
    total = np.full((1,) * axes, prices[stage])
    for place in range(stage):
        asked = np.where(cuts[place] == np.inf, 0.0, prices[place])
        total = total + asked.reshape([-1 if axis == place else 1 for axis in range(axes)])
    return total


def _cuts(scores: Floats, most: int) -> Floats:
    """Return thresholds of one model in falling order: none, about equal shares more each, and all."""
    falling = -np.sort(-scores)
    ends = _step_ends(falling)[:-1]
    ends = (
        ends[np.unique(np.linspace(0, len(ends) - 1, most - 2).round().astype(np.int64))]
        if len(ends)
        else ends
    )
    inner = [float(scipy.special.logit(between_log_odds(*_around(falling, end)))) for end in ends.tolist()]
    return np.array([np.inf, *inner, -np.inf])


def _step_ends(falling: Floats) -> Integers:
    """Return how many questions each step answers; scores that are nearly equal are one step."""
    return np.flatnonzero(np.append(-np.diff(falling) > TIE, True)) + 1


def _around(falling: Floats, end: int) -> tuple[float, float]:
    """Return the lowest score that is answered, and the highest that is not."""
    return float(falling[end - 1]), float(falling[end]) if end < len(falling) else -math.inf


def _pareto(costs: Floats, wrong: Floats | Integers) -> npt.NDArray[np.intp]:
    """Return the places that no cheaper one beats, from the cheapest on."""
    order = np.lexsort((wrong, costs))
    falling = np.minimum.accumulate(wrong[order])
    better = np.append(True, falling[1:] < falling[:-1])
    kept: npt.NDArray[np.intp] = order[better]
    return kept


def _confidence(log_odds: float) -> float:
    """Return the confidence of log-odds that come from one with few digits."""
    return 0.0 if log_odds == -math.inf else float(f"{1 / (1 + math.exp(-log_odds)):.14g}")


def _check_cost(cost: Sequence[float], models: Mapping[str, PredictionsLike], person: float | None) -> Floats:
    """Return what each stage costs; refuse costs and models that do not fit together."""
    if len(models) + (person is not None) < 2:
        raise InputError(
            f"models: expected at least two, or one and a person, got {len(models)}; give another model or "
            "person="
        )
    if PERSON in models and person is not None:
        raise InputError(f"models: expected other names than {PERSON!r} beside a person, got it; rename it")
    if len(models) + (person is not None) - 1 > _MOST_THRESHOLDS:
        raise InputError(
            f"models: expected at most {_MOST_THRESHOLDS + 1} stages, got "
            f"{len(models) + (person is not None)}; leave some out"
        )
    if len(cost) != len(models):
        raise InputError(
            f"cost: expected one number for each of {len(models)} models, got {len(cost)}"
            + ("; a person has one of their own, person=" if len(cost) == len(models) + 1 else "")
        )
    prices = [check_number(each, "cost", at_least=0) for each in cost]
    return np.array(prices + ([] if person is None else [check_number(person, "person", at_least=0)]))
