"""Group calibration: temperatures for groups of samples, where the groups are learned.

Yang et al., "Beyond Probability Partitions: Calibrating Neural Networks with Semantic Aware Grouping",
NeurIPS 2023.
"""

import math
from contextlib import nullcontext
from itertools import product
from typing import Self, Unpack

import numpy as np
import torch
from torch import Tensor

from calibrant.inputs import (
    ArrayLike,
    Floats,
    at_least_float32,
    check_count,
    check_features,
    check_flag,
    check_number,
)
from calibrant.outcomes import mean_of
from calibrant.posthoc.calibrator import Calibrator, required_features
from calibrant.posthoc.fitting.masked import lowest_for_masked, mask_again
from calibrant.posthoc.fitting.stored import POSITIVE, Numbers, declare
from calibrant.posthoc.fitting.temperature_search import likeliest_temperature
from calibrant.posthoc.fitting.tempered import log_sum_exp
from calibrant.posthoc.fitting.weighing import moments, size_of
from calibrant.posthoc.fitting_set import FittingSet, Rows, sparing_threads
from calibrant.threads import one_thread_each

# The predicted class leads by at least this share: more than the rounding of a sum can undo.
_LEAD = 1e-5

# Temperatures of groups stay within a factor of 8 of the common one. In between, the likelihood is tabulated:
# a cubic that meets value and slope at both nodes is off by 1e-5 or less.
_LIMIT = math.log(8)
_NODES = 33
_STEP = 2 * _LIMIT / (_NODES - 1)

_MAX_STEPS = 100

# With fewer entries of features than this, threads wait for each other longer than they work.
_WORTH_THREADS = 1 << 22


class GroupCalibration(Calibrator):
    r"""One temperature for each learned group of similar samples; the predicted class never changes.

    A partition assigns a sample softly to groups by a linear map of its features :math:`h` (or of its
    logits), and several partitions are averaged:

    .. math:: p(x) = \frac1U \sum_{u=1}^{U} \sum_{g=1}^{G} \mathrm{softmax}_g(W_u h + b_u)\,
        \mathrm{softmax}(z / T_{ug})

    The paper assigns each sample to its likeliest group and fits the temperatures again (``hard``); the soft
    assignment, with which the partition is learned, has no jumps. Where the groups depend on logits, a masked
    class counts as the least likely one that exists.
    """

    preserves_accuracy = True
    masks = True
    options = ("on_features", "hard")

    stored = declare(
        weight=Numbers(("u+1", "g+1", "d")),
        bias=Numbers(("u+1", "g+1")),
        temperature=Numbers(("u+1", "g+1"), POSITIVE),
    )

    on_features: bool
    hard: bool = False
    weight: Tensor
    bias: Tensor
    temperature: Tensor

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor,
        temperature: Tensor,
        *,
        on_features: bool = False,
        hard: bool = False,
        n_classes: int | None = None,
    ) -> None:
        super().__init__(n_classes=n_classes)
        self.on_features, self.hard = on_features, hard
        self.register_buffers(weight=weight, bias=bias, temperature=temperature)

    @classmethod
    @sparing_threads
    def fit(
        cls,
        logits: ArrayLike | FittingSet,
        labels: ArrayLike | None = None,
        *,
        n_groups: int = 2,
        n_partitions: int = 5,
        weight_decay: float = 1.0,
        hard: bool = False,
        **rows: Unpack[Rows],
    ) -> Self:
        """Learn partitions and temperatures together by likelihood, from several random starts.

        A partition that ends less likely than temperature scaling is replaced by it, so by convexity the
        average is never less likely either. Temperatures stay within a factor of 8 of the common one.
        Different starts mostly end at the same partition: five did as well as the paper's twenty.

        Args:
            logits: Scores of shape ``(n, k)``, or ``(n,)`` for the log-odds of class 1.
            labels: Integer classes of shape ``(n,)``.
            n_groups: Groups in a partition.
            n_partitions: Partitions that are averaged.
            weight_decay: Strength of the pull of the partition's weights to 0; 1 means that a sample's
                log-odds of belonging to a group are about 1 before any data are seen.
            hard: Assign every sample to its likeliest group, as the paper does, and fit the temperature of
                each group again on its samples alone; a group without samples gets the common temperature.
                The fitting set may then be less likely than by temperature scaling.

        Raises:
            FitError: There is no common temperature to start from, see :meth:`TemperatureScaling.fit`.
        """
        data = cls.data(logits, labels, **rows)
        z, y, w = data.logits, data.labels, data.weights
        h = lowest_for_masked(z) if data.features is None else check_features(data.features, n=len(data))
        n_groups, n_partitions = check_count(n_groups, "n_groups"), check_count(n_partitions, "n_partitions")
        check_number(weight_decay, "weight_decay", at_least=0)
        check_flag(hard, "hard")
        common = likeliest_temperature(data)
        centre, scale = moments(h.double(), w)
        # A constant feature cannot separate groups.
        scale = torch.where(scale > 1e-12 * centre.abs(), scale, torch.inf)
        likelihood = PartitionLikelihood(
            z / common,
            y,
            (h.double() - centre) / scale,
            n_groups=n_groups,
            weight_decay=weight_decay,
            weights=w,
        )
        rng = np.random.default_rng(data.seed)
        slopes, log_betas = zip(*(likelihood.solve(rng) for _ in range(n_partitions)), strict=True)
        weight = torch.stack(slopes) / scale
        bias = -(weight @ centre)
        temperature = common * torch.stack(log_betas).neg().exp()
        if hard:
            places = torch.einsum("nd,ugd->ung", h.double(), weight) + bias[:, None]
            groups = places.argmax(dim=2)
            temperature = _refitted(data, groups, n_groups=n_groups, common=common)
        return cls(
            weight,
            bias,
            temperature,
            on_features=data.features is not None,
            hard=hard,
            n_classes=z.shape[1],
        )

    @property
    def sizes(self) -> dict[str, int]:
        """The number of classes, which is that of inputs if it groups by logits."""
        known = super().sizes
        return known if self.on_features or "k" not in known else known | {"d": known["k"]}

    @property
    def n_features(self) -> int | None:
        """Number of features that it groups by; None if it groups by logits."""
        return self.weight.shape[2] if self.on_features else None

    def forward(self, logits: Tensor, features: Tensor | None = None) -> Tensor:
        """Return calibrated log-probabilities of shape ``(n, k)``."""
        z = at_least_float32(logits)
        h = lowest_for_masked(z)
        if self.on_features:
            h = torch.as_tensor(required_features(features, type(self).__name__)).to(z.dtype)
        probs = torch.zeros_like(z)
        for weight, bias, temperature in zip(
            self.weight.to(z.dtype), self.bias.to(z.dtype), self.temperature.to(z.dtype), strict=True
        ):
            share = self._shares(h @ weight.T + bias) / len(self.weight)
            for g in range(len(bias)):
                probs = probs + share[:, g : g + 1] * torch.softmax(z / temperature[g], dim=1)
        is_top = torch.arange(z.shape[1], device=z.device) == z.argmax(dim=1, keepdim=True)
        probs = torch.where(is_top, probs.amax(dim=1, keepdim=True) * (1 + _LEAD), probs)
        log_p = torch.log((probs / probs.sum(dim=1, keepdim=True)).clamp(min=torch.finfo(z.dtype).tiny))
        return mask_again(log_p, z)

    def _shares(self, places: Tensor) -> Tensor:
        """Return how much each sample belongs to each group of a partition, shape ``(n, g)``."""
        if self.hard:
            groups = torch.arange(places.shape[1], device=places.device)
            return (groups == places.argmax(dim=1, keepdim=True)).to(places.dtype)
        return torch.softmax(places, dim=1)


def _refitted(data: FittingSet, groups: Tensor, *, n_groups: int, common: float) -> Tensor:
    """Return the likeliest temperature of each group of each partition, shape ``(u, g)``.

    Args:
        data: The samples.
        groups: The group of each sample in each partition, shape ``(u, n)``.
        n_groups: Groups in a partition.
        common: The temperature of a group without samples.
    """
    temperatures = torch.full((len(groups), n_groups), common, dtype=torch.float64, device=groups.device)
    for u, g in product(range(len(groups)), range(n_groups)):
        rows = groups[u] == g
        if bool(rows.any()):
            temperatures[u, g] = likeliest_temperature(data.take(rows))
    return temperatures


class PartitionLikelihood:
    r"""The negative log-likelihood of a soft partition, for logits that have been divided by one temperature.

    .. math:: L = -\frac1n \sum_i \log \sum_g \mathrm{softmax}_g(W h_i)\,\mathrm{softmax}_{y_i}(\beta_g z_i)
        + \frac{\lambda d}{2 n} \|W\|^2

    The penalty is that of a normal prior under which the log-odds of the groups of a sample are about 1.
    A partition with no weights is temperature scaling.
    """

    def __init__(
        self,
        logits: Tensor,
        labels: Tensor,
        features: Tensor,
        *,
        n_groups: int,
        weight_decay: float,
        weights: Tensor | None = None,
    ) -> None:
        self._h = features.T.contiguous()
        self._n_groups = n_groups
        self._decay = weight_decay * features.shape[1] / size_of(features, weights)
        # Of mean 1, so that a mean over samples is one of products with them.
        self._counts = None if weights is None else weights / weights.mean()
        self._values, self._slopes = _label_table(logits, labels)

    def solve(self, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
        """Minimise from a random start; never less likely than temperature scaling.

        Returns:
            Weights of shape ``(g, d)`` that assign a sample to groups, and their log inverse temperatures.
        """
        from scipy.optimize import minimize

        g, d = self._n_groups, self._h.shape[0]
        start = np.concatenate([rng.uniform(-1, 1, g * d) / math.sqrt(d), np.zeros(g)])
        with one_thread_each() if self._h.numel() < _WORTH_THREADS else nullcontext():
            found = minimize(
                self._loss,
                start,
                jac=True,
                method="L-BFGS-B",
                bounds=[(None, None)] * (g * d) + [(-_LIMIT, _LIMIT)] * g,
                options={"maxiter": _MAX_STEPS, "ftol": 1e-7},
            )
        nothing = np.zeros_like(start)
        best = found.x if found.fun < self._loss(nothing)[0] else nothing
        return self._unpacked(best)

    def _unpacked(self, parameters: Floats) -> tuple[Tensor, Tensor]:
        x = torch.from_numpy(parameters).to(self._h.device)
        weight, log_beta = x.split([x.numel() - self._n_groups, self._n_groups])
        return weight.view(self._n_groups, -1), log_beta

    def _loss(self, parameters: Floats) -> tuple[float, Floats]:
        weight, log_beta = self._unpacked(parameters)
        log_share = torch.log_softmax(weight @ self._h, dim=0)
        value, slope = self._label_likelihood(log_beta)
        total = torch.logsumexp(log_share + value, dim=0)
        posterior = torch.exp(log_share + value - total)
        surplus = log_share.exp() - posterior
        if self._counts is not None:
            posterior, surplus = posterior * self._counts, surplus * self._counts
        loss = -mean_of(total, self._counts) + self._decay / 2 * weight.square().sum()
        weight_slope = surplus @ self._h.T / len(total) + self._decay * weight
        beta_slope = -(posterior * slope).mean(dim=1)
        return float(loss), torch.cat([weight_slope.flatten(), beta_slope]).cpu().numpy()

    def _label_likelihood(self, log_beta: Tensor) -> tuple[Tensor, Tensor]:
        """Return the log-probability of each label, and its slope, at each temperature, shape ``(g, n)``."""
        place = (log_beta + _LIMIT) / _STEP
        node = place.floor().clamp(0, _NODES - 2).long()
        t = (place - node)[:, None]
        f0, f1 = self._values[node], self._values[node + 1]
        g0, g1 = self._slopes[node], self._slopes[node + 1]
        a2, a3 = 3 * (f1 - f0) - 2 * g0 - g1, 2 * (f0 - f1) + g0 + g1
        return f0 + t * (g0 + t * (a2 + t * a3)), (g0 + t * (2 * a2 + t * 3 * a3)) / _STEP


def _label_table(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return log-probabilities of labels and their slopes per node at the nodes of ``log(beta)``."""
    function = log_sum_exp(logits)
    top = logits.amax(dim=1, keepdim=True)
    deficit = (logits.gather(1, labels[:, None]) - top).squeeze(1).double()
    values, slopes = [], []
    for node in range(_NODES):
        log_beta = torch.full_like(deficit, node * _STEP - _LIMIT).requires_grad_()
        value = log_beta.exp() * deficit - function(log_beta)
        slopes.append(_STEP * torch.autograd.grad(value.sum(), log_beta)[0])
        values.append(value.detach())
    return torch.stack(values), torch.stack(slopes)
