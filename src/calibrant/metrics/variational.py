"""Variational calibration errors: lower bounds from a repair that has not seen the samples it judges."""

from typing import Literal, TypeAlias, Unpack, get_args

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from calibrant.errors import InputError
from calibrant.inputs import (
    ArrayLike,
    check_choice,
    check_labelled_probs,
    check_number,
    check_seed,
    to_tensor,
)
from calibrant.metrics.accuracy import mean
from calibrant.metrics.corp import corp_reliability
from calibrant.outcomes import Outcomes, Pairs, check_outcomes, log_probs, refuse_weights
from calibrant.solvers import convex_minimum

VariationalMode: TypeAlias = Literal["top_label", "canonical"]

_FOLDS = 5

# A repair of whole distributions, which has few numbers, is fitted to at most this many entries.
_MOST_ENTRIES = 1 << 20

# Pulls that repair towards none, in nats, so that classes without samples have a finite intercept.
_RIDGE = 5.0


def variational_calibration_error(
    probs: ArrayLike | None = None,
    labels: ArrayLike | None = None,
    *,
    p: float = 1.0,
    mode: VariationalMode = "top_label",
    units: ArrayLike | None = None,
    seed: int = 0,
    **pairs: Unpack[Pairs],
) -> float:
    r"""Return a lower bound of the expected distance between predictions and true probabilities.

    .. math:: \frac1n \sum_i \langle s_i, y_i - f_i \rangle, \quad
        s_i = \nabla_g \lVert g - f_i \rVert_p \big|_{g = g(f_i)}

    Any function :math:`g` of the prediction :math:`f` gives a lower bound, in expectation, of
    :math:`\mathrm{CE}_p = \mathrm E \lVert \mathrm E[y \mid f] - f \rVert_p`, as long as it has not seen the
    sample: it is the gain :math:`L(f) - L(g)` in the loss :math:`L(q) = -\lVert q - f \rVert_p - \langle
    \nabla \lVert q - f \rVert_p, y - q \rangle`, which no :math:`q` makes lower than the true probabilities.
    The bound is tight for these. So :math:`g` is a repair, fitted in five folds on the samples outside of
    each. Unlike errors of bins it is not biased upwards: a calibrated model has a mean of 0, and negative
    values are chance.

    For the top label it is the mean of :math:`\mathrm{sign}(g_i - p_i)(a_i - p_i)`, a lower bound of ECE with
    infinitely many samples and bins, and :math:`g` is isotonic regression. For whole distributions it is
    temperature scaling with an intercept for each class: what only a richer repair sees is missing.

    Args:
        probs: Class probabilities of shape ``(n, k)``.
        labels: Integer classes of shape ``(n,)``.
        confidence: Confidences of shape ``(n,)``, with ``correct``, instead of ``probs``.
        correct: Whether each prediction was right, shape ``(n,)``.
        p: For ``"canonical"``: the order of the norm, at least 1.
        mode: ``"top_label"`` measures the predicted class, ``"canonical"`` the whole distribution, which
            needs ``probs`` and ``labels``.
        units: An integer for each sample; samples with equal ones are in the same fold.
        seed: Seed of the folds.

    Returns:
        A number in the unit of a probability, at most 1 for the top label and ``2 ** (1 / p)`` for the
        whole distribution.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> confidence = rng.uniform(0.5, 1, 4000)
        >>> for true in (confidence, confidence - 0.1):
        ...     correct = rng.random(4000) < true
        ...     print(f"{variational_calibration_error(confidence=confidence, correct=correct):.3f}")
        0.000
        0.105

    References:
        "A Variational Estimator for Lp Calibration Errors", arXiv 2602.24230, 2026.
    """
    refuse_weights(pairs.pop("weights", None), "an error by a fit in folds")
    return mean(variational_terms(probs, labels, p=p, mode=mode, units=units, seed=seed, **pairs), None)


def variational_terms(
    probs: ArrayLike | None = None,
    labels: ArrayLike | None = None,
    *,
    p: float = 1.0,
    mode: VariationalMode = "top_label",
    units: ArrayLike | None = None,
    seed: int = 0,
    **pairs: Unpack[Pairs],
) -> Tensor:
    """Return the terms whose mean is the error: float64 of shape ``(n,)``."""
    check_number(p, "p", at_least=1)
    if check_choice(mode, "mode", get_args(VariationalMode)) == "top_label":
        outcomes = check_outcomes(probs, labels, **pairs)
        if units is None:
            # The order of the samples decides nothing: equal ones exchange their folds.
            rank = np.lexsort([each.cpu().numpy() for each in (outcomes.correct, outcomes.confidence)])
            folds = np.empty_like(rank)
            folds[rank] = _folds(len(rank), None, seed)
            return _of_outcomes(outcomes, folds)
        return _of_outcomes(outcomes, _folds(len(outcomes), units, seed))
    if probs is None or labels is None or pairs:
        raise InputError("arguments: expected probs with labels for mode='canonical', got something else")
    f, y = check_labelled_probs(probs, labels)
    f = f.double()
    return _of_distributions(f / f.sum(dim=1, keepdim=True), y, _folds(len(f), units, seed), p)


def _folds(n: int, units: ArrayLike | None, seed: int) -> npt.NDArray[np.int64]:
    """Return a fold for each sample, at random; units are not split."""
    code = (
        np.arange(n) if units is None else np.unique(to_tensor(units, "units").cpu(), return_inverse=True)[1]
    )
    if len(code) != n:
        raise InputError(f"units: expected {n} entries, one per prediction, got {len(code)}")
    order = np.random.default_rng(check_seed(seed)).permutation(int(code.max()) + 1)
    folds: npt.NDArray[np.int64] = order[code] % _FOLDS
    return folds


def _of_outcomes(outcomes: Outcomes, folds: npt.NDArray[np.int64]) -> Tensor:
    c, a = outcomes.confidence.double().cpu(), outcomes.correct.double().cpu()
    repaired = c.clone()
    for fold in np.unique(folds):
        inside = torch.from_numpy(folds == fold)
        if not bool(inside.all()):
            seen = corp_reliability(confidence=c[~inside], correct=outcomes.correct.cpu()[~inside])
            repaired[inside] = seen.at(c[inside]).double()
    return (repaired - c).sign() * (a - c)


def _of_distributions(f: Tensor, y: Tensor, folds: npt.NDArray[np.int64], p: float) -> Tensor:
    terms = f.new_zeros(len(f))
    log_f = log_probs(f)
    for fold in np.unique(folds):
        inside = torch.from_numpy(folds == fold).to(f.device)
        if bool(inside.all()):
            break
        rest = (~inside).nonzero()[:, 0]
        fewer = rest[torch.randperm(len(rest), generator=torch.Generator().manual_seed(0)).to(f.device)]
        fewer = fewer[: max(1, _MOST_ENTRIES // f.shape[1])]
        slope, intercept = _likeliest_repair(log_f[fewer], y[fewer])
        away = torch.softmax(slope * log_f[inside] + intercept, dim=1) - f[inside]
        direction = _gradient_of_norm(away, p)
        of_label = direction.gather(1, y[inside, None])[:, 0]
        terms[inside] = of_label - (direction * f[inside]).sum(dim=1)
    return terms.cpu()


def _gradient_of_norm(away: Tensor, p: float) -> Tensor:
    """Return the gradient of the norm of each row; 0 where the row is 0."""
    largest = away.abs().amax(dim=1, keepdim=True)
    scaled = away / torch.where(largest > 0, largest, 1.0)
    if p == 1:
        return scaled.sign()
    powers = scaled.abs().pow(p - 1)
    length = torch.linalg.vector_norm(scaled, ord=p, dim=1, keepdim=True).pow(p - 1)
    return scaled.sign() * powers / torch.where(largest > 0, length, 1.0)


def _likeliest_repair(log_f: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return the inverse temperature and the intercepts of the classes under which labels are likeliest."""
    n, k = log_f.shape
    start = torch.zeros(k + 1, dtype=log_f.dtype, device=log_f.device)
    start[0] = 1.0
    label = torch.nn.functional.one_hot(y, k).to(log_f)

    def objective(point: Tensor) -> tuple[float, Tensor]:
        log_g = torch.log_softmax(point[0] * log_f + point[1:], dim=1)
        away = (log_g.exp() - label) / n
        pull = 2 * _RIDGE / n * (point - start)
        gradient = torch.cat([(away * log_f).sum()[None], away.sum(dim=0)]) + pull
        return float(-(label * log_g).sum() / n + (pull * (point - start)).sum() / 2), gradient

    found = convex_minimum(objective, start, tolerance=1e-7)
    return found[0], found[1:]
