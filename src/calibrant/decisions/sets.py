"""Prediction sets: classes among which is the true one, with a guaranteed probability."""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Annotated, Any, ClassVar, Literal, Self, TypeAlias, TypeVar, get_args

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from calibrant.data.predictions import Predictions
from calibrant.decisions.conformal import (
    ANY_ORDER,
    NEVER_DRAWN,
    SET_METHODS,
    CoverageLaw,
    RankedClasses,
    SetMethod,
    SetScore,
    UnitSize,
    check_alpha,
    check_enough,
    coverage_law,
    fewest_for_sets,
    law_of_place,
    place_of_threshold,
    threshold,
)
from calibrant.decisions.rule import Decisions, Rule, calibrated_log_probs, check_one_label
from calibrant.decisions.set_measures import SetMeasures, measures_of_sets, rows_of_parts
from calibrant.errors import FormatError, InputError, listed
from calibrant.evaluation.calibrated import fit_named
from calibrant.evaluation.choose import choose
from calibrant.evaluation.compare import compare
from calibrant.evaluation.given import PredictionsLike, given_predictions
from calibrant.files import Allowed, at_least
from calibrant.inference.intervals import effective_rows
from calibrant.inference.units import Units
from calibrant.inputs import Progress, check_choice, check_count, check_flag, check_number, check_seed
from calibrant.posthoc.calibrator import Calibrator
from calibrant.posthoc.fitting.stored import Numbers, declare
from calibrant.results import FrozenDict, Result
from calibrant.show.numbers import number, percent, points, rows_of_units, span
from calibrant.show.table import Column, Table

By: TypeAlias = Literal["class", "group"]
Small: TypeAlias = Literal["refuse", "include"]
BY: tuple[By, ...] = get_args(By)

#: How the scores of the model are called beside calibrated ones.
RAW = "raw"

# Entries of probabilities that are sorted at a time.
_BLOCK_ENTRIES = 1 << 22
# Uniform numbers of the fit and of its application, and the samples that tune RAPS, are independent.
_FITTING, _APPLYING, _TUNING = range(3)
# RAPS: the share of samples that choose the penalty, and the penalties of the paper.
_TUNING_SHARE = 0.2
_PENALTIES = (0.001, 0.01, 0.1, 0.2, 0.5)
_MOST_NAMED = 5

_BETWEEN_0_AND_1 = Allowed("a number between 0 and 1", lambda value: 0 < value < 1)
_THRESHOLDS = Allowed(
    "numbers, or infinity", lambda x: bool(((x > -torch.inf) & ~x.isnan()).all()) and x.numel() > 0
)
_COUNTS = Allowed("numbers of samples", lambda x: bool((x >= 0).all()))


class PredictionSets(Rule):
    """Sets of classes that hold the true one with a probability of at least ``1 - alpha``.

    The guarantee is that of split conformal prediction: it holds for any model and any calibrator, if the
    samples of :meth:`fit` and new samples are exchangeable (drawn in the same way) and **neither the model
    nor the calibrator was fitted on the samples of the fit**. It is about all samples together; with
    ``by="class"`` it holds for each true class, with ``by="group"`` in each group (Mondrian).

    If samples belong to units (``units`` of the predictions), such as the visits of a patient, the guarantee
    is for new units drawn like these: on average at least ``1 - alpha`` of all their samples have a set that
    holds the true class. What this costs: the sets are those of an ``alpha`` that is smaller by about the
    mean size of a sample's unit, divided by the number of samples, see
    :func:`~calibrant.decisions.conformal.place_of_threshold`.

    Example:
        >>> from calibrant.data import load_bundled
        >>> sets = PredictionSets.fit(load_bundled("cifar10_val"), alpha=0.1)
        >>> test = load_bundled("cifar10_test")
        >>> found = sets.measure(test)
        >>> round(found.coverage, 2), round(found.mean_size, 2)
        (0.89, 1.27)
        >>> sets.decide(test.take([0, 3])).columns["set"]
        [['automobile'], ['dog', 'cat']]

    References:
        Sadinle, Lei and Wasserman, "Least Ambiguous Set-Valued Classifiers with Bounded Error Levels", JASA
        2019 (LAC). Romano, Sesia and Candès, "Classification with Valid and Adaptive Coverage", NeurIPS 2020
        (APS). Angelopoulos, Bates, Malik and Jordan, "Uncertainty Sets for Image Classifiers using Conformal
        Prediction", ICLR 2021 (RAPS). Vovk, Gammerman and Shafer, "Algorithmic Learning in a Random World",
        2005 (Mondrian).
    """

    options = (
        "alpha",
        "method",
        "randomised",
        "by",
        "allow_empty",
        "penalty",
        "k_reg",
        "seed",
        "group_names",
        "n_units",
        "place",
        "per_effective",
    )
    stored = declare(
        thresholds=Numbers(("t",), _THRESHOLDS),
        counts=Numbers(("t",), _COUNTS, "place"),
    )
    outputs: ClassVar[tuple[str, ...]] = ("sets", "sizes")

    alpha: Annotated[float, _BETWEEN_0_AND_1]
    method: SetMethod
    randomised: bool
    by: By | None
    allow_empty: bool
    penalty: Annotated[float, at_least(0)]
    k_reg: Annotated[int, at_least(0)]
    seed: Annotated[int, at_least(0)]
    group_names: tuple[str, ...]
    # Of the fit, if its samples belong to units: their number, the place of the threshold among the scores,
    # and the number of samples that say as much about the coverage as an independent one.
    n_units: Annotated[int, at_least(2)] | None = None
    place: Annotated[int, at_least(1)] = 1
    per_effective: Annotated[float, at_least(1)] = 1.0
    thresholds: Tensor
    counts: Tensor

    @classmethod
    def fit(
        cls,
        predictions: PredictionsLike,
        *,
        alpha: float = 0.1,
        method: SetMethod = "lac",
        randomised: bool = False,
        by: By | None = None,
        calibrator: Calibrator | None = None,
        allow_empty: bool = False,
        penalty: float | None = None,
        k_reg: int | None = None,
        small: Small = "refuse",
        seed: int = 0,
    ) -> Self:
        r"""Find the threshold of the scores of the true classes.

        Args:
            predictions: Labelled class scores on which nothing else was fitted, neither the model nor the
                calibrator; at least :math:`1/\alpha - 1` samples.
            alpha: Share of sets that may miss the true class.
            method: ``"lac"`` has the smallest sets on average; ``"aps"`` adapts their size to the difficulty
                of a sample; ``"raps"`` is APS with a penalty for improbable classes; ``"ordered"`` is for
                classes in an order, such as grades: its sets have no holes.
            randomised: Whether a uniform number decides about the last class of APS and RAPS, which gives
                smaller sets. The numbers follow from the seed and the place of a sample in its file.
            by: ``"class"`` or ``"group"`` for a guarantee in each of them, from thresholds of their own.
                Samples of groups that the fit has not seen get the common threshold, with a warning.
            calibrator: A fitted calibrator that is applied before; it is saved with the sets.
            allow_empty: Whether sets may be empty. By default a set to which no class belongs holds the most
                probable class, and the coverage is then above that of :meth:`law`.
            penalty: Penalty of RAPS for each class after the first ``k_reg``. If it or ``k_reg`` is not
                given, a random fifth of the samples chooses it, and the others determine the threshold.
            k_reg: Number of classes without a penalty; by default as many as hold the true class of
                ``1 - alpha`` of that fifth.
            small: With ``by``, what happens to classes or groups with fewer than :math:`1/\alpha - 1`
                samples: ``"refuse"``, or ``"include"`` to put such a class into every set, or all classes
                into the sets of such a group, which is what the guarantee then demands.
            seed: Equal seeds give equal sets.
        """
        kind = check_choice(method, "method", SET_METHODS)
        wanted = _Wanted(kind, check_flag(randomised, "randomised"), penalty, k_reg)
        common = _Common(alpha, by, calibrator, allow_empty, small, seed)
        return _fit_all(cls, given_predictions(predictions), [wanted], common)[0]

    @property
    def score(self) -> SetScore:
        """The score of a class, which is compared with the threshold."""
        return SetScore(self.method, self.randomised, self.penalty, self.k_reg)

    @property
    def n(self) -> int:
        """Number of samples that determined the thresholds."""
        return int(self.counts[-1] if self.by == "group" else self.counts.sum())

    @property
    def guarantee(self) -> str:
        """The guarantee in a sentence."""
        whose = {"class": "of each class ", "group": "in each group "}.get(self.by or "", "")
        if self.n_units is not None:
            return (
                f"Of the sets of new units {whose}at least {100 * (1 - self.alpha):g} % hold the true class "
                "on average, their rows counted, if new units are drawn like the fit's "
                f"{rows_of_units(self.n, self.n_units)}."
            )
        return (
            f"The set of a new sample {whose}holds its true class with a probability of at least "
            f"{100 * (1 - self.alpha):g} %, if new samples are drawn like the {self.n:,} of the fit."
        )

    def law(self, n_test: int | None = None, *, level: float = 0.99) -> CoverageLaw:
        """Return the interval of the coverage on further samples, see :func:`coverage_law`.

        It is that of one threshold for all samples, so sets by class or by group have none. If samples belong
        to units, it is an approximation: that of as many independent samples as have the same variance, for
        test samples in units like those of the fit.
        """
        if self.by is not None:
            raise InputError(
                f"law: expected sets with one threshold, got sets by {self.by}; use coverage_law with the "
                f"number of samples of each {self.by}"
            )
        if self.n_units is None:
            return coverage_law(self.n, self.alpha, n_test=n_test, level=level)
        return law_of_place(self.place, self.n, n_test, level, per_effective=self.per_effective)

    def forward(
        self, log_probs: Tensor, uniforms: Tensor | None = None, groups: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        """Return which classes are in the sets, shape ``(n, k)``, and the sizes of the sets, shape ``(n,)``.

        Args:
            log_probs: Calibrated log-probabilities of shape ``(n, k)``; ``-inf`` masks a class, which is then
                in no set.
            uniforms: Numbers from 0 to 1, shape ``(n,)``, for randomised sets.
            groups: Places of groups among ``group_names``, -1 for others, for sets by group.
        """
        sets = self.filled(self.scored(RankedClasses(log_probs.exp()), uniforms, groups), log_probs)
        return sets, sets.sum(dim=1)

    def scored(self, ranked: RankedClasses, uniforms: Tensor | None, groups: Tensor | None) -> Tensor:
        """Return which classes belong to the sets by their score, shape ``(n, k)``."""
        needed = {"uniforms": (self.randomised, uniforms), "groups": (self.by == "group", groups)}
        for name, (is_needed, given) in needed.items():
            if is_needed and given is None:
                raise InputError(f"{name}: expected one for each sample, got none; decide passes them")
        limits = self.thresholds if self.by != "group" else self.thresholds[groups][:, None]
        sets: Tensor = (self.score.of(ranked, uniforms) <= limits) & (ranked.probs > 0)
        return sets

    def filled(self, sets: Tensor, log_probs: Tensor) -> Tensor:
        """Return sets with the most probable class in those that are empty, unless these are allowed."""
        if self.allow_empty:
            return sets
        classes = torch.arange(sets.shape[1], device=sets.device)
        top = classes == log_probs.argmax(dim=1, keepdim=True)
        return sets | (top & ~sets.any(dim=1, keepdim=True))

    def columns(self, outputs: Mapping[str, Tensor]) -> dict[str, list[Any]]:
        """Return the names of the classes in each set, the most probable first, and their number."""
        rows, classes = outputs["sets"].nonzero(as_tuple=True)
        if "log_probs" in outputs:
            by_prob = outputs["log_probs"][rows, classes].argsort(descending=True, stable=True)
            order = by_prob[rows[by_prob].argsort(stable=True)]
            classes = classes[order]
        names = self.class_names or tuple(map(str, range(outputs["sets"].shape[1])))
        sizes = outputs["sizes"].tolist()
        held = iter(classes.tolist())
        return {"set": [[names[next(held)] for _ in range(size)] for size in sizes], "set_size": sizes}

    @torch.no_grad()
    def decide(self, predictions: Predictions) -> Decisions:
        """Return the set of each sample, as the columns ``set`` and ``set_size``; labels are not read."""
        found: dict[str, list[Any]] = {"set": [], "set_size": []}
        for block in self._blocks(predictions):
            sets, sizes = self(block.log_probs, block.uniforms, block.groups)
            held = {"sets": sets, "sizes": sizes, "log_probs": block.log_probs}
            for name, values in self.columns(held).items():
                found[name] += values
        return Decisions(predictions.n, FrozenDict(found))

    def measure(self, predictions: PredictionsLike) -> SetMeasures:
        """Return coverage and sizes of the sets of labelled samples: overall, by class, group and size."""
        return _measure_all([self], _labelled(given_predictions(predictions)))[0]

    def log_probs(self, predictions: Predictions) -> Tensor:
        """Check that predictions have the form of the rule; return their calibrated log-probabilities."""
        self.check_form(predictions)
        return _log_probs(predictions.in_order(self.class_names), self.calibrator)

    def check_form(self, predictions: Predictions) -> None:
        """Refuse predictions of another form than the rule was fitted on."""
        _check_classes(predictions)
        super().check_form(predictions)
        if self.by == "group" and predictions.groups is None:
            raise InputError(
                "groups: expected the group of each sample, because each group has a threshold of its own, "
                "got none; pass groups="
            )

    def check_stored(self) -> None:
        """Refuse thresholds whose number is not that of the classes or groups."""
        expected = {"class": self.n_classes, "group": len(self.group_names) + 1}.get(self.by or "", 1)
        if len(self.thresholds) != expected:
            raise FormatError(f"thresholds: expected {expected}, got {len(self.thresholds)}")
        if len(set(self.group_names)) < len(self.group_names):
            raise FormatError("group_names: expected different names, got some twice")

    def check_exportable(self) -> None:
        """Refuse sets that need more than the scores of a sample."""
        more = "random numbers" if self.randomised else "groups" if self.by == "group" else None
        if more is not None:
            raise InputError(
                f"export: expected sets that follow from the scores of a sample, got sets that need {more}; "
                f"fit {'them with randomised=False' if self.randomised else 'one rule for each group'}"
            )

    def _blocks(self, predictions: Predictions) -> Iterator["_Block"]:
        """Yield calibrated log-probabilities of some samples at a time, with uniform numbers and groups."""
        self.check_form(predictions)
        given = predictions.in_order(self.class_names)
        uniforms = _uniforms(self.seed, _APPLYING, given.n) if self.randomised else None
        groups = self._places_of_groups(given) if self.by == "group" else None
        for rows, log_probs in _in_blocks(given, self.calibrator):
            yield _Block(rows, log_probs, _part(uniforms, rows), _part(groups, rows))

    def _places_of_groups(self, predictions: Predictions) -> Tensor:
        assert predictions.groups is not None
        known = {name: place for place, name in enumerate(self.group_names)}
        others = [name for name in predictions.groups.names if name not in known]
        if others:
            warnings.warn(
                f"groups: no samples of {listed(others, _MOST_NAMED)} in the fit; their sets have the "
                "common threshold, without a guarantee for the group",
                stacklevel=2,
            )
        places = torch.tensor([known.get(name, -1) for name in predictions.groups.names])
        return places[predictions.groups.codes]


SetsT = TypeVar("SetsT", bound=PredictionSets)


@dataclass(frozen=True, eq=False)
class SetResult(Result):
    """The sets of one method, from raw or calibrated scores.

    Attributes:
        scores: ``"raw"``, or the name of the calibrator.
        method: ``"lac"``, ``"aps"``, ``"raps"`` or ``"ordered"``.
        randomised: Whether a uniform number decides about the last class.
        n: Number of samples that determined the threshold.
        penalty: Penalty of RAPS, else 0.
        k_reg: Number of classes without a penalty.
        measures: What the sets reach.
        rule: The sets themselves, to decide with and to save; not part of :meth:`to_dict`.
    """

    scores: str
    method: SetMethod
    randomised: bool
    n: int
    penalty: float
    k_reg: int
    measures: SetMeasures
    rule: PredictionSets = field(repr=False)

    @property
    def name(self) -> str:
        """The method as tables show it."""
        return self.rule.score.name

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        names = ("scores", "method", "randomised", "n", "penalty", "k_reg")
        return {name: getattr(self, name) for name in names} | {"measures": self.measures.to_dict()}


@dataclass(frozen=True, eq=False)
class SetComparison(Result):
    """Prediction sets by several methods, before and after calibration.

    Attributes:
        alpha: Share of sets that may miss the true class.
        by: What the guarantee holds for each of, if not for all samples together.
        n_test: Number of samples that were measured; None if these are the samples of the fit, whose coverage
            is about right by construction.
        results: The sets of each method, for raw scores and then for each calibrator.
    """

    alpha: float
    by: By | None
    n_test: int | None
    results: tuple[SetResult, ...]

    def choose(self, method: SetMethod = "lac", *, randomised: bool = False) -> "SetChoice":
        """Return the sets of a method, from the scores of the last calibrator if there is one."""
        last = self.results[-1].scores
        wanted = (last, method, randomised)
        chosen = next(each for each in self.results if (each.scores, each.method, each.randomised) == wanted)
        return SetChoice(self, chosen)

    def to_table(self, chosen: SetResult | None = None) -> Table:
        """Return coverage and sizes of the sets of each method; the chosen one is marked."""
        columns = [Column("scores", align="left"), Column("method", align="left"), Column("coverage", "%")]
        columns += [Column("mean\nsize"), Column("one class", "%"), Column("empty", "%")]
        rows = [
            [
                each.scores,
                each.name,
                points(each.measures.coverage, 1),
                number(each.measures.mean_size, 2),
                points(each.measures.single, 1),
                points(each.measures.empty, 1),
            ]
            for each in self.results
        ]
        place = None if chosen is None else next(at for at, each in enumerate(self.results) if each is chosen)
        return Table.of(columns, rows, title=f"Prediction sets for alpha {self.alpha:g}", chosen=place)


@dataclass(frozen=True, eq=False)
class SetChoice(Result):
    """The sets of one method among several.

    Attributes:
        comparison: All sets.
        chosen: The sets that were asked for.
    """

    comparison: SetComparison
    chosen: SetResult

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON: the guarantee, the method, the law of its coverage, and all sets."""
        chosen = self.chosen
        return {
            "guarantee": chosen.rule.guarantee,
            "chosen": {"scores": chosen.scores, "method": chosen.method, "randomised": chosen.randomised},
            "law": None if self._law is None else self._law.to_dict(),
            **self.comparison.to_dict(),
        }

    @property
    def _law(self) -> CoverageLaw | None:
        found = self.comparison
        return None if found.by or found.n_test is None else self.chosen.rule.law(found.n_test)

    def observed(self, title: str) -> str:
        """Return what was observed on the samples of this title, in a few sentences."""
        measured, law = self.chosen.measures, self._law
        of_units = "" if measured.n_units is None else f" of {measured.n_units:,} units"
        text = (
            f"On {title} {percent(measured.coverage, 1)} of {measured.n:,} sets{of_units} "
            f"({self.chosen.name}, {self.chosen.scores} scores) hold it, with {measured.mean_size:.2f} "
            "classes on average."
        )
        if law is not None:
            text += (
                f" Of fits on {rows_of_units(law.n, self.chosen.rule.n_units)}, 99 % have a coverage of "
                f"{points(law.low, 1)} to {percent(law.high, 1)}."
            )
        if measured.empty > 0 and not self.chosen.rule.allow_empty:
            text += (
                f" {percent(measured.empty, 1)} of the sets would be empty and hold the most probable class, "
                "which adds to the coverage."
            )
        return text

    @property
    def change(self) -> str:
        """How calibration and randomisation change the size of the sets; empty if they do not."""
        results, chosen = self.comparison.results, self.chosen
        sizes = {(each.scores, each.method, each.randomised): each.measures.mean_size for each in results}
        size, text = chosen.measures.mean_size, ""
        if chosen.scores != RAW:
            before = sizes[RAW, chosen.method, chosen.randomised]
            how = "wider" if size > before else "narrower"
            text = f"After {chosen.scores} {chosen.name} sets are {how}: {size:.2f} classes, "
            text += f"{before:.2f} before. "
        drawn = sizes.get((chosen.scores, chosen.method, True), size)
        if drawn < size:
            text += f"Randomised sets have {drawn:.2f} classes on average."
        return text.strip()

    def to_table(self) -> Table:
        """Return coverage and sizes of all sets; the chosen ones are marked."""
        notes = (self.change,) if self.change else ()
        return replace(self.comparison.to_table(self.chosen), notes=notes)

    def parts_table(self, by: str | None = None) -> Table:
        """Return coverage and size in each group (named by its column) or class, the lowest first."""
        found = self.comparison
        groups = found.by == "group"
        rows = self.chosen.measures.groups if groups else self.chosen.measures.classes
        columns = [Column((by or "group") if groups else "class", align="left"), Column("samples")]
        columns += [Column("coverage", "%"), Column("95 %\ninterval"), Column("mean\nsize")]
        cells = [
            [
                row.name,
                row.n,
                points(row.coverage, 1),
                span(row.low, row.high, lambda end: points(end, 1)),
                number(row.mean_size, 2),
            ]
            for row in rows
        ]
        most = _WORST if found.by is None and len(rows) > _WORST else _MOST_ROWS
        notes = (
            ["Sets by class guarantee the coverage of each"] if found.by is None and len(rows) > most else []
        )
        if found.n_test is None:
            notes.append(
                "The coverage is that of the samples of the fit, about right by construction; a test set "
                "measures it."
            )
        return Table.of(columns, cells, notes=tuple(notes), most=most)


# Rows of classes or groups: all that have a guarantee of their own up to a screen or two, else the worst.
_MOST_ROWS, _WORST = 50, 5


def compare_sets(
    predictions: PredictionsLike,
    test: PredictionsLike | None = None,
    *,
    alpha: float = 0.1,
    methods: Sequence[SetMethod] = ANY_ORDER,
    by: By | None = None,
    calibrators: Mapping[str, Calibrator] | None = None,
    allow_empty: bool = False,
    small: Small = "refuse",
    seed: int = 0,
    progress: Progress | None = None,
) -> SetComparison:
    """Fit prediction sets by several methods, before and after calibration, and measure them.

    APS and RAPS are fitted with and without randomisation. The probabilities are sorted once for all methods.

    Args:
        predictions: Labelled class scores on which nothing else was fitted.
        test: Labelled samples to measure on; by default those of the fit, whose sizes are right and whose
            coverage is about ``1 - alpha`` by construction.
        alpha: Share of sets that may miss the true class.
        methods: Methods to compare.
        by: ``"class"`` or ``"group"`` for a guarantee in each of them.
        calibrators: Fitted calibrators by name, to compare with the raw scores.
        allow_empty: Whether sets may be empty, see :meth:`PredictionSets.fit`.
        small: What happens to small classes or groups, see :meth:`PredictionSets.fit`.
        seed: Equal seeds give equal sets.
        progress: Called with what is being done, the number done, and the total.

    Example:
        >>> from calibrant.data import load_bundled
        >>> found = compare_sets(load_bundled("cifar10_val"), load_bundled("cifar10_test"), methods=["lac"])
        >>> [(each.scores, each.name, round(each.measures.mean_size, 2)) for each in found.results]
        [('raw', 'lac', 1.27)]
    """
    named = [check_choice(name, "method", SET_METHODS) for name in methods]
    wanted = [
        _Wanted(name, drawn)
        for name in named
        for drawn in (False, True)
        if not (drawn and name in NEVER_DRAWN)
    ]
    fitting = given_predictions(predictions)
    measured = _labelled(fitting if test is None else given_predictions(test))
    results = []
    every = {RAW: None, **(calibrators or {})}
    for done, (scores, calibrator) in enumerate(every.items()):
        if progress is not None:
            progress(f"sets of {scores} scores", done, len(every))
        common = _Common(alpha, by, calibrator, allow_empty, small, seed)
        rules = _fit_all(PredictionSets, fitting, wanted, common)
        for rule, found in zip(rules, _measure_all(rules, measured), strict=True):
            values = (rule.method, rule.randomised, rule.n, rule.penalty, rule.k_reg)
            results.append(SetResult(scores, *values, found, rule))
    return SetComparison(check_alpha(alpha), by, None if test is None else measured.n, tuple(results))


def calibrate_part(
    predictions: Predictions,
    share: float = 0.5,
    *,
    method: str = "temperature",
    seed: int = 0,
    progress: Progress | None = None,
) -> tuple[Calibrator, Predictions]:
    """Fit a calibrator on a random share of labelled predictions; return it with the other samples.

    The guarantee of prediction sets needs samples that the calibrator has not seen: the others. A unit is
    never divided.

    Args:
        predictions: Labelled predictions.
        share: Share of the samples for the calibrator.
        method: Name of a method, with options as in ``"smart(settled=0)"``; or ``"auto"`` for the one that
            ``calibrant calibrate`` chooses.
        seed: Equal seeds give equal parts and fits.
        progress: Called with the current step, the number of steps done, and their total.

    Example:
        >>> from calibrant.data import load_bundled
        >>> calibrator, rest = calibrate_part(load_bundled("cifar10_val"))
        >>> type(calibrator).__name__, rest.n
        ('TemperatureScaling', 2500)
    """
    if not 0 < check_number(share, "split") < 1:
        raise InputError(f"split: expected a number between 0 and 1, got {share:g}; half of them are 0.5")
    units = Units.of(predictions.units, predictions.n)
    first = units.draw_part(share, np.random.default_rng(check_seed(seed)))
    if not 0 < len(first) < predictions.n:
        raise InputError(
            f"split: expected a share that leaves samples on both sides, got {share:g} of {predictions.n:,}"
        )
    fitting, rest = predictions.take(first), predictions.take(np.delete(np.arange(predictions.n), first))
    if method != "auto":
        return fit_named(method, fitting, seed=seed), rest
    return choose(compare(fitting, seed=seed, progress=progress)).calibrator, rest


@dataclass(frozen=True)
class _Wanted:
    """A score that may need tuning."""

    method: SetMethod
    randomised: bool = False
    penalty: float | None = None
    k_reg: int | None = None

    def __post_init__(self) -> None:
        given = self.penalty is not None or self.k_reg is not None
        if self.method != "raps" and given:
            raise InputError(f"penalty: expected none for {self.method}, which has no penalty, got one")
        if self.method in NEVER_DRAWN and self.randomised:
            raise InputError(
                f"randomised: expected False for {self.method}, which has no last class to draw, got True; "
                "use aps or raps"
            )
        if self.penalty is not None:
            check_number(self.penalty, "penalty", at_least=0)
        if self.k_reg is not None:
            check_count(self.k_reg, "k_reg", at_least=0)

    @property
    def is_tuned(self) -> bool:
        """Whether samples choose the penalty."""
        return self.method == "raps" and (self.penalty is None or self.k_reg is None)


@dataclass(frozen=True)
class _Common:
    """The options that all methods of a fit share."""

    alpha: float
    by: By | None
    calibrator: Calibrator | None
    allow_empty: bool
    small: Small
    seed: int

    def __post_init__(self) -> None:
        check_alpha(self.alpha)
        if self.by is not None:
            check_choice(self.by, "by", BY)
        check_flag(self.allow_empty, "allow_empty")
        check_choice(self.small, "small", get_args(Small))
        check_seed(self.seed)


@dataclass(frozen=True, eq=False)
class _Block:
    """Some consecutive samples: their log-probabilities, uniform numbers and places of groups."""

    rows: slice
    log_probs: Tensor
    uniforms: Tensor | None
    groups: Tensor | None


def _fit_all(
    cls: type[SetsT], predictions: Predictions, wanted: Sequence[_Wanted], common: _Common
) -> list[SetsT]:
    """Fit sets of several scores on the same samples, whose probabilities are sorted once."""
    given = _labelled(predictions)
    if common.calibrator is not None:
        # The graph of both takes classes in the order of the calibrator.
        given = given.in_order(common.calibrator.class_names)
    if common.by == "group" and given.groups is None:
        raise InputError(
            "groups: expected the group of each sample for sets by group, got none; pass groups="
        )
    units = Units.of(given.units, given.n)
    check_enough(given.n, common.alpha, unit_size=_unit_size(units.code))
    tuning = units.draw_part(_TUNING_SHARE, np.random.default_rng([common.seed, _TUNING]))
    scores = [_tuned(each, given, tuning, common) if each.is_tuned else _fixed(each) for each in wanted]
    uniforms = _uniforms(common.seed, _FITTING, given.n)
    of_labels = _label_scores(given, scores, common.calibrator, uniforms)
    rules = []
    for each, score, found in zip(wanted, scores, of_labels, strict=True):
        if each.is_tuned:
            used = np.setdiff1d(np.arange(given.n), tuning)
            rules.append(_rule(cls, score, found[used], given.take(used), common))
        else:
            rules.append(_rule(cls, score, found, given, common))
    return rules


def _rule(cls: type[SetsT], score: SetScore, of_labels: Tensor, given: Predictions, common: _Common) -> SetsT:
    """Return the rule from the scores of the true classes."""
    units = Units.of(given.units, given.n)
    names, parts = _parts(given, common.by)
    unit_sizes = [_unit_size(units.code[rows.numpy()]) for rows in parts]
    check_enough(given.n, common.alpha, unit_size=_unit_size(units.code))
    if common.by is not None and common.small == "refuse":
        _refuse_small(names, parts[: len(names)], unit_sizes[: len(names)], common)
    thresholds = torch.stack(
        [
            threshold(of_labels[rows], common.alpha, unit_size=size)
            for rows, size in zip(parts, unit_sizes, strict=True)
        ]
    )
    counts = torch.tensor([len(rows) for rows in parts])
    _refuse_zeros(thresholds, counts, unit_sizes, common.alpha)
    known = given.class_names
    if known is None and common.calibrator is not None:
        known = common.calibrator.class_names
    rule = cls(n_classes=given.k, class_names=known, calibrator=common.calibrator)
    rule.alpha, rule.by, rule.allow_empty, rule.seed = (
        float(common.alpha),
        common.by,
        common.allow_empty,
        common.seed,
    )
    rule.method, rule.randomised, rule.penalty, rule.k_reg = (
        score.method,
        score.randomised,
        score.penalty,
        score.k_reg,
    )
    rule.group_names = names if common.by == "group" else ()
    if not units.are_rows:
        rule.n_units = units.n
        if common.by is None:
            rule.place = place_of_threshold(given.n, common.alpha, unit_size=unit_sizes[0])
            rule.per_effective = _per_effective(of_labels <= thresholds[0], units)
    rule.register_buffer("thresholds", thresholds)
    rule.register_buffer("counts", counts)
    return rule


def _parts(given: Predictions, by: By | None) -> tuple[tuple[str, ...], tuple[Tensor, ...]]:
    """Return the names of the parts that have thresholds of their own, and the rows of each threshold.

    With groups the last rows are all of them, for samples of other groups.
    """
    everyone = (torch.arange(given.n),)
    if by == "class":
        assert given.labels is not None
        names = given.problem.names
        return names, rows_of_parts(given.labels.cpu(), len(names))
    if by == "group":
        assert given.groups is not None
        groups = given.groups
        return groups.names, (*rows_of_parts(groups.codes, len(groups.names)), *everyone)
    return (), everyone


def _unit_size(code: npt.NDArray[np.intp]) -> UnitSize:
    """Return the mean size of the unit of a sample, from the unit of each sample."""
    sizes = np.bincount(code) if len(code) else np.ones(1, dtype=np.int64)
    return Fraction(int(np.square(sizes).sum()), int(sizes.sum()))


def _per_effective(covered: Tensor, units: Units) -> float:
    """Return how many samples say as much about the coverage as one that is independent of all others."""
    held = covered.double().numpy()
    return len(held) / effective_rows(held, units=units.code, level=0.99)


def _refuse_small(
    names: Sequence[str], parts: Sequence[Tensor], unit_sizes: Sequence[UnitSize], common: _Common
) -> None:
    few = [
        (len(rows), name, fewest_for_sets(common.alpha, unit_size=size))
        for name, rows, size in zip(names, parts, unit_sizes, strict=True)
    ]
    few = [each for each in few if each[0] < each[2]]
    if few:
        needed = max(fewest for _, _, fewest in few)
        shown = [f"{n} of {name}" for n, name, _ in sorted(few)]
        effect = {
            "class": "puts these classes into every set",
            "group": "puts every class into the sets of these groups",
        }[common.by or "class"]
        raise InputError(
            f"predictions: expected at least {needed:,} samples of each {common.by} for alpha "
            f"{common.alpha:g}, got {listed(shown, _MOST_NAMED)}; take more samples or a larger alpha, or "
            f"small='include', which {effect}"
        )


def _refuse_zeros(thresholds: Tensor, counts: Tensor, unit_sizes: Sequence[UnitSize], alpha: float) -> None:
    """Refuse samples if too many have a true class of probability 0, which is in no set."""
    enough = counts >= torch.tensor([fewest_for_sets(alpha, unit_size=size) for size in unit_sizes])
    if bool((thresholds.isinf() & enough).any()):
        raise InputError(
            f"probs: expected a probability above 0 of the true class in at least {100 * (1 - alpha):g} % of "
            "the samples, got fewer, and a class with the probability 0 is in no set; calibrate the "
            "probabilities first"
        )


def _fixed(wanted: _Wanted) -> SetScore:
    return SetScore(wanted.method, wanted.randomised, float(wanted.penalty or 0.0), int(wanted.k_reg or 0))


def _tuned(wanted: _Wanted, given: Predictions, rows: npt.NDArray[np.int64], common: _Common) -> SetScore:
    """Choose the penalty of RAPS, and the classes without one, on some samples, by the mean size of sets."""
    part = given.take(rows)
    k_reg = wanted.k_reg
    if k_reg is None:
        ranks = _label_ranks(part, common.calibrator).double()
        # Few samples choose the largest rank; no guarantee depends on it.
        k_reg = int(threshold(ranks, common.alpha).clamp(max=ranks.max()))
    penalties = _PENALTIES if wanted.penalty is None else (wanted.penalty,)
    candidates = [SetScore("raps", penalty=float(each), k_reg=k_reg) for each in penalties]
    of_labels = _label_scores(part, candidates, common.calibrator, None)
    largest = of_labels.where(of_labels.isfinite(), -torch.inf).amax(dim=1)
    limits = torch.minimum(threshold(of_labels, common.alpha), largest)
    sizes = torch.zeros(len(candidates), dtype=torch.int64)
    for _, log_probs in _in_blocks(part, common.calibrator):
        ranked = RankedClasses(log_probs.exp())
        for place, (score, limit) in enumerate(zip(candidates, limits, strict=True)):
            sizes[place] += (score.of(ranked) <= limit).sum().cpu()
    best = candidates[int(sizes.argmin())]
    return SetScore("raps", wanted.randomised, best.penalty, best.k_reg)


def _label_scores(
    given: Predictions, scores: Sequence[SetScore], calibrator: Calibrator | None, uniforms: Tensor | None
) -> Tensor:
    """Return the scores of the true classes, shape ``(len(scores), n)``; infinity where they are masked."""
    assert given.labels is not None
    found = torch.empty(len(scores), given.n, dtype=torch.float64)
    for rows, log_probs in _in_blocks(given, calibrator):
        ranked, labels = RankedClasses(log_probs.exp()), given.labels[rows, None]
        u = None if uniforms is None else uniforms[rows].to(log_probs.device)
        exists = ranked.probs.gather(1, labels).squeeze(1) > 0
        for place, score in enumerate(scores):
            of_labels = score.of(ranked, u).gather(1, labels).squeeze(1)
            found[place, rows] = of_labels.where(exists, torch.inf).cpu()
    return found


def _label_ranks(given: Predictions, calibrator: Calibrator | None) -> Tensor:
    assert given.labels is not None
    labels = given.labels
    blocks = _in_blocks(given, calibrator)
    return torch.cat(
        [
            RankedClasses(log_probs.exp()).ranks.gather(1, labels[rows, None])[:, 0]
            for rows, log_probs in blocks
        ]
    ).cpu()


def _measure_all(rules: Sequence[PredictionSets], predictions: Predictions) -> list[SetMeasures]:
    """Measure sets that have the same calibrator on labelled samples, sorted once."""
    first = rules[0]
    given = predictions.in_order(first.class_names)
    assert given.labels is not None
    found = [{name: torch.empty(given.n, dtype=torch.int64) for name in _FACTS} for _ in rules]
    uniforms = _uniforms(first.seed, _APPLYING, given.n)
    groups = None
    for rule in rules:
        rule.check_form(given)
    if first.by == "group":
        groups = first._places_of_groups(given)
    for rows, log_probs in _in_blocks(given, first.calibrator):
        ranked, labels = RankedClasses(log_probs.exp()), given.labels[rows, None]
        u = uniforms[rows].to(log_probs.device)
        for rule, facts in zip(rules, found, strict=True):
            scored = rule.scored(ranked, u, _part(groups, rows))
            sets = rule.filled(scored, log_probs)
            facts["covered"][rows] = sets.gather(1, labels)[:, 0].long().cpu()
            facts["sizes"][rows] = sets.sum(dim=1).cpu()
            facts["empty"][rows] = (~scored.any(dim=1)).long().cpu()
    return [measures_of_sets(given, **facts) for facts in found]


_FACTS = ("covered", "sizes", "empty")


def _in_blocks(predictions: Predictions, calibrator: Calibrator | None) -> Iterator[tuple[slice, Tensor]]:
    """Yield log-probabilities of consecutive samples, so that what is sorted is small beside the scores."""
    size = max(1, _BLOCK_ENTRIES // (predictions.k or 1))
    for start in range(0, predictions.n, size):
        rows = slice(start, min(start + size, predictions.n))
        whole = predictions.n <= size
        part = predictions if whole else predictions.take(torch.arange(rows.start, rows.stop))
        with torch.no_grad():
            log_probs = _log_probs(part, calibrator)
        yield rows, log_probs


def _log_probs(predictions: Predictions, calibrator: Calibrator | None) -> Tensor:
    """Return calibrated log-probabilities; probabilities of exactly 0 stay so if there is no calibrator."""
    if calibrator is None and predictions.probs is not None:
        return torch.log_softmax(predictions.probs.double().log(), dim=1)
    return calibrated_log_probs(predictions, calibrator)


def _labelled(predictions: Predictions) -> Predictions:
    """Check predictions to fit or measure sets on."""
    _check_classes(predictions)
    given = predictions.counted()
    if given.weights is not None:
        raise InputError(
            "weights: expected none for prediction sets, whose guarantee is about samples that count "
            "equally, got some; leave them out"
        )
    if given.labels is None:
        raise InputError("labels: expected the true class of each sample, got none; sets are fitted on them")
    return given


def _check_classes(predictions: Predictions) -> None:
    check_one_label(predictions)
    predictions.classes("class scores to form sets of classes")


def _uniforms(seed: int, stream: int, n: int) -> Tensor:
    """Return the uniform numbers of samples by their place in a file."""
    return torch.from_numpy(np.random.default_rng([seed, stream]).random(n))


def _part(values: Tensor | None, rows: slice) -> Tensor | None:
    return None if values is None else values[rows]
