"""A pool: the mixture of several calibrators under which held-out samples are likeliest."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import islice
from typing import Self, TypedDict, Unpack

import numpy as np
import torch
from torch import Tensor

from calibrant.errors import CalibrantError, FitError
from calibrant.inputs import ArrayLike, Floats, at_least_float32
from calibrant.posthoc.calibrator import Calibrator
from calibrant.posthoc.fitting.folds import each_fold
from calibrant.posthoc.fitting.masked import finite, uniform
from calibrant.posthoc.fitting.score_map import OwnAnswers, ScoreMap, own_answers
from calibrant.posthoc.fitting.stored import POSITIVE, PROBABILITIES, SHARES, Numbers, declare, one_number
from calibrant.posthoc.fitting.temperature_search import likeliest_temperature
from calibrant.posthoc.fitting.weighing import (
    design_effect,
    effective_rows,
    of_units,
    rows_of,
    size_of,
    sum_of,
)
from calibrant.posthoc.fitting_set import FittingSet, Rows, sparing_threads
from calibrant.posthoc.mean_temperature import MeanTemperature
from calibrant.posthoc.names import Method, method_named, pool_members, that_take_weights
from calibrant.solvers import likeliest_shares

# Members with a smaller share are left out: they cost as much to apply as the others.
_SMALLEST_SHARE = 0.02

# What a pool is drawn back to as far as its advantage may be chance.
_SAFE = "temperature"

# The name of the part that follows the mixture.
_CURVE = "curve"

# Entries that are mixed at a time.
_BLOCK_ENTRIES = 1 << 20

# The curve is fitted to at most this many samples.
_MOST_FOR_CURVE = 1 << 14


class Pool(Calibrator):
    r"""Mix the distributions of other calibrators so that held-out samples are likeliest.

    .. math:: q = (1 - \epsilon) \sum_j w_j \, p_j + \epsilon / k, \quad w \ge 0, \; \sum_j w_j = 1;
              \qquad p \propto q^{1/T}

    Every method errs in its own way, and a mixture errs less than its members. A mixture of calibrated
    distributions is underconfident (Ranjan and Gneiting, 2010), which one temperature repairs. The uniform
    share :math:`\epsilon = 1/(n + 1)` limits the loss of mistakes that :math:`n` samples do not show. The
    predicted class may change, unless no member can change it.

    With more than two classes, the confidence of such a mixture can still be off in one range and right in
    another. So temperatures of each sample follow it, the mean of those by SMART and by PTS, fitted to the
    out-of-fold predictions of the mixture.

    With few samples all this may follow chance. So the temperature is shrunk towards 1, as James and Stein
    shrink a mean, and a pool with temperature scaling among its members is drawn back to that in proportion
    to the probability that it is no better, see :meth:`of`.

    Attributes:
        names: Names of the members, those with the largest share first.
        shares: Their shares, in the same order.
        smoothing: The uniform share.
        temperature: The temperature of the mixture.
        has_curve: Whether temperatures of each sample follow the mixture.
        preserves_accuracy: Whether no member can change the predicted class.
        needs_features: Whether any member needs features.
    """

    masks = True
    options = ("names", "preserves_accuracy", "needs_features", "has_curve")

    stored = declare(
        shares=Numbers(("members",), SHARES),
        smoothing=one_number(PROBABILITIES),
        temperature=one_number(POSITIVE),
    )

    names: list[str]
    shares: Tensor
    smoothing: Tensor
    temperature: Tensor
    has_curve: bool = False

    def __init__(
        self,
        members: Mapping[str, Calibrator],
        shares: Sequence[float],
        *,
        smoothing: float = 0.0,
        temperature: float = 1.0,
        curve: Calibrator | None = None,
    ) -> None:
        super().__init__(n_classes=next((m.n_classes for m in members.values() if m.n_classes), None))
        order = sorted(range(len(shares)), key=lambda place: -shares[place])
        named = list(members.items())
        self.names = [named[place][0] for place in order]
        for number, place in enumerate(order):
            member = named[place][1]
            # Torch lists a part once, so a second name for it needs a copy.
            self.add_module(f"member_{number}", deepcopy(member) if member in self.children() else member)
        self.has_curve = curve is not None
        if curve is not None:
            self.add_module(_CURVE, curve)
        self.register_buffers(
            shares=torch.tensor([shares[place] for place in order], dtype=torch.float64),
            smoothing=torch.tensor(smoothing, dtype=torch.float64),
            temperature=torch.tensor(temperature, dtype=torch.float64),
        )
        self.preserves_accuracy = all(_keeps_class(member) for member in members.values())
        self.needs_features = any(member.needs_features for member in members.values())

    @classmethod
    @sparing_threads
    def fit(
        cls,
        logits: ArrayLike | FittingSet,
        labels: ArrayLike | None = None,
        *,
        methods: str | Sequence[str] = "auto",
        **rows: Unpack[Rows],
    ) -> Self:
        """Fit every method on all samples and once without each fold, and find the shares of their mixture.

        Methods that cannot be fitted are left out, and with weights so are those of ``"auto"`` that refuse
        them; named ones are refused. :func:`calibrant.evaluation.compare` makes the same pool,
        and compares it with its members.

        Args:
            logits: Scores of shape ``(n, k)``, or ``(n,)`` for the log-odds of class 1.
            labels: Integer classes of shape ``(n,)``.
            methods: ``"auto"`` for those that :func:`~calibrant.evaluation.compare` compares, or names from
                :data:`calibrant.posthoc.names.METHODS`.

        Raises:
            FitError: No method can be fitted.
        """
        data = cls.data(logits, labels, **rows)
        data.check_can_hold_out()
        named = pool_members(methods, n_classes=data.n_classes)
        members: dict[str, Calibrator] = {}
        held_out, reasons = [], []
        weighted = data.weights is not None
        for name in that_take_weights(named, asked_for=methods != "auto") if weighted else named:
            try:
                members[name], log_probs = _cross_fitted(method_named(name), data)
            except CalibrantError as error:
                reasons.append(f"{name}: {error}")
            else:
                held_out.append(log_probs)
        if not members:
            raise FitError(f"pool: no method could be fitted ({'; '.join(reasons)})")
        return cls.of(members, held_out, data.labels, data.folds, weights=data.weights, units=data.units)[0]

    @classmethod
    @torch.no_grad()
    def of(
        cls,
        members: Mapping[str, Calibrator],
        held_out: Sequence[Tensor],
        labels: Tensor,
        folds: Tensor,
        *,
        weights: Tensor | None = None,
        units: Tensor | None = None,
        safe: str = _SAFE,
    ) -> tuple[Self, Tensor]:
        r"""Pool fitted calibrators, and return the out-of-fold log-probabilities of the pool too.

        Those of a fold are made with the shares that the other folds give. If the pool is :math:`z` standard
        errors likelier than temperature scaling out of fold, it is drawn back to that with the share
        :math:`1 - \Phi(z)`; if it is more than one standard error less likely, nothing else is left.

        With more than two classes, a mean of temperatures is then fitted to the out-of-fold predictions of
        the pool; those of a fold get one that was fitted without it.

        Args:
            members: Calibrators by name, fitted on all samples.
            held_out: For each of them, log-probabilities of all samples by fits that have not seen them,
                shape ``(n, k)``.
            labels: Labels of shape ``(n,)``.
            folds: The fold of each sample.
            weights: How much each sample counts, all above 0, shape ``(n,)``.
            units: The unit of each sample, from 0, if samples depend on each other; folds do not split one.
            safe: The member that the pool is drawn back to; none if there is no such member.
        """
        beside: _Beside = {"weights": weights, "units": units}
        parts = [
            _Fold(rest, inside, likeliest_mixture(held_out, labels, rest, **beside))
            for rest, inside in each_fold(folds.to(labels.device))
        ]
        whole = likeliest_mixture(held_out, labels, **beside)
        mixed = torch.empty_like(held_out[-1])
        for part in parts:
            mixed[part.inside] = part.mixture(held_out, part.inside)
        if safe in members:
            place, rows = list(members).index(safe), torch.arange(len(labels), device=labels.device)
            gains = (mixed[rows, labels] - held_out[place][rows, labels]).double()
            whole = whole.drawn_back(place, _trust(gains, **beside))
            parts = [part.drawn_back(place, gains, beside) for part in parts]
            for part in parts:
                mixed[part.inside] = part.mixture(held_out, part.inside)
        curve = None
        if mixed.shape[1] > 2:
            curve = _follow_with_curve(mixed, held_out, labels, parts, beside)
        used = {name: share for name, share in zip(members, whole.shares, strict=True) if share > 0}
        pool = cls(
            {name: members[name] for name in used},
            list(used.values()),
            smoothing=whole.smoothing,
            temperature=whole.temperature,
            curve=curve,
        )
        return pool, mixed

    @property
    def sizes(self) -> dict[str, int]:
        """The number of classes and that of members."""
        return super().sizes | {"members": len(self.names)}

    @property
    def part_names(self) -> tuple[str, ...]:
        """The members, in the order of their names, and the curve if there is one."""
        members = tuple(f"member_{number}" for number in range(len(self.names)))
        return (*members, _CURVE) if self.has_curve else members

    @property
    def weights(self) -> dict[str, float]:
        """Share of each member by its name, the largest first."""
        return dict(zip(self.names, self.shares.tolist(), strict=True))

    @property
    def members(self) -> dict[str, Calibrator]:
        """The members by name, the one with the largest share first."""
        parts = dict(self.named_children())
        found = (parts[f"member_{number}"] for number in range(len(self.names)))
        return {
            name: part for name, part in zip(self.names, found, strict=True) if isinstance(part, Calibrator)
        }

    def with_members(self, fitted: Mapping[str, Calibrator]) -> "Pool":
        """Return the pool with other fits of its members, such as those on more samples."""
        curve = self.get_submodule(_CURVE) if self.has_curve else None
        return Pool(
            {name: fitted[name] for name in self.names},
            self.shares.tolist(),
            smoothing=float(self.smoothing),
            temperature=float(self.temperature),
            curve=curve if isinstance(curve, Calibrator) else None,
        )

    def forward(self, logits: Tensor, features: Tensor | None = None) -> Tensor:
        """Return calibrated log-probabilities of shape ``(n, k)``."""
        mixed = _mixed(self._parts(logits, features), self.shares, self.smoothing, self.temperature)
        if self.has_curve:
            mixed = self.get_submodule(_CURVE)(mixed)
        return mixed

    def _parts(self, logits: Tensor, features: Tensor | None) -> Iterator[Tensor]:
        """Yield those of each member; maps that ask the same questions share the model's answers."""
        own: dict[str, OwnAnswers] = {}
        # The parts of a pool are the members in their order, then the curve.
        for member in islice(self.children(), len(self.names)):
            if isinstance(member, ScoreMap):
                if member.mode not in own:
                    own[member.mode] = own_answers(logits, member.mode)
                yield member.from_answers(own[member.mode])
            else:
                yield member(logits, features)


def pool_of(calibrator: Calibrator) -> Pool | None:
    """Return the pool that a calibrator is or that it corrects; None if there is none."""
    return next((part for part in calibrator.modules() if isinstance(part, Pool)), None)


def _keeps_class(member: Calibrator) -> bool:
    """Whether a member can never change the predicted class, as a map of its confidence cannot."""
    return member.preserves_accuracy or (isinstance(member, ScoreMap) and member.mode == "top_label")


@dataclass(frozen=True)
class Mixture:
    """How distributions are mixed: their shares, the uniform share, and a temperature."""

    shares: tuple[float, ...]
    smoothing: float
    temperature: float

    def drawn_back(self, place: int, share: float) -> "Mixture":
        """Return a mixture on the way from one of the distributions alone (share 0) to this one (share 1)."""
        shares = [share * each for each in self.shares]
        shares[place] += 1 - share
        return replace(self, shares=tuple(shares), temperature=self.temperature**share)

    def __call__(self, log_probs: Sequence[Tensor], rows: Tensor) -> Tensor:
        """Return the log-probabilities of the mixture of some rows, from those of each distribution."""
        used = [(part, share) for part, share in zip(log_probs, self.shares, strict=True) if share > 0]
        shares, smoothing, temperature = (
            torch.tensor(each, dtype=torch.float64)
            for each in ([share for _, share in used], self.smoothing, self.temperature)
        )
        mixed = log_probs[0].new_empty((len(rows), log_probs[0].shape[1]))
        size = max(1, _BLOCK_ENTRIES // mixed.shape[1])
        for into, block in zip(mixed.split(size), rows.split(size), strict=True):
            into.copy_(_mixed((part[block] for part, _ in used), shares, smoothing, temperature))
        return mixed


@dataclass(frozen=True, eq=False)
class _Fold:
    """A fold of the out-of-fold predictions of a pool.

    Attributes:
        rest: The rows outside it.
        inside: The rows inside it.
        mixture: How it is mixed, found on the rows outside it.
    """

    rest: Tensor
    inside: Tensor
    mixture: Mixture

    def drawn_back(self, place: int, gains: Tensor, beside: "_Beside") -> "_Fold":
        """Return the fold with a mixture drawn back to a distribution as the gains outside it demand."""
        share = _trust(gains[self.rest], **_at(beside, self.rest))
        return replace(self, mixture=self.mixture.drawn_back(place, share))


class _Beside(TypedDict):
    """What stands beside the labels: how much each sample counts, and the unit of each; None if all equal."""

    weights: Tensor | None
    units: Tensor | None


def _at(beside: _Beside, rows: Tensor) -> _Beside:
    return {"weights": rows_of(beside["weights"], rows), "units": rows_of(beside["units"], rows)}


def _follow_with_curve(
    mixed: Tensor, held_out: Sequence[Tensor], labels: Tensor, parts: Sequence[_Fold], beside: _Beside
) -> MeanTemperature | None:
    """Fit the temperatures that follow a mixture, and apply those fitted without a fold to that fold.

    Args:
        mixed: Out-of-fold log-probabilities of the mixture, changed in place, shape ``(n, k)``.
        held_out: Those of each member.
        labels: Labels of shape ``(n,)``.
        parts: The folds.
        beside: The weights and the units of the samples.

    Returns:
        The temperatures; None if they cannot be fitted.
    """

    def fitted(log_probs: Tensor, rows: Tensor, strengths: Sequence[float] | None = None) -> MeanTemperature:
        return MeanTemperature.fit(log_probs, labels[rows], strengths=strengths, **_at(beside, rows))

    rows = _some(torch.arange(len(labels), device=labels.device))
    try:
        curve, of_folds = fitted(mixed[rows], rows), []
        for part in parts:
            rest = _some(part.rest)
            of_folds.append(fitted(part.mixture(held_out, rest), rest, curve.for_folds["strengths"]))
    except CalibrantError:
        return None
    for part, each in zip(parts, of_folds, strict=True):
        mixed[part.inside] = each(mixed[part.inside])
    return curve


def _some(rows: Tensor) -> Tensor:
    """Return the rows, or of many as many as a curve is fitted to, evenly spread."""
    return rows[:: math.ceil(len(rows) / _MOST_FOR_CURVE)]


def _trust(gains: Tensor, weights: Tensor | None = None, units: Tensor | None = None) -> float:
    """Return the probability that a gain is real: 0 if it is evidently a loss, 1 if it is almost certain."""
    parts = torch.ones_like(gains) if weights is None else weights.to(gains)
    parts = parts / parts.sum()
    mean = float(parts @ gains)
    error = float(of_units(parts * (gains - mean), units).norm())
    z = mean / error if error > 0 else 0.0
    probability = (1 + math.erf(z / math.sqrt(2))) / 2
    if z < -1:
        return 0.0
    return 1.0 if probability > 1 - _SMALLEST_SHARE else probability


@torch.no_grad()
def likeliest_mixture(
    log_probs: Sequence[Tensor],
    labels: Tensor,
    rows: Tensor | None = None,
    *,
    weights: Tensor | None = None,
    units: Tensor | None = None,
) -> Mixture:
    """Find the mixture under which labels are likeliest: first the shares, then the temperature.

    Shares below two per cent become 0, and the others are found again.

    Args:
        log_probs: Held-out log-probabilities of each distribution, shape ``(n, k)``.
        labels: Labels of shape ``(n,)``.
        rows: The samples to use; all by default.
        weights: How much each of all samples counts, above 0, shape ``(n,)``.
        units: The unit of each of all samples, from 0, shape ``(n,)``.
    """
    rows = torch.arange(len(labels), device=labels.device) if rows is None else rows
    y = labels[rows]
    of_labels = torch.stack([part[rows, y] for part in log_probs], dim=1).double()
    likelihoods = (of_labels - of_labels.amax(dim=1, keepdim=True)).exp()
    w = effective_rows(weights, rows)
    shares = _shares(likelihoods.cpu().numpy(), None if w is None else w.cpu().numpy())
    mixture = Mixture(shares, 1 / (size_of(rows, w) + 1), 1.0)
    mixed = FittingSet(mixture(log_probs, rows), y, weights=w, units=rows_of(units, rows))
    return replace(mixture, temperature=_shrunk_temperature(mixed, likeliest_temperature(mixed)))


def _shrunk_temperature(data: FittingSet, temperature: float) -> float:
    r"""Shrink a temperature towards 1 by how uncertain it is.

    At the likeliest temperature, :math:`\log T` has the variance :math:`1/I`, where the information
    :math:`I` is the sum of the variances of the scaled log-probabilities under their own distributions. The
    share :math:`1 - 1 / (I \log^2 T)` of its square is not chance. Samples that depend on each other inform
    less: :math:`I` is divided by the design effect of their scores :math:`\log p_y - E \log p`.
    """
    information, size, scores = 0.0, max(1, _BLOCK_ENTRIES // data.n_classes), []
    for start in range(0, len(data), size):
        rows = slice(start, start + size)
        scaled = finite(data.logits[rows] / temperature)
        probs = torch.softmax(scaled, dim=1)
        mean = (probs * scaled).sum(dim=1, keepdim=True)
        variances = probs * (scaled - mean).square()
        each = None if data.weights is None else data.weights[rows, None]
        information += float(sum_of(variances, each))
        if data.units is not None:
            scores.append((scaled.gather(1, data.labels[rows, None]) - mean).squeeze(1))
    if data.units is not None:
        information /= design_effect(torch.cat(scores), data.weights, data.units)
    evidence = information * math.log(temperature) ** 2
    return temperature ** (1 - 1 / evidence) if evidence > 1 else 1.0


def _shares(likelihoods: Floats, weights: Floats | None) -> tuple[float, ...]:
    kept = np.arange(likelihoods.shape[1])
    while True:
        shares = likeliest_shares(likelihoods[:, kept], weights=weights)
        if len(kept) == 1 or shares.min() >= _SMALLEST_SHARE:
            break
        large = shares >= _SMALLEST_SHARE
        kept = kept[large] if large.any() else np.delete(kept, shares.argmin())
    every = np.zeros(likelihoods.shape[1])
    every[kept] = shares
    return tuple(every.tolist())


def _mixed(parts: Iterable[Tensor], shares: Tensor, smoothing: Tensor, temperature: Tensor) -> Tensor:
    mixed: Tensor | None = None
    for part, log_share in zip(parts, torch.log((1 - smoothing) * shares).unbind(), strict=True):
        weighted = part + log_share
        mixed = weighted if mixed is None else torch.logaddexp(mixed, weighted)
    assert mixed is not None
    even = torch.log(smoothing * uniform(mixed))
    return torch.log_softmax(torch.logaddexp(mixed, even) / temperature, dim=1)


def _cross_fitted(method: Method, data: FittingSet) -> tuple[Calibrator, Tensor]:
    """Return a method fitted on all samples, and the log-probabilities of each sample without its fold."""
    whole = method.fit(data)
    log_probs = torch.empty_like(at_least_float32(data.logits))
    for fold in data.folds.unique().tolist():
        inside = data.folds == fold
        features = None if data.features is None else data.features[inside]
        fitted = method.fit(data.without(fold), options=whole.for_folds)
        log_probs[inside] = fitted.predict_log_proba(data.logits[inside], features).to(log_probs)
    return whole, log_probs
