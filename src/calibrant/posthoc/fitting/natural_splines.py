"""Natural cubic splines: curves of one number that are straight beyond the outermost knots."""

import torch
from torch import Tensor


def distinct_knots(knots: Tensor) -> Tensor:
    """Leave out knots that nearly coincide with the one before; a spline through them would be wild."""
    kept = knots[:1].tolist()
    for each in knots[1:].tolist():
        if each - kept[-1] > 1e-3 * float(knots[-1] - knots[0]):
            kept.append(each)
    return torch.tensor(kept, dtype=torch.float64, device=knots.device)


def natural_splines(scores: Tensor, knots: Tensor) -> list[Tensor]:
    r"""Return the scores and the curved natural cubic splines of the knots, which are straight beyond them.

    With places :math:`t` from 0 at the first knot to 1 at the last one, :math:`N_j = d_j - d_{K-1}` and
    :math:`d_j = (t - t_j)_+^3 / (1 - t_j)`, in units of the scores.
    """
    return [scores, *curved_splines(scores, knots).unbind()]


def curved_splines(scores: Tensor, knots: Tensor) -> Tensor:
    """Return the curved ones alone, two fewer than knots, in front of the dimensions of the scores."""
    if len(knots) < 3:
        return scores.new_zeros(0, *scores.shape)
    first, last = knots[0].to(scores.dtype), knots[-1].to(scores.dtype)
    width = last - first
    t = ((knots - knots[0]) / (knots[-1] - knots[0])).to(scores.dtype)
    # The cubes of scores far beyond the last knot would cancel each other and lose all digits.
    place, beyond = (torch.clamp(scores, first, last) - first) / width, (scores - last).clamp(min=0)
    each = t.reshape(-1, *(1 for _ in scores.shape))
    start = each[:-1]
    cubes = (place - start).clamp(min=0) ** 3 / (1 - start)
    return width * (cubes[:-1] - cubes[-1]) + 3 * (start[-1] - start[:-1]) * beyond


def mixed_splines(scores: Tensor, knots: Tensor, mixture: Tensor) -> list[Tensor]:
    """Return the scores and mixtures of the curved splines, the inputs of the regression."""
    straight, *curved = natural_splines(scores, knots)
    if not curved:
        return [straight]
    return [straight, *(torch.stack(curved, dim=-1) @ mixture.to(scores.dtype)).unbind(dim=-1)]


def smoothest_mixture(knots: Tensor) -> Tensor:
    """Return mixtures of the curved splines, in columns, whose second derivatives are orthonormal."""
    if len(knots) < 3:
        return knots.new_zeros(0, 0)
    t = (knots - knots[0]) / (knots[-1] - knots[0])
    inner = t[1:-1]
    ramps = (inner[:, None] - t[:-1]).clamp(min=0) / (1 - t[:-1])
    # Second derivatives at the inner knots; between knots they are linear, at the outermost ones zero.
    curvature = 6 * (ramps[:, :-1] - ramps[:, -1:])
    gaps = t.diff()
    mass = torch.diag((gaps[:-1] + gaps[1:]) / 3)
    mass = mass + torch.diag(gaps[1:-1] / 6, 1) + torch.diag(gaps[1:-1] / 6, -1)
    lower = torch.linalg.cholesky(curvature.T @ mass @ curvature)
    mixture: Tensor = torch.linalg.inv(lower).T
    return mixture
