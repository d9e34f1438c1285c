"""How far calibration errors are from the truth: on simulated predictions whose true error is known.

    python benchmarks/calibration_errors.py [--runs 100] [--quick]

Confidences are the largest probabilities of random distributions over ten classes, and each is right with a
probability that is a known function of it: itself (calibrated), less (overconfident, log-odds times 0.6), or
in turn more and less (crossing). The truth is the mean distance between the two, over a million draws. The
two-bin error has another unit, and is compared with its own value on a million draws. The second table is
about whole distributions over 3, 10 and 100 classes, with labels drawn from their power of 0.6.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from calibrant.metrics import (
    averaged_two_bin_error,
    debiased_calibration_error,
    expected_calibration_error,
    smooth_ece,
    variational_calibration_error,
)
from timing import benchmark_parser, print_head, print_row

Floats = npt.NDArray[np.float64]

ESTIMATES: Mapping[str, Callable[..., float]] = {
    "ECE": expected_calibration_error,
    "ECE, equal mass": lambda **pairs: expected_calibration_error(**pairs, binning="mass"),
    "debiased ECE": lambda **pairs: debiased_calibration_error(**pairs, norm="l1"),
    "smECE": smooth_ece,
    "variational": variational_calibration_error,
}

MANY = 1_000_000


def calibrated(confidence: Floats) -> Floats:
    """Right as often as stated."""
    return confidence


def overconfident(confidence: Floats) -> Floats:
    """Right less often: log-odds times 0.6."""
    odds = confidence / (1 - confidence)
    return np.asarray(odds**0.6 / (1 + odds**0.6))


def crossing(confidence: Floats) -> Floats:
    """Right more and less often, in turn."""
    return np.asarray((confidence + 0.08 * np.sin(8 * np.pi * confidence)).clip(0.01, 0.99))


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the truth and the mean distance of each estimate from it, with its standard deviation."""
    parser = benchmark_parser(__doc__, "one run with few samples")
    parser.add_argument("--runs", type=int, default=100)
    args = parser.parse_args(arguments)
    runs, sizes, many = (1, (100,), 10_000) if args.quick else (args.runs, (200, 1000, 5000), MANY)
    print_head("model", "samples", "true error", *ESTIMATES, "two-bin: true", "two-bin")
    for accuracy in (calibrated, overconfident, crossing):
        of_top_label(accuracy, sizes, runs, many)
    print()
    print_head("classes", "samples", "true L1", "variational L1", "true L2", "variational L2")
    for k in (3, 10, 100):
        for n in sizes:
            of_distributions(k, n, max(1, runs // 5))


def of_top_label(accuracy: Callable[[Floats], Floats], sizes: Sequence[int], runs: int, many: int) -> None:
    """Print the rows of one model, in points; two-bin errors times 10,000."""
    rng = np.random.default_rng(0)
    stated = confidences(many, rng)
    truth = np.abs(accuracy(stated) - stated).mean()
    far = averaged_two_bin_error(**outcomes(stated, accuracy, rng))
    for n in sizes:
        samples = [outcomes(confidences(n, rng), accuracy, rng) for _ in range(runs)]
        cells = [cell([100 * (each(**some) - truth) for some in samples]) for each in ESTIMATES.values()]
        two_bin = cell([1e4 * (averaged_two_bin_error(**some) - far) for some in samples])
        print_row(accuracy.__name__, n, f"{100 * truth:.2f}", *cells, f"{1e4 * far:.2f}", two_bin)


def confidences(n: int, rng: np.random.Generator) -> Floats:
    """Return the largest probabilities of random distributions over ten classes."""
    logits = rng.normal(size=(n, 10)) * 1.2
    logits[:, 0] += 2.5
    return np.asarray(softmax(logits).max(axis=1).clip(max=1 - 1e-9))


def outcomes(
    confidence: Floats, accuracy: Callable[[Floats], Floats], rng: np.random.Generator
) -> dict[str, npt.NDArray[Any]]:
    """Return confidences with hits."""
    return {"confidence": confidence, "correct": rng.random(len(confidence)) < accuracy(confidence)}


def of_distributions(k: int, n: int, runs: int) -> None:
    """Print the row of a number of classes and samples, in points."""
    rows = []
    for seed in range(runs):
        rng = np.random.default_rng(seed)
        logits = rng.normal(size=(n, k))
        logits[np.arange(n), rng.integers(k, size=n)] += 3 + np.log(k)
        stated, true = softmax(logits), softmax(0.6 * logits)
        labels = (true.cumsum(axis=1) > rng.random((n, 1))).argmax(axis=1)
        row = []
        for p in (1.0, 2.0):
            truth = np.linalg.norm(stated - true, ord=p, axis=1).mean()
            found = variational_calibration_error(stated, labels, mode="canonical", p=p)
            row += [truth, found - truth]
        rows.append(row)
    truth_1, away_1, truth_2, away_2 = 100 * np.array(rows).T
    print_row(k, n, f"{truth_1.mean():.2f}", cell(away_1), f"{truth_2.mean():.2f}", cell(away_2))


def softmax(logits: Floats) -> Floats:
    """Return the distribution of each row."""
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))


def cell(values: Sequence[float] | Floats) -> str:
    """Return a mean with its sign, and the standard deviation."""
    return f"{np.mean(values):+.2f} ± {np.std(values):.2f}"


if __name__ == "__main__":
    main()
