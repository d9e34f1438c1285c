"""Outcomes that are drawn as if the predictions were calibrated: what chance alone does to a measure."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calibrant.inputs import check_confidence, check_probs
from calibrant.metrics.names import measure_of
from calibrant.metrics.resampling.counts import bin_options
from calibrant.metrics.resampling.rows import Rows, call

# After this many draws from a calibrated model, a value that is this many of their ranges above them is not
# compared with more of them.
_FIRST, _FAR = 5, 8.0


def redrawn(rows: Rows) -> Callable[[np.random.Generator], Rows]:
    """Return a function that draws hits or labels as if the predictions, which are fixed, were calibrated."""
    (given, predictions), (drawn, _), *_ = rows.items()
    n = len(predictions)

    def same_kind(values: Tensor) -> Rows:
        return {**rows, drawn: values if isinstance(predictions, Tensor) else values.numpy()}

    if given == "confidence":
        c = check_confidence(predictions)
        return lambda rng: same_kind(torch.from_numpy(rng.random(n)).to(c.device) < c)
    cumulative = check_probs(predictions).cumsum(dim=1)
    total = cumulative[:, -1:]

    def labels(rng: np.random.Generator) -> Rows:
        uniform = torch.from_numpy(rng.random((n, 1))).to(total)
        classes = torch.searchsorted(cumulative, uniform * total, right=True)
        return same_kind(classes.squeeze(1).clamp_(max=cumulative.shape[1] - 1))

    return labels


def if_calibrated(
    metric: Callable[..., Any], rows: Rows, options: Mapping[str, Any], rng: np.random.Generator
) -> Callable[[], float] | None:
    """Return what draws a measure as if the predictions were calibrated; None if it has no noise floor."""
    measure = measure_of(metric)
    if measure is None or not measure.noise_floor:
        return None
    if measure.of_bins is not None and bin_options(measure, options) is None:  # another definition
        return None
    redraw = redrawn(rows)
    return lambda: call(metric, redraw(rng), options)


def could_be_calibrated(value: float, draw: Callable[[], float], *, level: float) -> bool:
    """Return whether a calibrated model with the same predictions reaches a value by chance.

    For a calibrated model, the value is the largest of 40 exchangeable ones in 1 of 40 cases. So the answer
    is no for ``(1 - level) / 2`` of the calibrated models, whatever the measure and the number of samples.

    Args:
        value: The measure of the sample.
        draw: Returns the measure of outcomes that are drawn as if the predictions were calibrated.
        level: Level of the interval, which then begins at 0.
    """
    drawn: list[float] = []
    while len(drawn) < round(2 / (1 - level)) - 1:
        drawn.append(draw())
        if not drawn[-1] < value:  # also if undefined
            return True
        if len(drawn) == _FIRST and 0 < _FAR * (max(drawn) - min(drawn)) < value - max(drawn):
            return False
    return False
