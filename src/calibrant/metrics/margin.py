"""Calibration within groups of samples with similar logit margins."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from calibrant.bins import equal_mass_uppers, mass_ends
from calibrant.inputs import ArrayLike, check_count, check_labelled_logits, check_weights
from calibrant.metrics.accuracy import accuracy, mean_confidence
from calibrant.metrics.binned import expected_calibration_error
from calibrant.outcomes import has_runner_up, margin
from calibrant.results import FrozenDict

_DEFAULT: Mapping[str, Callable[..., float]] = FrozenDict(
    {"accuracy": accuracy, "mean_confidence": mean_confidence, "ece": expected_calibration_error}
)


@dataclass(frozen=True)
class MarginSlice:
    """Samples whose logit margin lies in ``(low, high]``, and the measures of these samples."""

    low: float
    high: float
    n: int
    metrics: Mapping[str, float]


def margin_slices(
    logits: ArrayLike,
    labels: ArrayLike,
    *,
    n_groups: int = 5,
    measures: Mapping[str, Callable[..., float]] = _DEFAULT,
    weights: ArrayLike | None = None,
) -> tuple[MarginSlice, ...]:
    """Measure calibration within groups of equal count, by the margin between the two largest logits.

    A model can be calibrated on average and still be overconfident where the margin is small and
    underconfident where it is large. A single temperature cannot correct that.

    Args:
        logits: Scores of shape ``(n, k)``, or ``(n,)`` for the log-odds of class 1.
        labels: Integer classes of shape ``(n,)``.
        n_groups: Number of groups; equal margins share a group, and empty groups are dropped.
        measures: Functions ``(probs, labels) -> float`` by name.
        weights: How much each sample counts, shape ``(n,)``. Groups then have equal weight, measures get the
            weights of their samples as ``weights``, and samples of weight 0 are left out.

    Example:
        >>> logits = [[3.0, 0.0], [0.2, 0.0], [0.1, 0.0], [2.0, 0.0]]
        >>> for part in margin_slices(logits, [0, 1, 0, 0], n_groups=2):
        ...     print(part.n, f"({part.low:.1f}, {part.high:.1f}]", part.metrics["accuracy"])
        2 (0.1, 0.2] 0.5
        2 (0.2, 3.0] 1.0

    References:
        The groups are the margin slices of Lemma 1 in the SMART paper.
    """
    z, y = check_labelled_logits(logits, labels)
    w = None if weights is None else check_weights(weights, n=len(z)).to(z.device)
    slices = []
    for group in margin_groups(z, n_groups=n_groups, weights=w):
        probs, own = torch.softmax(z[group.rows], dim=1), {} if w is None else {"weights": w[group.rows]}
        values = {name: measure(probs, y[group.rows], **own) for name, measure in measures.items()}
        slices.append(MarginSlice(group.low, group.high, len(group.rows), FrozenDict(values)))
    return tuple(slices)


@dataclass(frozen=True, eq=False)
class MarginGroup:
    """The numbers of the samples whose logit margin lies in ``(low, high]``."""

    low: float
    high: float
    rows: Tensor


def margin_groups(logits: Tensor, *, n_groups: int, weights: Tensor | None = None) -> tuple[MarginGroup, ...]:
    """Group samples as :func:`margin_slices` does.

    The groups of the original logits can be measured before and after a repair, which changes margins.
    """
    n_groups = check_count(n_groups, "n_groups")
    used = has_runner_up(logits) & (True if weights is None else weights > 0)
    numbers = torch.nonzero(used)[:, 0]
    margins = margin(logits[numbers]).double().cpu().numpy()
    if weights is not None:
        order = np.argsort(margins)
        up_to = np.cumsum(weights[numbers].cpu().numpy()[order])
        uppers = np.unique(margins[order][mass_ends(up_to, n_groups)])
    else:
        uppers = np.unique(equal_mass_uppers(np.sort(margins), n_groups))
    group = np.searchsorted(uppers, margins, side="left")
    lowers = [float(margins.min()), *uppers.tolist()]
    return tuple(
        MarginGroup(low, high, numbers[torch.from_numpy(np.flatnonzero(group == g)).to(numbers.device)])
        for g, (low, high) in enumerate(pairwise(lowers))
    )
