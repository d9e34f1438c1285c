"""The mean outcome of policies, from a judge's scores of all answers and known outcomes of some."""

import math
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import numpy.typing as npt
import scipy

from calibrant.data.numbering import as_name, numbered
from calibrant.errors import InputError
from calibrant.inference.rows import check_level, generator
from calibrant.inference.units import Units
from calibrant.inputs import ArrayLike, Floats, check_score, to_array, to_tensor
from calibrant.results import Result
from calibrant.show.numbers import NOTHING, Cell, count, number, percent, span
from calibrant.show.table import Column, Table

Bools = npt.NDArray[np.bool_]
Codes = npt.NDArray[np.intp]

# With fewer labelled units, a policy's own labels say too little, and so do those of all.
_LEAST_LABELLED = 10
_FOLDS = 5
# Bins of scores within which residuals are weighted: at most so many, of about so many labels, never fewer.
_MOST_BINS, _PER_BIN, _FEWEST_IN_BIN = 10, 10, 5
# With fewer hits or misses than this, their variance is that of two more of each (Agresti and Coull, 1998).
_FEW = 5
# Level of the tests whether labelled rows have other scores than the rest.
_ALPHA = 0.01
# How often the labels that are proposed decide a difference of the size that was found.
_POWER = 0.8


@dataclass(frozen=True)
class PolicyOutcome:
    """The mean outcome of a policy.

    Attributes:
        name: The policy.
        n: Number of its rows.
        n_labelled: Number of them with an outcome.
        value: The mean outcome to expect on units such as these.
        low: Lower end of its interval.
        high: Upper end.
        carried: Whether it relies on labels of other policies, because it has too few of its own.
        outside: Share of its rows whose score is below or above all scores of the labels it relies on.
    """

    name: str
    n: int
    n_labelled: int
    value: float
    low: float
    high: float
    carried: bool
    outside: float


@dataclass(frozen=True)
class PolicyDifference:
    """The difference of the mean outcomes of two policies.

    Attributes:
        first: A policy.
        second: Another one.
        value: Mean outcome of the first minus that of the second.
        low: Lower end of its interval.
        high: Upper end.
        more_labels: On how many more units both policies should be labelled, so that the interval excludes
            zero in four of five cases without labels of other policies, if the difference is as large as
            estimated. None if even labels of all rows would not do: then more units are needed.
    """

    first: str
    second: str
    value: float
    low: float
    high: float
    more_labels: int | None

    @property
    def decided(self) -> bool:
        """Whether the interval excludes zero."""
        return self.low > 0 or self.high < 0


@dataclass(frozen=True, eq=False)
class JudgedOutcomes(Result):
    """Mean outcomes of policies, and their differences.

    Attributes:
        n: Number of rows.
        n_labelled: Number of rows with an outcome.
        policies: The mean outcome of each policy, in the order in which policies first appear.
        differences: The difference of every two of them.
        level: Level of each interval by itself.
        trusted: Whether there is no warning.
        warnings: Where labelled rows do not represent the others, and what the estimates then rely on.
        n_units: Number of units that the rows belong to; None if every row is drawn by itself.
    """

    n: int
    n_labelled: int
    policies: tuple[PolicyOutcome, ...]
    differences: tuple[PolicyDifference, ...]
    level: float
    trusted: bool
    warnings: tuple[str, ...]
    n_units: int | None = None

    @property
    def heading(self) -> str:
        """How many rows there are, and how many have an outcome."""
        units = "" if self.n_units is None else f" of {self.n_units:,} units"
        return f"{self.n:,} scored rows{units}, {self.n_labelled:,} with an outcome"

    def to_table(self) -> Table:
        """Return the mean of each policy with its interval, the differences below, and the warnings."""
        rows: list[list[object]] = [
            [
                each.name,
                _mean(each.value),
                span(each.low, each.high, _mean),
                count(each.n_labelled),
                percent(each.outside, 1),
            ]
            for each in self.policies
        ]
        rows += [
            [
                f"{each.first} - {each.second}",
                number(each.value, 3, sign=True),
                span(each.low, each.high, lambda end: number(end, 3, sign=True)),
                NOTHING,
                NOTHING,
                "more units" if each.more_labels is None else count(each.more_labels),
            ]
            for each in self.differences
        ]
        columns: list[str | Column] = [
            Column("policy", align="left", wraps=True),
            "mean",
            f"{100 * self.level:.0f} % interval",
            "labels",
        ]
        columns.append(Column("outside", optional=1))
        return Table.of(
            [*columns, *(["labels needed"] if self.differences else [])],
            rows,
            title=self.heading,
            notes=tuple(f"Warning: {each}." for each in self.warnings),
        )


def estimate_outcomes(
    score: ArrayLike,
    outcome: ArrayLike,
    *,
    policies: npt.ArrayLike | None = None,
    units: ArrayLike | None = None,
    level: float = 0.95,
    seed: int = 0,
) -> JudgedOutcomes:
    r"""Estimate the mean outcome of policies from a judge's scores of all rows and outcomes of some.

    A policy is whatever makes answers: a model, a prompt, a version. A rising curve :math:`f` (centred
    isotonic regression) is fitted to the scores and outcomes of the labelled rows. The mean of :math:`f` over
    all :math:`N` rows of a policy is corrected by the residuals of labelled rows, for each of which
    :math:`f` has not seen its unit:

    .. math:: \hat\theta = \frac1N \sum_j \lambda f(s_j) + \sum_b \frac{N_b}{N} \frac1{n_b}
              \sum_{i \in b} \big(y_i - \lambda f(s_i)\big)

    with the :math:`n_b` labelled and :math:`N_b` of all rows whose score is in the bin :math:`b`; so labels
    may be more frequent at some scores than at others. The factor :math:`\lambda` is the slope of outcomes
    over :math:`f`, between 0 and 1, so that a curve fitted to noise does not count. This is
    prediction-powered inference: a bad judge makes the interval longer, not wrong.

    The labels are those of the policy if it has at least ten, else those of all policies. Then the estimate
    relies on the judge: a score has to mean the same outcome for this policy, which cannot be checked without
    labels of it, and a warning says so.

    The estimate is a sum of one term for each unit, whose squares give its variance: those of a unit's rows
    among all rows of the policy, and among the labelled ones. So the interval of a policy without labels has
    the error of the curve, and a difference has only what is left after pairing by units and after the
    errors of the curve that both policies share. Intervals use a t-distribution with the number of labelled
    units, as their weights count, minus the number of bins as degrees of freedom. They are about units such
    as these, not only these.

    Args:
        score: The judge's score of each row, any finite number, shape ``(n,)``. Where low scores go with high
            outcomes, the curve falls.
        outcome: The outcome of each row: numbers between 0 and 1, or true and false; NaN or None where it is
            unknown.
        policies: The name of the policy of each row; all rows are of one policy by default.
        units: The unit of each row, such as the prompt that all policies answer; names or integers.
        level: Level of each interval.
        seed: Equal seeds give equal results.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> score = rng.normal(size=2000)
        >>> right = rng.random(2000) < 1 / (1 + np.exp(-2 * score))
        >>> outcome = np.where(np.arange(2000) < 100, right, np.nan)  # the first hundred are labelled
        >>> found = estimate_outcomes(score, outcome).policies[0]
        >>> print(f"{found.value:.2f}, {found.low:.2f} to {found.high:.2f}; truth {right.mean():.2f}")
        0.55, 0.47 to 0.64; truth 0.50

    References:
        Angelopoulos et al., "Prediction-Powered Inference", Science 2023.
        Angelopoulos, Duchi and Zrnic, "PPI++: Efficient Prediction-Powered Inference", 2023.
        Zrnic and Candès, "Cross-Prediction-Powered Inference", PNAS 2024.
        Oron and Flournoy, "Centered Isotonic Regression", Statistics in Biopharmaceutical Research 2017.
    """
    share, rng = check_level(level), generator(seed)
    s = check_score(score).double().numpy(force=True)
    y = _checked_outcomes(outcome, len(s))
    names, policy = _checked_policies(policies, len(s))
    groups = Units.of(None if units is None else numbered(units, "units", n=len(s)), len(s))
    labelled = ~np.isnan(y)
    _check_enough(s, labelled, groups)
    if _falls(s[labelled], y[labelled]):
        s = -s
    rows = _Rows(s, y, labelled, groups, _cross_fitted(s, y, labelled, groups, rng))
    terms = [_terms(rows, policy == place) for place in range(len(names))]
    means = [_policy(name, each, share) for name, each in zip(names, terms, strict=True)]
    pairs = [
        _difference((names[a], terms[a]), (names[b], terms[b]), share)
        for a, b in combinations(range(len(names)), 2)
    ]
    warnings = tuple(_warnings(means, terms))
    return JudgedOutcomes(
        n=len(s),
        n_labelled=int(labelled.sum()),
        policies=tuple(means),
        differences=tuple(pairs),
        level=share,
        trusted=not warnings,
        warnings=warnings,
        n_units=None if groups.are_rows else groups.n,
    )


def _mean(value: float) -> Cell:
    return number(value, 3)


def _checked_outcomes(outcome: ArrayLike, n: int) -> Floats:
    """Return outcomes in float64, NaN where they are unknown."""
    if isinstance(outcome, (list, tuple)):
        outcome = [math.nan if each is None else each for each in outcome]
    y = to_tensor(outcome, "outcome").double().numpy(force=True)
    if y.shape != (n,):
        raise InputError(f"outcome: expected {n} entries, one for each score, got shape {y.shape}")
    wrong = (y < 0) | (y > 1)
    if wrong.any():
        row = int(wrong.argmax())
        raise InputError(
            f"outcome: expected numbers between 0 and 1, got {y[row]:.6g} in row {row}; divide by the "
            "largest outcome that is possible"
        )
    return np.asarray(y)


def _checked_policies(policies: npt.ArrayLike | None, n: int) -> tuple[list[str], Codes]:
    """Return the names of the policies in the order of their first rows, and the place of each row's."""
    if policies is None:
        return ["all rows"], np.zeros(n, dtype=np.intp)
    values = to_array(policies, "policies").tolist()
    name_of = {each: as_name(each) for each in set(values)}
    given = [name_of[each] for each in values]
    if len(given) != n:
        raise InputError(f"policies: expected {n} names, one for each score, got {len(given)}")
    if "" in given:
        raise InputError(
            f"policies: expected a name in every row, got none in row {given.index('')}; drop or fill such "
            "rows"
        )
    places = {name: place for place, name in enumerate(dict.fromkeys(given))}
    return list(places), np.array([places[each] for each in given], dtype=np.intp)


def _check_enough(s: Floats, labelled: Bools, units: Units) -> None:
    if not labelled.any():
        raise InputError("outcome: expected outcomes of some rows, got none; label some rows of each policy")
    found = len(np.unique(units.code[labelled]))
    if found < _LEAST_LABELLED:
        what = "rows" if units.are_rows else "units"
        raise InputError(
            f"outcome: expected outcomes of at least {_LEAST_LABELLED} {what}, got {found}; label more"
        )
    if s.min() == s.max():
        raise InputError(
            f"score: expected different scores, got {s[0]:.6g} in every row; the mean of the outcomes is all "
            "that can be estimated"
        )


def _falls(s: Floats, y: Floats) -> bool:
    """Return whether outcomes are lower where scores are higher."""
    ranks = scipy.stats.rankdata(s)
    return bool((ranks - ranks.mean()) @ y < 0)


def _curve(s: Floats, y: Floats) -> tuple[Floats, Floats]:
    """Return the corners of the rising curve: the mean outcome of each flat piece at its mean score."""
    knots, place, n = np.unique(s, return_inverse=True, return_counts=True)
    fitted = scipy.optimize.isotonic_regression(np.bincount(place, weights=y) / n, weights=n).x
    piece = np.cumsum(np.append(0, np.diff(fitted) > 0))
    sizes = np.bincount(piece, weights=n)
    return (
        np.bincount(piece, weights=n * knots) / sizes,
        np.bincount(piece, weights=n * fitted) / sizes,
    )


def _cross_fitted(s: Floats, y: Floats, labelled: Bools, units: Units, rng: np.random.Generator) -> Floats:
    """Return the calibrated score of each row, by curves that have not seen its unit.

    Units without labels get the mean of all curves.
    """
    known = rng.permutation(np.unique(units.code[labelled]))
    fold = np.full(units.n, -1)
    fold[known] = np.arange(len(known)) % _FOLDS
    of_row = fold[units.code]
    found, mean = np.empty(len(s)), np.zeros(len(s))
    for each in range(_FOLDS):
        seen = labelled & (of_row != each)
        value = np.interp(s, *_curve(s[seen], y[seen]))
        found[of_row == each] = value[of_row == each]
        mean += value / _FOLDS
    return np.where(of_row < 0, mean, found)


@dataclass(frozen=True, eq=False)
class _Rows:
    """All rows: scores, outcomes (NaN if unknown), which are known, units, and calibrated scores."""

    score: Floats
    outcome: Floats
    labelled: Bools
    units: Units
    calibrated: Floats


@dataclass(frozen=True, eq=False)
class _Terms:
    """The estimate of a policy and what each unit adds to its error.

    Attributes:
        value: The estimate.
        of_rows: What the rows of each unit add, shape ``(u,)``.
        of_labels: What its labels add.
        more_variance: Variance that few hits or misses do not show.
        degrees: Degrees of freedom of the variance.
        n: Number of rows.
        n_units: Number of units that they belong to.
        n_labelled: Number of the policy's labels.
        n_labelled_units: Number of units that these belong to.
        carried: Whether labels of other policies are used.
        of_one_label: Variance of the residual of a unit with labels.
        outside: Share of rows outside the range of labelled scores.
        outside_by_chance: What this share would rarely exceed if labelled rows were a random part.
        differ: The p-value of the test whether labelled rows have other scores; 1 if labels are carried.
    """

    value: float
    of_rows: Floats
    of_labels: Floats
    more_variance: float
    degrees: float
    n: int
    n_units: int
    n_labelled: int
    n_labelled_units: int
    carried: bool
    of_one_label: float
    outside: float
    outside_by_chance: float
    differ: float

    @property
    def variance(self) -> float:
        """The variance of the estimate."""
        return _variance(self.of_rows + self.of_labels) + self.more_variance


def _terms(rows: _Rows, mine: Bools) -> _Terms:
    """Return the estimate of the policy that some rows belong to, unit by unit."""
    s, units = rows.score, rows.units
    own = mine & rows.labelled
    n_labelled_units = len(np.unique(units.code[own]))
    carried = n_labelled_units < _LEAST_LABELLED
    used = rows.labelled if carried else own
    edges = _edges(s[used])
    bins = np.searchsorted(edges, s)
    n_used, n_mine = (np.bincount(bins[each], minlength=len(edges) + 1) for each in (used, mine))
    calibrated = _slope(rows.outcome[used], rows.calibrated[used]) * rows.calibrated
    residual = rows.outcome[used] - calibrated[used]
    of_bin = np.bincount(bins[used], weights=residual, minlength=len(n_used)) / n_used
    values = calibrated[mine] + of_bin[bins[mine]]
    # Residuals vary less around the mean of their own bin than around its expectation.
    left = (residual - of_bin[bins[used]]) * np.sqrt(n_used / (n_used - 1))[bins[used]]
    weight = (n_mine / n_used / mine.sum())[bins[used]]
    of_rows, of_labels, weights = (
        _sums(units, some, each)
        for some, each in (
            (mine, (values - values.mean()) / len(values)),
            (used, weight * left),
            (used, weight),
        )
    )
    n_used_units = len(np.unique(units.code[used]))
    outside = float(((s[mine] < s[used].min()) | (s[mine] > s[used].max())).mean())
    return _Terms(
        value=float(np.clip(values.mean(), 0, 1)),
        of_rows=of_rows,
        of_labels=of_labels,
        more_variance=max(0.0, _least_variance(rows.outcome[used]) - _variance(of_labels)),
        degrees=max(1.0, float(1 / np.square(weights).sum()) - len(n_used)),
        n=int(mine.sum()),
        n_units=len(np.unique(units.code[mine])),
        n_labelled=int(own.sum()),
        n_labelled_units=n_labelled_units,
        carried=carried,
        of_one_label=_variance_of_unit(left, units.code[used]) if carried else 0.0,
        outside=outside,
        outside_by_chance=float(scipy.special.betaincinv(2, n_used_units - 1, 1 - _ALPHA)),
        differ=1.0 if carried else _differ(s, mine, own, units),
    )


def _slope(y: Floats, calibrated: Floats) -> float:
    """Return how much calibrated scores count, between 0 and 1: as much as outcomes rise with them."""
    centred = calibrated - calibrated.mean()
    squares = float(centred @ centred)
    return min(max(float(centred @ y) / squares, 0.0), 1.0) if squares else 0.0


def _sums(units: Units, some: Bools, values: Floats) -> Floats:
    """Return the sum of the values of some rows for each unit."""
    code = units.code[some]
    return np.asarray(np.bincount(code, weights=values, minlength=units.n), dtype=np.float64)


def _variance(of_units: Floats) -> float:
    """Return the variance of a sum of independent terms of mean zero."""
    return float(of_units @ of_units) * len(of_units) / (len(of_units) - 1)


def _variance_of_unit(residual: Floats, code: Codes) -> float:
    """Return the mean square of the mean residual of a unit."""
    _, place, n = np.unique(code, return_inverse=True, return_counts=True)
    return float(np.square(np.bincount(place, weights=residual) / n).mean())


def _least_variance(outcome: Floats) -> float:
    """Return the least variance of a mean of outcomes that are 0 or 1 and almost all the same; else 0."""
    n, hits = len(outcome), float(outcome.sum())
    if min(hits, n - hits) >= _FEW or not np.isin(outcome, (0, 1)).all():
        return 0.0
    share = (hits + 2) / (n + 4)
    return share * (1 - share) / (n + 4)


def _edges(s: Floats) -> Floats:
    """Return the inner edges of bins of scores with about as many labels each; none of them with few."""
    n_bins = min(_MOST_BINS, len(s) // _PER_BIN)
    edges = np.unique(np.quantile(s, np.arange(1, n_bins) / n_bins, method="inverted_cdf"))
    edges = edges[edges < s.max()]
    while len(edges):
        counts = np.bincount(np.searchsorted(edges, s), minlength=len(edges) + 1)
        small = int(counts.argmin())
        if counts[small] >= _FEWEST_IN_BIN:
            break
        # The bin is joined with the smaller of its neighbours.
        around = np.pad(counts, 1, constant_values=len(s) + 1)
        edges = np.delete(edges, small if around[small + 2] < around[small] else small - 1)
    return np.asarray(edges)


def _differ(s: Floats, mine: Bools, own: Bools, units: Units) -> float:
    """Return the p-value of the test whether labelled rows of a policy have scores of another mean rank."""
    others = mine & ~own
    if not others.any():
        return 1.0
    ranks = np.zeros(len(s))
    ranks[mine] = scipy.stats.rankdata(s[mine])
    gap, terms = 0.0, np.zeros(len(s))
    for sign, some in ((1, own), (-1, others)):
        mean = ranks[some].mean()
        gap, terms[some] = gap + sign * mean, sign * (ranks[some] - mean) / some.sum()
    deviation = math.sqrt(_variance(units.sums(terms)))
    return float(2 * scipy.special.ndtr(-abs(gap) / deviation)) if deviation else float(gap == 0)


def _interval(
    value: float, variance: float, degrees: float, level: float, ends: tuple[float, float]
) -> Floats:
    half = float(scipy.special.stdtrit(degrees, (1 + level) / 2)) * math.sqrt(variance)
    return np.clip([value - half, value + half], *ends)


def _policy(name: str, terms: _Terms, level: float) -> PolicyOutcome:
    low, high = _interval(terms.value, terms.variance, terms.degrees, level, (0.0, 1.0))
    return PolicyOutcome(
        name, terms.n, terms.n_labelled, terms.value, float(low), float(high), terms.carried, terms.outside
    )


def _difference(first: tuple[str, _Terms], second: tuple[str, _Terms], level: float) -> PolicyDifference:
    (name, a), (other, b) = first, second
    terms = a.of_rows + a.of_labels - b.of_rows - b.of_labels
    variance = _variance(terms) + a.more_variance + b.more_variance
    value = a.value - b.value
    low, high = _interval(value, variance, min(a.degrees, b.degrees), level, (-1.0, 1.0))
    decided = not low <= 0 <= high and not a.carried and not b.carried
    more = 0 if decided else _more_labels(a, b, level)
    return PolicyDifference(name, other, value, float(low), float(high), more)


def _more_labels(a: _Terms, b: _Terms, level: float) -> int | None:
    """Return on how many more units both policies should be labelled; None if those that there are do not do.

    Labels of n units add a variance that falls as 1 / n, while that of the rows stays.
    """
    both = (a, b)
    n = [0 if each.carried else each.n_labelled_units for each in both]
    apart = [_variance(each.of_labels) for each in both]
    of_one = [
        each.of_one_label if each.carried else (variance + each.more_variance) * m
        for each, variance, m in zip(both, apart, n, strict=True)
    ]
    # Labels of the same units may have a covariance.
    total = math.fsum(apart)
    shared = _variance(a.of_labels - b.of_labels) / total if all(n) and total else 1.0
    of_rows = _variance(a.of_rows - b.of_rows)
    wanted = (
        (a.value - b.value) / float(scipy.special.ndtri((1 + level) / 2) + scipy.special.ndtri(_POWER))
    ) ** 2

    def is_enough(more: int) -> bool:
        return of_rows + shared * sum(v / (m + more) for v, m in zip(of_one, n, strict=True)) < wanted

    most = min(each.n_units - m for each, m in zip(both, n, strict=True))
    least = max(1, _LEAST_LABELLED - min(n))
    if most < least or not is_enough(most):
        return None
    return bisect_left(range(most), True, lo=least, key=is_enough)


def _warnings(policies: Iterable[PolicyOutcome], terms: Iterable[_Terms]) -> Iterable[str]:
    for policy, each in zip(policies, terms, strict=True):
        outside = f"{percent(policy.outside, 1)} of its scores are outside the range of the labelled ones"
        if policy.carried:
            n = policy.n_labelled
            few = f"only {n} label{'s' * (n > 1)}" if n else "no labels"
            more = f", and {outside}" if policy.outside else ""
            yield (
                f"{policy.name} has {few}, so its mean relies on a score meaning the same as for the "
                f"labelled policies{more}; label some of its rows"
            )
        elif policy.outside > each.outside_by_chance:
            yield f"{policy.name}: {outside}; label some of these rows"
        elif each.differ < _ALPHA:
            yield (
                f"{policy.name}: labelled rows have other scores than the others, so the mean relies on "
                "labels having been chosen at random among rows of similar score"
            )
