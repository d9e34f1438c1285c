"""Verdicts on the papers' claims, computed from finished rows by one rule.

A claim is a list of comparisons in ``papers/printed/claims.toml``: labels of the results that the claim is
about (``one``), of our own variant of them (``ours``), and of those that the claim names as opponents
(``against``). Every opponent, on every task (a combination of the labels in ``by``) and by every measure, is
a comparison of its own. The gain is how much better ``one`` is, in pairs: run by run, and on the same draws
of the test samples (:class:`~calibrant.inference.gains.Gain`).

================= ============================================================================================
``better``        the gain is above 0, and not only within the margin
``worse``         the gain is below 0, and not only within the margin
``equal``         the gain is within the margin of 0, beyond which somebody would care
``cannot tell``   none of these beyond chance
================= ============================================================================================

The p-values of a claim's comparisons are corrected by Holm. A relation says which outcomes agree with the
claim: ``better``, ``no_worse``, ``similar``, or ``equal`` for values that must be the same in every run.

A paper about training speaks of networks that have learned their training set by heart. So a comparison of
trained networks counts only where cross-entropy does so and is overconfident (:class:`Regime`); the others
illustrate.
"""

import math
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from statistics import fmean
from typing import Any, Literal, TypeAlias

import numpy as np

from calibrant.errors import InputError
from calibrant.files import read_dataclass
from calibrant.inference.corrections import corrected
from calibrant.inference.gains import Gain
from calibrant.inputs import Floats
from calibrant.papers.draws import unpacked
from calibrant.papers.quantities import quantity
from calibrant.papers.rows import ROWS, Row, finished_rows, flat, saved_experiment

Relation: TypeAlias = Literal["better", "no_worse", "similar", "equal"]
ComparisonOutcome: TypeAlias = Literal["better", "worse", "equal", "cannot tell"]
ClaimLabels: TypeAlias = Mapping[str, Any]

#: Differences that nobody would care about, by measure. Others have no margin: any difference counts.
MARGINS: Mapping[str, float] = {
    **dict.fromkeys(
        ("ece", "ece_equal_mass", "smece", "sce_true_class", "shifted_ece", "ece_reduction"), 0.005
    ),
    **dict.fromkeys(("val_bin_gap", "mean_val_bin_gap", "auroc_ovo"), 0.005),
    **dict.fromkeys(
        ("accuracy", "shifted_accuracy", "auroc_correct", "ood_auroc", "ood_auroc_entropy"), 0.01
    ),
    **dict.fromkeys(("shifted_ood_auroc_entropy", "shifted_ood_auroc"), 0.01),
    # In nats; a cosine of 0.999 is an angle of less than three degrees.
    **dict.fromkeys(("train_entropy", "mean_train_entropy", "train_kl", "mean_train_kl"), 0.01),
    **dict.fromkeys(("train_cosine", "mean_train_cosine"), 0.001),
}
#: Errors that are means over all classes are small if classes are many: their margin is a share of the value.
RELATIVE_MARGINS: Mapping[str, float] = {"classwise_ece": 0.1, "adaptive_ece": 0.1}

#: Chance of a false outcome among all comparisons of a claim.
LEVEL = 0.05
# The agreeing outcomes of each relation; a decided outcome that does not agree contradicts.
_AGREE: Mapping[Relation, tuple[ComparisonOutcome, ...]] = {
    "better": ("better",),
    "no_worse": ("better", "equal"),
    "similar": ("equal",),
    "equal": ("equal",),
}
_SAME = 1e-12


@dataclass(frozen=True)
class ClaimComparison:
    """What a claim compares in the rows of experiments. A label may have a list of values.

    Attributes:
        experiments: Names of the experiments.
        measures: The measures to compare, each by itself.
        one: Labels of the results that the claim is about.
        ours: Labels of our own variant of them; none if there is only the paper's.
        against: Labels that differ in the results it is compared with; the others are the same.
        ours_against: The same for our own variant, if it is compared with others.
        one_less: Labels of results that are subtracted from ``one``, to compare differences.
        against_less: Labels of results that are subtracted from those compared with.
        only: Labels that all results must have.
        by: Labels whose combinations are the tasks.
        relation: What is claimed.
        margin: A difference that does not matter for this claim, instead of that of the measure.
        value: A number to compare with, instead of other results.
    """

    experiments: tuple[str, ...]
    measures: tuple[str, ...]
    one: ClaimLabels = field(default_factory=dict)
    ours: ClaimLabels | None = None
    against: tuple[ClaimLabels, ...] = ()
    ours_against: tuple[ClaimLabels, ...] = ()
    one_less: ClaimLabels | None = None
    against_less: ClaimLabels | None = None
    only: ClaimLabels = field(default_factory=dict)
    by: tuple[str, ...] = ()
    relation: Relation = "better"
    margin: float | None = None
    value: float | None = None


@dataclass(frozen=True)
class Claim:
    """A statement of a paper.

    Attributes:
        text: The statement.
        where: Where the paper makes it.
        comparisons: What is compared to judge it.
        tested: Tests that check it instead, as ``file::name``.
        comment: What the numbers do not show.
        headline: Whether it is one of the paper's main claims.
    """

    text: str
    where: str
    comparisons: tuple[ClaimComparison, ...] = ()
    tested: tuple[str, ...] = ()
    comment: str = ""
    headline: bool = False


@dataclass(frozen=True)
class Regime:
    """Where a training task stands, by its runs with cross-entropy.

    Attributes:
        train_accuracy: Share of training samples that are learned; None if it was not recorded.
        overconfidence: Mean confidence minus accuracy on the test samples.
    """

    train_accuracy: float | None
    overconfidence: float

    @property
    def counts(self) -> bool:
        """Whether the network learned its training set by heart and is overconfident."""
        return (self.train_accuracy or 0.0) >= 0.99 and self.overconfidence >= 0.05


@dataclass(frozen=True)
class Finding:
    """One comparison: on one task, by one measure, with one opponent.

    Attributes:
        experiment: Name of the experiment.
        task: The task.
        other: Labels of what the results are compared with, as text.
        measure: The measure.
        mean: Mean over the runs of the results that the claim is about.
        other_mean: Mean over the runs of what they are compared with.
        runs: Number of runs that are compared in pairs.
        low: Lower end of the 95 % interval of the gain.
        high: Upper end.
        p_value: That of the outcome, corrected for the comparisons of the claim.
        outcome: ``better``, ``worse``, ``equal`` or ``cannot tell``.
        relation: What is claimed.
        regime: That of the task, if networks are trained for it.
    """

    experiment: str
    task: str
    other: str
    measure: str
    mean: float
    other_mean: float
    runs: int
    low: float
    high: float
    p_value: float
    outcome: ComparisonOutcome
    relation: Relation = "better"
    regime: Regime | None = None

    @property
    def counts(self) -> bool:
        """Whether it counts for the verdict, and does not only illustrate."""
        return self.regime is None or self.regime.counts

    @property
    def agrees(self) -> bool | None:
        """Whether it agrees with the claim; None if one cannot tell."""
        return None if self.outcome == "cannot tell" else self.outcome in _AGREE[self.relation]


@dataclass(frozen=True)
class Judged:
    """A claim with what was found.

    Attributes:
        paper: Name of the paper.
        number: Number of the claim, from 1 for each paper.
        claim: The claim.
        printed: Findings about what the paper prints.
        ours: Findings about our own variant; empty if there is none.
    """

    paper: str
    number: int
    claim: Claim
    printed: tuple[Finding, ...]
    ours: tuple[Finding, ...]

    @property
    def verdict(self) -> str:
        """The verdict on the claim as printed."""
        return overall(self.printed)

    @property
    def own_verdict(self) -> str | None:
        """The verdict on our variant; None if there is none."""
        return overall(self.ours) if self.ours else None


def margin_of(measure: str, other_mean: float) -> float:
    """Return the difference of a measure that nobody would care about.

    Example:
        >>> margin_of("ece", 0.1), margin_of("classwise_ece", 0.02), margin_of("nll", 0.5)
        (0.005, 0.002, 0.0)
    """
    return MARGINS.get(measure, RELATIVE_MARGINS.get(measure, 0.0) * abs(other_mean))


def outcome_of(gain: Gain, *, relation: Relation, margin: float) -> tuple[ComparisonOutcome, float]:
    """Return the likeliest outcome of a comparison and its two-sided p-value.

    With ``no_worse``, being within or above the margin is enough, and is called equal unless it is better.

    Example:
        >>> outcome_of(Gain(0.03, 0.01, 100.0), relation="better", margin=0.005)[0]
        'better'
        >>> outcome_of(Gain(0.001, 0.001, 100.0), relation="better", margin=0.005)[0]
        'equal'
    """
    p: dict[ComparisonOutcome, float]
    within = max(gain.p_above(-margin), gain.p_below(margin))
    if relation == "no_worse":
        p = {"equal": gain.p_above(-margin), "worse": gain.p_below(-margin)}
    elif relation == "similar":
        p = {"equal": within, "better": gain.p_above(margin), "worse": gain.p_below(-margin)}
    else:
        p = {"equal": within, "better": gain.p_above(0.0), "worse": gain.p_below(0.0)}
        if margin == 0.0 and gain.error > 0:
            del p["equal"]
    # Of outcomes that are all beyond chance, equal comes first: such a difference does not matter.
    sure: list[ComparisonOutcome] = [name for name, each in p.items() if 2 * each <= LEVEL]
    best = "equal" if "equal" in sure else min(p, key=lambda name: p[name])
    return best, min(1.0, 2 * p[best])


def overall(findings: Iterable[Finding]) -> str:
    """Return the verdict on a claim from all its findings that count.

    It is open if most of them cannot tell. Otherwise it holds if all others agree, is contradicted if none
    does, and else holds in some.
    """
    every = list(findings)
    found = [each for each in every if each.counts]
    if not found:
        return "only illustrated" if every else "not measured"
    decided = [each.agrees for each in found if each.agrees is not None]
    if 2 * len(decided) < len(found):
        return "is open"
    agree = sum(decided)
    if agree == len(decided):
        return "holds"
    return f"holds in {agree} of {len(decided)}" if agree else "is contradicted"


@cache
def claims() -> Mapping[str, tuple[Claim, ...]]:
    """Return the claims of each paper, in the order of the page."""
    text = (files("calibrant.papers.printed") / "claims.toml").read_text(encoding="utf-8")
    return {
        paper: tuple(read_dataclass(Claim, each, f"claims.{paper}", error=InputError) for each in listed)
        for paper, listed in tomllib.loads(text).items()
    }


@dataclass(frozen=True, eq=False)
class Results:
    """The finished rows of an experiment.

    Attributes:
        name: Name of the experiment.
        trains: Whether its jobs train networks.
        hours: Duration of all jobs, one core each.
        records: One flat mapping per record.
    """

    name: str
    trains: bool
    hours: float
    records: Sequence[Mapping[str, Any]]

    def regimes(self) -> dict[str, Regime]:
        """Return the regime of each task that has runs with cross-entropy, by the labels of its jobs."""
        found: dict[str, list[Mapping[str, float]]] = defaultdict(list)
        for record in self.records:
            if record.get("method") == "cross_entropy" and record.get("posthoc") == "uncalibrated":
                found[_place(record)].append(record["values"])
        return {name: _regime(values) for name, values in found.items()} if self.trains else {}


def all_results(folder: Path) -> list[Results]:
    """Read the rows in a folder, which has a folder for each experiment that ``bench run`` wrote."""
    places = [each for each in sorted(folder.iterdir()) if (each / ROWS).exists()] if folder.is_dir() else []
    if not places:
        raise InputError(f"DIR: expected a folder with folders that calibrant bench run wrote, got {folder}")
    return [_results(each) for each in places]


def _results(folder: Path) -> Results:
    experiment, rows = saved_experiment(folder), finished_rows(folder)
    return Results(experiment.name, experiment.worker == "training", _hours(rows), flat(rows))


def _hours(rows: Iterable[Row]) -> float:
    return sum(row.seconds for row in rows) / 3600


def judged_claims(folder: Path) -> list[Judged]:
    """Judge every claim by the rows in a folder, which has a folder for each experiment.

    Args:
        folder: Its subfolders are those that ``calibrant bench run`` wrote.
    """
    results = {each.name: each for each in all_results(folder)}
    found = []
    for paper, listed in claims().items():
        for number, claim in enumerate(listed, 1):
            printed, ours = [], []
            for comparison in claim.comparisons:
                for name in comparison.experiments:
                    if name not in results:
                        continue
                    printed += _findings(results[name], comparison, comparison.one)
                    if comparison.ours is not None:
                        other = replace(comparison, against=comparison.ours_against or comparison.against)
                        ours += _findings(results[name], other, comparison.ours)
            found.append(Judged(paper, number, claim, _corrected(printed), _corrected(ours)))
    return found


def _corrected(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Return findings whose p-values are corrected by Holm, those that count apart from those that do not."""
    p_values = np.ones(len(findings))
    for counts in (True, False):
        own = [place for place, each in enumerate(findings) if each.counts is counts]
        p_values[own] = corrected(np.array([findings[place].p_value for place in own]), "holm")
    return tuple(
        replace(each, p_value=float(p), outcome=each.outcome if p <= LEVEL else "cannot tell")
        for each, p in zip(findings, p_values, strict=True)
    )


def _findings(results: Results, comparison: ClaimComparison, one: ClaimLabels) -> list[Finding]:
    tasks: dict[tuple[Any, ...], list[Mapping[str, Any]]] = defaultdict(list)
    for record in results.records:
        tasks[tuple(record.get(label) for label in comparison.by)].append(record)
    found = []
    for task, records in tasks.items():
        own = [each for each in records if _has(each, comparison.only)]
        regime = _weakest_regime(results, comparison.by, task) if results.trains else None
        name = ", ".join(map(_short, task)) or "all"
        for measure in comparison.measures:
            for mine, theirs, other in _pairs(comparison, one, measure, own):
                finding = _finding(comparison, measure, mine, theirs, (results.name, name, other))
                found.append(replace(finding, regime=regime))
    return found


def _weakest_regime(results: Results, by: Sequence[str], task: Sequence[object]) -> Regime:
    """Return the regime of a task; of several jobs with cross-entropy, that of the least overconfident."""
    labels = {
        label: value for label, value in zip(by, task, strict=True) if label not in ("method", "posthoc")
    }
    own = replace(results, records=[each for each in results.records if _has(each, labels)])
    found = own.regimes().values()
    return min(found, key=lambda each: (each.counts, each.overconfidence), default=Regime(None, math.nan))


def _place(record: Mapping[str, Any]) -> str:
    """Return the labels of a job but for method and seed, as text."""
    ignored = ("method", "posthoc", "seed", "values", "draws")
    return ", ".join(_short(value) for name, value in record.items() if name not in ignored)


def _regime(values: Sequence[Mapping[str, float]]) -> Regime:
    trained = [each["train_accuracy"] for each in values if each.get("train_accuracy") is not None]
    gaps = [each["mean_confidence"] - each["accuracy"] for each in values]
    return Regime(fmean(trained) if trained else None, fmean(gaps))


def _short(label: object) -> str:
    """Return a label; of a source of files, the last part without its ending."""
    text = str(label)
    return Path(text).stem if text.startswith("files:") else text


@dataclass(frozen=True, eq=False)
class _Measured:
    """A measure of one result: its value in each run, and deviations on draws of the test samples."""

    values: Mapping[int, float]
    draws: Mapping[int, Floats]

    def less(self, other: "_Measured") -> "_Measured":
        """Return the difference, run by run and draw by draw."""
        return _Measured(
            {seed: self.values[seed] - other.values[seed] for seed in self.values if seed in other.values},
            {seed: self.draws[seed] - other.draws[seed] for seed in self.draws if seed in other.draws},
        )


def _pairs(
    comparison: ClaimComparison, one: ClaimLabels, measure: str, records: Sequence[Mapping[str, Any]]
) -> Iterator[tuple[_Measured, _Measured, str]]:
    """Yield what the claim is about, what it is compared with, and the name of that, for each opponent."""
    mine = _measured(records, one, measure, less=comparison.one_less)
    if mine.values and comparison.value is not None:
        yield mine, _Measured(dict.fromkeys(mine.values, comparison.value), {}), ""
        return
    for other in comparison.against:
        theirs = _measured(records, {**one, **other}, measure, less=comparison.against_less)
        if mine.values.keys() & theirs.values.keys():
            yield mine, theirs, ", ".join(str(value) for value in other.values())


def _finding(
    comparison: ClaimComparison, measure: str, mine: _Measured, theirs: _Measured, place: tuple[str, str, str]
) -> Finding:
    seeds = sorted(mine.values.keys() & theirs.values.keys())
    sign = -1.0 if quantity(measure).better == "higher" else 1.0
    away = theirs.less(mine)
    gains = [sign * away.values[seed] for seed in seeds]
    drawn = [away.draws[seed] for seed in seeds if seed in away.draws]
    gain = Gain.of(gains, np.stack(drawn) if len(drawn) == len(seeds) else None)
    mean, other_mean = (fmean(each.values[seed] for seed in seeds) for each in (mine, theirs))
    margin = margin_of(measure, other_mean) if comparison.margin is None else comparison.margin
    if comparison.relation == "equal":
        outcome, p_value = _exactly(gains)
    else:
        outcome, p_value = outcome_of(gain, relation=comparison.relation, margin=margin)
    low, high = gain.interval()
    relation = comparison.relation
    return Finding(
        *place, measure, mean, other_mean, len(seeds), low, high, p_value, outcome, relation=relation
    )


def _exactly(gains: Sequence[float]) -> tuple[ComparisonOutcome, float]:
    """Return whether values are the same in every run, which is no matter of chance."""
    return ("equal" if max(map(abs, gains)) <= _SAME else "worse"), 0.0


def _measured(
    records: Sequence[Mapping[str, Any]],
    labels: ClaimLabels,
    measure: str,
    *,
    less: ClaimLabels | None = None,
) -> _Measured:
    """Return a measure: the mean over the results with these labels in each run, less that of others."""
    values: dict[int, list[float]] = defaultdict(list)
    draws: dict[int, list[Floats]] = defaultdict(list)
    for record in records:
        value = record["values"].get(measure)
        if _has(record, labels) and value is not None and math.isfinite(value):
            values[record["seed"]].append(value)
            if measure in record["draws"]:
                draws[record["seed"]].append(unpacked(record["draws"][measure]))
    found = _Measured(
        {seed: fmean(each) for seed, each in values.items()},
        {seed: np.mean(each, axis=0) for seed, each in draws.items() if len(each) == len(values[seed])},
    )
    return found if less is None else found.less(_measured(records, less, measure))


def _has(record: Mapping[str, Any], labels: ClaimLabels) -> bool:
    wanted = {name: value if isinstance(value, list) else [value] for name, value in labels.items()}
    return all(record.get(name) in values for name, values in wanted.items())


def outcome_counts(findings: Iterable[Finding]) -> Counter[str]:
    """Return how many findings that count have each outcome."""
    return Counter(each.outcome for each in findings if each.counts)
