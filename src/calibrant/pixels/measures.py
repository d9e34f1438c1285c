"""Measures of score maps: sums of one image after the other, with intervals and tests by image."""

import heapq
import math
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sized
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from calibrant.bins import Bins, check_bins
from calibrant.errors import InputError
from calibrant.evaluation.groups import GroupTest, group_tests, sentence_on_groups
from calibrant.evaluation.tables import measures_table
from calibrant.inference.intervals import Interval
from calibrant.inputs import Floats, Progress
from calibrant.metrics.names import MEASURES
from calibrant.pixels.borders import band_names
from calibrant.pixels.images import PixelImage
from calibrant.pixels.sums import N_BANDS, ImageSums, image_sums
from calibrant.results import FrozenDict, Result
from calibrant.show.numbers import Cell, count, percent, points, span
from calibrant.show.table import Column, Table
from calibrant.streams.measures import streamed_measures
from calibrant.streams.sketch import RankSketch
from calibrant.streams.sketch_bounds import Bounded, Cells
from calibrant.streams.unit_sums import UnitSums
from calibrant.threads import one_thread_each

# Images have sums of their own up to these numbers, for all pixels and for those of a class or a band. More
# images share them: sums of several images vary as independently of each other as images do.
_OF_ALL, _OF_PARTS = 1024, 256
_WORST = 20
# Images that are read ahead of the one that is summed.
_AHEAD = 2
_TOO_FEW = "too few images to tell whether a gap is more than chance"
_LEVEL = 0.95


@dataclass(frozen=True)
class ImageRow:
    """The calibration of one image.

    Attributes:
        name: Name of the image.
        n: Number of pixels that count.
        accuracy: Share of pixels whose most probable class is right.
        mean_confidence: Mean confidence in the most probable class.
        ece: Binned gap between confidence and accuracy.
        nll: Mean negative log-likelihood.
    """

    name: str
    n: int
    accuracy: float
    mean_confidence: float
    ece: float
    nll: float


@dataclass(frozen=True, eq=False)
class PixelPart(Result):
    """The calibration of a part of the pixels: those predicted as a class, or those of a band.

    Attributes:
        name: Number of the class, or the distance to the border in pixels.
        n: Number of pixels.
        metrics: The measures by name.
        test: The gap with its interval by image, and whether chance explains it, corrected for all parts.
        recall: Share of the pixels of the class that are predicted as it; None for a band.
        iou: Intersection over union of the class; None for a band.
    """

    name: str
    n: int
    metrics: Mapping[str, float]
    test: GroupTest
    recall: float | None = None
    iou: float | None = None


@dataclass(frozen=True, eq=False)
class PixelEvaluation(Result):
    """How well calibrated a segmentation is; the image is the unit.

    Attributes:
        n: Number of pixels that count.
        n_images: Number of images that have such pixels.
        n_ignored: Number of images in which every pixel is ignored.
        k: Number of classes.
        metrics: The measures by name, each over all pixels.
        bounds: For measures that depend on the order of all confidences, if they were wanted, bounds that
            contain the exact value. All other measures are exact.
        mean_iou: Mean over the classes of intersection over union; classes without pixels are left out.
        intervals: 95 % intervals by name, from images that are drawn again, if requested.
        bins: Confidence and accuracy in bins of equal width, for the reliability diagram.
        classes: Pixels by predicted class.
        bands: Pixels by their distance to the next pixel of another class in the ground truth.
        worst: The twenty images with the largest calibration errors.
    """

    not_in_json: ClassVar[tuple[str, ...]] = ("bins",)

    n: int
    n_images: int
    n_ignored: int
    k: int
    metrics: Mapping[str, float]
    mean_iou: float
    intervals: Mapping[str, Interval]
    bins: Bins
    classes: tuple[PixelPart, ...]
    bands: tuple[PixelPart, ...]
    worst: tuple[ImageRow, ...]
    bounds: Mapping[str, Bounded] = field(default_factory=FrozenDict)

    def only(self, names: Collection[str]) -> "PixelEvaluation":
        """Return the evaluation with these measures."""
        return replace(
            self,
            metrics=FrozenDict({name: each for name, each in self.metrics.items() if name in names}),
            bounds=FrozenDict({name: each for name, each in self.bounds.items() if name in names}),
            intervals=FrozenDict({name: each for name, each in self.intervals.items() if name in names}),
        )

    def to_table(self) -> Table:
        """Return the measures, with their intervals by image."""
        left_out = f"{self.n_ignored:,} images are left out, in which every pixel is ignored"
        within = [
            f"{measure.title}: within {_half(each, in_percent=measure.percent)} of the exact value"
            for measure, each in ((MEASURES[name], each) for name, each in self.bounds.items())
            if each.high > each.low
        ]
        notes = (
            f"mean IoU: {100 * self.mean_iou:.2f} %",
            *within,
            *([left_out] if self.n_ignored else []),
        )
        title = f"{self.n:,} pixels of {self.n_images:,} images, {self.k} classes"
        return measures_table({"value": self.metrics}, self.intervals, title=title, notes=notes)

    @property
    def tables(self) -> tuple[Table, ...]:
        """The classes, the bands of distance, and the worst images."""
        classes = _parts_table(self.classes, "predicted class")
        bands = _parts_table(self.bands, "pixels to the border")
        rows = [
            [row.name, count(row.n), percent(row.accuracy), percent(row.mean_confidence), percent(row.ece)]
            for row in self.worst[:5]
        ]
        images = Table.of(["worst images", "pixels", "accuracy", "confidence", "ECE"], rows)
        return classes, bands, images


class PixelMeasures:
    """Sums over images in memory that does not grow with their number.

    Args:
        n_bins: Number of bins of the binned measures.
        ranks: Whether the confidences are counted in narrow cells, too, from which measures of their order
            follow (:class:`~calibrant.streams.RankSketch`).

    Attributes:
        sums: All sums by name, which add up over parts of the images; empty before the first image.

    Example:
        >>> measures = PixelMeasures()
        >>> scores, labels = torch.tensor([[[0.9, 0.6]], [[0.1, 0.4]]]), torch.tensor([[0, 1]])
        >>> row = measures.add(PixelImage.of("a", "probs", scores, labels))
        >>> row.n, row.accuracy, round(measures.compute().metrics["ece"], 3)
        (2, 0.5, 0.35)
    """

    def __init__(self, *, n_bins: int = 15, ranks: bool = False) -> None:
        self.n_bins = check_bins(n_bins)
        self.sketch = RankSketch() if ranks else None
        self.sums: dict[str, Floats] = {}
        self._n_ignored = 0
        self._worst: list[tuple[float, int, ImageRow]] = []

    @classmethod
    def of(cls, sums: dict[str, Floats], *, n_bins: int = 15) -> Self:
        """Return measures that continue sums, such as those of several processes together."""
        measures = cls(n_bins=n_bins)
        measures.sums = sums if sums["images"][0] else {}
        return measures

    @property
    def k(self) -> int | None:
        """Number of classes; none without images."""
        return len(self.sums["labels"]) if self.sums else None

    @property
    def n_images(self) -> int:
        """Number of images with pixels that count."""
        return int(self.sums["images"][0]) if self.sums else 0

    def add(self, image: PixelImage) -> ImageRow | None:
        """Sum the pixels of an image and return its own measures; None if every pixel is ignored."""
        return self.include(image.name, image_sums(image, n_bins=self.n_bins, ranks=self.sketch is not None))

    def include(self, name: str, sums: ImageSums) -> ImageRow | None:
        """Add the sums of an image and return its own measures; None if every pixel is ignored."""
        if not sums.n:
            self._n_ignored += 1
            return None
        if self.k not in (None, len(sums.labels)):
            raise InputError(
                f"{name}: expected {self.k} classes as in the images before, got {len(sums.labels)}"
            )
        self.sums = self.sums or empty_sums(len(sums.labels), self.n_bins)
        number = self.n_images
        self.sums["images"] += 1
        self.sums["cells"] += sums.cells
        self.sums["labels"] += sums.labels
        if self.sketch is not None and sums.outcomes is not None:
            self.sketch.add_sorted(sums.outcomes)
        for key, values in _of_units(sums).items():
            self.sums[key][..., number % self.sums[key].shape[-1]] += values
        row = _row(name, sums)
        heapq.heappush(self._worst, (row.ece, -number, row))
        if len(self._worst) > _WORST:
            heapq.heappop(self._worst)
        return row

    def merge(self, other: Self) -> None:
        """Add the sums of other images with as many classes and bins, which do not change."""
        shapes = [{key: each.shape for key, each in part.sums.items()} for part in (self, other)]
        if other.n_bins != self.n_bins or (all(shapes) and shapes[0] != shapes[1]):
            raise InputError("merge: expected sums of as many classes and bins, got others")
        self.sums = {key: value + self.sums.get(key, 0.0) for key, value in (other.sums or self.sums).items()}
        self._n_ignored += other._n_ignored
        if self.sketch is not None and other.sketch is not None:
            self.sketch.merge(other.sketch)
        self._worst = heapq.nlargest(_WORST, [*self._worst, *other._worst])

    def compute(self, *, intervals: bool = False, seed: int = 0) -> PixelEvaluation:
        """Return the measures of all images so far.

        Args:
            intervals: Whether to draw images again for 95 % intervals; needs two images at least.
            seed: Equal seeds give equal intervals.
        """
        if not self.sums:
            ignored = (
                f", {self._n_ignored:,} images in which every pixel is ignored" if self._n_ignored else ""
            )
            raise InputError(
                f"score maps: expected an image with pixels that count, got none{ignored}; look at the labels"
            )
        cells, labels = self.sums["cells"], self.sums["labels"]
        bins = _bins(cells.sum(axis=(1, 2)))
        metrics = _metrics(bins, self.sums["scores"].sum(axis=1))
        found = self._intervals(metrics, seed) if intervals else {}
        bounds = {} if self.sketch is None else _ranked(self.sketch, self.n_bins)
        predicted, _, hits = cells.sum(axis=(2, 3))
        with np.errstate(invalid="ignore"):
            recall, iou = hits / labels, hits / (labels + predicted - hits)
        of_classes = [{"recall": float(r), "iou": float(i)} for r, i in zip(recall, iou, strict=True)]
        return PixelEvaluation(
            n=int(labels.sum()),
            n_images=self.n_images,
            n_ignored=self._n_ignored,
            k=len(labels),
            metrics=FrozenDict(metrics | {name: each.value for name, each in bounds.items()}),
            bounds=FrozenDict(bounds),
            mean_iou=float(np.nanmean(iou)),
            intervals=FrozenDict(found),
            bins=bins,
            classes=self._parts("classes", cells.sum(axis=2), [*map(str, range(len(labels)))], of_classes),
            bands=self._parts("bands", cells.sum(axis=1), [*band_names()], [{}] * N_BANDS),
            worst=tuple(row for _, _, row in sorted(self._worst, reverse=True)),
        )

    def _parts(
        self, key: str, cells: Floats, names: list[str], beside: list[dict[str, float]]
    ) -> tuple[PixelPart, ...]:
        """Return the parts that have pixels, with tests by image that are corrected for their number."""
        used = [place for place in range(len(names)) if cells[0, place].sum()]
        tables = {place: self.sums[key][:, place] for place in used}
        n_images = {place: int((tables[place][0].sum(axis=0) > 0).sum()) for place in used}
        # One image has no variation to compare with.
        several = [place for place in used if n_images[place] > 1]
        differences = [
            _unit_sums(tables[place], n_images[place]).difference(
                _bins(cells[:, place]), int(cells[0, place].sum())
            )
            for place in several
        ]
        tests = dict(zip(several, group_tests(differences), strict=True))
        return tuple(
            _part(names[place], cells[:, place], tests.get(place), **beside[place]) for place in used
        )

    def _intervals(self, metrics: Mapping[str, float], seed: int) -> dict[str, Interval]:
        table, scores = self.sums["all"], self.sums["scores"]
        _, confidences, hits = table.sum(axis=1)
        means = {"accuracy": hits, "mean_confidence": confidences, "nll": scores[0], "brier": scores[1]}
        units = _unit_sums(table, self.n_images, means)
        return units.intervals(metrics, {name: _WAYS[name] for name in metrics}, _no_cells(), seed=seed)


def evaluate_pixels(
    images: Iterable[PixelImage],
    *,
    n_bins: int = 15,
    intervals: bool = False,
    ranks: bool = False,
    calibrator: Callable[[Tensor], Tensor] | None = None,
    progress: Progress | None = None,
) -> PixelEvaluation:
    """Measure score maps image by image, in memory that does not grow with their number.

    Args:
        images: What :func:`~calibrant.pixels.open_images` or ``images_of_batches`` returns.
        n_bins: Number of bins of the binned measures.
        intervals: Whether to draw images again for 95 % intervals.
        ranks: Whether to measure what depends on the order of all confidences, too: AURC, excess AURC, AUGRC,
            AUROC of correctness and the error of bins of equal count, with bounds that contain the exact
            values, from counts in narrow cells.
        calibrator: A calibrator of score maps that is applied first, such as a
            :class:`~calibrant.posthoc.PixelCalibration`.
        progress: Called with the name of the image, the number that are done, and the total if it is known.

    Example:
        >>> scores = torch.tensor([[[[0.9, 0.6]], [[0.1, 0.4]]]])
        >>> from calibrant.pixels import images_of_batches
        >>> found = evaluate_pixels(images_of_batches([(scores, torch.tensor([[[0, 1]]]))], form="probs"))
        >>> found.n, round(found.metrics["ece"], 3)
        (2, 0.35)
    """
    measures = PixelMeasures(n_bins=n_bins, ranks=ranks)
    total = len(images) if isinstance(images, Sized) else 0
    sum_up = partial(image_sums, n_bins=measures.n_bins, ranks=ranks)
    for done, (name, sums) in enumerate(_summed(images, sum_up, calibrator)):
        if progress is not None:
            progress(name, done, max(total, done + 1))
        measures.include(name, sums)
    return measures.compute(intervals=intervals)


def _summed(
    images: Iterable[PixelImage],
    sum_up: Callable[[PixelImage], ImageSums],
    calibrator: Callable[[Tensor], Tensor] | None,
) -> Iterator[tuple[str, ImageSums]]:
    """Yield the sums of images in order; a few images are summed side by side, one thread each."""
    workers = torch.get_num_threads()

    def work(image: PixelImage) -> tuple[str, ImageSums]:
        return image.name, sum_up(image.changed(calibrator))

    if workers == 1:
        yield from map(work, images)
        return
    with one_thread_each(), ThreadPoolExecutor(workers) as pool:
        waiting: deque[Any] = deque()
        for image in images:
            waiting.append(pool.submit(work, image))
            if len(waiting) >= workers + _AHEAD:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def empty_sums(k: int, n_bins: int) -> dict[str, Floats]:
    """Return sums of no image of ``k`` classes, all of which add up over images."""
    return {
        "images": np.zeros(1),
        "cells": np.zeros((3, k, N_BANDS, n_bins)),
        "labels": np.zeros(k),
        "all": np.zeros((3, n_bins, _OF_ALL)),
        "scores": np.zeros((2, _OF_ALL)),
        "classes": np.zeros((3, k, n_bins, _OF_PARTS)),
        "bands": np.zeros((3, N_BANDS, n_bins, _OF_PARTS)),
    }


def _of_units(sums: ImageSums) -> dict[str, Floats]:
    """Return what an image adds to the sums of its place among the units."""
    by_class, by_band = sums.cells.sum(axis=2), sums.cells.sum(axis=1)
    return {"all": by_band.sum(axis=1), "scores": sums.scores, "classes": by_class, "bands": by_band}


def _bins(table: Floats) -> Bins:
    size, confidence, hits = table
    edges = np.arange(len(size) + 1) / len(size)
    whole = (torch.from_numpy(each.astype(np.int64)) for each in (size, hits))
    counts, correct = whole
    return Bins(torch.from_numpy(edges), counts, torch.from_numpy(confidence.copy()), correct)


def _unit_sums(table: Floats, n_units: int, sums: Mapping[str, Floats] = FrozenDict({})) -> UnitSums:
    """Return the sums of units as those of a stream, from which intervals and tests follow.

    Args:
        table: Counts, confidences and hits, shape ``(3, bins, places)``.
        n_units: Number of images.
        sums: Sums of measures that are means, shape ``(places,)``.
    """
    used = np.flatnonzero(table[0].sum(axis=0))
    bins = np.moveaxis(table[..., used], -1, 1)
    size, confidence, hits = bins.sum(axis=1)
    # Of the squares of the gaps, what confidences vary by within a bin is left out: at most 1 / (4 bins^2).
    filled = size > 0
    mean = confidence[filled] / size[filled]
    squared = hits.sum() - 2 * (hits[filled] @ mean) + confidence[filled] @ mean
    return UnitSums(
        n_units=n_units,
        are_rows=False,
        bins=bins,
        cells=np.zeros((3, len(used), 0)),
        sums={name: each[used] for name, each in sums.items()},
        squares=np.array([size.sum(), hits.sum() - confidence.sum(), squared]),
        scale=None,
        resolution=0,
        is_counted=True,
    )


def _no_cells() -> Cells:
    nothing = np.zeros(0)
    return Cells(nothing.astype(np.int64), nothing.astype(np.int64), nothing, nothing, nothing)


# Measures that follow from bins of the confidence, and two means of all classes' probabilities.
_OF_SCORES = ("nll", "brier")
_WAYS = {name: way for name, way in streamed_measures().items() if way[0] == "outcomes" or name in _OF_SCORES}
_OF_RANKS = {name: compute for name, (part, compute) in streamed_measures().items() if part == "ranks"}


def pixel_measures() -> tuple[str, ...]:
    """Return the measures of score maps: those of sums, then those of ranks."""
    return (*_WAYS, *_OF_RANKS)


def _half(bounds: Bounded, *, in_percent: bool) -> str:
    half = (bounds.high - bounds.low) / 2
    return f"{100 * half:.1g} %" if in_percent else f"{half:.1g}"


def _ranked(sketch: RankSketch, n_bins: int) -> dict[str, Bounded]:
    found = sketch.compute(n_bins=n_bins)
    return {name: compute(found) for name, compute in _OF_RANKS.items()}


def _metrics(bins: Bins, scores: Floats | None = None) -> dict[str, float]:
    """Return the measures of bins, and those of summed negative log-likelihoods and Brier scores if given."""
    means = {} if scores is None else dict(zip(("nll", "brier"), scores / bins.n, strict=True))
    ways = {name: compute for name, (_, compute) in _WAYS.items() if name in means or name not in _OF_SCORES}
    return {name: float(means[name] if name in means else compute(bins)) for name, compute in ways.items()}


def _row(name: str, sums: ImageSums) -> ImageRow:
    _, confidence, hits = sums.cells.sum(axis=(1, 2))
    n = sums.n
    return ImageRow(
        name=name,
        n=n,
        accuracy=float(hits.sum()) / n,
        mean_confidence=float(confidence.sum()) / n,
        ece=float(np.abs(hits - confidence).sum()) / n,
        nll=float(sums.scores[0]) / n,
    )


def _part(name: str, cells: Floats, test: GroupTest | None, **beside: float) -> PixelPart:
    """Return a part of the pixels; one that lies in a single image has a gap, but no interval of it."""
    metrics, n = _metrics(_bins(cells)), int(cells[0].sum())
    gap, unknown = metrics["mean_confidence"] - metrics["accuracy"], math.nan
    lone = GroupTest(n, 1, metrics["accuracy"], metrics["mean_confidence"], gap, *[unknown] * 5)
    return PixelPart(name, n, FrozenDict(metrics), lone if test is None else test, **beside)


def _parts_table(parts: tuple[PixelPart, ...], what: str) -> Table:
    """Lay out parts of the pixels; those that chance does not explain are marked."""
    of_classes = any(part.iou is not None for part in parts)
    rows = []
    for part in parts:
        test, beyond = part.test, part.test.p_corrected <= 1 - _LEVEL
        row = [
            part.name,
            Cell(beyond, "*" if beyond else ""),
            count(part.n),
            percent(part.metrics["accuracy"]),
            percent(part.metrics["mean_confidence"]),
            span(test.gap_low, test.gap_high, lambda gap: points(gap, sign=True)),
            percent(part.metrics["ece"]),
        ]
        rows.append([*row, *([percent(part.iou)] if of_classes else [])])
    headings = [
        "pixels",
        "accuracy",
        "confidence",
        "gap, 95 %\ninterval",
        "ECE",
        *(["IoU"] if of_classes else []),
    ]
    columns = [Column(what, align="left"), Column(""), *map(Column, headings)]
    tests = [part.test for part in parts if not math.isnan(part.test.p_value)]
    note = f"* {sentence_on_groups(tests, correction='holm', level=_LEVEL)}" if tests else _TOO_FEW
    return Table.of(columns, rows, notes=(note,), dense=True)
