"""Calibration measures as a torchmetrics ``Metric``, which collects them over batches and processes."""

from functools import partial, reduce
from typing import Any, Literal

import torch
from torch import Tensor

from calibrant.errors import InputError
from calibrant.extras import optional
from calibrant.inputs import check_choice, check_count
from calibrant.pixels.images import MapForm, images_of_batches
from calibrant.pixels.measures import PixelMeasures, empty_sums
from calibrant.posthoc.score_maps import IGNORED_PIXEL
from calibrant.streams.measures import accumulators, measures_of
from calibrant.streams.sketch_bounds import Bounded
from calibrant.streams.sums import check_streamed_batch
from calibrant.streams.totals import Accumulator, TotalsReduction

with optional("torchmetrics"):
    from torchmetrics import Metric


class CalibrationMetrics(Metric):
    """Calibration measures of all batches on all processes, as a dictionary of tensors by name.

    The names are those of :data:`calibrant.metrics.names.MEASURES`: every measure there that follows from
    sums. Accuracy, mean confidence, the errors of equal-width bins, negative log-likelihood and Brier score
    are always computed; classwise ECE and, for six or more classes, top-5 error if ``n_classes`` is given;
    equal-mass ECE, AUROC of correctness, AURC, excess AURC and AUGRC, with the bounds ``..._low`` and
    ``..._high`` of :class:`~calibrant.streams.sketch.RankSketch`, if ``resolution`` is given. All are NaN
    while there are no samples, as in ``forward`` of an empty batch. If samples have weights, AURC and excess
    AURC, which depend on the number of samples, are NaN.

    State and results are float64 on the device of the metric. If a device lacks float64, leave the metric on
    the CPU, where it reads batches from any device.

    Args:
        reads: What ``preds`` holds: ``"logits"`` or ``"probs"``, with labels as ``target``, or
            ``"confidence"``, with whether each prediction is correct as ``target``. It is never guessed
            from the numbers.
        n_bins: Number of bins of the binned errors.
        n_classes: Number of classes, for classwise ECE and top-5 error.
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
            raise InputError(
                "n_classes: expected none with reads='confidence', which has no classes, got a number"
            )
        self.reads = reads
        self.n_bins = n_bins
        self.n_classes = n_classes
        self.resolution = resolution
        every = accumulators(
            n_bins=n_bins, n_classes=n_classes, resolution=64 if resolution is None else resolution
        )
        # Without a number of classes, the totals of a process would have no shape before its first batch.
        needs = {"ranks": resolution, "classes": n_classes}
        self._empty = {
            name: part
            for name, part in every.items()
            if needs.get(name, 0) is not None and not any(map(part.why_not, self._possible_classes))
        }
        for part_name, part in self._empty.items():
            state = part.state()
            for name, reduction in part.reductions.items():
                default = torch.as_tensor(state[name])
                self.add_state(f"{part_name}_{name}", default, dist_reduce_fx=partial(_combine, reduction))

    def update(self, preds: Tensor, target: Tensor, weights: Tensor | None = None) -> None:
        """Read a batch, with a weight for each sample if some count more; an empty one changes nothing.

        The weights of all batches have one scale; a sample without a weight has the weight 1.
        """
        truth = "correct" if self.reads == "confidence" else "labels"
        batch = check_streamed_batch(
            **{self.reads: preds, truth: target}, weights=weights, n_bins=self.n_bins
        )
        if batch is None:
            return
        parts = self._filled()
        for part in parts.values():
            part.add(batch)
        for part_name, part in parts.items():
            state = part.state()
            for name in part.reductions:
                setattr(self, f"{part_name}_{name}", torch.as_tensor(state[name], device=self.device))

    def compute(self) -> dict[str, Tensor]:
        """Return the measures of all samples so far."""
        numbers: dict[str, float] = {}
        for name, value in measures_of(
            self._filled(), k=self._possible_classes[0], n_bins=self.n_bins
        ).items():
            if isinstance(value, Bounded):
                numbers |= {name: value.value, f"{name}_low": value.low, f"{name}_high": value.high}
            else:
                numbers[name] = value
        return {
            name: torch.tensor(number, dtype=torch.float64, device=self.device)
            for name, number in numbers.items()
        }

    @property
    def _possible_classes(self) -> tuple[int | None, ...]:
        """The number of classes: none, the one given, or the fewest and very many if it is unknown."""
        if self.reads == "confidence":
            return (None,)
        return (2, 1_000_000) if self.n_classes is None else (self.n_classes,)

    def _filled(self) -> dict[str, Accumulator]:
        """Return accumulators with the totals of this metric."""
        return {
            part: empty.from_state(
                empty.state() | {name: getattr(self, f"{part}_{name}") for name in empty.reductions}
            )
            for part, empty in self._empty.items()
        }


class PixelCalibrationMetrics(Metric):
    """Calibration measures of segmentation over all batches on all processes, by name; the image is the unit.

    The measures are those of :func:`~calibrant.pixels.evaluate_pixels` that have one value: of all pixels,
    mean IoU (``"mean_iou"``), the gap of each class (``"gap_class_0"``, confidence minus accuracy where it is
    predicted), and that of each distance to the border (``"gap_at_1"``). A part without pixels is left out.

    Args:
        n_classes: Number of classes.
        reads: What ``preds`` holds: ``"logits"`` or ``"probs"`` of shape ``(n, k, h, w)``.
        n_bins: Number of bins of the binned errors.
        ignore_index: The label of pixels that do not count.
        **kwargs: Options of every torchmetrics ``Metric``.

    Example:
        >>> import torch
        >>> metric = PixelCalibrationMetrics(n_classes=2, reads="probs")
        >>> metric.update(torch.tensor([[[[0.9, 0.6]], [[0.1, 0.4]]]]), torch.tensor([[[0, 1]]]))
        >>> round(float(metric.compute()["ece"]), 6)
        0.35
    """

    is_differentiable = False
    full_state_update = False

    def __init__(
        self,
        *,
        n_classes: int,
        reads: MapForm = "logits",
        n_bins: int = 15,
        ignore_index: int = IGNORED_PIXEL,
        **kwargs: Any,  # noqa: ANN401  # torchmetrics' own options
    ) -> None:
        super().__init__(**kwargs)
        forms: tuple[MapForm, ...] = ("logits", "probs")
        self.reads = check_choice(reads, "reads", forms)
        self.n_classes = check_count(n_classes, "n_classes", at_least=2)
        self.n_bins, self.ignore_index = n_bins, ignore_index
        for name, value in empty_sums(n_classes, n_bins).items():
            self.add_state(name, torch.from_numpy(value), dist_reduce_fx="sum")

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Read a batch of maps ``(n, k, h, w)`` and masks ``(n, h, w)``."""
        measures = self._measures()
        batches = [(preds.detach().cpu(), target.cpu())]
        for image in images_of_batches(batches, form=self.reads, ignore_index=self.ignore_index):
            if image.k != self.n_classes:
                raise InputError(f"preds: expected {self.n_classes} classes, got {image.k}")
            measures.add(image)
        for name, value in measures.sums.items():
            setattr(self, name, torch.from_numpy(value).to(self.device))

    def compute(self) -> dict[str, Tensor]:
        """Return the measures of all images so far; none while there are no pixels."""
        measures = self._measures()
        if not measures.n_images:
            return {}
        found = measures.compute()
        numbers = {**found.metrics, "mean_iou": found.mean_iou}
        numbers |= {f"gap_class_{part.name}": part.test.gap for part in found.classes}
        numbers |= {f"gap_at_{part.name.replace(' ', '_')}": part.test.gap for part in found.bands}
        return {
            name: torch.tensor(number, dtype=torch.float64, device=self.device)
            for name, number in numbers.items()
        }

    def _measures(self) -> PixelMeasures:
        """Return measures with the sums of this metric."""
        names = empty_sums(self.n_classes, self.n_bins)
        sums = {name: getattr(self, name).cpu().double().numpy().copy() for name in names}
        return PixelMeasures.of(sums, n_bins=self.n_bins)


def _combine(reduction: TotalsReduction, parts: Tensor) -> Tensor:
    """Combine the totals of several processes, stacked along the first dimension."""
    return torch.as_tensor(reduce(reduction, parts.cpu().numpy()), device=parts.device)
