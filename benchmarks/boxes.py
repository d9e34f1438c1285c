"""Detectors: matching against pycocotools, coverage of intervals by image, repair beside netcal.

    pip install pycocotools netcal  # optional: their parts are left out without them
    python benchmarks/boxes.py [--weeds FOLDER] [--only PARTS] > docs/results/boxes.md

FOLDER has ``detections.json`` and ``ground_truth.json`` in the format of COCO. It takes a few minutes.
"""

import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from calibrant.boxes import (
    Detections,
    GroundTruth,
    average_precision,
    detection_ece,
    match_boxes,
    match_pairs,
    read_detections,
    read_ground_truth,
)
from calibrant.boxes.measures import ImageMeasure
from calibrant.boxes.pairs import SIGNALS, BoxPairs
from calibrant.data.predictions import Predictions
from calibrant.evaluation import compare, evaluate
from calibrant.evaluation.compare import Comparison
from calibrant.inputs import Floats
from timing import benchmark_parser, print_head, print_row

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.boxes.random_boxes import random_case, same_matches, with_pycocotools

try:
    import pycocotools
except ModuleNotFoundError:  # the peer is optional
    pycocotools = None
try:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from netcal.binning import HistogramBinning, IsotonicRegression
        from netcal.scaling import BetaCalibration, LogisticCalibration
except ModuleNotFoundError:
    LogisticCalibration = None

_AREAS = {"all": None, "small": (0.0, 32.0**2), "medium": (32.0**2, 96.0**2)}
_MEASURES = ("accuracy", "brier", "nll", "ece")


def matching(cases: int) -> None:
    """Print how many random cases are matched as by pycocotools."""
    print("## Matching\n")
    print(
        f"{cases:,} random cases of three images and two classes: up to seven objects of each class in "
        "an image, 15 % of them crowds, scores and overlaps that often tie. Equal means that each box is "
        "matched with the same object, or ignored, at all three thresholds (0.3, 0.5 and 0.75).\n"
    )
    print_head("objects that count", "boxes of a class that count", "cases", "boxes", "equal cases")
    for name, most in (("all", 100), ("all", 2), ("small", 100), ("medium", 100)):
        equal, boxes, done = 0, 0, 0
        for seed in range(cases):
            detections = random_case(np.random.default_rng(seed), most=seed % 7 + 1)
            theirs = with_pycocotools(detections, (0.3, 0.5, 0.75), most)
            if theirs is None:
                continue  # pycocotools reads no empty results
            own = match_boxes(detections, iou=(0.3, 0.5, 0.75), most=most, area=_AREAS[name])
            equal += same_matches(own, theirs, name)
            boxes += detections.n
            done += 1
        print_row(name, most, f"{done:,}", f"{boxes:,}", f"{equal:,}")
    print()


def drawn(images: int, seed: int) -> Detections:
    """Return boxes of images that differ: in some images scores promise more than in others."""
    rng = np.random.default_rng(seed)
    corners, scores, image, right, objects, owner = [], [], [], [], [], []
    for i in range(images):
        effect = 1.5 * rng.normal()
        for place in range(rng.integers(2, 15)):
            score = float(rng.beta(2.5, 1.5))
            log_odds = 0.8 * np.log(score / (1 - score)) - 0.4 + effect
            box = [40 * (place % 4), 50 * (place // 4), 30 + 8 * rng.random(), 30 + 15 * rng.random()]
            corners.append(box)
            scores.append(score)
            image.append(i)
            right.append(rng.random() < 1 / (1 + np.exp(-log_odds)))
            if right[-1] or rng.random() < 0.2:  # objects that are missed are elsewhere
                shift = 0 if right[-1] else 200
                objects.append([box[0], box[1] + shift, *box[2:]])
                owner.append(i)
    truth = GroundTruth.of(
        images=range(images),
        sizes=(170, 420),
        class_names=["thing"],
        boxes=objects,
        image=owner,
        label=[0] * len(owner),
    )
    return Detections.of(truth, boxes=corners, score=scores, image=image, label=[0] * len(image))


def coverage(runs: int, images: int, large: int) -> None:
    """Print how often intervals by image and by box cover the truth."""
    print("## Intervals\n")
    chance = 196 * (0.95 * 0.05 / runs) ** 0.5
    print(
        "Simulated detectors whose scores promise more in some images than in others (log-odds differ with a "
        f"standard deviation of 1.5), {images} images with 2 to 14 boxes each. The truth is what {large:,} "
        f"other images show. {runs:,} runs; 95 % intervals should cover the truth in 95 % of them, of which "
        f"so many runs show {95 - chance:.1f} to {95 + chance:.1f} %. By box, every box is drawn alone.\n"
    )
    whole = match_pairs(drawn(large, 10**6), by=())
    truth = dict(evaluate(whole.predictions, measures=_MEASURES).metrics)
    truth |= {name: each.value for name, each in of_images(whole).items()}
    by_image: dict[str, list[tuple[float, float]]] = {name: [] for name in truth}
    by_box: dict[str, list[tuple[float, float]]] = {name: [] for name in _MEASURES}
    for seed in range(runs):
        pairs = match_pairs(drawn(images, seed), by=())
        for found, units in ((by_image, pairs.predictions.units), (by_box, None)):
            each = evaluate(pairs.predictions.replaced(units=units), measures=_MEASURES, intervals=True)
            for name in _MEASURES:
                found[name].append((each.intervals[name].low, each.intervals[name].high))
        for name, measure in of_images(pairs).items():
            span = measure.interval()
            by_image[name].append((span.low, span.high))
    print_head("measure", "truth", "covered, by image", "covered, by box", "mean width, by image", "by box")
    for name, value in truth.items():
        cells = [covered(found[name], value) if name in found else "" for found in (by_image, by_box)]
        widths = [width(found[name]) if name in found else "" for found in (by_image, by_box)]
        print_row(name, f"{value:.4f}", *cells, *widths)
    print()


def of_images(pairs: BoxPairs) -> dict[str, ImageMeasure]:
    """Return measures that only boxes have."""
    return {"d_ece": detection_ece(pairs, n_bins=3), "ap_50": average_precision(pairs.detections, iou=0.5)}


def covered(spans: Sequence[tuple[float, float]], value: float) -> str:
    """Return the share of intervals that contain a value."""
    return f"{np.mean([low <= value <= high for low, high in spans]):.1%}"


def width(spans: Sequence[tuple[float, float]]) -> str:
    """Return the mean width of intervals."""
    return f"{fmean(high - low for low, high in spans):.4f}"


# Without the slow ones of the default.
_METHODS = ("temperature", "platt", "beta", "combination", "pool")
# Comparisons by their fitting set: all our methods are in one.
_COMPARED: dict[bytes, Comparison] = {}

# A repair: takes boxes to fit on and new ones, and returns the new scores.
Repair = Callable[[Predictions, Predictions], Floats]


def ours(method: str) -> Repair:
    """Return the repair by a method of this library."""

    def repair(fitting: Predictions, new: Predictions) -> Floats:
        rows = fitting.units.numpy().tobytes()
        if rows not in _COMPARED:
            _COMPARED[rows] = compare(fitting, test=new, methods=_METHODS)
        return _COMPARED[rows][method].measured.confidence.numpy()

    return repair


def theirs(make: Callable[[], Any], *, signals: bool) -> Repair:
    """Return the repair by a calibrator of netcal, of the score alone or with position and size."""

    def inputs(predictions: Predictions) -> Floats:
        columns = [predictions.confidence.numpy()]
        if not signals:
            return columns[0]
        columns += [predictions.signals[name].numpy() for name in SIGNALS]
        return np.stack(columns, axis=1).clip(0, 1)

    def repair(fitting: Predictions, new: Predictions) -> Floats:
        calibrator = make()
        calibrator.fit(inputs(fitting), fitting.correct.numpy().astype(int))
        return np.asarray(calibrator.transform(inputs(new)), dtype=np.float64).reshape(-1).clip(0, 1)

    return repair


def repairs() -> dict[str, Repair]:
    """Return all repairs by name."""
    found = {"uncalibrated": lambda _, new: new.confidence.numpy()}
    found |= {f"calibrant {name}": ours(name) for name in ("platt", "combination", "pool", "by_group")}
    if LogisticCalibration is None:
        return found
    return found | {
        "netcal logistic": theirs(lambda: LogisticCalibration(detection=True), signals=False),
        "netcal logistic, position and size": theirs(
            lambda: LogisticCalibration(detection=True), signals=True
        ),
        "netcal beta": theirs(lambda: BetaCalibration(detection=True), signals=False),
        "netcal beta, position and size": theirs(lambda: BetaCalibration(detection=True), signals=True),
        "netcal isotonic": theirs(IsotonicRegression, signals=False),
        "netcal histogram": theirs(lambda: HistogramBinning(bins=10, detection=True), signals=False),
        "netcal histogram, position and size": theirs(
            lambda: HistogramBinning(bins=(5, 2, 2, 2, 2), detection=True), signals=True
        ),
    }


def weeds(folder: Path, splits: int) -> None:
    """Print what repairs change on real detections."""
    truth = read_ground_truth(folder / "ground_truth.json")
    pairs = match_pairs(read_detections(folder / "detections.json", truth))
    n, images = len(pairs.rows), len(truth.images)
    print("## Repair of a real detector\n")
    print(
        f"{n} boxes of a Faster R-CNN in {images} images of fields, right from an overlap of 0.5. {splits} "
        "random splits of the images into halves; the boxes of each half are repaired by a fit on the other "
        "half, and all are measured together. Means over the splits; the interval (95 %, by image) is the "
        "mean of its ends. *By chance* is the mean D-ECE that the same scores show if they are calibrated: "
        "bins of five dimensions hold few boxes. *Lower* is the share of splits in which D-ECE is below that "
        "of the uncalibrated scores. AP is of both halves together, whose scores two fits have repaired: a "
        "monotone repair by one fit leaves it as it is. Ours are Platt scaling, the combination of score, "
        "position and size, the mixture of both with temperature scaling and beta calibration (`pool`), and "
        "the mixture corrected for each class and size (`by_group`).\n"
    )
    head = ("repair", "D-ECE, %", "95 % interval", "by chance", "lower", "ECE, %", "smECE, %", "Brier", "NLL")
    print_head(*head, "AP at 0.5, %")
    rng, halves = np.random.default_rng(0), []
    for _ in range(splits):
        first = np.zeros(images, dtype=bool)
        first[rng.permutation(images)[: images // 2]] = True
        halves.append(first[pairs.detections.image[pairs.rows]])
    before = detection_ece(pairs).value
    for name, repair in repairs().items():
        rows = [measured(pairs, repaired(pairs, half, repair)) for half in halves]
        d_ece, low, high, chance, *others = np.mean(rows, axis=0)
        lower = np.mean([row[0] < before for row in rows])
        ece, smece, brier, nll, ap = others
        print_row(
            name,
            f"{100 * d_ece:.2f}",
            f"{100 * low:.2f} to {100 * high:.2f}",
            f"{100 * chance:.2f}",
            f"{lower:.0%}",
            *(f"{100 * each:.2f}" for each in (ece, smece)),
            *(f"{each:.4f}" for each in (brier, nll)),
            f"{100 * ap:.2f}",
        )
    print()


def repaired(pairs: BoxPairs, half: np.ndarray, repair: Repair) -> Floats:
    """Return the scores of all boxes, each repaired by a fit on the other half of the images."""
    scores = np.empty(len(pairs.rows))
    for inside in (half, ~half):
        parts = [pairs.predictions.take(np.flatnonzero(each)) for each in (~inside, inside)]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            scores[inside] = repair(*parts)
    return scores


def measured(pairs: BoxPairs, scores: Floats) -> list[float]:
    """Return D-ECE with its interval and its value by chance, and other measures."""
    new = pairs.with_scores(scores)
    d_ece, rng = detection_ece(new), np.random.default_rng(0)
    span = d_ece.interval()
    chance = fmean(d_ece.calibrated(rng) for _ in range(20))
    metrics = evaluate(new.predictions, measures=["ece", "smece", "brier", "nll"]).metrics
    ap = average_precision(new.detections, iou=0.5).value
    return [d_ece.value, span.low, span.high, chance, *metrics.values(), ap]


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the page."""
    parser = benchmark_parser(__doc__, "few cases, runs and splits")
    parser.add_argument("--weeds", type=Path, help="folder of detections and ground truth of a real detector")
    parser.add_argument("--only", default="matching,intervals,repair", help="parts, separated by commas")
    options = parser.parse_args(arguments)
    parts = options.only.split(",")
    cases, runs, splits = (5, 3, 2) if options.quick else (2000, 500, 4)
    print("# Detectors: what was measured\n")
    print("This page was made by `python benchmarks/boxes.py --weeds FOLDER > docs/results/boxes.md`.\n")
    if pycocotools is not None and "matching" in parts:
        matching(cases)
    if "intervals" in parts:
        coverage(runs, images=20 if options.quick else 150, large=200 if options.quick else 20_000)
    if "repair" in parts and options.weeds is not None:
        weeds(options.weeds, splits)


if __name__ == "__main__":
    main()
