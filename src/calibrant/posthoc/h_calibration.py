"""h-calibration (Huang et al., "h-Calibration: Rethinking Classifier Recalibration", TPAMI 2025)."""

import math
from dataclasses import dataclass
from typing import Self, Unpack

import torch
import torch.nn.functional as F
from torch import Tensor

from calibrant.inputs import ArrayLike, at_least_float32, check_count, check_number
from calibrant.posthoc.calibrator import Calibrator, RefusedWeights, check_fitting_set
from calibrant.posthoc.fitting.order_preserving import KNOTS, Pieces, factor, monotone_scores, thinned
from calibrant.posthoc.fitting.stored import POSITIVE, Numbers, declare, one_number
from calibrant.posthoc.fitting.temperature_search import likeliest_temperature
from calibrant.posthoc.fitting.temperature_training import Adam
from calibrant.posthoc.fitting.weighing import rows_of

_CLUSTERS = 15
_LLOYD_STEPS = 25

# Logits that the training reads: every step sorts them.
_MOST_ENTRIES = 1 << 18

_LEARNING_RATE = 0.1


class HCalibration(Calibrator):
    r"""Apply one increasing function to every log-probability, trained on the error of neighbouring events.

    Every pair of a sample and a class that is not masked is an event with a probability. Among events of
    similar probability, the mean probability should be the share that occurs; training lowers the difference,
    see :func:`h_objective`. The function begins as a temperature, is linear between fixed knots, and keeps
    the ranking of the classes. The paper integrates a positive network instead, which is increasing too.
    """

    preserves_accuracy = True
    masks = True

    stored = declare(temperature=one_number(POSITIVE), slopes=Numbers((len(KNOTS),), POSITIVE))

    temperature: Tensor
    slopes: Tensor

    def __init__(self, temperature: float, slopes: Tensor, *, n_classes: int | None = None) -> None:
        super().__init__(n_classes=n_classes)
        self.register_buffers(temperature=torch.tensor(temperature, dtype=torch.float64), slopes=slopes)

    @classmethod
    def fit(
        cls,
        logits: ArrayLike,
        labels: ArrayLike,
        *,
        window: int = 100,
        tolerance: float = 0.0,
        leave_class_out: bool = False,
        epochs: int = 20,
        shrink: bool = True,
        seed: int = 0,
        **unused: Unpack[RefusedWeights],
    ) -> Self:
        r"""Train the function with Adam from the likeliest temperature, then shrink it towards that.

        The value of the objective for a perfectly calibrated model is known, because the events of a window
        vary by chance. If the temperature leaves :math:`e` times that value, the function goes the share
        :math:`1 - 1/e^2` of the way, and no way if :math:`e \le 1`. If the fitting set becomes less likely
        than with the temperature, beyond chance, the temperature stays. Weights of samples are refused,
        because a window is a number of whole events.

        Args:
            logits: Scores of shape ``(n, k)``, or ``(n,)`` for the log-odds of class 1.
            labels: Integer classes of shape ``(n,)``.
            window: Events on each side that are averaged with an event.
            tolerance: Errors of a window up to this are not counted.
            leave_class_out: Average the objective over the fitting set without each class in turn, as the
                authors do; the time grows with the number of classes.
            epochs: Most steps, each on all samples; 0 is temperature scaling.
            shrink: Whether to shrink the function; the authors do not, which overfits a thousand samples.
            seed: Seed of the choice of rows, if there are too many.
        """
        z, y = check_fitting_set(logits, labels, **unused)
        check_count(epochs, "epochs", at_least=0)
        objective = _Objective(
            check_count(window, "window"), check_number(tolerance, "tolerance", at_least=0), leave_class_out
        )
        temperature = likeliest_temperature(z, y)
        rows, y, _ = thinned(z, y, None, seed=seed, most_entries=_MOST_ENTRIES)
        pieces = Pieces.of(torch.log_softmax(rows / temperature, dim=1))
        pieces = pieces._replace(lengths=pieces.lengths.float())
        slopes = factor(_trained(pieces, y, objective, epochs=epochs, shrink=shrink))
        return cls(temperature, slopes, n_classes=z.shape[1])

    def forward(self, logits: Tensor, features: Tensor | None = None) -> Tensor:
        """Return calibrated log-probabilities of shape ``(n, k)``."""
        z = at_least_float32(logits)
        # A common offset of a row would cost digits of the differences.
        z = (z - z.amax(dim=1, keepdim=True)) / self.temperature.to(z.dtype)
        return torch.log_softmax(monotone_scores(torch.log_softmax(z, dim=1), self.slopes), dim=1)


def h_objective(
    probs: Tensor,
    labels: Tensor,
    *,
    window: int = 100,
    tolerance: float = 0.0,
    n_clusters: int = _CLUSTERS,
    masked: Tensor | None = None,
) -> Tensor:
    r"""Return how far the probabilities of neighbouring events are from how often they occur.

    With the probabilities :math:`p_1 \le p_2 \le \dots` of all pairs of a sample and a class, and
    :math:`o_i = 1` where the class is the label,

    .. math:: e_j = \Bigl(\frac{1}{2M + 1} \Bigl|\sum_{|i - j| \le M} (p_i - o_i)\Bigr| - \epsilon\Bigr)_+

    The objective is the mean of :math:`e` within each cluster of probabilities (k-means), averaged over the
    clusters: most probabilities are close to 0, and the others count as much.

    Args:
        probs: Probabilities of shape ``(n, k)``.
        labels: Integer classes of shape ``(n,)``.
        window: The number :math:`M` of events on each side; beyond both ends there are none.
        tolerance: The error :math:`\epsilon` up to which a window counts as calibrated.
        n_clusters: Number of clusters; empty ones are left out.
        masked: Which classes of each sample are masked, shape ``(n, k)``; these pairs are no events.
    """
    exists = torch.ones_like(probs, dtype=torch.bool) if masked is None else ~masked
    p, order = probs[exists].sort(stable=True)
    occurred = F.one_hot(labels, probs.shape[1])[exists][order]
    error = _window_sums(p - occurred, window).abs() / (2 * window + 1)
    return _mean_of_clusters((error - tolerance).clamp(min=0), p.detach(), n_clusters)


@torch.no_grad()
def expected_by_chance(probs: Tensor, *, window: int = 100, tolerance: float = 0.0) -> float:
    r"""Return the value of :func:`h_objective` that a perfectly calibrated model would show on average.

    The error of a window is about normal with variance :math:`\sum p_i (1 - p_i) / (2M + 1)^2`. That is a
    little too large, because the classes of one sample exclude each other.
    """
    p = probs.flatten().sort().values.double()
    deviation = _window_sums(p * (1 - p), window).clamp(min=0).sqrt() / (2 * window + 1)
    x = tolerance / deviation.clamp(min=1e-12)
    # The mean of (|e| - tolerance)_+ for a normal e: twice that of one side.
    beyond = torch.exp(-x.square() / 2) / math.sqrt(2 * math.pi) - x * torch.special.ndtr(-x)
    return float(_mean_of_clusters(2 * deviation * beyond, p, _CLUSTERS))


@dataclass(frozen=True)
class _Objective:
    """The objective with its options."""

    window: int
    tolerance: float
    leave_class_out: bool

    def __call__(self, probs: Tensor, labels: Tensor, masked: Tensor | None) -> Tensor:
        if not self.leave_class_out:
            return self._of(probs, labels, masked)
        rest = (labels != c for c in labels.unique().tolist())
        values = [
            self._of(probs[rows], labels[rows], rows_of(masked, rows)) for rows in rest if bool(rows.any())
        ]
        return torch.stack(values).mean() if values else self._of(probs, labels, masked)

    def _of(self, probs: Tensor, labels: Tensor, masked: Tensor | None) -> Tensor:
        return h_objective(probs, labels, window=self.window, tolerance=self.tolerance, masked=masked)

    def by_chance(self, probs: Tensor, masked: Tensor | None) -> float:
        events = probs if masked is None else probs[~masked]
        return expected_by_chance(events, window=self.window, tolerance=self.tolerance)


def _trained(pieces: Pieces, labels: Tensor, objective: _Objective, *, epochs: int, shrink: bool) -> Tensor:
    """Return scores whose factors are the slopes; zeros are the temperature."""
    start = torch.zeros(len(KNOTS), dtype=torch.float64, device=labels.device)
    probs, masked = _probs(pieces, start), pieces.masked
    way = 1 - (objective.by_chance(probs, masked) / max(float(objective(probs, labels, masked)), 1e-300)) ** 2
    if shrink and way <= 0:
        return start
    best = _lowest(pieces, labels, objective, start.clone(), epochs)
    found = way * best if shrink else best
    change = _label_log_probs(pieces, labels, found) - _label_log_probs(pieces, labels, start)
    error = float(change.std(correction=0)) / math.sqrt(len(labels))
    return start if float(change.mean()) < -2 * error else found


def _lowest(pieces: Pieces, labels: Tensor, objective: _Objective, scores: Tensor, epochs: int) -> Tensor:
    """Return the scores with the lowest objective on the way down."""
    adam = Adam([scores], learning_rate=_LEARNING_RATE)
    best, lowest = scores.clone(), math.inf
    for _ in range(epochs + 1):
        with torch.enable_grad():
            moving = scores.clone().requires_grad_()
            loss = objective(_probs(pieces, moving), labels, pieces.masked)
            (gradient,) = torch.autograd.grad(loss, moving)
        if float(loss.detach()) < lowest:
            best, lowest = scores.clone(), float(loss.detach())
        adam.step([gradient])
    return best


def _probs(pieces: Pieces, scores: Tensor) -> Tensor:
    return torch.softmax(pieces.scores(factor(scores)), dim=1)


def _label_log_probs(pieces: Pieces, labels: Tensor, scores: Tensor) -> Tensor:
    log_probs = torch.log_softmax(pieces.scores(factor(scores)), dim=1)
    return log_probs.gather(1, labels[:, None]).squeeze(1).double()


def _window_sums(values: Tensor, window: int) -> Tensor:
    """Return the sum of each value and of those up to ``window`` places away."""
    running = F.pad(torch.cumsum(values.double(), dim=0), (1, 0))
    place = torch.arange(len(values), device=values.device)
    return running[(place + window + 1).clamp(max=len(values))] - running[(place - window).clamp(min=0)]


def _mean_of_clusters(values: Tensor, p: Tensor, n_clusters: int) -> Tensor:
    """Return the mean over clusters of the mean value of those sorted probabilities."""
    count = _cluster_sizes(p.double(), n_clusters)
    cluster = torch.repeat_interleave(torch.arange(n_clusters, device=p.device), count)
    total = torch.zeros(n_clusters, dtype=values.dtype, device=p.device).index_add(0, cluster, values)
    return (total / count.clamp(min=1)).sum() / (count > 0).sum()


def _cluster_sizes(p: Tensor, n_clusters: int) -> Tensor:
    """Return how many of the sorted numbers belong to each cluster, by Lloyd's algorithm from equal steps."""
    running = F.pad(torch.cumsum(p, dim=0), (1, 0))
    steps = (torch.arange(n_clusters, dtype=p.dtype, device=p.device) + 0.5) / n_clusters
    centre = torch.lerp(p[0], p[-1], steps)
    edge = _edges(p, centre)
    for _ in range(_LLOYD_STEPS):
        count = edge.diff()
        centre = torch.where(count > 0, running[edge].diff() / count.clamp(min=1), centre)
        before, edge = edge, _edges(p, centre)
        if torch.equal(before, edge):
            break
    return edge.diff()


def _edges(p: Tensor, centre: Tensor) -> Tensor:
    inner = torch.searchsorted(p, (centre[1:] + centre[:-1]) / 2)
    return F.pad(F.pad(inner, (1, 0)), (0, 1), value=len(p))
