r"""A fitting set reduced to what temperatures can change: a few numbers per sample instead of all classes.

All that a temperature does to a sample is in one smooth convex function of one number,

.. math:: F_i(\beta) = \log \sum_c e^{\beta (z_{ic} - \max_c z_{ic})}, \quad \beta = 1/T.

The confidence is :math:`e^{-F(\beta)}`, a log-probability is :math:`\beta (z_c - \max z) - F(\beta)`, and the
squared norm of the probabilities is :math:`e^{F(2\beta) - 2F(\beta)}`.
"""

import math
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from calibrant.posthoc.fitting.masked import finite, mean_of_existing
from calibrant.posthoc.fitting.weighing import size_of
from calibrant.posthoc.fitting_set import FittingSet, remembered
from calibrant.surrogates import N_BINS, SHARPNESS, Forecasts, SoftBins

# Between nodes a polynomial of degree 5 meets value, slope and curvature at both: off by 1e-6 at most.
_STEP = 0.125
_LOWEST, _HIGHEST = math.log(1e-3), math.log(2 / 0.1)
_NODES = math.ceil((_HIGHEST - _LOWEST) / _STEP) + 1

# With this many classes or fewer an exact pass costs less than looking up.
_FEW_CLASSES = 24

# A block of logits and its exponentials stay in the processor's cache, and so do the shares of some rows.
_BLOCK_ENTRIES = 1 << 17
_BLOCK_ROWS = 1 << 12


class TemperedSamples:
    """A fitting set that stores only what a temperature can change, and the weights of its samples."""

    def __init__(self, data: FittingSet) -> None:
        logits, labels, self.weights = data.logits, data.labels, data.weights
        top, predicted = logits.max(dim=1)
        self._logits, self._top = logits, top
        self.log_sum_exp = log_sum_exp(logits)
        self.correct = (predicted == labels).double()
        self.label_deficit = (logits.gather(1, labels[:, None]).squeeze(1) - top).double()

    @cached_property
    def mean_deficit(self) -> Tensor:
        """Mean logit of each sample minus its largest."""
        return mean_of_existing(finite(self._logits.double() - self._top[:, None]))

    def __len__(self) -> int:
        return len(self.correct)

    def at(self, temperature: Tensor, rows: Tensor | None = None) -> "TemperedForecasts":
        """Return the forecasts of all samples, or of some rows, at one temperature each."""
        return TemperedForecasts(self, temperature, rows)

    def at_one(self, temperature: float) -> "TemperedForecasts":
        """Return the forecasts of all samples at the same temperature."""
        return self.at(torch.full_like(self.correct, temperature))


@remembered
def tempered(data: FittingSet) -> TemperedSamples:
    """Reduce a fitting set to what a temperature can change."""
    return TemperedSamples(data)


class TemperedForecasts(Forecasts):
    """Forecasts whose logits are divided by one temperature per sample, from the log-sum-exp alone."""

    def __init__(self, samples: TemperedSamples, temperature: Tensor, rows: Tensor | None) -> None:
        self._samples, self._rows = samples, rows
        self._log_beta = -temperature.log()
        self._log_norm = samples.log_sum_exp(self._log_beta, rows)
        self.confidence = (-self._log_norm).exp()
        self.correct = self._of_rows(samples.correct)
        self.weights = None if samples.weights is None else self._of_rows(samples.weights)
        self.true_log_prob = self._log_prob(samples.label_deficit)

    @cached_property
    def bins(self) -> SoftBins:
        """Soft bins of the confidences, as :func:`~calibrant.surrogates.soft_bins` makes them, but faster."""
        total, surplus, variance = _soft_bin_sums(self.confidence, self.correct, self.weights)
        divisor = total.clamp_min(torch.finfo(total.dtype).tiny)
        n = size_of(self.confidence, self.weights)
        return SoftBins(total / n, surplus / divisor, variance.sqrt() / divisor.detach())

    def _of_rows(self, values: Tensor) -> Tensor:
        return values if self._rows is None else values[self._rows]

    def _log_prob(self, deficit: Tensor) -> Tensor:
        return self._log_beta.exp() * self._of_rows(deficit) - self._log_norm

    def mean_log_prob(self) -> Tensor:
        """Return the mean log-probability over the classes."""
        return self._log_prob(self._samples.mean_deficit)

    def squared_norm(self) -> Tensor:
        """Return the sum over the classes of the squared probability."""
        doubled = self._samples.log_sum_exp(self._log_beta + math.log(2), self._rows)
        return (doubled - 2 * self._log_norm).exp()


class _SoftBinSums(torch.autograd.Function):
    r"""Sums over samples of their shares in the soft bins, with the gradient written out.

    The shares :math:`w_{ib} \propto e^{-\lambda (p_i - c_b)^2}` of a block of samples are computed,
    used and dropped, so that they stay in the cache; :math:`\partial w_{ib} / \partial p_i =
    2 \lambda w_{ib} (c_b - \sum_{b'} w_{ib'} c_{b'})`. The weight of a sample multiplies all its shares.
    """

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401  # torch gives it no type
        confidence: Tensor,
        correct: Tensor,
        weights: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return, for each bin, the sums of share, share times surplus, and squared share times variance."""
        ctx.save_for_backward(confidence, correct, weights)
        sums = confidence.new_zeros((N_BINS, 3))
        terms = torch.stack(
            [torch.ones_like(confidence), confidence - correct, confidence * (1 - confidence)]
        )
        if weights is not None:
            terms *= torch.stack([weights, weights, weights.square()]).to(terms)
        for p, term in zip(confidence.split(_BLOCK_ROWS), terms.split(_BLOCK_ROWS, dim=1), strict=True):
            share = _shares(p)
            sums[:, :2] += share @ term[:2].T
            sums[:, 2] += share.square_() @ term[2]
        total, surplus, variance = sums.unbind(dim=1)
        ctx.mark_non_differentiable(variance)
        return total, surplus, variance

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:  # noqa: ANN401  # torch gives it no type
        """Return the gradient by the confidences."""
        confidence, correct, counts = ctx.saved_tensors
        centers = _centers(confidence)
        by_total, by_surplus = gradients[:2]
        weights = torch.stack([by_total, by_total * centers, by_surplus, by_surplus * centers, centers])
        blocks = [weights @ _shares(p) for p in confidence.split(_BLOCK_ROWS)]
        total, total_c, surplus, surplus_c, center = torch.cat(blocks, dim=1).to(confidence).unbind()
        slope = total_c - center * total + (confidence - correct) * (surplus_c - center * surplus)
        slope = surplus + 2 * SHARPNESS * slope
        return slope if counts is None else counts.to(slope) * slope, None, None


def _soft_bin_sums(
    confidence: Tensor, correct: Tensor, weights: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    sums: tuple[Tensor, Tensor, Tensor] = _SoftBinSums.apply(confidence, correct, weights)  # type: ignore[no-untyped-call]
    return sums


def _shares(confidence: Tensor) -> Tensor:
    """Return the share of each sample in each soft bin, shape ``(n_bins, n)``."""
    share = (confidence - _centers(confidence)[:, None]).square_().mul_(-SHARPNESS).exp_()
    return share.div_(share.sum(dim=0))


def _centers(like: Tensor) -> Tensor:
    return (torch.arange(N_BINS, device=like.device, dtype=like.dtype) + 0.5) / N_BINS


def log_sum_exp(logits: Tensor) -> "ExactLogSumExp | TabulatedLogSumExp":
    """Return the cheaper of the two forms for these logits; they agree to about 1e-7."""
    return ExactLogSumExp(logits) if logits.shape[1] <= _FEW_CLASSES else TabulatedLogSumExp(logits)


class ExactLogSumExp:
    """The definition, in float64: every call passes over all classes."""

    def __init__(self, logits: Tensor) -> None:
        z = logits.double()
        self._deficits = finite(z - z.amax(dim=1, keepdim=True))

    def __call__(self, log_beta: Tensor, rows: Tensor | None = None) -> Tensor:
        """Return :math:`F` at one ``log(beta)`` per sample or row, with a gradient."""
        deficits = self._deficits if rows is None else self._deficits[rows]
        return torch.logsumexp(log_beta.exp()[:, None] * deficits, dim=1)


class TabulatedLogSumExp:
    r"""A table of the function at equally spaced nodes of ``log(beta)``, with a polynomial between them.

    A node is computed for a row when the row first needs it, so a training run pays for few passes over the
    classes instead of one per step. Under the distribution
    :math:`\mathrm{softmax}(\beta d)` the slope in ``log(beta)`` is :math:`\beta \mathbb{E} d` and the
    curvature :math:`\beta \mathbb{E} d + \beta^2 \mathrm{Var}\, d`. Beyond temperatures of 0.05 and 1,000 the
    function is held constant.
    """

    def __init__(self, logits: Tensor) -> None:
        self._logits = logits
        n = len(logits)
        self._top = logits.amax(dim=1, keepdim=True)
        # Memory of nodes that no row needs is never touched, so a wide range costs nothing.
        self._nodes = torch.empty((3, _NODES * n), dtype=torch.float64, device=logits.device)
        self._known = torch.zeros(_NODES * n, dtype=torch.bool, device=logits.device)
        self._all = torch.arange(n, device=logits.device)

    def __call__(self, log_beta: Tensor, rows: Tensor | None = None) -> Tensor:
        """Return :math:`F` at one ``log(beta)`` per sample or row, with a gradient."""
        rows = self._all if rows is None else rows
        inside = log_beta.clamp(_LOWEST, _HIGHEST)
        with torch.no_grad():
            place = (inside.detach().double() - _LOWEST) / _STEP
            cell = place.floor().clamp_(max=_NODES - 2)
            left = cell.long() * len(self._logits) + rows
            right = left + len(self._logits)
            self._compute(torch.cat([left, right]))
            value, slope = _between(self._nodes[:, left], self._nodes[:, right], place - cell)
        return value + slope * (inside - inside.detach())

    def _compute(self, needed: Tensor) -> None:
        """Compute those of the needed nodes that are not known yet."""
        new = needed[~self._known[needed]]
        if not len(new):
            return
        for node in torch.unique(new // len(self._logits)).tolist():
            first = node * len(self._logits)
            rows = new[(new >= first) & (new < first + len(self._logits))] - first
            self._nodes[:, first + rows] = self._node(node, rows)
            self._known[first + rows] = True

    def _node(self, node: int, rows: Tensor) -> Tensor:
        """Return value, scaled slope and scaled curvature of these rows at a node, shape ``(3, r)``."""
        beta = math.exp(_LOWEST + _STEP * node)
        parts = []
        for some in rows.split(max(1, _BLOCK_ENTRIES // self._logits.shape[1])):
            scaled = finite((self._logits[some] - self._top[some]).mul_(beta))
            weight = scaled.exp()
            norm = weight.sum(dim=1).double()
            first = weight.mul_(scaled).sum(dim=1).double() / norm
            second = weight.mul_(scaled).sum(dim=1).double() / norm
            curvature = first + second - first.square()
            parts.append(torch.stack([norm.log(), _STEP * first, _STEP**2 * curvature]))
        return torch.cat(parts, dim=1)


def _between(left: Tensor, right: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
    """Return value and slope, at the share ``t`` of the way, of the polynomial that fits both nodes."""
    (f0, g0, k0), (f1, g1, k1) = left, right
    value, slope, curvature = f1 - f0 - g0 - k0 / 2, g1 - g0 - k0, k1 - k0
    a3 = 10 * value - 4 * slope + curvature / 2
    a4 = -15 * value + 7 * slope - curvature
    a5 = 6 * value - 3 * slope + curvature / 2
    at = f0 + t * (g0 + t * (k0 / 2 + t * (a3 + t * (a4 + t * a5))))
    rise = g0 + t * (k0 + t * (3 * a3 + t * (4 * a4 + t * 5 * a5)))
    return at, rise / _STEP
