"""Prediction sets: coverage in 2,000 splits against its beta law, and sizes before and after calibration.

*Coverage.* The scores of the true classes are computed once; each split draws the samples of the fit at
random and measures the coverage on all others. If no two scores are equal, the number of covered samples has
exactly a beta-binomial distribution, whatever the model. A row shows the share of splits within the band that
should hold 99 % of them, and the p-value of a chi-square test of their whole distribution. The rows of one
class are what sets by class have for it: here the class with the number 3, cats.

*Sizes.* A random half of a validation set fits a calibrator, the other half fits the sets, those of raw
scores too. Sizes and, in parentheses, coverage are measured on a test set. Empty sets stay empty, because the
law is about them; in the last columns they hold the most probable class, as they do by default.

Files: ``--files`` are ``.npz`` files with logits and labels; a file named ``NAME_val.npz`` has its test set
in ``NAME_test.npz``, and others are divided in two. By default the bundled CIFAR-10 predictions.

Run: ``python benchmarks/sets.py`` (two minutes); ``--only coverage`` or ``--only sizes`` for one table.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from scipy.stats import betabinom, chisquare
from torch import Tensor

import calibrant.data.bundled
from calibrant import Predictions, load_predictions
from calibrant.decisions import calibrate_part, compare_sets, coverage_law
from calibrant.decisions.conformal import RankedClasses, SetScore, place_of_threshold, threshold
from timing import benchmark_parser, print_head, print_row

BUNDLED = Path(calibrant.data.bundled.__file__).parent
SCORES = (
    SetScore("lac"),
    SetScore("aps"),
    SetScore("aps", True),
    SetScore("raps", False, 0.1, 2),
    SetScore("raps", True, 0.1, 2),
)
LEVEL = 0.99


def label_scores(predictions: Predictions, score: SetScore, rng: np.random.Generator) -> Tensor:
    """Return the score of the true class of each sample."""
    ranked = RankedClasses(torch.softmax(predictions.to_logits().double(), dim=1))
    u = torch.from_numpy(rng.random(predictions.n))
    return score.of(ranked, u).gather(1, predictions.labels[:, None])[:, 0]


def covered_in_splits(scores: Tensor, n: int, alpha: float, splits: int, rng: np.random.Generator) -> Tensor:
    """Return how many of the other samples are covered in each split, whose fit has ``n`` samples."""
    found = []
    for _ in range(splits):
        order = torch.from_numpy(rng.permutation(len(scores)))
        limit = threshold(scores[order[:n]], alpha)
        found.append((scores[order[n:]] <= limit).sum())
    return torch.stack(found)


def against_law(covered: Tensor, n: int, n_test: int, alpha: float) -> tuple[float, float, float]:
    """Return the mean coverage, the share of splits within the band, and the p-value of a chi-square test."""
    band = coverage_law(n, alpha, n_test=n_test, level=LEVEL)
    share = covered.double().numpy() / n_test
    inside = (share >= band.low - 1e-12) & (share <= band.high + 1e-12)
    place = place_of_threshold(n, alpha)
    law = betabinom(n_test, place, n + 1 - place)
    edges = np.unique(law.ppf(np.linspace(0, 1, 21)[1:-1]))
    expected = np.diff([0.0, *law.cdf(edges), 1.0]) * len(covered)
    counts = np.bincount(np.searchsorted(edges, covered.numpy()), minlength=len(expected))
    return float(share.mean()), float(inside.mean()), float(chisquare(counts, expected).pvalue)


def coverage_rows(predictions: Predictions, splits: int, seed: int) -> Iterator[tuple[object, ...]]:
    """Yield a row for each score, sample size and alpha, and by class."""
    rng = np.random.default_rng(seed)
    for score in SCORES:
        scores = label_scores(predictions, score, rng)
        for n, alpha in ((100, 0.1), (1000, 0.1), (1000, 0.05)):
            covered = covered_in_splits(scores, n, alpha, splits, rng)
            n_test = len(scores) - n
            yield (
                score.name,
                "overall",
                alpha,
                n,
                *against_law(covered, n, n_test, alpha),
                len(scores.unique()),
            )
        rows = predictions.labels == 3
        own = scores[rows]
        covered = covered_in_splits(own, 100, 0.1, splits, rng)
        yield (
            score.name,
            "one class",
            0.1,
            100,
            *against_law(covered, 100, len(own) - 100, 0.1),
            len(own.unique()),
        )


def print_coverage(splits: int, seed: int) -> None:
    """Print how the coverage of splits of the bundled test set is distributed."""
    predictions = load_predictions(BUNDLED / "cifar10_test.npz")
    print(f"\n## Coverage in {splits:,} splits of {predictions.n:,} samples\n")
    columns = ("sets", "coverage", "alpha", "samples of the fit", "mean coverage", "law's mean")
    print_head(*columns, f"splits within the {LEVEL:.0%} band", "p-value")
    for name, part, alpha, n, mean, inside, p, distinct in coverage_rows(predictions, splits, seed):
        expected = coverage_law(n, alpha).mean
        ties = "" if distinct == predictions.n or part != "overall" else f" ({predictions.n - distinct} ties)"
        print_row(
            name + ties, part, alpha, f"{n:,}", f"{mean:.2%}", f"{expected:.2%}", f"{inside:.1%}", f"{p:.2f}"
        )


def halves(path: Path) -> tuple[Predictions, Predictions]:
    """Return validation and test predictions: two files, or two halves of one."""
    if path.name.endswith("_val.npz"):
        return load_predictions(path), load_predictions(path.with_name(path.name.replace("_val", "_test")))
    every = load_predictions(path)
    order = np.random.default_rng(0).permutation(every.n)
    return every.take(order[: every.n // 2]), every.take(order[every.n // 2 :])


def print_sizes(files: Sequence[Path], methods: Sequence[str], alphas: Sequence[float]) -> None:
    """Print sizes of sets, before and after calibration."""
    print("\n## Mean sizes before and after calibration\n")
    names = ["raw", *methods]
    print_head("predictions", "alpha", "sets", *names, *(f"{name}, never empty" for name in names))
    for path in files:
        validation, test = halves(path)
        parts = {name: calibrate_part(validation, method=name) for name in methods}
        calibrators = {name: calibrator for name, (calibrator, _) in parts.items()}
        rest = next(rest for _, rest in parts.values())
        for alpha in alphas:
            exact, filled = (
                compare_sets(rest, test, alpha=alpha, calibrators=calibrators, allow_empty=empty).results
                for empty in (True, False)
            )
            for name in dict.fromkeys(each.name for each in exact):
                cells = [
                    f"{each.measures.mean_size:.2f} ({each.measures.coverage:.1%})"
                    for found in (exact, filled)
                    for each in found
                    if each.name == name
                ]
                print_row(path.stem.removesuffix("_val"), alpha, name, *cells)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print both tables."""
    parser = benchmark_parser(__doc__, "fewer splits, and temperature scaling only")
    parser.add_argument("--only", choices=("coverage", "sizes"), help="one of the tables")
    parser.add_argument("--splits", type=int, default=2000, help="number of splits")
    parser.add_argument("--seed", type=int, default=0, help="seed of the splits")
    parser.add_argument("--files", type=Path, nargs="+", default=[BUNDLED / "cifar10_val.npz"])
    parser.add_argument(
        "--methods", nargs="+", default=["temperature", "auto"], help="post-hoc methods; auto is the default"
    )
    options = parser.parse_args(arguments)
    if options.only != "sizes":
        print_coverage(100 if options.quick else options.splits, options.seed)
    if options.only != "coverage":
        methods = ["temperature"] if options.quick else options.methods
        print_sizes(options.files, methods, (0.1,) if options.quick else (0.1, 0.05))


if __name__ == "__main__":
    main()
