"""Where likelihood and calibration pull a temperature in opposite directions (SMART, Lemma 1)."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from calibrant.data.predictions import Predictions
from calibrant.errors import InputError
from calibrant.inputs import ArrayLike, check_count, to_tensor
from calibrant.outcomes import counts_of, effective, has_runner_up, margin, mean_of
from calibrant.surrogates import soft_bins


@dataclass(frozen=True, eq=False)
class MarginDiagnosis:
    """The effect of sharpening the samples of one margin group alone; float64, one entry per group.

    Attributes:
        edges: Group ``g`` holds the margins from ``edges[g]`` up to ``edges[g + 1]``; one entry more.
        count: Number of samples.
        confidence: Mean confidence; like all that follows, by weight if samples have weights.
        accuracy: Share of right predictions.
        nll_slope: Change of the mean negative log-likelihood of all samples as the group is sharpened.
        calibration_slope: Change of the calibration error of all samples as the group is sharpened.
    """

    edges: Tensor
    count: Tensor
    confidence: Tensor
    accuracy: Tensor
    nll_slope: Tensor
    calibration_slope: Tensor

    @property
    def disagree(self) -> Tensor:
        """Whether one of the two falls while the other rises: a better likelihood then harms calibration."""
        return self.nll_slope * self.calibration_slope < 0


def diagnose_margins(
    predictions: Predictions,
    *,
    temperature: ArrayLike | float = 1.0,
    n_groups: int = 10,
    probe: Callable[[Tensor], Tensor] | None = None,
) -> MarginDiagnosis:
    r"""Differentiate likelihood and calibration with respect to the sharpness of each margin group.

    The temperature of group :math:`A` is divided by :math:`s`. With :math:`t = z / T`,
    :math:`q = \mathrm{softmax}(t)`, :math:`\langle t \rangle = \sum_c q_c t_c` and the confidence
    :math:`p = q_M`, at :math:`s = 1`

    .. math:: \frac{d}{ds} \mathrm{NLL} = \mathbb{E}[1_A (\langle t \rangle - t_Y)], \quad
        \frac{dp}{ds} = 1_A\, p\, (t_M - \langle t \rangle).

    The second gives the slope of any calibration measure of the confidences by the chain rule. (The paper's
    Eq. (3) has the sign of the first turned around; its appendix has it right.)

    Args:
        predictions: Logits or probabilities with labels.
        temperature: The temperature at which to differentiate, one number or one per sample.
        n_groups: Number of margin groups of about equal size.
        probe: A function of confidences, such as :func:`~calibrant.metrics.worst_case_probe` returns;
            calibration is then measured by :math:`|\mathbb{E}[(a - p)\,\psi(p)]|`. By default by the soft
            calibration error.

    Example:
        >>> logits = 3 * torch.randn(500, 3, generator=torch.Generator().manual_seed(0))
        >>> labels = logits.argmax(dim=1)
        >>> labels[::3] = 0
        >>> diagnosis = diagnose_margins(Predictions(logits=logits, labels=labels), n_groups=2)
        >>> diagnosis.count.tolist(), diagnosis.nll_slope[1] > 0
        ([249, 251], tensor(True))
    """
    labelled = predictions.classes()
    z, labels = labelled.to_logits().double(), labelled.truth_for("")
    y, w = labels.to(z.device), counts_of(predictions.weights, len(z)).to(z.device)
    t = z / _checked_temperature(temperature, z)
    used = has_runner_up(z) & (w > 0)
    z, t, y, w = z[used], t[used], y[used], effective(w[used])
    t = (t - t.amax(dim=1, keepdim=True)).clamp_(min=-1e15)  # masked classes, of probability 0, stay finite
    q = torch.softmax(t, dim=1)
    mean = (q * t).sum(dim=1)
    p, correct = q.amax(dim=1), (t.argmax(dim=1) == y).double()
    nll = w * (mean - t.gather(1, y[:, None]).squeeze(1)) / w.sum()
    # The largest scaled logit is 0, so its advantage over the mean is minus the mean.
    calibration = _gradient(p, correct, w, probe) * p * -mean

    m = margin(z)
    shares = torch.linspace(0, 1, check_count(n_groups, "n_groups") + 1, dtype=z.dtype, device=z.device)
    ordered = m.sort().values
    edges = torch.unique(ordered[(shares * (len(z) - 1)).long()])
    group = (torch.searchsorted(edges, m, right=True) - 1).clamp(0, max(len(edges) - 2, 0))
    n = max(len(edges) - 1, 1)

    def total(values: Tensor) -> Tensor:
        return torch.zeros(n, dtype=z.dtype, device=z.device).index_add(0, group, values)

    weight = total(w)
    return MarginDiagnosis(
        edges=edges if len(edges) > 1 else edges.repeat(2),
        count=total(torch.ones_like(m)).long(),
        confidence=total(w * p) / weight,
        accuracy=total(w * correct) / weight,
        nll_slope=total(nll),
        calibration_slope=total(calibration),
    )


def _gradient(p: Tensor, correct: Tensor, w: Tensor, probe: Callable[[Tensor], Tensor] | None) -> Tensor:
    """Return the derivative of the calibration measure in each confidence."""
    with torch.enable_grad():
        p = p.detach().requires_grad_()
        if probe is None:
            error = soft_bins(p, correct, weights=w).expected_gap()
        else:
            error = mean_of((correct - p) * probe(p), w).abs()
        return torch.autograd.grad(error, p)[0]


def _checked_temperature(temperature: ArrayLike | float, z: Tensor) -> Tensor:
    t = to_tensor(temperature, "temperature").to(z)
    if t.ndim > 1 or (t.ndim == 1 and len(t) != len(z)) or not bool((t > 0).all()):
        raise InputError(
            f"temperature: expected a positive number or one per sample, got shape {tuple(t.shape)}"
            if t.ndim
            else f"temperature: expected a positive number or one per sample, got {float(t)}"
        )
    return t[:, None] if t.ndim else t
