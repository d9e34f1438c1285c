"""A threshold of the confidence for each group, with a guarantee that holds in all groups at once."""

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import scipy
import torch
from torch import Tensor

from calibrant.data.predictions import Groups, Predictions
from calibrant.decisions.rule import Decisions, Rule
from calibrant.decisions.thresholds import Threshold, ThresholdRule, Thresholds, check_risk
from calibrant.errors import FormatError, InputError, listed
from calibrant.evaluation.given import PredictionsLike, given_predictions
from calibrant.files import Allowed
from calibrant.inference.rows import check_level
from calibrant.posthoc.calibrator import Calibrator
from calibrant.posthoc.fitting.stored import Numbers, declare
from calibrant.results import FrozenDict, Result
from calibrant.show.numbers import Cell, count, percent
from calibrant.show.table import Table

_DIGITS = 14
_MOST_NAMED = 5
_SHARE = Allowed("a number between 0 and 1", lambda value: 0 < value < 1)
_RISK = Allowed("a number above 0 and at most 1", lambda value: 0 < value <= 1)
_LOG_ODDS = Allowed("log-odds, or infinity", lambda x: not bool(x.isnan().any()))


class GroupThresholdRule(Rule):
    """Answer if the confidence is at least the threshold of the sample's group, else abstain.

    Groups without a threshold, and groups that the fit has not seen, are never answered.

    Args:
        thresholds: The lowest confidence that is answered in each group; None if nothing is.
        risk: The guaranteed share of wrong answers among the new answers of each group.
        level: The probability with which this is guaranteed for all groups at once.
        columns: The columns that make the groups, if there are several.
        n_classes: The number of classes; None for confidences of a black box.
        class_names: Their names.
        calibrator: What is applied before.

    Example:
        >>> rule = GroupThresholdRule({"art": 0.6, "law": 0.9}, risk=0.05, level=0.95)
        >>> new = Predictions(confidence=[0.8, 0.8], groups=["art", "law"])
        >>> rule.decide(new).columns["answer"]
        [True, False]
    """

    options = ("risk", "level", "group_names", "group_columns")
    stored = declare(thresholds=Numbers(("groups",), _LOG_ODDS))
    outputs: ClassVar[tuple[str, ...]] = ThresholdRule.outputs

    risk: Annotated[float, _RISK]
    level: Annotated[float, _SHARE]
    group_names: tuple[str, ...]
    group_columns: tuple[str, ...]
    thresholds: Tensor

    def __init__(
        self,
        thresholds: Mapping[str, float | None],
        *,
        risk: float,
        level: float,
        columns: tuple[str, ...] = (),
        n_classes: int | None = None,
        class_names: tuple[str, ...] | None = None,
        calibrator: Calibrator | None = None,
    ) -> None:
        super().__init__(n_classes=n_classes, class_names=class_names, calibrator=calibrator)
        self.risk, self.level = risk, level
        self.group_names, self.group_columns = tuple(thresholds), tuple(columns)
        found = [
            math.inf if each is None else float(scipy.special.logit(each)) for each in thresholds.values()
        ]
        self.register_buffer("thresholds", torch.tensor(found, dtype=torch.float64))

    def forward(self, log_probs: Tensor, groups: Tensor | None = None) -> tuple[Tensor, ...]:
        """Return the predicted class, its probability, and whether to answer, each of shape ``(n,)``.

        Args:
            log_probs: Calibrated log-probabilities of shape ``(n, k)``.
            groups: The place of each sample's group among ``group_names``; -1 for others.
        """
        if groups is None:
            raise InputError("groups: expected the group of each sample, got none; decide passes them")
        never = self.thresholds.new_full((1,), math.inf)
        limits = torch.cat([self.thresholds, never])[groups]
        one = ThresholdRule(0.0, risk=self.risk, level=self.level, n_classes=self.n_classes)
        one.threshold = limits
        return one.forward(log_probs)

    def columns(self, outputs: Mapping[str, Tensor]) -> dict[str, list[Any]]:
        """Return the predicted class and its confidence, unless they are given, and whether to answer."""
        return ThresholdRule.columns(self, outputs)  # type: ignore[arg-type]  # the same outputs

    @torch.no_grad()
    def decide(self, predictions: Predictions) -> Decisions:
        """Decide for each sample by the threshold of its group; its label is not read."""
        log_probs, groups = self.log_probs(predictions), self._groups(predictions)
        places = {name: place for place, name in enumerate(self.group_names)}
        if others := [name for name in groups.names if name not in places]:
            warnings.warn(
                f"groups: no samples of {listed(others, _MOST_NAMED)} when the thresholds were found; they "
                "are not answered",
                stacklevel=2,
            )
        codes = torch.tensor([places.get(name, -1) for name in groups.names])[groups.codes]
        found = dict(zip(self.outputs, self(log_probs, codes.to(log_probs.device)), strict=True))
        return Decisions(predictions.n, FrozenDict(self.columns(found)))

    def _groups(self, predictions: Predictions) -> Groups:
        """Return the groups of predictions by the columns of the fit; refuse predictions without them."""
        groups = predictions.groups
        named = f"the columns {' and '.join(self.group_columns)}" if self.group_columns else "one column"
        if groups is None or (groups.columns and not self.group_columns):
            got = "none" if groups is None else " and ".join(groups.columns)
            raise InputError(
                f"groups: expected {named} of groups, because each group has a threshold of its own, got "
                f"{got}; pass groups="
            )
        return groups.by(self.group_columns) if self.group_columns else groups

    def check_stored(self) -> None:
        """Refuse thresholds whose number is not that of the groups."""
        if not len(self.thresholds) == len(self.group_names) == len(set(self.group_names)):
            raise FormatError(
                f"thresholds: expected one for each of {len(set(self.group_names))} groups, got "
                f"{len(self.thresholds)}"
            )

    def check_exportable(self) -> None:
        """Refuse the rule, which needs the group of a sample beside its scores."""
        raise InputError(
            "export: expected a rule that follows from the scores of a sample, got one that needs groups; "
            "find a threshold on the samples of each group and export each"
        )


@dataclass(frozen=True, eq=False)
class GroupThresholds(Result):
    """The threshold of each group, with a guarantee for all of them at once.

    Attributes:
        groups: The threshold of each group by name, at its own level.
        level: The probability with which the guarantees of all groups hold at once.
        level_each: The level of each group: one minus the level is divided by their number (Bonferroni).
        n: Number of samples.
        coverage: Share of the samples that are answered.
        risk: The guaranteed share of wrong answers in each group: that which was asked for, or the largest of
            the bounds.
        rule: The rule that answers; None if no group has a threshold.
    """

    groups: Mapping[str, Threshold]
    level: float
    level_each: float
    n: int
    coverage: float
    risk: float
    rule: GroupThresholdRule | None

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON, with the sentence and without the rules."""
        values = {name: getattr(self, name) for name in ("level", "level_each", "n", "coverage", "risk")}
        groups = {name: each.to_dict() for name, each in self.groups.items()}
        return {"sentence": self.sentences[0], **values, "groups": groups}

    @property
    def sentences(self) -> tuple[str, ...]:
        """What is answered, what is guaranteed in each group, and which groups are not answered."""
        without = [name for name, each in self.groups.items() if each.rule is None]
        promise = f"at most {percent(self.risk, None)} of the answers wrong"
        sure = f"{percent(self.level, None)} probability for all {len(self.groups)} groups at once"
        if self.rule is None:
            return (
                f"No group has a threshold with {promise} and {sure}; accept more, or give more samples.",
            )
        first = (
            f"Answer by the threshold of each group: {percent(self.coverage, None)} of the samples, in each "
            f"group {promise} with {sure}."
        )
        if not without:
            return (first,)
        are = "is" if len(without) == 1 else "are"
        return (
            first,
            f"{listed(without, _MOST_NAMED)} {are} never answered: too few or too many wrong answers.",
        )

    def to_table(self) -> Table:
        """Return the threshold of each group."""
        rows = [
            [name, count(each.n), "none"]
            if each.threshold is None
            else [
                name,
                count(each.n),
                Cell(each.threshold, f"{each.threshold:.{_DIGITS}g}"),
                percent(each.coverage, None),
                Cell(each.observed, f"{percent(each.observed, None)} of {each.answered:,}"),
                percent(each.risk, None),
            ]
            for name, each in self.groups.items()
        ]
        columns = ["group", "samples", "confidence at least", "answered", "observed wrong", "at most wrong"]
        return Table.of(columns, rows, title=self.sentences[0])


def find_group_thresholds(
    predictions: PredictionsLike,
    *,
    risk: float | None = None,
    coverage: float | None = None,
    level: float = 0.95,
    calibrator: Calibrator | None = None,
) -> GroupThresholds:
    """Find a threshold for each group, for a risk or for a coverage, that is guaranteed in all of them.

    One minus the level is divided by the number of groups, so that all guarantees hold at once. If several
    columns make the groups, such as race and sex, there is a threshold for each combination; what is
    guaranteed in each combination is guaranteed for each race and for each sex, too. A group in which no
    threshold shows the risk is never answered.

    Args:
        predictions: Labelled predictions with groups, on which nothing was fitted.
        risk: Accepted share of wrong answers in each group.
        coverage: Share of the samples of each group to answer, if no risk is given.
        level: Probability that the guarantees of all groups hold.
        calibrator: A calibrator to apply first, fitted on other samples.

    Example:
        >>> right = [True] * 195 + [False] * 5 + [True] * 120 + [False] * 80
        >>> pairs = Predictions(confidence=[0.9] * 400, correct=right, groups=["art"] * 200 + ["law"] * 200)
        >>> {name: each.threshold for name, each in find_group_thresholds(pairs, risk=0.1).groups.items()}
        {'art': 0.0, 'law': None}
    """
    given = given_predictions(predictions)
    if given.groups is None:
        raise InputError("predictions: expected groups, got none; pass groups=, or name their column")
    groups, level = given.groups, check_level(level)
    if risk is not None:
        check_risk(risk)
    each_level = 1 - (1 - level) / len(groups.names)
    found: dict[str, Threshold] = {}
    for place, name in enumerate(groups.names):
        part = Thresholds.of(
            given.take((groups.codes == place).nonzero().squeeze(1)), level=each_level, calibrator=calibrator
        )
        found[name] = part.for_coverage(coverage or 0.0) if risk is None else part.table([risk])[0]
    answered = sum(each.answered for each in found.values())
    bound = max(each.risk for each in found.values()) if risk is None else risk
    rule = None
    if answered:
        rule = GroupThresholdRule(
            {name: each.threshold for name, each in found.items()},
            risk=bound,
            level=level,
            columns=groups.columns,
            n_classes=given.k,
            class_names=given.class_names,
            calibrator=calibrator,
        )
    return GroupThresholds(FrozenDict(found), level, each_level, given.n, answered / given.n, bound, rule)
