"""Split conformal prediction: scores of classes, the order statistic that bounds them, and its coverage."""

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Literal, TypeAlias, get_args

import numpy as np
import scipy
import torch
from torch import Tensor
from torch.nn import functional as F

from calibrant.errors import InputError
from calibrant.inference.rows import check_level
from calibrant.inputs import check_count
from calibrant.results import Result

SetMethod: TypeAlias = Literal["lac", "aps", "raps", "ordered"]
SET_METHODS: tuple[SetMethod, ...] = get_args(SetMethod)
#: Those that are compared unless the classes have an order.
ANY_ORDER: tuple[SetMethod, ...] = ("lac", "aps", "raps")
#: Those that have no last class to draw at random.
NEVER_DRAWN: tuple[SetMethod, ...] = ("lac", "ordered")
# Mean size of the unit of a sample.
UnitSize: TypeAlias = int | Fraction


def check_alpha(alpha: float) -> float:
    """Return the share of sets that may miss the true class if it is between 0 and 1."""
    is_number = isinstance(alpha, (int, float, np.floating)) and not isinstance(alpha, bool)
    if not is_number or not 0 < alpha < 1:
        raise InputError(
            f"alpha: expected a number between 0 and 1, the share of sets that may miss the true class, got "
            f"{alpha}; 0.1 asks for a coverage of 90 %"
        )
    return float(alpha)


def place_of_threshold(n: int, alpha: float, *, unit_size: UnitSize = 1) -> int:
    r"""Return which of ``n`` scores, from the smallest, is the threshold.

    .. math:: m = \lceil (n + s) (1 - \alpha) \rceil

    :math:`s` is 1 if samples are drawn one by one. If they are drawn in units, it is the mean size of a
    sample's unit: all scores of the new unit count as infinite. Then of the samples of new units, at most a
    share of :math:`\alpha` is missed on average, whatever the dependence within units: this is conformal risk
    control of the number of misses minus :math:`\alpha` times the size of a unit. It is exact if units have
    equal sizes; else it needs the size of the new unit, and the mean takes its place.

    ``alpha`` is the decimal number that Python shows, so that no rounding decides. With fewer than
    :math:`s (1/\alpha - 1)` samples no score is large enough, and the place is above ``n``.

    Example:
        >>> place_of_threshold(9, 0.1), place_of_threshold(8, 0.1), place_of_threshold(9, 0.3)
        (9, 9, 7)
        >>> place_of_threshold(100, 0.1, unit_size=5)
        95

    References:
        Angelopoulos, Bates, Fisch, Lei and Schuster, "Conformal Risk Control", ICLR 2024.
    """
    return n - math.floor((n + unit_size) * Fraction(repr(alpha)) - unit_size)


def fewest_for_sets(alpha: float, *, unit_size: UnitSize = 1) -> int:
    """Return the least number of samples for which a threshold exists.

    Example:
        >>> fewest_for_sets(0.1), fewest_for_sets(0.03), fewest_for_sets(0.1, unit_size=5)
        (9, 33, 45)
    """
    return math.ceil(unit_size / Fraction(repr(alpha)) - unit_size)


def threshold(scores: Tensor, alpha: float, *, unit_size: UnitSize = 1) -> Tensor:
    """Return the conformal quantile of scores along the last dimension; infinity if they are too few.

    It is an order statistic, see :func:`place_of_threshold`, and never a value between two scores.

    Example:
        >>> threshold(torch.arange(20.0), 0.1)
        tensor(18.)
    """
    n = scores.shape[-1]
    place = place_of_threshold(n, alpha, unit_size=unit_size)
    if place > n:
        return scores.new_full(scores.shape[:-1], torch.inf)
    return scores.kthvalue(place, dim=-1).values


@dataclass(frozen=True)
class CoverageLaw(Result):
    """How the coverage of prediction sets varies from one fit to another.

    Attributes:
        n: Number of samples of the fit.
        n_test: Number of samples on which the coverage is measured; None for infinitely many.
        mean: Mean coverage.
        low: Lower end of the interval.
        high: Upper end of the interval.
        level: Share of fits, with their test samples, whose coverage lies in the interval.
    """

    n: int
    n_test: int | None
    mean: float
    low: float
    high: float
    level: float


def coverage_law(n: int, alpha: float, *, n_test: int | None = None, level: float = 0.99) -> CoverageLaw:
    r"""Return the interval in which the coverage of sets that were fitted on ``n`` samples lies.

    Given the samples of the fit, the probability that a set holds the true class is a random number with the
    distribution :math:`\mathrm{Beta}(m, n + 1 - m)`, where :math:`m` is :func:`place_of_threshold`. The
    coverage on ``n_test`` further samples then has a beta-binomial distribution. Both are exact if no two
    scores are equal; equal scores, and sets that are never empty, can only raise the coverage.

    Args:
        n: Number of samples of the fit.
        alpha: Share of sets that may miss the true class.
        n_test: Number of samples on which the coverage is measured; by default infinitely many.
        level: Share of fits, with their test samples, whose coverage lies in the interval.

    Example:
        >>> law = coverage_law(1000, 0.1, n_test=10_000)
        >>> round(law.mean, 4), round(law.low, 3), round(law.high, 3)
        (0.9001, 0.873, 0.924)

    References:
        Vovk, "Conditional validity of inductive conformal predictors", ACML 2012.
    """
    alpha = check_alpha(alpha)
    check_enough(check_count(n, "n"), alpha)
    return law_of_place(place_of_threshold(n, alpha), n, n_test, level)


def law_of_place(
    place: int, n: int, n_test: int | None, level: float, *, per_effective: float = 1.0
) -> CoverageLaw:
    """Return the law of the coverage of a threshold that is the score at a place among ``n``.

    Args:
        place: The place, from 1.
        n: Number of samples of the fit.
        n_test: As for :func:`coverage_law`.
        level: As for :func:`coverage_law`.
        per_effective: Number of samples that say as much as one that is independent of all others, if samples
            of a unit depend on each other; the law is then an approximation.
    """
    ends = ((1 - check_level(level)) / 2, (1 + level) / 2)
    a, b = place / per_effective, (n + 1 - place) / per_effective
    if n_test is None:
        low, high = scipy.stats.beta(a, b).ppf(ends)
    else:
        measured = max(1, round(check_count(n_test, "n_test") / per_effective))
        low, high = scipy.stats.betabinom(measured, a, b).ppf(ends) / measured
    return CoverageLaw(n, n_test, place / (n + 1), float(low), float(high), level)


def check_enough(n: int, alpha: float, *, unit_size: UnitSize = 1) -> None:
    """Refuse fewer samples than a threshold needs."""
    fewest = fewest_for_sets(alpha, unit_size=unit_size)
    if n < fewest:
        of_units = f", as the unit of a sample has {float(unit_size):.3g} on average" if unit_size > 1 else ""
        raise InputError(
            f"predictions: expected at least {fewest:,} samples for alpha {alpha:g}{of_units}, got "
            f"{n:,}; take more {'units' if unit_size > 1 else 'samples'}, or alpha of at least "
            f"{_largest_needed(n, unit_size):g}"
        )


def _largest_needed(n: int, unit_size: UnitSize) -> float:
    """Return the least alpha, rounded up to two digits, for which this many samples suffice."""
    exact = float(unit_size / (n + unit_size))
    unit = 10.0 ** (math.floor(math.log10(exact)) - 1)
    return round(math.ceil(exact / unit - 1e-9) * unit, 12)


class RankedClasses:
    """Class probabilities of some samples, sorted once for all scores that need it.

    Attributes:
        probs: Probabilities of shape ``(n, k)``, in the order of the classes; 0 masks a class.
    """

    def __init__(self, probs: Tensor) -> None:
        self.probs = probs

    @cached_property
    def sorted(self) -> tuple[Tensor, Tensor]:
        """The probabilities from the largest to the smallest, and their classes; equal ones in order."""
        if torch.compiler.is_compiling():  # the sort of ONNX is stable, and has no option for it
            values, classes = self.probs.sort(dim=1, descending=True)
        else:
            values, classes = self.probs.sort(dim=1, descending=True, stable=True)
        return values, classes

    @cached_property
    def below(self) -> Tensor:
        """The probability of all classes after each one, in the sorted order.

        It is summed from the smallest probability on, so that it is exact where it is tiny.
        """
        values, _ = self.sorted
        return F.pad(values.flip(1).cumsum(1)[:, :-1], (1, 0)).flip(1)

    def unsorted(self, values: Tensor) -> Tensor:
        """Return values that are in the sorted order in the order of the classes."""
        return torch.zeros_like(values).scatter(1, self.sorted[1], values)

    @property
    def ranks(self) -> Tensor:
        """The rank of each class, from 1 for the most probable one, in the order of the classes."""
        k = self.probs.shape[1]
        ranks = torch.arange(1, k + 1, device=self.probs.device).expand(self.probs.shape)
        return self.unsorted(ranks)


@dataclass(frozen=True)
class SetScore:
    r"""How badly a class fits a sample; a set holds the classes whose score is at most the threshold.

    With the classes sorted from the most probable one on, :math:`r` as the rank of class :math:`y`, and
    :math:`u` uniform on :math:`[0, 1)` (0 if not randomised):

    - ``"lac"``: :math:`1 - p_y`
    - ``"ordered"``: 1 minus the smallest probability between the most probable class and :math:`y`. It
      never falls away from the most probable class, so the sets of classes in an order have no holes.
    - ``"aps"``: :math:`\sum_{j \le r} p_{(j)} - u\, p_y`
    - ``"raps"``: :math:`\sum_{j \le r} p_{(j)} - u\, p_y + \lambda \max(0, r - k_\mathrm{reg})`

    All scores are computed minus one, as :math:`-p_y` and :math:`-\sum_{j > r} p_{(j)} - u\, p_y`, which
    keeps differences that rounding near one would lose.

    Attributes:
        method: ``"lac"``, ``"aps"``, ``"raps"`` or ``"ordered"``.
        randomised: Whether a uniform number decides about the last class.
        penalty: :math:`\lambda`, for each rank after ``k_reg``.
        k_reg: The last rank without a penalty.
    """

    method: SetMethod
    randomised: bool = False
    penalty: float = 0.0
    k_reg: int = 0

    @property
    def name(self) -> str:
        """The method as tables show it."""
        return f"{self.method}, randomised" if self.randomised else self.method

    def of(self, ranked: RankedClasses, uniforms: Tensor | None = None) -> Tensor:
        """Return the scores of all classes minus one, of shape ``(n, k)``, in the order of the classes."""
        if self.method == "lac":
            return -ranked.probs
        if self.method == "ordered":
            return -_least_on_the_way(ranked.probs)
        scores = -ranked.below
        if self.randomised:
            assert uniforms is not None
            scores = scores - uniforms[:, None] * ranked.sorted[0]
        if self.method == "raps":
            k = ranked.probs.shape[1]
            ranks = torch.arange(1, k + 1, device=scores.device, dtype=scores.dtype)
            scores = scores + self.penalty * (ranks - self.k_reg).clamp(min=0)
        return ranked.unsorted(scores)


def _least_on_the_way(probs: Tensor) -> Tensor:
    """Return the smallest probability between the most probable class and each class, both included.

    Example:
        >>> _least_on_the_way(torch.tensor([[0.3, 0.1, 0.4, 0.2]]))
        tensor([[0.1000, 0.1000, 0.4000, 0.2000]])
    """
    classes = torch.arange(probs.shape[1], device=probs.device)
    top = probs.argmax(dim=1, keepdim=True)

    def outwards(values: Tensor) -> Tensor:
        # ONNX has no running minimum.
        least = [values[:, 0]]
        for place in range(1, values.shape[1]):
            least.append(torch.minimum(least[-1], values[:, place]))
        return torch.stack(least, dim=1)

    after = outwards(torch.where(classes >= top, probs, 1.0))
    before = outwards(torch.where(classes <= top, probs, 1.0).flip(1)).flip(1)
    return torch.where(classes >= top, after, before)
