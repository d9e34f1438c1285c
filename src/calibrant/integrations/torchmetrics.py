"""Calibration measures as a torchmetrics ``Metric``, which collects them over batches and processes."""

import math
from collections.abc import Callable, Mapping
from functools import partial, reduce
from operator import attrgetter
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

from calibrant.bins import Bins
from calibrant.errors import InputError, MissingPackageError
from calibrant.streams.accumulators import ClasswiseAccumulator, OutcomeAccumulator
from calibrant.streams.score_accumulators import ProperScoreAccumulator
from calibrant.streams.sketch import RankSketch
from calibrant.streams.totals import Reduction

try:
    from torchmetrics import Metric
except ModuleNotFoundError as error:
    raise MissingPackageError("torchmetrics", "torchmetrics", "train") from error

_Accumulator: TypeAlias = OutcomeAccumulator | ProperScoreAccumulator | ClasswiseAccumulator | RankSketch


def _accuracy(bins: Bins) -> float:
    return int(bins.correct_sum.sum()) / bins.n


def _mean_confidence(bins: Bins) -> float:
    return float(bins.confidence_sum.sum()) / bins.n


def _mean_gap_of_classes(bins: Bins) -> float:
    return float(bins.expected_gap().mean())


_RANKED = {
    "ece_equal_mass": "equal_mass_error",
    "auroc_correct": "auroc_correctness",
    "aurc": "aurc",
    "excess_aurc": "excess_aurc",
    "augrc": "augrc",
}

# What is read off the result of each accumulator, by the names that `calibrant evaluate` uses.
_MEASURES: Mapping[str, Mapping[str, Callable[[Any], Any]]] = {
    "outcomes": {
        "accuracy": _accuracy,
        "mean_confidence": _mean_confidence,
        "ece": Bins.expected_gap,
        "mce": Bins.largest_gap,
        "rmsce": Bins.root_mean_square_gap,
        "ace": Bins.average_gap,
    },
    "scores": {"nll": attrgetter("negative_log_likelihood"), "brier": attrgetter("brier_score")},
    "classes": {"classwise_ece": _mean_gap_of_classes},
    "ranks": {
        name + suffix: attrgetter(f"{field}.{end}")
        for name, field in _RANKED.items()
        for suffix, end in (("", "value"), ("_low", "low"), ("_high", "high"))
    },
}


class CalibrationMetrics(Metric):
    """Calibration measures of all batches on all processes, as a dictionary of tensors by name.

    Accuracy, mean confidence and the errors of equal-width bins always; negative log-likelihood and Brier
    score of logits or probabilities; the classwise error if ``n_classes`` is given; equal-mass ECE, AUROC
    of correctness, AURC, excess AURC and AUGRC, with the bounds ``..._low`` and ``..._high`` of
    :class:`~calibrant.streams.sketch.RankSketch`, if ``resolution`` is. All are NaN as long as there are no
    samples, as in ``forward`` of an empty batch.

    State and results are float64 on the device of the metric; on a device that lacks it keep the metric on
    the CPU, where it takes batches from any device.

    Args:
        reads: What ``preds`` holds: ``"logits"`` or ``"probs"``, with labels as ``target``, or
            ``"confidence"``, with hits as ``target``. It is never guessed from the numbers.
        n_bins: Number of bins of the binned errors.
        n_classes: Number of classes, for the classwise error.
        resolution: Resolution of the rank sketch; 8192 takes 2.6 MB.
        **kwargs: Options of every torchmetrics ``Metric``, such as ``dist_sync_on_step``.

    Example:
        >>> import torch
        >>> metric = CalibrationMetrics(reads="probs", n_bins=10)
        >>> metric.update(torch.tensor([[0.9, 0.1]]), torch.tensor([0]))
        >>> metric.update(torch.tensor([[0.6, 0.4]]), torch.tensor([1]))
        >>> round(float(metric.compute()["ece"]), 6)
        0.35
    """

    is_differentiable = False
    full_state_update = False

    def __init__(
        self,
        *,
        reads: Literal["logits", "probs", "confidence"],
        n_bins: int = 15,
        n_classes: int | None = None,
        resolution: int | None = None,
        **kwargs: Any,  # noqa: ANN401  # torchmetrics' own options
    ) -> None:
        super().__init__(**kwargs)
        if reads not in ("logits", "probs", "confidence"):
            raise InputError(f"reads: expected 'logits', 'probs' or 'confidence', got {reads!r}")
        if reads == "confidence" and n_classes is not None:
            raise InputError("n_classes: expected none beside confidence, which says nothing of classes")
        self.reads = reads
        self.n_bins = n_bins
        self.n_classes = n_classes
        self.resolution = resolution
        for part, accumulator in self._fresh().items():
            state = accumulator.state()
            for name, reduction in accumulator.reductions.items():
                default = torch.as_tensor(state[name])
                self.add_state(f"{part}_{name}", default, dist_reduce_fx=partial(_combine, reduction))

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Read a batch; one without samples changes nothing."""
        truth = "correct" if self.reads == "confidence" else "labels"
        accumulators = self._filled()
        for accumulator in accumulators.values():
            accumulator.update(**{self.reads: preds, truth: target})
        for part, accumulator in accumulators.items():
            state = accumulator.state()
            for name in accumulator.reductions:
                setattr(self, f"{part}_{name}", torch.as_tensor(state[name], device=self.device))

    def compute(self) -> dict[str, Tensor]:
        """Return the measures of all samples so far."""
        values = {}
        for part, accumulator in self._filled().items():
            options = {"n_bins": self.n_bins} if isinstance(accumulator, RankSketch) else {}
            result = accumulator.compute(**options) if accumulator.n else None
            for name, measure in _MEASURES[part].items():
                value = math.nan if result is None else float(measure(result))
                values[name] = torch.tensor(value, dtype=torch.float64, device=self.device)
        return values

    def _fresh(self) -> dict[str, _Accumulator]:
        """Return accumulators that have seen nothing."""
        accumulators: dict[str, _Accumulator] = {"outcomes": OutcomeAccumulator(n_bins=self.n_bins)}
        if self.reads != "confidence":
            accumulators["scores"] = ProperScoreAccumulator()
        if self.n_classes is not None:
            accumulators["classes"] = ClasswiseAccumulator(n_classes=self.n_classes, n_bins=self.n_bins)
        if self.resolution is not None:
            accumulators["ranks"] = RankSketch(resolution=self.resolution)
        return accumulators

    def _filled(self) -> dict[str, _Accumulator]:
        """Return accumulators that have seen what this metric has seen."""
        return {
            part: fresh.from_state(
                fresh.state() | {name: getattr(self, f"{part}_{name}") for name in fresh.reductions}
            )
            for part, fresh in self._fresh().items()
        }


def _combine(reduction: Reduction, parts: Tensor) -> Tensor:
    """Combine the totals of several processes, stacked along the first dimension."""
    return torch.as_tensor(reduce(reduction, parts.cpu().numpy()), device=parts.device)
