"""A soft partition of samples into groups, learned together with one temperature for each group."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from calibrant.posthoc.fitting.log_sum_exp import log_sum_exp

# Temperatures of groups stay within a factor of 8 of the common one. In between, the likelihood is tabulated:
# a cubic that meets value and slope at both nodes is off by 1e-5 or less.
_LIMIT = math.log(8)
_NODES = 33
_STEP = 2 * _LIMIT / (_NODES - 1)

_MAX_STEPS = 100

# With fewer entries of features than this, threads wait for each other longer than they work.
_WORTH_THREADS = 1 << 22


class Partition(NamedTuple):
    """Weights of shape ``(g, d)`` that assign a sample to groups, and their log inverse temperatures."""

    weight: Tensor
    log_beta: Tensor


class PartitionLikelihood:
    r"""How likely labels are under a soft partition of samples whose common temperature is 1.

    .. math:: L = -\frac1n \sum_i \log \sum_g \mathrm{softmax}_g(W h_i)\,\mathrm{softmax}_{y_i}(\beta_g z_i)
        + \frac{\lambda d}{2 n} \|W\|^2

    The penalty is that of a normal prior under which a sample's log-odds of belonging to a group are about 1.
    A partition with no weights is temperature scaling.
    """

    def __init__(
        self, logits: Tensor, labels: Tensor, features: Tensor, *, n_groups: int, weight_decay: float
    ) -> None:
        self._h = features.T.contiguous()
        self._n_groups = n_groups
        self._decay = weight_decay * features.shape[1] / len(features)
        self._values, self._slopes = _label_table(logits, labels)

    def solve(self, rng: np.random.Generator) -> Partition:
        """Minimise from a random start; never less likely than temperature scaling."""
        from scipy.optimize import minimize

        g, d = self._n_groups, self._h.shape[0]
        start = np.concatenate([rng.uniform(-1, 1, g * d) / math.sqrt(d), np.zeros(g)])
        with _threads(1 if self._h.numel() < _WORTH_THREADS else torch.get_num_threads()):
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
        return self._partition(best)

    def _partition(self, parameters: npt.NDArray[np.float64]) -> Partition:
        x = torch.from_numpy(parameters).to(self._h.device)
        weight, log_beta = x.split([x.numel() - self._n_groups, self._n_groups])
        return Partition(weight.view(self._n_groups, -1), log_beta)

    def _loss(self, parameters: npt.NDArray[np.float64]) -> tuple[float, npt.NDArray[np.float64]]:
        weight, log_beta = self._partition(parameters)
        log_share = torch.log_softmax(weight @ self._h, dim=0)
        value, slope = self._label_likelihood(log_beta)
        total = torch.logsumexp(log_share + value, dim=0)
        held = torch.exp(log_share + value - total)
        loss = -total.mean() + self._decay / 2 * weight.square().sum()
        weight_slope = (log_share.exp() - held) @ self._h.T / len(total) + self._decay * weight
        beta_slope = -(held * slope).mean(dim=1)
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


@contextmanager
def _threads(n: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(n)
    try:
        yield
    finally:
        torch.set_num_threads(before)


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
