"""Drift monitor: evidence that a stream of predictions is not as calibrated as its reference."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self, TypeAlias

import numpy as np
import numpy.typing as npt

from calibrant.errors import InputError
from calibrant.files import Count, Share, at_least, between, read_dataclass
from calibrant.inputs import ArrayLike, Floats, Integers, check_count
from calibrant.monitoring.betting import Block, Capital
from calibrant.monitoring.onset import ONSET_UNIT, Onset
from calibrant.monitoring.reference import DriftReference
from calibrant.monitoring.unit_bets import UnitBets, UnitState
from calibrant.streams.sums import check_streamed_batch

Direction: TypeAlias = Literal["overconfident", "underconfident"]

_FORMAT = 1
_BLOCK = 4096
_DIRECTIONS: tuple[Direction, ...] = ("overconfident", "underconfident")
_ONSET = ("excess", "count", "gap_sum")
# Sums of the same numbers may differ in their last digits between machines.
_SLACK = 1e-6

_Gap: TypeAlias = Annotated[float, between(-1, 1)]


@dataclass(frozen=True)
class GroupDrift:
    """Evidence of the stream about one group of confidences and one direction of change.

    Attributes:
        low: Confidences of the group are above this, or equal if the group is the lowest.
        high: Confidences of the group are not above this.
        n: Number of samples of the stream in the group.
        gap: Their mean of ``correct - confidence``; NaN without samples.
        recent_n: Number of samples since the change seems to have begun, if there is one.
        recent_gap: Their mean of ``correct - confidence``; ``gap`` if there are none.
        reference_gap: The same on the reference.
        region: Expected gaps that count as unchanged, tolerance included.
        direction: ``"overconfident"`` for less accuracy at the same confidence than on the reference,
            ``"underconfident"`` for more.
        log_e_value: Logarithm of the evidence for this change.
        drifts: Whether this evidence alone was ever enough for an alarm. The probability that this happens to
            any group without drift is included in the monitor's ``alpha``.
    """

    low: Share
    high: Share
    n: Count
    gap: _Gap
    recent_n: Count
    recent_gap: _Gap
    reference_gap: _Gap
    region: tuple[float, float]
    direction: Direction
    log_e_value: float
    drifts: bool

    @property
    def improves(self) -> bool:
        """Whether the mean gap since the change is smaller than the reference's: a change for the better."""
        return abs(self.recent_gap) < abs(self.reference_gap)

    @property
    def change(self) -> str:
        """The change in words: ``"more overconfident"``, ``"less overconfident"`` and so on."""
        rises = self.direction == "underconfident"
        if self.improves and rises == (self.reference_gap < 0):
            return "less overconfident" if rises else "less underconfident"
        return f"more {self.direction}"


@dataclass(frozen=True)
class _OnsetState:
    """The sums of an :class:`Onset`, for each group and both directions."""

    excess: tuple[tuple[Count, Count], ...]
    count: tuple[tuple[Count, Count], ...]
    gap_sum: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class _State:
    """What :meth:`DriftMonitor.state` returns; states of earlier versions have no onset and no units."""

    format: Literal[1]
    reference: Mapping[str, Any]
    alpha: Share
    restart_every: Annotated[int, at_least(1)] | None
    n: Count
    alarm_at: Annotated[int, at_least(1)] | None
    log_peak: Annotated[float, at_least(0)]
    drifts: tuple[tuple[bool, bool], ...]
    log_capital: tuple[tuple[tuple[float, ...], tuple[float, ...]], ...]
    count: tuple[Count, ...]
    gap_sum: tuple[float, ...]
    onset: _OnsetState | None = None
    units: UnitState | None = None


class DriftMonitor:
    r"""Evidence, valid whenever one looks, that calibration is not what it was on the reference.

    The null hypothesis: for each sample of a group, the expectation of ``correct - confidence``, given the
    group and all samples before, is within the group's region. For each group, each direction
    and several sizes :math:`\lambda`, capital is bet against it: a sample multiplies it by
    :math:`1 + \lambda\,(l - x)` or by :math:`1 + \lambda\,(x - h)`, where :math:`[l, h]` is the region and
    :math:`x` the sample's ``correct - confidence``. If the hypothesis holds, no bet is expected to win, and
    the weighted mean of all capitals, the e-value, ever reaches :math:`1/a` with probability at most
    :math:`a`, however often one looks (Ville's inequality). Here :math:`a` is ``alpha - reference.alpha``;
    the reference has spent the rest of ``alpha`` on the probability that its regions miss.

    Bets lose capital while there is no drift, which would then be missing when drift begins. So part of the
    capital is reserved for later: the ``j``-th start, ``restart_every`` samples after the one before, has the
    share :math:`1/\log_2(j + 1) - 1/\log_2(j + 2)`. This costs about the logarithm of the number of starts.

    Samples that depend on each other, such as several answers to one question, are a unit and make one bet
    when the unit is complete: on the mean of their ``correct - confidence`` in each group. The null
    hypothesis is then about this mean, given all units before; samples of a unit may depend on each other in
    any way.
    They must follow each other: a unit that returns after fewer than 1,000 others is refused.

    The result depends on the order of the samples but not on how they are cut into batches. Memory does not
    grow with the stream.

    Args:
        reference: The calibration before deployment.
        alpha: Upper bound on the probability of a false alarm over the whole stream, however long.
        restart_every: Number of bets between starts; None to bet all capital from the beginning.

    Attributes:
        alarm_at: Number of samples after which the e-value first reached the threshold; None if it never did.
            With units, the last sample of the unit that it reached it with.
        log_peak: Logarithm of the highest e-value after any sample so far.

    Example:
        >>> reference = DriftReference.from_outcomes([0.9] * 2000, ([True] * 9 + [False]) * 200)
        >>> monitor = DriftMonitor(reference)
        >>> monitor.update([0.9] * 500, [True, False] * 250)
        >>> monitor.alarm, monitor.alarm_at
        (True, 46)
        >>> [group.direction for group in monitor.diagnosis() if group.drifts]
        ['overconfident']

    References:
        Shafer and Vovk, "Game-Theoretic Foundations for Probability and Finance", 2019.
        Waudby-Smith and Ramdas, "Estimating means of bounded random variables by betting", JRSS B 2024.
        Shin, Ramdas and Rinaldo, "E-detectors: a nonparametric framework for sequential change detection",
        NEJSDS 2024.
    """

    def __init__(
        self, reference: DriftReference, *, alpha: float = 0.05, restart_every: int | None = 1000
    ) -> None:
        if not reference.alpha < alpha < 1:
            raise InputError(
                f"alpha: expected a number between {reference.alpha:g}, which the reference has spent, "
                f"and 1, got {alpha}"
            )
        every = None if restart_every is None else check_count(restart_every, "restart_every")
        self.reference = reference
        self.alpha = float(alpha)
        self.restart_every = every
        self._capital = Capital(reference, every)
        self._edges = np.array(reference.edges)
        self._units: UnitBets | None = None
        self._count = np.zeros(reference.n_bins, dtype=np.int64)
        self._gap_sum = np.zeros(reference.n_bins)
        self._onset = Onset(reference)
        self._drifts = np.zeros((len(reference.groups), 2), dtype=bool)
        self._log_threshold = -math.log(self.alpha - reference.alpha)
        self.log_peak = 0.0
        self.alarm_at: int | None = None

    def __repr__(self) -> str:
        return f"<DriftMonitor of {self.n} samples, log e-value {self.log_e_value:.3f}>"

    @property
    def n(self) -> int:
        """Number of samples so far."""
        return int(self._count.sum())

    @property
    def n_tested(self) -> int:
        """Number of samples so far without those of a unit that is not complete."""
        return self.n - (0 if self._units is None else self._units.n_waiting)

    @property
    def n_units(self) -> int | None:
        """Number of units so far; None if samples have none."""
        return None if self._units is None else self._capital.n + (self._units.n_waiting > 0)

    @property
    def log_e_value(self) -> float:
        """Logarithm of the current evidence against the null hypothesis."""
        return self._capital.log_e_value()

    @property
    def e_value(self) -> float:
        """Current evidence against the null hypothesis; infinite if too large for a float."""
        log_e = self.log_e_value
        return math.exp(log_e) if log_e < 709 else math.inf

    @property
    def threshold(self) -> float:
        """The e-value that raises the alarm."""
        return 1 / (self.alpha - self.reference.alpha)

    @property
    def alarm(self) -> bool:
        """Whether the e-value has ever reached the threshold."""
        return self.alarm_at is not None

    def check_units(self, units: ArrayLike | None, n: int) -> Integers | None:
        """Return the unit of each of ``n`` rows; refuse units that come apart, and rows with and without."""
        if self.n and n and (units is None) != (self._units is None):
            expected, got = ("units", "none") if units is None else ("no units", "some")
            raise InputError(f"units: expected {expected} as before, got {got}; monitor these rows apart")
        return None if units is None else (self._units or UnitBets(self.reference.n_bins)).check(units, n)

    def unit_places(self, units: Integers) -> Integers:
        """Return the place of each row's unit among all units of the stream, before the rows are read."""
        begins = (self._units or UnitBets(self.reference.n_bins)).begins(units)
        return (self.n_units or 0) + np.cumsum(begins)

    def update(self, confidence: ArrayLike, correct: ArrayLike, units: ArrayLike | None = None) -> None:
        """Read a batch of any size, in the order of time; a batch that is refused changes nothing.

        Args:
            confidence: Confidences of shape ``(n,)``.
            correct: Whether each prediction was right, shape ``(n,)``.
            units: An integer for each row, shape ``(n,)``, if rows depend on each other: rows of equal ones
                follow each other, also from one batch to the next.
        """
        batch = check_streamed_batch(confidence=confidence, correct=correct)
        if batch is None:
            return
        numbers = self.check_units(units, len(batch))
        if numbers is not None and self._units is None:
            self._units = UnitBets(self.reference.n_bins)
        stated, hits = batch.outputs.numpy(), batch.truth.numpy()
        start = 0
        while start < len(stated):
            rows = slice(start, start + (self._capital.room(_BLOCK) if numbers is None else _BLOCK))
            c = stated[rows].astype(np.float64)
            x, bins = hits[rows] - c, np.searchsorted(self._edges, c, side="left")
            if numbers is None:
                self._judge(self._capital.bet(x, bins), self.n + np.arange(1, len(x) + 1))
            else:
                self._bet_on_units(numbers[rows], x, bins)
            self._onset.read(x, self._capital.rows_of(bins))
            self._count += np.bincount(bins, minlength=len(self._count))
            # Added one by one, so that the sums do not depend on where batches end.
            np.add.at(self._gap_sum, bins, x)
            start = rows.stop

    def _bet_on_units(self, numbers: Integers, x: Floats, bins: Integers) -> None:
        """Bet on the units that are complete after a block of rows."""
        assert self._units is not None
        units, start = self._units.read(numbers, x, bins), 0
        while start < len(units.ends):
            some = slice(start, start + self._capital.room(_BLOCK))
            block = self._capital.bet_on_units(units.count[some], units.gap_sum[some])
            self._judge(block, self.n + units.ends[some])
            start = some.stop

    def _judge(self, block: Block, ends: Integers) -> None:
        """Raise the alarm if the evidence of a block demands it; ``ends`` are the rows after each bet."""
        bounds = block.bounds()
        own_alarm = self._log_threshold - self._capital.log_weight[:, None]
        # Without drift the bounds show that no threshold was reached, and the rest can be skipped.
        if block.total_bound(bounds) > self.log_peak or (~self._drifts & (bounds >= own_alarm)).any():
            total, peaks = block.evidence()
            self._drifts |= peaks >= own_alarm
            self.log_peak = max(self.log_peak, float(total.max()))
            reached = total >= self._log_threshold
            if self.alarm_at is None and reached.any():
                self.alarm_at = int(ends[reached.argmax()])

    def diagnosis(self) -> tuple[GroupDrift, ...]:
        """Return the evidence about every group in both directions, widest groups first."""
        log_e = self._capital.log_e_values()
        slack = self.reference.tolerance
        found = []
        for g, group in enumerate(self.reference.groups):
            bins = slice(group.first, group.last + 1)
            n = int(self._count[bins].sum())
            gap = float(self._gap_sum[bins].sum()) / n if n else math.nan
            region = (group.region[0] - slack, group.region[1] + slack)
            for d, direction in enumerate(_DIRECTIONS):
                found.append(
                    GroupDrift(
                        low=group.low,
                        high=group.high,
                        n=n,
                        gap=gap,
                        recent_n=int(self._onset.count[g, d]),
                        recent_gap=self._onset.gap(g, d, otherwise=gap),
                        reference_gap=group.gap,
                        region=region,
                        direction=direction,
                        log_e_value=float(log_e[g, d]),
                        drifts=bool(self._drifts[g, d]),
                    )
                )
        return tuple(found)

    def state(self) -> dict[str, Any]:
        """Return all that is needed to continue later, as a dictionary of plain values."""
        return {
            "format": _FORMAT,
            "reference": self.reference.as_json(),
            "alpha": self.alpha,
            "restart_every": self.restart_every,
            "n": self.n,
            "alarm_at": self.alarm_at,
            "log_peak": self.log_peak,
            "drifts": self._drifts.tolist(),
            "log_capital": self._capital.log_capital.tolist(),
            "count": self._count.tolist(),
            "gap_sum": self._gap_sum.tolist(),
            "onset": {name: getattr(self._onset, name).tolist() for name in _ONSET},
            "units": None if self._units is None else self._units.state(bets=self._capital.n),
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any], *, name: str = "state") -> Self:
        """Return the monitor that had this ``state``; it continues as if it had never stopped.

        Args:
            state: What :meth:`state` returned; a value that it cannot have is refused.
            name: What the state is called in error messages.
        """
        stored = read_dataclass(_State, state, name, error=InputError)
        reference = DriftReference.from_json(stored.reference, name=f"{name}.reference")
        try:
            new = cls(reference, alpha=stored.alpha, restart_every=stored.restart_every)
            new._fill(stored)
        except InputError as error:
            raise InputError(f"{name}.{error}") from None
        return new

    def _fill(self, stored: _State) -> None:
        """Continue from a state, unless its numbers contradict each other."""
        capital = self._capital
        capital.n, self.log_peak, self.alarm_at = stored.n, stored.log_peak, stored.alarm_at
        capital.log_capital = _as(capital.log_capital, stored.log_capital, "log_capital")
        self._drifts = _as(self._drifts, stored.drifts, "drifts")
        self._count = _as(self._count, stored.count, "count")
        self._gap_sum = _as(self._gap_sum, stored.gap_sum, "gap_sum")
        if self.n != stored.n:
            raise InputError(f"count: expected {stored.n} samples in all bins, got {self.n}")
        if (abs(self._gap_sum) > self._count * (1 + _SLACK)).any():
            raise InputError("gap_sum: expected sums of numbers from -1 to 1, got larger ones")
        if stored.units is not None:
            self._units = UnitBets.from_state(stored.units, of_all=self._count)
            capital.n = stored.units.bets
        if (reached := self.log_peak - self._log_threshold) < -_SLACK and self.alarm:
            raise InputError(f"alarm_at: expected none, as log_peak is too low, got {self.alarm_at}")
        if (reached > _SLACK and not self.alarm) or (self.alarm_at or 0) > self.n:
            raise InputError(f"alarm_at: expected one of the {self.n} samples, got {self.alarm_at}")
        if self.log_e_value > self.log_peak + _SLACK:
            raise InputError("log_capital: expected evidence of at most log_peak, got more")
        if stored.onset is not None:
            self._fill_onset(stored.onset)

    def _fill_onset(self, stored: _OnsetState) -> None:
        onset = self._onset
        for name in _ONSET:
            value = _as(getattr(onset, name), getattr(stored, name), f"onset.{name}")
            setattr(onset, name, value)
        groups = [self._count[group.first : group.last + 1].sum() for group in self.reference.groups]
        if (onset.count > np.array(groups)[:, None]).any():
            raise InputError("onset.count: expected at most the samples of each group, got more")
        # A sample is at most 1 beyond 0, and at most 3 beyond a region that tolerance has widened.
        for name, most in (("excess", 3.0), ("gap_sum", 1.0)):
            if (abs(getattr(onset, name)) > onset.count * most / ONSET_UNIT + 1).any():
                raise InputError(f"onset.{name}: expected sums over the samples that it counts, got others")


def _as(like: npt.NDArray[Any], values: tuple[Any, ...], name: str) -> npt.NDArray[Any]:
    if like.ndim == 3 and any(len(part) != like.shape[2] for row in values for part in row):
        raise InputError(f"{name}: expected shape {like.shape}, got lists of other lengths")
    value = np.array(values, dtype=like.dtype)
    if value.shape != like.shape:
        raise InputError(f"{name}: expected shape {like.shape}, got shape {value.shape}")
    return value
