"""Act on costs: the action with the least expected cost, and what calibration saves."""

import csv
import io
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from calibrant.data.predictions import Predictions
from calibrant.decisions.rule import Rule, calibrated_log_probs, check_one_label
from calibrant.errors import FormatError, InputError, did_you_mean, listed
from calibrant.evaluation.calibrated import is_of_pairs
from calibrant.evaluation.choose import choose
from calibrant.evaluation.compare import compare
from calibrant.evaluation.given import PredictionsLike, given_predictions
from calibrant.files import read_text, reading
from calibrant.inference.draws import Resampler, mean_resampler
from calibrant.inference.intervals import corrected_ends
from calibrant.inference.rows import check_level, generator
from calibrant.inference.units import Units
from calibrant.inputs import ArrayLike, Floats, Progress, check_count, to_tensor
from calibrant.outcomes import counts_of, mean_of
from calibrant.posthoc.calibrator import Calibrator
from calibrant.posthoc.fitting.stored import Numbers, declare
from calibrant.results import FrozenDict, Result
from calibrant.show.numbers import number, percent, rows_of_units, span
from calibrant.show.table import Table

#: The action that passes a sample on.
ASK = "ask a person"

# Expected costs that differ by less than this share of the range of all costs are equal.
_TIE = 1e-5
# Rows of the matrix of a black box, by the names that they may have.
_WRONG_AND_RIGHT = (("wrong", "right"), ("false", "true"))
# Shares of the samples that are asked, for which the break-even cost is given.
_SHARES_ASKED = (0.1, 0.25, 0.5, 0.75, 0.9)


@dataclass(frozen=True, eq=False, init=False)
class Costs(Result):
    """What each action costs for each true class; a gain is a negative cost.

    Args:
        values: Costs of shape ``(k, m)``: rows are true classes, columns are actions. Those of a black box
            have two rows: the answer was wrong, and it was right.
        actions: A name for each action; by default those of the classes if there are as many, else numbers.
        classes: A name for each row; by default they have the order of the predictions.

    Example:
        >>> Costs([[0, 1], [20, 0]], classes=["healthy", "ill"]).with_ask(2).actions
        ('healthy', 'ill', 'ask a person')
    """

    values: Tensor
    actions: tuple[str, ...]
    classes: tuple[str, ...] | None

    def __init__(
        self,
        values: ArrayLike,
        *,
        actions: Sequence[str] | None = None,
        classes: Sequence[str] | None = None,
    ) -> None:
        table = to_tensor(values, "costs").detach().double().cpu()
        if table.ndim != 2 or table.shape[0] < 2 or table.shape[1] < 1:
            raise InputError(
                "costs: expected a matrix with a row for each true class and a column for each action, got "
                f"shape {tuple(table.shape)}"
            )
        if not bool(table.isfinite().all()):
            row, column = table.isfinite().logical_not().nonzero()[0].tolist()
            strange = float(table[row, column])
            raise InputError(f"costs: expected finite numbers, got {strange} in row {row}, column {column}")
        k, m = table.shape
        named = None if classes is None else _names(classes, k, "classes")
        if actions is None:
            actions = named if named is not None and m == k else [str(number) for number in range(m)]
        object.__setattr__(self, "values", table)
        object.__setattr__(self, "actions", _names(actions, m, "actions"))
        object.__setattr__(self, "classes", named)

    def with_ask(self, cost: float, name: str = ASK) -> "Costs":
        """Return the costs with one more action, which costs the same whatever the true class is."""
        if name in self.actions:
            raise InputError(f"name: expected an action that the costs do not have, got {name!r}; rename it")
        column = torch.full((len(self.values), 1), float(cost), dtype=torch.float64)
        return Costs(
            torch.cat([self.values, column], dim=1), actions=(*self.actions, name), classes=self.classes
        )

    @property
    def asking(self) -> tuple[str, ...]:
        """The actions that cost the same whatever the true class is, such as asking a person."""
        same = (self.values == self.values[0]).all(dim=0).tolist()
        return tuple(name for name, is_same in zip(self.actions, same, strict=True) if is_same)

    def for_predictions(self, predictions: Predictions) -> Tensor:
        """Return the matrix with its rows in the order of the classes; refuse those of other classes."""
        check_one_label(predictions)
        k, of_pairs = predictions.k or 2, is_of_pairs(predictions.k)
        known = _WRONG_AND_RIGHT if of_pairs else [predictions.class_names or ()]
        if len(self.values) != k:
            what = "two rows, wrong and right" if of_pairs else f"a row for each of {k} classes"
            raise InputError(f"costs: expected {what}, got {len(self.values)}")
        if self.classes is None:
            return self.values
        numbers = tuple(str(number) for number in range(k))
        for names in (*known, numbers):
            if set(names) == set(self.classes):
                return self.values[[self.classes.index(name) for name in names]]
        names = next(iter(known)) or numbers
        strange = next(name for name in self.classes if name not in names)
        raise InputError(
            f"costs: expected a row for each of the classes {listed(names)}, got {strange!r}"
            f"{did_you_mean(strange, names)}"
        )


def read_costs(path: str | os.PathLike[str]) -> Costs:
    """Read a cost matrix: a CSV file with a row for each true class and a column for each action.

    The first row has the names of the actions, after a first cell that is not read; the first column has the
    names of the classes, or their numbers from 0, in any order.
    """
    path = Path(path)
    if not path.is_file():
        raise FormatError(f"{path.name}: expected a CSV file of costs, got no such file in {path.parent}")
    with reading(path.name, "a CSV file of costs"):
        text = read_text(path).removeprefix("\ufeff")
        rows = [row for row in csv.reader(io.StringIO(text), strict=True) if any(map(str.strip, row))]
        if len(rows) < 3 or len(rows[0]) < 2:
            raise FormatError(
                "expected a row of actions and a row of costs for each of at least two classes, got "
                f"{len(rows)} rows"
            )
        actions = [cell.strip() for cell in rows[0][1:]]
        for number, row in enumerate(rows[1:], start=2):
            if len(row) != len(rows[0]):
                raise FormatError(
                    f"row {number}: expected a class and {len(actions)} costs, got {len(row)} cells"
                )
        values = [
            [_number(cell, number, action) for cell, action in zip(row[1:], actions, strict=True)]
            for number, row in enumerate(rows[1:], start=2)
        ]
        return Costs(values, actions=actions, classes=[row[0].strip() for row in rows[1:]])


class CostRule(Rule):
    r"""Take the action with the least expected cost; of equal ones the first.

    .. math:: a(x) = \arg\min_a \sum_y p(y \mid x)\, \mathrm{cost}(y, a)

    Args:
        costs: What each action costs for each true class, its rows in the order of the classes.
        n_classes: The number of classes; None for confidences of a black box.
        class_names: Their names.
        calibrator: What is applied before.

    Example:
        >>> rule = CostRule(Costs([[0, 1], [20, 0]], actions=["wait", "treat"]), n_classes=2)
        >>> rule.decide(Predictions(probs=[0.01, 0.1, 0.9])).columns["action"]
        ['wait', 'treat', 'treat']

    References:
        Elkan, "The Foundations of Cost-Sensitive Learning", IJCAI 2001.
    """

    options = ("actions",)
    stored = declare(costs=Numbers(("k", "actions")))
    outputs: ClassVar[tuple[str, ...]] = ("action", "expected_cost")

    actions: tuple[str, ...]
    costs: Tensor

    def __init__(
        self,
        costs: Costs,
        *,
        n_classes: int | None = None,
        class_names: tuple[str, ...] | None = None,
        calibrator: Calibrator | None = None,
    ) -> None:
        super().__init__(n_classes=n_classes, class_names=class_names, calibrator=calibrator)
        k = 2 if n_classes is None else n_classes
        if len(costs.values) != k:
            raise InputError(f"costs: expected {k} rows, one for each true class, got {len(costs.values)}")
        self.actions = costs.actions
        self.register_buffer("costs", costs.values)

    def forward(self, log_probs: Tensor) -> tuple[Tensor, ...]:
        """Return the place of the action and its expected cost, both of shape ``(n,)``."""
        expected = log_probs.exp() @ self.costs.to(log_probs)
        span = (self.costs.max() - self.costs.min()).to(expected)
        near = expected <= expected.amin(dim=1, keepdim=True) + _TIE * span
        action = near.to(expected.dtype).argmax(dim=1)
        return action, expected.gather(1, action[:, None]).squeeze(1)

    def columns(self, outputs: Mapping[str, Tensor]) -> dict[str, list[Any]]:
        """Return the name of the action and its expected cost."""
        return {
            "action": [self.actions[place] for place in outputs["action"].tolist()],
            "expected_cost": outputs["expected_cost"].tolist(),
        }

    def check_stored(self) -> None:
        """Refuse a file whose actions are not those of its costs."""
        if not len(self.actions) == len(set(self.actions)) == self.costs.shape[1]:
            raise FormatError(
                f"actions: expected {self.costs.shape[1]} different names, got {len(set(self.actions))}"
            )


@dataclass(frozen=True, eq=False)
class Acting(Result):
    """What it costs to act on the probabilities of a model.

    Attributes:
        predicted: Mean cost that the probabilities predict.
        observed: Mean cost with the true classes.
        low: Lower end of the bootstrap interval of the observed cost.
        high: Upper end.
        shares: Share of the samples that gets each action.
    """

    predicted: float
    observed: float
    low: float
    high: float
    shares: Mapping[str, float]


@dataclass(frozen=True)
class CostDifference(Result):
    """Observed cost after calibration minus that before, on the same samples; negative is saved."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, eq=False)
class BreakEven(Result):
    """At which cost asking a person pays: below the least expected cost of the other actions.

    Attributes:
        always: Every sample is asked at this cost or less.
        never: No sample is asked at this cost or more.
        shares: The highest cost at which each share of the samples is asked; keys are shares such as 0.5.
        asked: Share of the samples that is asked at the cost in the matrix; None if it has no such action.
    """

    always: float
    never: float
    shares: Mapping[float, float]
    asked: float | None


@dataclass(frozen=True, eq=False)
class CostResult(Result):
    """Decisions by cost, before and after calibration.

    Attributes:
        n: Number of samples.
        level: Level of the intervals.
        actions: Names of the actions.
        method: The calibration; None if there is none.
        before: What it costs to act on the probabilities as they are.
        after: What it costs to act on calibrated probabilities, which were not fitted on the same samples.
        difference: What calibration saves.
        best_single: The best action that is the same for all samples.
        best_single_cost: Its mean cost.
        break_even: When asking a person pays, by the calibrated probabilities if there are any.
        rule: The rule that acts, with the calibrator.
        n_units: Number of units that the samples belong to, which are drawn for the intervals; None if every
            sample is drawn by itself.
    """

    n: int
    level: float
    actions: tuple[str, ...]
    method: str | None
    before: Acting
    after: Acting | None
    difference: CostDifference | None
    best_single: str
    best_single_cost: float
    break_even: BreakEven | None
    rule: CostRule
    n_units: int | None = None

    not_in_json = ("rule",)
    also_in_json = ("sentence",)

    @property
    def sentence(self) -> str:
        """The cost of acting on the rule, in words without a full stop."""
        shown = self.before if self.after is None else self.after
        beside = f"always {self.best_single!r} costs {self.best_single_cost:.4g}"
        if self.after is None:
            return f"Acting on the probabilities as they are costs {_span(shown)} a sample; {beside}"
        return (
            f"Acting on probabilities calibrated by {self.method} costs {_span(shown)} a sample, and "
            f"{self.before.observed:.4g} without calibration; {beside}"
        )

    @property
    def sentences(self) -> tuple[str, ...]:
        """What calibration saves, and when asking a person pays, if these are known."""
        found, asking = self.difference, self.break_even
        drawn = "" if self.n_units is None else f" (over {rows_of_units(self.n, self.n_units)})"
        sentences = (
            []
            if found is None
            else [
                f"Calibration changes the cost by {number(found.value, None, sign=True)} a sample, "
                f"{percent(self.level, None)} interval {found.low:+.4g} to {found.high:+.4g}{drawn}."
            ]
        )
        if asking is not None:
            asked = "" if asking.asked is None else f"; here {percent(asking.asked, None)} are asked"
            sentences.append(
                f"Asking a person pays for every sample at a cost of up to {asking.always:.4g}, for half of "
                f"them up to {asking.shares[0.5]:.4g}, for a tenth up to {asking.shares[0.1]:.4g}, and for "
                f"none from {asking.never:.4g} on{asked}."
            )
        return tuple(sentences)

    def to_table(self) -> Table:
        """Return predicted and observed costs and the share of each action, before and after calibration."""
        sides = {"as it is": self.before} | ({} if self.after is None else {str(self.method): self.after})
        each = list(sides.values())
        rows: list[list[object]] = [
            ["predicted cost", *(number(side.predicted, None) for side in each)],
            ["observed cost", *(number(side.observed, None) for side in each)],
            [
                f"{percent(self.level, None)} interval",
                *(span(side.low, side.high, lambda end: number(end, None)) for side in each),
            ],
        ]
        rows += [[action, *(percent(side.shares[action], None) for side in each)] for action in self.actions]
        return Table.of(["", *sides], rows, title=f"{self.sentence}.", notes=self.sentences)


def act_on_costs(
    predictions: PredictionsLike,
    costs: Costs | str | os.PathLike[str],
    *,
    calibrator: Calibrator | None = None,
    methods: str | Sequence[str] | None = "auto",
    fast: bool = False,
    level: float = 0.95,
    n_resamples: int = 1000,
    seed: int = 0,
    progress: Progress | None = None,
) -> CostResult:
    """Choose the action with the least expected cost, and measure what that costs with the true classes.

    Without a calibrator, methods are compared and one is chosen as by ``calibrant calibrate``. The cost after
    calibration is that of out-of-fold predictions: no sample is calibrated by a fit that has seen it. The
    rule holds the calibrator that was fitted on all samples.

    Args:
        predictions: Labelled predictions, or the path of a file. Intervals are by unit if they have units.
        costs: What each action costs for each true class, or the path of a CSV file of them.
        calibrator: A calibrator that was fitted on other samples.
        methods: Methods to compare if there is no calibrator; None for no calibration.
        fast: Whether only quick methods are compared.
        level: Level of the intervals.
        n_resamples: Number of bootstrap resamples.
        seed: Equal seeds give equal results.
        progress: Called with what is being done, the number done, and the total.

    Example:
        >>> answers = Predictions(confidence=[0.9] * 50 + [0.6] * 50, correct=[True] * 70 + [False] * 30)
        >>> costs = Costs([[10], [0]], actions=["answer"], classes=["wrong", "right"]).with_ask(2)
        >>> found = act_on_costs(answers, costs, methods=None)
        >>> round(found.before.predicted, 2), found.before.observed, found.break_even.asked
        (1.5, 1.0, 0.5)
    """
    given = given_predictions(predictions)
    costs = costs if isinstance(costs, Costs) else read_costs(costs)
    ordered = Costs(costs.for_predictions(given), actions=costs.actions)
    level, n_resamples = check_level(level), check_count(n_resamples, "n_resamples", at_least=2)
    y = _true_rows(given)
    method, fitted, held_out = None, calibrator, None
    if calibrator is not None:
        method = type(calibrator).__name__
        held_out = calibrated_log_probs(given, calibrator)
    elif methods is not None:
        chosen = choose(compare(given, methods=methods, fast=fast, seed=seed, progress=progress))
        method, fitted = chosen.name, chosen.calibrator
        held_out = calibrated_log_probs(chosen.held_out)
    rule = CostRule(ordered, n_classes=given.k, class_names=given.class_names, calibrator=fitted)
    units = Units.of(given.units, given.n)
    bootstrap = _Bootstrap(given.weights, units, level, n_resamples, seed)
    raw = calibrated_log_probs(given)
    before, costs_before = _acting(rule, raw, y, bootstrap)
    after, difference = None, None
    if held_out is not None:
        after, costs_after = _acting(rule, held_out, y, bootstrap)
        difference = CostDifference(*bootstrap.interval(costs_after - costs_before))
    single = [bootstrap.mean(ordered.values[y, place].numpy()) for place in range(len(ordered.actions))]
    best = int(np.argmin(single))
    return CostResult(
        n=given.n,
        level=level,
        actions=ordered.actions,
        method=method,
        before=before,
        after=after,
        difference=difference,
        best_single=ordered.actions[best],
        best_single_cost=single[best],
        break_even=_break_even(ordered, raw if held_out is None else held_out, after or before, bootstrap),
        rule=rule,
        n_units=None if units.are_rows else units.n,
    )


@dataclass(frozen=True, eq=False)
class CostOfAsking(Result):
    """What it costs to act, by the cost of asking a person.

    Attributes:
        ask: Costs of asking, in rising order.
        observed: Mean cost with the true classes at each of them.
        predicted: Mean cost that the probabilities predict.
        asked: Share of the samples that is asked.
    """

    ask: tuple[float, ...]
    observed: tuple[float, ...]
    predicted: tuple[float, ...]
    asked: tuple[float, ...]


def cost_of_asking(
    predictions: PredictionsLike,
    costs: Costs | None = None,
    *,
    ask: Sequence[float] | None = None,
    calibrator: Calibrator | None = None,
) -> CostOfAsking:
    """Measure what it costs to act if a person can be asked, for many costs of asking.

    Args:
        predictions: Labelled predictions, or the path of a file.
        costs: Costs of the other actions; by default a mistake costs 1, and a hit nothing.
        ask: Costs of asking; by default 101 from 0 to the cost at which nobody is asked.
        calibrator: A calibrator that was fitted on other samples.

    Example:
        >>> answers = Predictions(confidence=[0.9, 0.6], correct=[True, False])
        >>> found = cost_of_asking(answers, ask=[0, 0.2, 1])
        >>> found.asked, [round(each, 2) for each in found.observed]
        ((1.0, 0.5, 0.0), [0.0, 0.1, 0.5])
    """
    given = given_predictions(predictions)
    y, log_probs = _true_rows(given), calibrated_log_probs(given, calibrator)
    k = log_probs.shape[1]
    mistakes = Costs([[1.0], [0.0]]) if is_of_pairs(given.k) else Costs(1 - torch.eye(k, dtype=torch.float64))
    rule = CostRule(Costs((mistakes if costs is None else costs).for_predictions(given)), n_classes=given.k)
    action, least = (each.cpu() for each in rule(log_probs))
    paid, w = rule.costs[y, action], counts_of(given.weights, given.n).cpu()
    tried = np.linspace(0, float(least.max()), 101).tolist() if ask is None else [float(each) for each in ask]
    rows = []
    for cost in tried:
        asks = least > cost
        charged = (torch.where(asks, cost, each) for each in (paid, least))
        rows.append([float(mean_of(each, w)) for each in (*charged, asks.double())])
    observed, predicted, asked = (tuple(column) for column in zip(*rows, strict=True))
    return CostOfAsking(tuple(tried), observed, predicted, asked)


@dataclass(frozen=True, eq=False)
class _Bootstrap:
    """Means over samples, by weight if there are weights, and their intervals."""

    weights: Tensor | None
    units: Units
    level: float
    n_resamples: int
    seed: int

    def mean(self, values: Floats) -> float:
        return self._resampler(values).value

    def interval(self, values: Floats) -> tuple[float, float, float]:
        resampler = self._resampler(values)
        drawn = resampler.replicates(self.n_resamples, generator(self.seed))
        low, high = corrected_ends(resampler.value, drawn, level=self.level, biased=False)
        return resampler.value, low, high

    def _resampler(self, values: Floats) -> Resampler:
        return mean_resampler(values, self.weights, self.units)


def _acting(rule: CostRule, log_probs: Tensor, y: Tensor, bootstrap: _Bootstrap) -> tuple[Acting, Floats]:
    """Return what acting on probabilities costs, and the cost of each sample."""
    action, expected = (each.cpu() for each in rule(log_probs))
    paid = rule.costs[y, action].numpy()
    value, low, high = bootstrap.interval(paid)
    shares = {
        name: bootstrap.mean((action == place).double().numpy()) for place, name in enumerate(rule.actions)
    }
    return Acting(bootstrap.mean(expected.numpy()), value, low, high, FrozenDict(shares)), paid


def _break_even(costs: Costs, log_probs: Tensor, acting: Acting, bootstrap: _Bootstrap) -> BreakEven | None:
    """Return when asking pays; None if every action costs the same whatever the true class is."""
    others = [place for place, name in enumerate(costs.actions) if name not in costs.asking]
    if not others:
        return None
    least = (log_probs.exp().cpu() @ costs.values[:, others]).amin(dim=1).numpy()
    w = counts_of(bootstrap.weights, len(least)).cpu().numpy()
    counted = least[w > 0]
    asked = sum(acting.shares[name] for name in costs.asking) if costs.asking else None
    # The highest cost at which a share is asked is exceeded by the least cost of that share.
    at = {share: _exceeded_by(least, w, share) for share in _SHARES_ASKED}
    return BreakEven(float(counted.min()), float(counted.max()), FrozenDict(at), asked)


def _exceeded_by(values: Floats, weights: Floats, share: float) -> float:
    """Return the largest value that at least a share of the values, by weight, reaches."""
    order = np.argsort(-values, kind="stable")
    total = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(total, share * total[-1] * (1 - 1e-12))])


def _true_rows(predictions: Predictions) -> Tensor:
    """Return the row of the matrix for each sample: the true class, or whether the answer was right."""
    return predictions.truth_for("costs are counted with it").long().cpu()


def _names(names: Sequence[str], number: int, what: str) -> tuple[str, ...]:
    if isinstance(names, str) or len(names) != number:
        got = repr(names) if isinstance(names, str) else len(names)
        raise InputError(f"{what}: expected {number} names, one for each, got {got}")
    strange = next((name for name in names if not isinstance(name, str) or not name), None)
    if strange is not None:
        raise InputError(f"{what}: expected names that are text, got {strange!r}")
    twice = next((name for name in names if list(names).count(name) > 1), None)
    if twice is not None:
        raise InputError(f"{what}: expected different names, got {twice!r} twice; rename one of them")
    return tuple(str(name) for name in names)


def _number(cell: str, row: int, action: str) -> float:
    try:
        value = float(cell)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise FormatError(f"row {row}, column {action!r}: expected a finite number, got {cell.strip()!r}")
    return value


def _span(acting: Acting) -> str:
    return f"{acting.observed:.4g} ({acting.low:.4g} to {acting.high:.4g})"
