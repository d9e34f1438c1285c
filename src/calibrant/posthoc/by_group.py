"""Repair by group: one map for all samples, corrected for each group as far as its samples show."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Self, Unpack

import numpy as np
import torch
from torch import Tensor

from calibrant.errors import InputError
from calibrant.inputs import ArrayLike, column_sets
from calibrant.posthoc.calibrator import Calibrator, GroupsLike, crossed_names, group_places
from calibrant.posthoc.fitting.masked import mask_again
from calibrant.posthoc.fitting.stored import NOT_NEGATIVE, Numbers, declare
from calibrant.posthoc.fitting.weighing import design_effect
from calibrant.posthoc.fitting_set import FittingSet, Rows, sparing_threads
from calibrant.posthoc.names import method_named

# Candidates for how much intercepts and slopes differ between groups, as standard deviations. 0 means that
# all groups share one map.
_SPREADS = (0.0, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6)

_STEPS = 50
_LEAST_STEP = 1e-9


class ByGroup(Calibrator):
    r"""Correct a common calibrator for each group of samples, such as the subject of a question.

    .. math:: s' = (1 + b_g)\,s + a_g, \qquad a_g \sim N(0, \tau_a^2), \; b_g \sim N(0, \tau_b^2)

    for log-odds :math:`s` of the common calibrator. A group with many samples gets its own intercept and
    slope; one with few stays near the common map, and a group that was not seen gets the common map itself.
    How far groups differ, :math:`\tau_a` and :math:`\tau_b`, is what the samples make likeliest (empirical
    Bayes): where groups do not differ, both are 0 and nothing is corrected. With more than two classes the
    log-probabilities are multiplied by :math:`1 + b_g`, and there are no intercepts.

    Groups of several columns, such as race and sex, have effects that add up: those of each column, and those
    of the columns together,

    .. math:: a = a_{\mathrm{race}} + a_{\mathrm{sex}} + a_{\mathrm{race, sex}}

    and :math:`b` likewise. Each of these families has spreads of its own. A sample of a combination that was
    not seen gets the effects of its race and of its sex.

    Attributes:
        base: The common calibrator.
        names: The groups; of several columns, those of each column, then those of the columns together.
        intercepts: :math:`a_g` of each group.
        slopes: :math:`b_g` of each group.
        spreads: :math:`\tau_a` and :math:`\tau_b`, of several columns those of each family.
        columns: The columns that make the groups, if there are several.
    """

    masks = True
    options = ("names", "columns", "needs_features", "preserves_accuracy")

    stored = declare(
        intercepts=Numbers(("groups",)),
        slopes=Numbers(("groups",)),
        spreads=Numbers(("spreads",), NOT_NEGATIVE),
    )
    part_names = ("base",)
    columns: tuple[str, ...] = ()

    base: Calibrator
    names: list[str]
    intercepts: Tensor
    slopes: Tensor
    spreads: Tensor

    def __init__(
        self,
        base: Calibrator,
        names: Sequence[str],
        intercepts: Tensor,
        slopes: Tensor,
        spreads: Sequence[float] = (0.0, 0.0),
        columns: Sequence[str] = (),
    ) -> None:
        super().__init__(n_classes=base.n_classes)
        self.base = base
        self.names = list(names)
        self.columns = tuple(columns)
        self.needs_features = base.needs_features
        self.preserves_accuracy = base.preserves_accuracy and not bool(intercepts.any())
        self.register_buffers(
            intercepts=intercepts, slopes=slopes, spreads=torch.tensor(spreads, dtype=torch.float64)
        )

    @classmethod
    @sparing_threads
    def fit(
        cls,
        logits: ArrayLike | FittingSet,
        labels: ArrayLike | None = None,
        *,
        groups: GroupsLike | None = None,
        method: str = "temperature",
        **rows: Unpack[Rows],
    ) -> Self:
        """Fit a method to all samples, and a correction for each group to what it leaves.

        :func:`calibrant.evaluation.compare` makes the same correction from out-of-fold predictions, which
        methods with many parameters need; here the method is judged on the samples that it was fitted on.

        Args:
            logits: Scores of shape ``(n, k)``, or ``(n,)`` for the log-odds of class 1.
            labels: Integer classes of shape ``(n,)``.
            groups: The name of the group of each sample, of shape ``(n,)``; or several columns of them by
                name, such as race and sex.
            method: The method for all samples, from :data:`calibrant.posthoc.names.METHODS`.
        """
        if groups is None:
            raise InputError("groups: expected the name of each sample's group, got none")
        data = cls.data(logits, labels, **rows)
        if isinstance(groups, Mapping) and len(groups) == 1:
            (groups,) = groups.values()
        columns = tuple(groups) if isinstance(groups, Mapping) else ()
        named = crossed_names(groups, columns) if isinstance(groups, Mapping) else [groups]
        if not named:
            raise InputError("groups: expected one column of groups at least, got none")
        base = method_named(method).fit(data)
        names = [name for each in named for name in np.unique(np.asarray(each).astype(str)).tolist()]
        places = torch.stack([group_places(data.names_of(each), names, n=len(data)) for each in named], dim=1)
        log_probs = base.predict_log_proba(data.logits, data.features)
        return cls.of(
            base,
            log_probs,
            data.labels,
            names,
            places if columns else places.squeeze(1),
            columns=columns,
            weights=data.weights,
            units=data.units,
        )

    @classmethod
    @torch.no_grad()
    def of(
        cls,
        base: Calibrator,
        log_probs: Tensor,
        labels: Tensor,
        names: Sequence[str],
        places: Tensor,
        *,
        columns: Sequence[str] = (),
        weights: Tensor | None = None,
        units: Tensor | None = None,
        spreads: Sequence[float] | None = None,
    ) -> Self:
        r"""Correct a fitted calibrator by its predictions of held-out samples.

        Args:
            base: The common calibrator.
            log_probs: Its log-probabilities of samples, best by fits that have not seen them, ``(n, k)``.
            labels: Labels of shape ``(n,)``.
            names: The groups.
            places: The place of each sample's group among the names, shape ``(n,)``; of several columns, its
                places for each set of columns, shape ``(n, sets)``.
            columns: The columns that make the groups, if there are several.
            weights: How much each sample counts among those of its group, all above 0, shape ``(n,)``.
            units: The unit of each sample, from 0, if samples depend on each other: a group is then weighed
                against the prior by its number of samples divided by their design effect.
            spreads: :math:`\tau_a` and :math:`\tau_b`, if they are known already.
        """
        kind = _CrossedSamples if columns else _Samples
        samples = kind(log_probs.double(), labels, places.to(labels.device), len(names), weights, units)
        if spreads is not None:
            each = torch.tensor(spreads).view(-1, 2)[:, -samples.n_parameters :]
            found = samples.likeliest(tuple(each.flatten().tolist()))
        else:
            found = samples.likeliest((_SPREADS[0],) * samples.n_spreads)
            # Each spread in turn, twice: a grid of both together finds the same and takes longer.
            for place in (*range(samples.n_spreads), *range(samples.n_spreads)):
                others = [(*found.spreads[:place], each, *found.spreads[place + 1 :]) for each in _SPREADS]
                found = max([found, *map(samples.likeliest, others)], key=lambda each: each.evidence)
        theta, chosen = found.theta, found.spreads
        if samples.n_parameters == 1:
            chosen = tuple(number for spread in chosen for number in (0.0, spread))
            theta = torch.cat([torch.zeros_like(theta), theta], dim=1)
        return cls(base, names, theta[:, 0].clone(), theta[:, 1].clone(), chosen, columns)

    @property
    def sizes(self) -> dict[str, int]:
        """The number of classes and that of groups."""
        sets = max(1, len(column_sets(self.columns)))
        return super().sizes | {"groups": len(self.names), "spreads": 2 * sets}

    @property
    def group_names(self) -> tuple[str, ...]:
        """The groups that have a map of their own."""
        return tuple(self.names)

    @property
    def group_columns(self) -> tuple[str, ...]:
        """The columns that make the groups, if there are several."""
        return tuple(self.columns)

    def forward(self, logits: Tensor, features: Tensor | None = None, groups: Tensor | None = None) -> Tensor:
        """Return calibrated log-probabilities of shape ``(n, k)``.

        Args:
            logits: Scores of shape ``(n, k)``.
            features: Penultimate activations of shape ``(n, d)``, for methods that use them.
            groups: The place of each sample's group among ``names``; -1, or none at all, for the common map.
                Of several columns, its places for each set of columns, shape ``(n, sets)``.
        """
        common: Tensor = self.base(logits, features)
        if groups is None:
            return common
        each = groups if self.columns else groups[:, None]
        seen, place = (each >= 0).to(common), each.clamp(min=0)
        known = (each >= 0).any(dim=1, keepdim=True)
        scale = 1 + (seen * self.slopes.to(common)[place]).sum(dim=1, keepdim=True)
        shift = (seen * self.intercepts.to(common)[place]).sum(dim=1, keepdim=True)
        corrected = scale * common.masked_fill(common == -torch.inf, 0.0)
        if common.shape[1] == 2:
            corrected = corrected + torch.cat([-shift, shift], dim=1) / 2
        return torch.where(known, torch.log_softmax(mask_again(corrected, common), dim=1), common)


class _Found(NamedTuple):
    evidence: float
    spreads: tuple[float, ...]
    theta: Tensor


class _Samples:
    """Held-out log-probabilities, from which the corrections of all groups are found at once.

    A correction adds to the log-probabilities, which are the logits here, a multiple of each of ``parts``:
    shape ``(n, parameters, k)``. Nothing is added to masked classes. Weights are scaled so that their sum
    over a group is its effective number of samples, which is weighed against the prior. Samples that depend
    on each other within a group are fewer than they seem, by the design effect of the residuals of the true
    class.
    """

    def __init__(
        self,
        log_probs: Tensor,
        labels: Tensor,
        places: Tensor,
        n_groups: int,
        weights: Tensor | None,
        units: Tensor | None,
    ) -> None:
        self.log_probs, self.labels, self.places, self.n_groups = log_probs, labels, places, n_groups
        self.weights: Tensor | None = None
        if weights is not None:
            w = (weights / weights.max()).to(log_probs)
            scale = self._per_group(w) / self._per_group(w.square())
            self.weights = w * scale[places]
        if units is not None:
            residuals = 1 - log_probs.gather(1, labels[:, None]).squeeze(1).exp()
            within = torch.unique(units * n_groups + places, return_inverse=True)[1]
            each = torch.ones_like(residuals) if self.weights is None else self.weights
            self.weights = each / design_effect(residuals, weights, within)
        inside = log_probs.masked_fill(log_probs == -torch.inf, 0.0)
        self.parts = inside[:, None]
        if log_probs.shape[1] == 2:
            shift = log_probs.new_tensor([-0.5, 0.5]).expand_as(log_probs)
            self.parts = torch.stack([shift, inside], dim=1)

    @property
    def n_parameters(self) -> int:
        """Two for two classes, the intercept and the slope; else the slope alone."""
        return self.parts.shape[1]

    @property
    def n_spreads(self) -> int:
        """The number of spreads that are looked for."""
        return self.n_parameters

    def likeliest(self, spreads: tuple[float, ...]) -> "_Found":
        """Return the evidence for spreads, and the likeliest parameters of each group.

        The evidence is the likelihood of the samples with the parameters integrated out, by Laplace's
        approximation, up to a constant.
        """
        free = torch.tensor([spread > 0 for spread in spreads], device=self.places.device)
        # A parameter without spread stays 0, and its precision cancels out.
        precision = torch.tensor([1 / spread**2 if spread else 1.0 for spread in spreads]).to(self.log_probs)
        theta = self.log_probs.new_zeros(self.n_groups, len(spreads))
        for _ in range(_STEPS if bool(free.any()) else 0):
            # A bounded step keeps Newton's method from overshooting where a group is almost separable.
            step = torch.linalg.solve(*self._derivatives(theta, precision, free)).clamp(-1, 1)
            theta = theta - step
            if float(step.abs().max()) < _LEAST_STEP:
                break
        curvature, _ = self._derivatives(theta, precision, free)
        penalty = 0.5 * (theta.square() * precision).sum(dim=1)
        volume = 0.5 * (torch.linalg.slogdet(curvature).logabsdet - precision.log().sum())
        evidence = -float((self._losses(theta) + penalty + volume).sum())
        return _Found(evidence if math.isfinite(evidence) else -math.inf, spreads, theta)

    def _corrected(self, theta: Tensor) -> Tensor:
        added = torch.einsum("nd,ndk->nk", theta[self.places], self.parts)
        return torch.log_softmax(self.log_probs + added, dim=1)

    def _losses(self, theta: Tensor) -> Tensor:
        return self._per_group(-self._corrected(theta).gather(1, self.labels[:, None]).squeeze(1))

    def _per_group(self, values: Tensor) -> Tensor:
        """Return the weighted sum of values of shape ``(n, ...)`` over the samples of each group."""
        if self.weights is not None:
            values = values * self.weights.view(-1, *(1,) * (values.ndim - 1))
        return values.new_zeros(self.n_groups, *values.shape[1:]).index_add(0, self.places, values)

    def _derivatives(self, theta: Tensor, precision: Tensor, free: Tensor) -> tuple[Tensor, Tensor]:
        """Return the curvature ``(g, d, d)`` and the gradient ``(g, d)`` of each group's penalised loss."""
        p = self._corrected(theta).exp()
        mean = torch.einsum("ndk,nk->nd", self.parts, p)
        at_label = self.labels[:, None, None].expand(-1, self.n_parameters, 1)
        of_label = self.parts.gather(2, at_label).squeeze(2)
        centred = self.parts - mean[:, :, None]
        covariance = torch.einsum("nik,njk,nk->nij", centred, centred, p)
        gradient, curvature = self._per_group(mean - of_label), self._per_group(covariance)
        curvature = torch.where(free[:, None] & free, curvature, 0.0) + torch.diag(precision)
        return curvature, torch.where(free, gradient, 0.0) + theta * precision


class _CrossedSamples(_Samples):
    """Samples whose groups of several columns have effects that add up.

    ``families`` has the places of each sample's groups for each set of columns, shape ``(n, sets)``;
    ``places`` are those of all columns together, by which samples are weighed. All effects are found at once,
    since those of different families share samples.
    """

    def __init__(
        self,
        log_probs: Tensor,
        labels: Tensor,
        places: Tensor,
        n_groups: int,
        weights: Tensor | None,
        units: Tensor | None,
    ) -> None:
        super().__init__(log_probs, labels, places[:, -1], n_groups, weights, units)
        self.families = places
        starts = [int(column.min()) for column in places.T]  # a family may lack its last groups in a fold
        of_family = torch.bucketize(torch.arange(n_groups), torch.tensor(starts[1:]), right=True)
        self.of_family = of_family.to(places.device)

    @property
    def n_spreads(self) -> int:
        """The number of spreads: those of each family."""
        return self.n_parameters * self.families.shape[1]

    def likeliest(self, spreads: tuple[float, ...]) -> "_Found":
        """Return the evidence for the spreads of all families, and the likeliest parameters."""
        every = torch.tensor(spreads, dtype=torch.float64, device=self.places.device)
        spread = every.view(-1, self.n_parameters)[self.of_family]
        free = spread > 0
        precision = torch.where(free, 1 / spread.square().clamp(min=1e-12), 1.0)
        theta = torch.zeros_like(spread)
        for _ in range(_STEPS if bool(free.any()) else 0):
            curvature, gradient = self._derivatives(theta, precision, free)
            step = torch.linalg.solve(curvature, gradient.flatten()).view_as(theta).clamp(-1, 1)
            theta = theta - step
            if float(step.abs().max()) < _LEAST_STEP:
                break
        curvature, _ = self._derivatives(theta, precision, free)
        penalty = 0.5 * (theta.square() * precision).sum()
        volume = 0.5 * (torch.linalg.slogdet(curvature).logabsdet - precision.log().sum())
        evidence = -float(self._losses(theta).sum() + penalty + volume)
        return _Found(evidence if math.isfinite(evidence) else -math.inf, spreads, theta)

    def _corrected(self, theta: Tensor) -> Tensor:
        added = torch.einsum("nfd,ndk->nk", theta[self.families], self.parts)
        return torch.log_softmax(self.log_probs + added, dim=1)

    def _derivatives(self, theta: Tensor, precision: Tensor, free: Tensor) -> tuple[Tensor, Tensor]:
        """Return the curvature over all parameters and the gradient ``(g, d)`` of the penalised loss."""
        p, d, g = self._corrected(theta).exp(), self.n_parameters, self.n_groups
        mean = torch.einsum("ndk,nk->nd", self.parts, p)
        of_label = self.parts.gather(2, self.labels[:, None, None].expand(-1, d, 1)).squeeze(2)
        centred = self.parts - mean[:, :, None]
        slope, covariance = mean - of_label, torch.einsum("nik,njk,nk->nij", centred, centred, p)
        if self.weights is not None:
            slope, covariance = slope * self.weights[:, None], covariance * self.weights[:, None, None]
        gradient, square = theta.new_zeros(g, d), theta.new_zeros(g * g, d, d)
        for first in self.families.T:
            gradient.index_add_(0, first, slope)
            for second in self.families.T:
                square.index_add_(0, first * g + second, covariance)
        curvature = square.view(g, g, d, d).transpose(1, 2).reshape(g * d, g * d)
        used = free.flatten()
        curvature = torch.where(used[:, None] & used, curvature, 0.0) + torch.diag(precision.flatten())
        return curvature, torch.where(free, gradient, 0.0) + theta * precision


def places_of_families(codes: Sequence[Tensor], sizes: Sequence[int]) -> Tensor:
    """Return the place of each sample among the groups of all families, one after the other.

    Args:
        codes: The place of each sample among the groups of a family, for each family.
        sizes: The number of groups of each family.

    Returns:
        Integers of shape ``(n, families)``, or ``(n,)`` if there is one family.
    """
    starts = [sum(sizes[:place]) for place in range(len(sizes))]
    places = torch.stack([each + start for each, start in zip(codes, starts, strict=True)], dim=1)
    return places.squeeze(1) if len(sizes) == 1 else places
