"""Feature clipping (Tao et al., "Feature Clipping for Uncertainty Calibration", AAAI 2025)."""

import math
from typing import Literal, Self, TypeAlias, Unpack, get_args

import numpy as np
import torch
from torch import Tensor

from calibrant.bins import equal_width_bins
from calibrant.errors import FitError, InputError
from calibrant.inputs import (
    ArrayLike,
    Floats,
    at_least_float32,
    check_choice,
    check_count,
    check_features,
    check_number,
    masked_classes,
    to_tensor,
)
from calibrant.outcomes import Outcomes, mean_of
from calibrant.posthoc.calibrator import Calibrator, required_features
from calibrant.posthoc.fitting.stored import POSITIVE, Numbers, declare, one_number
from calibrant.posthoc.fitting.weighing import median_of
from calibrant.posthoc.fitting_set import FittingSet, Rows, sparing_threads

ClippingObjective: TypeAlias = Literal["nll", "ece"]

# Share of the logits' spread that a linear head may leave unexplained: room for half precision.
_RESIDUAL = 0.02

_CANDIDATES = 64

# With masked classes: steps of the least squares, when they stop, and the share of the head that two searches
# from different starts may disagree about.
_MAX_STEPS = 2000
_TOLERANCE = 1e-10
_DISAGREE = 1e-3


class FeatureClipping(Calibrator):
    r"""Clip penultimate features that are unusually large, then apply the model's own linear head.

    .. math:: p(x) = \mathrm{softmax}\bigl(W\,\mathrm{clip}(h(x), -c, c) + b\bigr)

    Very large activations make a model overconfident and carry little information. Computed as the given
    logits plus the change by clipping, :math:`z + W(\mathrm{clip}(h) - h)`, so that a sample without large
    features is unchanged to the last digit. The predicted class may change. Masked classes stay masked.
    """

    needs_features = True
    masks = True

    stored = declare(threshold=one_number(POSITIVE), head_weight=Numbers(("k", "d")))

    threshold: Tensor
    head_weight: Tensor

    def __init__(self, threshold: float, head_weight: Tensor, *, n_classes: int | None = None) -> None:
        super().__init__(n_classes=n_classes)
        threshold = check_number(threshold, "threshold")
        self.register_buffers(threshold=torch.tensor(threshold, dtype=torch.float64), head_weight=head_weight)

    @classmethod
    @sparing_threads
    def fit(
        cls,
        logits: ArrayLike | FittingSet,
        labels: ArrayLike | None = None,
        *,
        head_weight: ArrayLike | None = None,
        head_bias: ArrayLike | None = None,
        objective: ClippingObjective = "nll",
        n_bins: int = 15,
        **rows: Unpack[Rows],
    ) -> Self:
        """Try thresholds from the largest feature downwards and choose the best one.

        The largest feature is one of the candidates, so the objective on the fitting set is never larger than
        that of the model itself.

        Args:
            logits: Scores of shape ``(n, k)``, or ``(n,)`` for the log-odds of class 1.
            labels: Integer classes of shape ``(n,)``.
            head_weight: Weights of the head, of shape ``(k, d)``; without them the head is recovered from
                features and logits by least squares, which needs more than ``d + 1`` samples, and more if
                classes are masked.
            head_bias: Bias of the head, of shape ``(k,)``, to check the head against the logits; it cancels
                out of the result.
            objective: ``"nll"`` for the likelihood or ``"ece"`` for the top-label calibration error.
            n_bins: Number of equal-width bins for ``"ece"``.

        Raises:
            FitError: The logits are not a linear function of the features (up to a number per row), or
                there are too few samples to recover the head.
        """
        data = cls.data(logits, labels, **rows)
        z, y, w = data.logits, data.labels, data.weights
        h = check_features(required_features(data.features, cls.__name__), n=len(data))
        check_choice(objective, "objective", get_args(ClippingObjective))
        n_bins = check_count(n_bins, "n_bins")
        weight = _head(z.double(), h.double(), head_weight, head_bias).to(z.dtype)
        h = h.to(z.dtype)

        def loss(c: float) -> float:
            clipped = z + (h.clamp(-c, c) - h) @ weight.T
            if objective == "ece":
                outcomes = Outcomes.from_logits(clipped, y).weighed(w)
                return float(equal_width_bins(outcomes, n_bins).expected_gap())
            of_labels = torch.log_softmax(clipped, dim=1).gather(1, y[:, None]).squeeze(1)
            return -float(mean_of(of_labels.double(), w))

        # Ties go to the mildest threshold: candidates fall from the largest feature.
        return cls(min(_candidates(h, w), key=loss), weight, n_classes=z.shape[1])

    @property
    def n_features(self) -> int:
        """Number of features that the head takes."""
        return self.head_weight.shape[1]

    def forward(self, logits: Tensor, features: Tensor | None = None) -> Tensor:
        """Return calibrated log-probabilities of shape ``(n, k)``."""
        z = at_least_float32(logits)
        h = torch.as_tensor(required_features(features, type(self).__name__)).to(z.dtype)
        c = self.threshold.to(z.dtype)
        return torch.log_softmax(z + (h.clamp(-c, c) - h) @ self.head_weight.to(z.dtype).T, dim=1)


def _candidates(h: Tensor, weights: Tensor | None) -> list[float]:
    """Return thresholds at equal steps of log from the largest feature down to the median one."""
    sizes = h.abs().flatten()
    largest = float(sizes.amax())
    if largest == 0:
        return [1.0]
    positive = sizes > 0
    counts = None if weights is None else weights.repeat_interleave(h.shape[1])[positive]
    lowest = max(float(median_of(sizes[positive], counts)), 1e-3 * largest)
    step = math.log(lowest / largest) / (_CANDIDATES - 1)
    return [largest * math.exp(step * i) for i in range(_CANDIDATES)]


def _head(z: Tensor, h: Tensor, weight: ArrayLike | None, bias: ArrayLike | None) -> Tensor:
    """Return the weights of the head, checked against logits whose rows may be shifted."""
    if masked_classes(z) is not None:
        return _head_of_existing(z, h, weight, bias)
    z = z - z.mean(dim=1, keepdim=True)
    centre = h.mean(dim=0)
    if weight is not None:
        w, given = _given_head(z, h, weight, bias)
        b = (z - h @ w.T).mean(dim=0) if given is None else given
        fitted = h @ (w - w.mean(dim=0)).T + (b - b.mean())
    elif len(h) <= h.shape[1] + 1:
        raise FitError(
            f"feature clipping: {len(h)} samples are too few to recover the head from {h.shape[1]} features; "
            f"give more than {h.shape[1] + 1} samples, or the head itself as head_weight"
        )
    else:
        mean = z.mean(dim=0)
        w = torch.linalg.lstsq((h - centre).cpu(), (z - mean).cpu(), driver="gelsd").solution.T.to(z.device)
        fitted = (h - centre) @ w.T + mean
    spread = float((z - z.mean(dim=0)).square().mean().sqrt())
    _check_linear(float((z - fitted).square().mean().sqrt()), spread)
    return w


def _check_linear(missed: float, spread: float) -> None:
    """Refuse features that leave too much of the spread of the logits unexplained."""
    if missed > _RESIDUAL * spread:
        raise FitError(
            "feature clipping: the logits are not a linear function of the features, which leave "
            f"{missed:.3g} of a spread of {spread:.3g} unexplained; pass the inputs of the model's last layer"
        )


def _given_head(
    z: Tensor, h: Tensor, weight: ArrayLike, bias: ArrayLike | None
) -> tuple[Tensor, Tensor | None]:
    shape = (z.shape[1], h.shape[1])
    w = to_tensor(weight, "head_weight").to(z)
    if w.shape != shape:
        raise InputError(f"head_weight: expected shape {shape}, got shape {tuple(w.shape)}")
    if bias is None:
        return w, None
    b = to_tensor(bias, "head_bias").to(z)
    if b.shape != shape[:1]:
        raise InputError(f"head_bias: expected shape {shape[:1]}, got shape {tuple(b.shape)}")
    return w, b


def _head_of_existing(z: Tensor, h: Tensor, weight: ArrayLike | None, bias: ArrayLike | None) -> Tensor:
    """Return the weights of the head, checked against the logits of classes that are not masked."""
    table = _Existing(z)
    if weight is None:
        w, fitted = table.head(h)
    else:
        w, b = _given_head(z, h, weight, bias)
        fitted = h @ w.T
        fitted = fitted + (table.means(z - fitted) if b is None else b)
    _check_linear(table.size(z - fitted), table.size(z - table.means(z)))
    return w


class _Existing:
    r"""Linear models of the logits of classes that are not masked, up to a number per row.

    The squares of :math:`z_{ic} - \theta_c \cdot x_i - s_i` are summed over the classes :math:`c` that sample
    :math:`i` has. The best :math:`s_i` is a mean over these classes.
    """

    def __init__(self, logits: Tensor) -> None:
        self._logits, self._masked = logits, logits == -torch.inf
        self._n_existing = (~self._masked).sum(dim=1, keepdim=True)

    def size(self, table: Tensor) -> float:
        """Return the root of the mean square of a table, up to a number per row."""
        return math.sqrt(float(self._centred(table).square().sum()) / int(self._n_existing.sum()))

    def means(self, table: Tensor) -> Tensor:
        """Return the mean of each class, shape ``(1, k)``."""
        constant = torch.full_like(table[:, :1], 1 / math.sqrt(len(table)))
        return constant[:1] @ self._solved(constant, table)

    def head(self, h: Tensor) -> tuple[Tensor, Tensor]:
        """Return the weights of the head, shape ``(k, d)``, and the logits that it gives features ``h``.

        Two searches from different starts find the same head, unless the samples leave it open.
        """
        x = torch.cat([h - h.mean(dim=0), torch.ones_like(h[:, :1])], dim=1)
        basis, lengths, axes = (each.to(h.device) for each in torch.linalg.svd(x.cpu(), full_matrices=False))
        used = lengths > 1e-12 * lengths[0]
        basis, axes = basis[:, used], axes[used] / lengths[used, None]
        found = self._solved(basis, self._logits)
        other = self._solved(basis, self._logits, rng=np.random.default_rng(0))
        # Adding the same weights to all classes changes nothing.
        apart, whole = (each - each.mean(dim=1, keepdim=True) for each in (other - found, found))
        if float(apart.norm()) > _DISAGREE * float(whole.norm()):
            worst = int(apart.norm(dim=0).argmax())
            n_samples = int((~self._masked[:, worst]).sum())
            raise FitError(
                f"feature clipping: the {n_samples} samples in which class {worst} is not masked are too few "
                f"to recover its head from {h.shape[1]} features; give more samples, or the head itself as "
                "head_weight"
            )
        return (axes.T @ found)[:-1].T, basis @ found

    def _solved(self, basis: Tensor, table: Tensor, *, rng: np.random.Generator | None = None) -> Tensor:
        """Return the least squares of orthonormal inputs ``(n, r)``, shape ``(r, k)``.

        The search begins at 0, or at random numbers of about the same size.
        """
        from scipy.sparse.linalg import LinearOperator, lsmr

        shape = basis.shape[1], table.shape[1]

        def tensor(flat: Floats, shape: tuple[int, int]) -> Tensor:
            return torch.from_numpy(flat.reshape(shape)).to(basis)

        def modelled(theta: Floats) -> Floats:
            return self._centred(basis @ tensor(theta, shape)).cpu().numpy().ravel()

        def transposed(rest: Floats) -> Floats:
            return (basis.T @ self._centred(tensor(rest, (len(table), shape[1])))).cpu().numpy().ravel()

        size = table.numel(), math.prod(shape)
        operator = LinearOperator(size, matvec=modelled, rmatvec=transposed, dtype=np.float64)
        target = self._centred(table).cpu().numpy().ravel()
        start = None
        if rng is not None:
            start = rng.normal(size=size[1]) * np.linalg.norm(target) / math.sqrt(size[1])
        found = lsmr(operator, target, atol=_TOLERANCE, btol=_TOLERANCE, maxiter=_MAX_STEPS, x0=start)[0]
        return tensor(found, shape)

    def _centred(self, table: Tensor) -> Tensor:
        """Return a table minus the mean of each row over the classes that exist, 0 where one is masked."""
        inside = table.masked_fill(self._masked, 0.0)
        return (inside - inside.sum(dim=1, keepdim=True) / self._n_existing).masked_fill(self._masked, 0.0)
