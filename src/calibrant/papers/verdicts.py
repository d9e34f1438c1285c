"""Verdicts on the papers' claims, computed from finished rows by one rule.

A claim is a list of comparisons in ``papers/claims.toml``: labels of the results that the claim is about
(``one``), of our own variant of them (``ours``), and of those it is compared with (``against``, one or
several). On every task (a combination of the labels in ``by``) and for every measure, the gain is how much
better ``one`` is than the other, seed by seed, and its interval is the paired 95 % t-interval over the
seeds.

============== ===============================================================================================
``better``     holds if the interval is above 0, does not hold if it is below 0
``no_worse``   the same with ``-margin`` instead of 0
``similar``    holds if the interval is within ``margin`` of 0, does not hold if it is outside
``equal``      holds if the values of all seeds are equal, or equal to ``value`` if it is given
============== ===============================================================================================

Otherwise one cannot tell. Against several, a comparison holds if it holds against all of them, and does not
hold if it does not against any. A claim holds if all its comparisons do; it does not hold if some do not and
none does; one cannot tell if none is decided; else it holds partly.
"""

import math
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from statistics import fmean
from typing import Any, Literal, TypeAlias

from calibrant.errors import InputError
from calibrant.files import read_dataclass
from calibrant.inference.intervals import t_interval
from calibrant.papers.quantities import quantity
from calibrant.papers.rows import ROWS, finished_rows, flat, saved_experiment

Relation: TypeAlias = Literal["better", "no_worse", "similar", "equal"]
ClaimVerdict: TypeAlias = Literal["holds", "does not hold", "cannot tell", "partly", "not measured"]
ClaimLabels: TypeAlias = Mapping[str, Any]

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
        margin: How far from 0 a gain may be for ``no_worse`` and ``similar``.
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
    margin: float = 0.0
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
    """

    text: str
    where: str
    comparisons: tuple[ClaimComparison, ...] = ()
    tested: tuple[str, ...] = ()
    comment: str = ""


@dataclass(frozen=True)
class Finding:
    """One comparison on one task by one measure.

    Attributes:
        experiment: Name of the experiment.
        task: The task.
        measure: The measure.
        mean: Mean over the seeds of the results that the claim is about.
        other: Labels of what they are compared with, as text.
        other_mean: Its mean over the seeds.
        low: Lower end of the interval of the gain.
        high: Upper end.
        verdict: ``holds``, ``does not hold`` or ``cannot tell``.
    """

    experiment: str
    task: str
    measure: str
    mean: float
    other: str
    other_mean: float
    low: float
    high: float
    verdict: ClaimVerdict


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
    def verdict(self) -> ClaimVerdict:
        """The verdict on the claim as printed."""
        return overall(self.printed)

    @property
    def own_verdict(self) -> ClaimVerdict | None:
        """The verdict on our variant; None if there is none."""
        return overall(self.ours) if self.ours else None


def judge(relation: Relation, low: float, high: float, *, margin: float = 0.0) -> ClaimVerdict:
    """Return the verdict on a relation from the interval of the gain.

    Example:
        >>> judge("better", 0.1, 0.3), judge("better", -0.1, 0.3), judge("no_worse", -0.1, 0.3, margin=0.2)
        ('holds', 'cannot tell', 'holds')
    """
    if relation == "similar":
        if -margin <= low and high <= margin:
            return "holds"
        return "does not hold" if low > margin or high < -margin else "cannot tell"
    if relation == "equal":
        return "holds" if max(abs(low), abs(high)) <= _SAME else "does not hold"
    threshold = -margin if relation == "no_worse" else 0.0
    if low > threshold:
        return "holds"
    return "does not hold" if high < threshold else "cannot tell"


def overall(findings: Iterable[Finding]) -> ClaimVerdict:
    """Return the verdict on a claim from all its findings."""
    count = Counter(finding.verdict for finding in findings)
    if not count:
        return "not measured"
    if set(count) == {"holds"}:
        return "holds"
    if count["holds"]:
        return "partly"
    return "does not hold" if count["does not hold"] else "cannot tell"


@cache
def claims() -> Mapping[str, tuple[Claim, ...]]:
    """Return the claims of each paper, in the order of the page."""
    text = (files("calibrant.papers.printed") / "claims.toml").read_text(encoding="utf-8")
    return {
        paper: tuple(read_dataclass(Claim, each, f"claims.{paper}", error=InputError) for each in listed)
        for paper, listed in tomllib.loads(text).items()
    }


def judged_claims(folder: Path) -> list[Judged]:
    """Judge every claim by the rows in a folder, which has a folder for each experiment.

    Args:
        folder: Its subfolders are those that ``calibrant bench run`` wrote.
    """
    records = _records(folder)
    found = []
    for paper, listed in claims().items():
        for number, claim in enumerate(listed, 1):
            printed, ours = [], []
            for comparison in claim.comparisons:
                for name in comparison.experiments:
                    own = [each for each in records.get(name, ()) if _has(each, comparison.only)]
                    printed += _findings(name, comparison, comparison.one, own)
                    if comparison.ours is not None:
                        other = replace(comparison, against=comparison.ours_against or comparison.against)
                        ours += _findings(name, other, comparison.ours, own)
            found.append(Judged(paper, number, claim, tuple(printed), tuple(ours)))
    return found


def _records(folder: Path) -> dict[str, list[dict[str, Any]]]:
    places = [each for each in sorted(folder.iterdir()) if (each / ROWS).exists()] if folder.is_dir() else []
    if not places:
        raise InputError(f"DIR: expected a folder with folders that calibrant bench run wrote, got {folder}")
    return {saved_experiment(each).name: flat(finished_rows(each)) for each in places}


def _findings(
    experiment: str, comparison: ClaimComparison, one: ClaimLabels, records: Sequence[Mapping[str, Any]]
) -> list[Finding]:
    tasks: dict[tuple[Any, ...], list[Mapping[str, Any]]] = defaultdict(list)
    for record in records:
        tasks[tuple(record.get(label) for label in comparison.by)].append(record)
    found = []
    for task, own in tasks.items():
        for measure in comparison.measures:
            gained = _compared(comparison, one, measure, own)
            if gained is not None:
                name = ", ".join(map(_short, task)) or "all"
                found.append(Finding(experiment, name, measure, *gained))
    return found


def _short(label: object) -> str:
    """Return a label; of a source of files, the last part without its ending."""
    text = str(label)
    return Path(text).stem if text.startswith("files:") else text


# The mean, what it is compared with and its mean, the interval of the gain, and the verdict.
_Gained: TypeAlias = tuple[float, str, float, float, float, ClaimVerdict]


def _compared(
    comparison: ClaimComparison, one: ClaimLabels, measure: str, records: Sequence[Mapping[str, Any]]
) -> _Gained | None:
    """Compare with the strongest opponent, which decides; return None if there are no results."""
    mine = _values(records, one, measure, less=comparison.one_less)
    if mine and comparison.value is not None:
        return _gained(comparison, measure, mine, dict.fromkeys(mine, comparison.value), "")
    found = []
    for other in comparison.against:
        theirs = _values(records, {**one, **other}, measure, less=comparison.against_less)
        if mine.keys() & theirs.keys():
            name = ", ".join(str(value) for value in other.values())
            found.append(_gained(comparison, measure, mine, theirs, name))
    order = ("does not hold", "cannot tell", "holds")
    return min(found, key=lambda each: (order.index(each[-1]), each[3] + each[4]), default=None)


def _gained(
    comparison: ClaimComparison,
    measure: str,
    mine: Mapping[int, float],
    theirs: Mapping[int, float],
    name: str,
) -> _Gained:
    seeds = sorted(mine.keys() & theirs.keys())
    sign = -1.0 if quantity(measure).better == "higher" else 1.0
    gains = [sign * (theirs[seed] - mine[seed]) for seed in seeds]
    exact = comparison.relation == "equal"
    low, high = (min(gains), max(gains)) if exact else t_interval(gains)
    verdict = judge(comparison.relation, low, high, margin=comparison.margin)
    means = [fmean(each[seed] for seed in seeds) for each in (mine, theirs)]
    return means[0], name, means[1], low, high, verdict


def _values(
    records: Sequence[Mapping[str, Any]],
    labels: ClaimLabels,
    measure: str,
    *,
    less: ClaimLabels | None = None,
) -> dict[int, float]:
    """Return the value of each seed: the mean over the results with these labels, less that of others."""
    found: dict[int, list[float]] = defaultdict(list)
    for record in records:
        value = record["values"].get(measure)
        if _has(record, labels) and value is not None and math.isfinite(value):
            found[record["seed"]].append(value)
    means = {seed: fmean(values) for seed, values in found.items()}
    if less is None:
        return means
    taken = _values(records, less, measure)
    return {seed: means[seed] - taken[seed] for seed in means.keys() & taken.keys()}


def _has(record: Mapping[str, Any], labels: ClaimLabels) -> bool:
    wanted = {name: value if isinstance(value, list) else [value] for name, value in labels.items()}
    return all(record.get(name) in values for name, values in wanted.items())
