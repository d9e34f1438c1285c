"""Measures of detectors as functions of how often each image is counted, so that images are drawn again."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import scipy

from calibrant.boxes.detections import Bools, Detections
from calibrant.boxes.matching import COCO_IOU, MOST_BOXES, Matching, match_boxes
from calibrant.boxes.pairs import BoxPairs, shares_of_image
from calibrant.data.predictions import Predictions
from calibrant.inference.chance import redrawn
from calibrant.inference.draws import RESAMPLES, CountResampler, affordable
from calibrant.inference.intervals import Interval, corrected_ends
from calibrant.inference.rows import check_level, defined, generator
from calibrant.inference.units import ALONE, Units
from calibrant.inputs import Floats, Integers, check_count
from calibrant.metrics.counted import Counts, Weighted

# Numbers computed for the resamples of a measure: several seconds.
_MAX_WORK = 1 << 30
_RECALLS = np.linspace(0, 1, 101)
# What searching the recalls of a class costs, in numbers.
_SEARCH = 2_000


@dataclass(frozen=True, eq=False)
class ImageMeasure:
    """A measure of a detector on some images.

    Attributes:
        title: What it measures, for tables.
        weighted: The measure as a function of how often each image is counted.
        better: Which direction is better.
        pairs: The boxes, whose dependence within images tells how sure few images are.
        calibrated: Draws the measure as if the scores were calibrated, for errors that are then 0.
    """

    title: str
    weighted: Weighted
    better: str = "lower"
    pairs: BoxPairs | None = field(default=None, repr=False)
    calibrated: "Callable[[np.random.Generator], float] | None" = field(default=None, repr=False)

    @property
    def value(self) -> float:
        """The measure of the images themselves."""
        return self.weighted.value

    def interval(self, *, n_resamples: int = RESAMPLES, level: float = 0.95, seed: int = 0) -> Interval:
        """Return the measure with its bootstrap interval, for which images are drawn again.

        Args:
            n_resamples: Number of resamples; fewer, but at least 100, if they would take long.
            level: Share of repeated samples of images whose interval should cover the true value.
            seed: Equal seeds give equal intervals.
        """
        level = check_level(level)
        rng, value = generator(seed), self.value
        drawn = CountResampler(value, self.weighted, Units.of(None, self.weighted.n))
        n_resamples = affordable(check_count(n_resamples, "n_resamples", at_least=2), drawn.work, _MAX_WORK)
        replicates = defined(drawn.replicates(n_resamples, rng))
        spread = ALONE
        if self.pairs is not None:
            images = Units.of(self.pairs.predictions.units, len(self.pairs.rows))
            spread = images.spread(self.pairs.score - self.pairs.correct)
        low, high = corrected_ends(value, replicates, level=level, spread=spread)
        if self.calibrated is not None and low > 0:
            by_chance = [self.calibrated(rng) for _ in range(round(2 / (1 - level)) - 1)]
            low = 0.0 if max(by_chance) >= value else low
        return Interval(
            value,
            min(max(low, 0.0), value),
            max(min(high, 1.0), value),
            level,
            float(replicates.std(ddof=1)),
            len(replicates),
            n_resamples - len(replicates),
        )


def precision(pairs: BoxPairs, inside: Bools) -> ImageMeasure:
    """Return the share of some boxes that are right.

    Args:
        pairs: The boxes.
        inside: Which of those that count are meant, shape ``(n,)``.
    """
    n_images = len(pairs.detections.truth.images)
    boxes, right = (
        np.bincount(_image(pairs), weights=which, minlength=n_images)
        for which in (inside, inside & pairs.correct)
    )

    def values(counts: Counts) -> Floats:
        return _ratio(np.asarray(counts @ right, dtype=np.float64), np.asarray(counts @ boxes))

    return ImageMeasure("precision", Weighted(n_images, values, held=n_images), better="higher", pairs=pairs)


def detection_ece(pairs: BoxPairs, *, n_bins: int = 5, at_least: int = 1) -> ImageMeasure:
    r"""Return D-ECE: the gap between score and precision in bins of score, centre, width and height.

    .. math:: \mathrm{D\text{-}ECE} = \sum_b \frac{n_b}{n}\,|\mathrm{prec}_b - \mathrm{score}_b|

    Args:
        pairs: The boxes.
        n_bins: Number of bins of equal width in each of the five dimensions.
        at_least: Bins with fewer boxes count as 0.

    References:
        Küppers et al., "Multivariate Confidence Calibration for Object Detection", CVPR Workshops 2020.
    """
    n_bins = check_count(n_bins, "n_bins", at_least=1)
    beside = shares_of_image(pairs.detections)[pairs.rows].T
    code = np.zeros(len(pairs.rows), dtype=np.int64)
    for values in (pairs.score, *beside):
        code = code * n_bins + _bin(values, n_bins)
    cells, images = np.unique(code, return_inverse=True)[1], _image(pairs)
    n_images = len(pairs.detections.truth.images)
    number = _sums(images, cells, np.ones(len(cells)), n_images)

    def of(correct: Bools) -> Weighted:
        gap = _sums(images, cells, pairs.score - correct, n_images)

        def values(counts: Counts) -> Floats:
            n = np.asarray((counts @ number).astype(np.float64))
            return _ratio(np.where(n >= at_least, np.abs(counts @ gap), 0).sum(axis=1), n.sum(axis=1))

        return Weighted(n_images, values, held=max(n_images, number.shape[1]))

    redraw = redrawn(
        {"confidence": pairs.score, "correct": pairs.correct},
        Units.of(pairs.predictions.units, len(pairs.rows), at_least=1),
    )

    def calibrated(rng: np.random.Generator) -> float:
        return of(np.asarray(redraw(rng)["correct"])).value

    title = "D-ECE of score, centre and size"
    return ImageMeasure(title, of(pairs.correct), pairs=pairs, calibrated=calibrated)


def localisation_ece(pairs: BoxPairs, *, n_bins: int = 25, loose: bool = False) -> ImageMeasure:
    r"""Return LaECE: the gap between score and overlap in bins of the score, averaged over the classes.

    .. math:: \mathrm{LaECE} = \frac{1}{K} \sum_c \sum_b \frac{n_{cb}}{n_c}\,
        |\mathrm{score}_{cb} - \mathrm{prec}_{cb}\,\mathrm{IoU}_{cb}|

    so that a box of a class should have as score its expected overlap with its object, 0 without one.

    Args:
        pairs: The boxes.
        n_bins: Number of bins of equal width of the score.
        loose: Whether any overlap counts (a threshold of 0), and not only those from the threshold.

    References:
        Oksuz et al., "Towards Building Self-Aware Object Detectors via Reliable Uncertainty Quantification
        and Calibration", CVPR 2023.
        Kuzucu et al., "On Calibration of Object Detectors: Pitfalls, Evaluation and Baselines", ECCV 2024.
    """
    overlap = pairs.loose_overlap if loose else pairs.overlap
    label, n_bins = _label(pairs), check_count(n_bins, "n_bins", at_least=1)
    title = f"LaECE, {'any overlap' if loose else f'overlap from {pairs.iou:g}'}"
    return _by_class(pairs, pairs.score - overlap, label * n_bins + _bin(pairs.score, n_bins), title)


def localisation_ace(pairs: BoxPairs, *, loose: bool = True) -> ImageMeasure:
    r"""Return LaACE: the mean distance of score and overlap, averaged over the classes.

    It is LaECE with a bin for each box.

    Args:
        pairs: The boxes.
        loose: Whether any overlap counts, as in the paper.

    References:
        Kuzucu et al., "On Calibration of Object Detectors: Pitfalls, Evaluation and Baselines", ECCV 2024.
    """
    overlap = pairs.loose_overlap if loose else pairs.overlap
    title = f"LaACE, {'any overlap' if loose else f'overlap from {pairs.iou:g}'}"
    return _by_class(pairs, np.abs(pairs.score - overlap), _label(pairs), title)


def average_precision(
    detections: Detections,
    *,
    iou: float | Sequence[float] = COCO_IOU,
    most: int = MOST_BOXES,
    area: tuple[float, float] | None = None,
    only: int | None = None,
) -> ImageMeasure:
    """Return AP as COCO defines it: precision at 101 recalls, averaged over classes and overlaps.

    Args:
        detections: The boxes, and the objects of their images.
        iou: The overlap from which a box is right, or several.
        most: Boxes of each image and class that count.
        area: The smallest and the largest area of an object that counts.
        only: Place of one class; by default all that have objects.
    """
    matching, truth = match_boxes(detections, iou=iou, most=most, area=area), detections.truth
    labels = range(len(truth.class_names)) if only is None else [only]
    classes = [_RankedClass.of(matching, label) for label in labels]
    classes = [each for each in classes if each.objects.any()]

    def values(counts: Counts) -> Floats:
        if not classes:
            return np.full(len(counts), np.nan)
        every = np.stack([each.precision(np.asarray(counts)) for each in classes])
        defined_ones = ~np.isnan(every)
        return _ratio(np.where(defined_ones, every, 0).sum(axis=0), defined_ones.sum(axis=0))

    n, t = sum(len(each.image) for each in classes), len(matching.iou)
    work = t * (6 * n + _SEARCH * len(classes))
    which = (
        "0.5 to 0.95" if tuple(matching.iou) == COCO_IOU else ", ".join(f"{each:g}" for each in matching.iou)
    )
    weighted = Weighted(len(truth.images), values, held=max(len(truth.images), 2 * n, 1), work=work)
    return ImageMeasure(f"AP, overlap from {which}", weighted, better="higher")


@dataclass(frozen=True, eq=False)
class _RankedClass:
    """The boxes of a class by falling score.

    Attributes:
        image: Place of the image of each box.
        right: Whether it is right, for each threshold.
        wrong: Whether it is wrong, for each threshold.
        objects: Number of objects in each image.
    """

    image: Integers
    right: Bools
    wrong: Bools
    objects: Integers

    @classmethod
    def of(cls, matching: Matching, label: int) -> "_RankedClass":
        detections = matching.detections
        truth = detections.truth
        places = np.flatnonzero(detections.label[matching.rows] == label)
        # Equal scores stay in the order of the images, as with COCO.
        places = places[np.argsort(-detections.score[matching.rows[places]], kind="stable")]
        right = matching.correct[:, places]
        objects = np.bincount(
            truth.image[matching.counted & (truth.label == label)], minlength=len(truth.images)
        )
        image = detections.image[matching.rows[places]]
        return cls(image, right, ~right & ~matching.ignored[:, places], objects)

    def precision(self, counts: Integers) -> Floats:
        """Return the mean over recalls and thresholds for each row of counts; NaN without objects."""
        total = counts @ self.objects
        each = counts[:, self.image].astype(np.float64)
        found = np.zeros(len(counts))
        for right, wrong in zip(self.right, self.wrong, strict=True):
            tp = np.cumsum(each * right, axis=1)
            seen = tp + np.cumsum(each * wrong, axis=1)
            shares = tp / (seen + np.spacing(1))
            best = np.maximum.accumulate(shares[:, ::-1], axis=1)[:, ::-1]
            recall = tp / np.maximum(total, 1)[:, None]
            for row in range(len(counts)):
                place = np.searchsorted(recall[row], _RECALLS)
                found[row] += best[row][place[place < len(self.image)]].sum()
        found /= len(_RECALLS) * len(self.right)
        return np.where(total > 0, found, np.nan)


def with_misses(pairs: BoxPairs) -> Predictions:
    """Return the boxes, and each missed object as a wrong answer with a confidence of 0.

    AURC of these is the detection AURC: at each threshold the risk is the share of wrong boxes, and below the
    lowest score the objects that no box has found count as wrong too.
    """
    missed = len(pairs.missed_image)
    return Predictions(
        confidence=np.append(pairs.score, np.zeros(missed)),
        correct=np.append(pairs.correct, np.zeros(missed, dtype=bool)),
        units=np.append(_image(pairs), pairs.missed_image),
    )


def _by_class(pairs: BoxPairs, gaps: Floats, cells: Integers, title: str) -> ImageMeasure:
    """Return the mean over classes of the summed gaps of the cells of each, by its number of boxes."""
    images, label, n_images = _image(pairs), _label(pairs), len(pairs.detections.truth.images)
    used, cell = np.unique(cells, return_inverse=True)
    of_cell = np.zeros(len(used), dtype=np.int64)
    of_cell[cell] = label
    gap = _sums(images, cell, gaps, n_images)
    number = _sums(images, label, np.ones(len(label)), n_images)
    to_class = scipy.sparse.csr_array(
        (np.ones(len(used)), (np.arange(len(used)), of_cell)), shape=(len(used), number.shape[1])
    )

    def values(counts: Counts) -> Floats:
        n = np.asarray(counts @ number)
        errors = _ratio(np.asarray(np.abs(counts @ gap) @ to_class), n)
        return _ratio(np.where(n > 0, errors, 0).sum(axis=1), (n > 0).sum(axis=1))

    weighted = Weighted(n_images, values, held=max(n_images, len(used)))
    return ImageMeasure(title, weighted, pairs=pairs)


def _bin(values: Floats, n_bins: int) -> Integers:
    edges = np.linspace(0, 1, n_bins + 1)
    return np.searchsorted(edges[1:-1], values, side="right").astype(np.int64)


def _image(pairs: BoxPairs) -> Integers:
    return np.asarray(pairs.detections.image[pairs.rows])


def _label(pairs: BoxPairs) -> Integers:
    return np.asarray(pairs.detections.label[pairs.rows])


def _sums(images: Integers, cells: Integers, values: Floats, n_images: int) -> "scipy.sparse.csr_array":
    """Return the sum of values in each cell of each image, shape ``(images, cells)``."""
    shape = (n_images, int(cells.max(initial=-1)) + 1)
    return scipy.sparse.csr_array((values, (images, cells)), shape=shape)


def _ratio(part: Floats, whole: Floats | Integers) -> Floats:
    return np.asarray(np.divide(part, whole, out=np.full(np.shape(part), np.nan), where=whole > 0))
