"""How often intervals cover the true value, and how often a paired test finds a difference that is none.

    python benchmarks/intervals.py [--runs 60] [--only coverage|tests|points] [--measures NAME ...] [--quick]

A population whose errors are known: rows are drawn with replacement from the bundled CIFAR-10 test set, and
labels from the softmax of its logits over 2.5. So a model that states these probabilities is calibrated, and
one that divides by less is overconfident. The true value of a measure is that of all rows with all labels,
weighted by their probabilities. Every table gives shares of runs in percent.
"""

import argparse
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from scipy.special import ndtr, ndtri

from calibrant.data import load_bundled
from calibrant.inference.chance import could_be_calibrated, if_calibrated
from calibrant.inference.draws import CountResampler, draw_all, merged, terms_of, weighted_of
from calibrant.inference.intervals import corrected_ends
from calibrant.inference.paired import paired_difference
from calibrant.inference.rows import RowArrays
from calibrant.inference.units import Units
from calibrant.metrics.counted import Weighted, mean_weights
from calibrant.metrics.measure import Measure
from calibrant.metrics.names import MEASURES
from calibrant.outcomes import check_outcomes
from timing import benchmark_parser, print_head, print_row

Ends: TypeAlias = tuple[float, float]
Pair: TypeAlias = tuple[np.ndarray, np.ndarray, np.ndarray]

LEVEL, N_BINS, TRUE_TEMPERATURE = 0.95, 15, 2.5
TEMPERATURES = {"calibrated": 2.5, "slightly overconfident": 2.2, "overconfident": 1.5}
MEASURED = (
    "accuracy",
    "nll",
    "brier",
    "aurc",
    "auroc_correct",
    "ece",
    "ece_equal_mass",
    "rmsce",
    "mce",
    "ece_debiased",
    "ece_sweep",
    "smece",
    "smce",
    "ks",
    "kuiper",
    "mmce",
    "classwise_ece",
    "classwise_ece_equal_mass",
    "brier_calibration",
    "brier_refinement",
)
# Few resamples, so that many runs are possible; p-values of 119 resamples reach 5 % exactly.
RESAMPLES = {"coverage": 100, "tests": 119}
# Measures that get a part of the runs only.
SLOW = {"smece": 4, "smce": 2}


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a table of coverages by method, one by number of samples, and one of sizes and power."""
    parser = benchmark_parser(__doc__, "two runs with few samples and three measures")
    parser.add_argument("--runs", type=int, default=60, help="runs with 1,000 samples")
    parser.add_argument("--only", choices=("coverage", "tests", "points"), help="print only these tables")
    parser.add_argument("--measures", nargs="+", help="names of measures to test, instead of all")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first run of the paired test")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    population = Population()
    if options.only in (None, "coverage"):
        coverage_tables(population, options)
    if options.only in (None, "tests"):
        test_table(population, options)
    if options.only in (None, "points"):
        points_table(population, options)


class Population:
    """Logits of the bundled test set, and the true distribution of the label of each row."""

    def __init__(self) -> None:
        self.logits = np.asarray(load_bundled("cifar10_test").to_logits(), dtype=np.float64)
        self.truth = softmax(self.logits / TRUE_TEMPERATURE)
        # Rows of similar truth share its mean: a calibrated model that knows less.
        order = np.lexsort((self.truth.max(axis=1), self.truth.argmax(axis=1)))
        groups = np.array_split(order, len(order) // 200)
        self.coarse = np.empty_like(self.truth)
        for rows in groups:
            self.coarse[rows] = self.truth[rows].mean(axis=0)

    def draw(self, n: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Draw rows and their labels."""
        rows = rng.integers(len(self.logits), size=n)
        cumulative = self.truth[rows].cumsum(axis=1)
        return rows, (cumulative > rng.random((n, 1)) * cumulative[:, -1:]).argmax(axis=1)

    def value(self, name: str, probs: np.ndarray) -> float:
        """Return the measure of infinitely many samples of a model that states these probabilities."""
        measure = MEASURES[name]
        n, k = probs.shape
        if measure.reads == "outcomes":
            hit = self.truth[np.arange(n), probs.argmax(axis=1)]
            rows: RowArrays = {
                "confidence": np.tile(probs.max(axis=1).clip(max=1.0), 2),
                "correct": np.repeat([True, False], n),
            }
            share = np.concatenate([hit, 1 - hit])
        else:
            rows = {"probs": np.repeat(probs, k, axis=0), "labels": np.tile(np.arange(k), n)}
            share = self.truth.ravel()
        counts = np.round(10_000 * share).astype(np.int64)
        kept = {key: values[counts > 0] for key, values in rows.items()}
        return float(counted(measure, kept).values(counts[None, counts > 0])[0])


def coverage_tables(population: Population, options: argparse.Namespace) -> None:
    """Print how often each kind of interval covers the truth, and the chosen one by number of samples."""
    names = ["accuracy", "ece", "brier_calibration"] if options.quick else list(MEASURED)
    runs = {60: 2} if options.quick else {200: 2 * options.runs, 1000: options.runs, 5000: options.runs // 2}
    stated = {title: softmax(population.logits / t) for title, t in TEMPERATURES.items()}
    truths = {(name, title): population.value(name, p) for name in names for title, p in stated.items()}
    found = {n: covered(population, stated, truths, n, r) for n, r in runs.items()}
    n = sorted(runs)[len(runs) // 2]
    methods = list(next(iter(found[n].values())))
    print_head(f"coverage, n = {n:,}", *methods)
    for name in names:
        print_row(name, *(triple(found[n], name, stated, method, 0) for method in methods))
    print_row("estimate excluded", *(mean(found, method, 1) for method in methods))
    print_row(
        "width, times that of percentiles", *(f"{mean_width(found[n], method):.2f}" for method in methods)
    )
    print()
    print_head("corrected", *(f"n = {n:,}" for n in runs))
    for name in names:
        print_row(name, *(triple(found[n], name, stated, "corrected", 0) for n in runs))
    print()


Found: TypeAlias = dict[tuple[str, str], dict[str, np.ndarray]]


def covered(
    population: Population,
    stated: Mapping[str, np.ndarray],
    truths: Mapping[tuple[str, str], float],
    n: int,
    runs: int,
) -> Found:
    """Return for each measure, model and method the share covered, the share excluded, and the mean width."""
    found: dict[tuple[str, str], dict[str, list[tuple[float, float, float]]]] = {}
    for seed in range(runs):
        rows, labels = population.draw(n, np.random.default_rng([n, seed]))
        for (name, title), truth in truths.items():
            if seed % SLOW.get(name, 1):
                continue
            cells = found.setdefault((name, title), {})
            for method, value, (low, high) in intervals(name, stated[title][rows], labels, seed):
                hit = low - 1e-9 <= truth <= high + 1e-9
                out = not low - 1e-9 <= value <= high + 1e-9
                cells.setdefault(method, []).append((hit, out, high - low))
    return {key: {m: np.mean(each, axis=0) for m, each in cells.items()} for key, cells in found.items()}


def intervals(
    name: str, probs: np.ndarray, labels: np.ndarray, seed: int
) -> Iterator[tuple[str, float, Ends]]:
    """Yield the intervals of a measure by all methods, from the same resamples where they can share them."""
    measure, rng = MEASURES[name], np.random.default_rng([seed, 1])
    rows = rows_of(measure, probs, labels)
    weighted = counted(measure, rows)
    value = weighted.value
    units = Units.of(None, weighted.n)
    drawn = CountResampler(value, weighted, units).replicates(RESAMPLES["coverage"], rng)
    drawn = drawn[np.isfinite(drawn)]
    tails = np.array([(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    low, high = np.quantile(drawn, tails)

    def ends(low: float, high: float) -> Ends:
        return (max(low, 0.0) if drawn.min() >= 0 else low), (min(high, 1.0) if drawn.max() <= 1 else high)

    yield "percentile", value, (low, high)
    below = ((drawn < value).mean() + (drawn <= value).mean()) / 2
    z = 2 * ndtri(np.clip(below, 0.5 / len(drawn), 1 - 0.5 / len(drawn))) + ndtri(tails)
    low_bc, high_bc = np.quantile(drawn, ndtr(z))
    yield "bias-corrected percentile", value, (low_bc, high_bc)
    yield "basic", value, ends(2 * value - high, 2 * value - low)
    step = drawn_few(weighted, weighted.n // 4, rng) - value
    low_m, high_m = value - np.quantile(step, tails[::-1]) / 2
    yield "a quarter of n", value, ends(low_m, high_m)
    low, high = ends(*corrected_ends(value, drawn, level=LEVEL, biased=measure.terms is None))
    draw = if_calibrated(measure.function, rows, measure.arguments(N_BINS), units, rng)
    if low > 0 and draw is not None and could_be_calibrated(value, draw, level=LEVEL):
        low = 0.0
    yield "corrected", value, (min(low, value), max(high, value))


def drawn_few(weighted: Weighted, m: int, rng: np.random.Generator) -> np.ndarray:
    """Return the measure of resamples of ``m`` of the samples, drawn with replacement."""
    rows = rng.integers(weighted.n, size=(RESAMPLES["coverage"], m))
    counts = np.stack([np.bincount(each, minlength=weighted.n) for each in rows])
    values = weighted.values(counts)
    return np.asarray(values[np.isfinite(values)])


def test_table(population: Population, options: argparse.Namespace) -> None:
    """Print how often the paired test is significant at 5 %, for equal models and for different ones."""
    named = [name for name, measure in MEASURES.items() if measure.max_samples is None]
    names = ["accuracy", "ece", "classwise_ece"] if options.quick else options.measures or named
    n, runs = (60, 2) if options.quick else (300, 2 * options.runs)
    print_head(f"p at most 0.05, n = {n:,}", *CASES)
    for name in names:
        cells = []
        for case in CASES.values():
            some = seeds(runs // SLOW.get(name, 1) or 1, first=options.seed)
            shares = np.mean([significant(name, *case(population, n, rng), rng) for rng in some], axis=0)
            cells.append(" / ".join(f"{100 * share:.0f}" for share in shares))
        print_row(name, *cells)


def significant(
    name: str, a: np.ndarray, b: np.ndarray, labels: np.ndarray, rng: np.random.Generator
) -> tuple[bool, bool]:
    """Return whether two models differ, by the tail of resampled differences and by the test in use."""
    measure = MEASURES[name]
    first, second = (rows_of(measure, p, labels) for p in (a, b))
    units = Units.of(None, len(labels))
    both = [CountResampler(0.0, counted(measure, rows), units) for rows in (first, second)]
    ours, theirs = draw_all(both, RESAMPLES["tests"], rng)
    drawn = (ours - theirs)[np.isfinite(ours - theirs)]
    beyond = min(np.count_nonzero(drawn <= 0), np.count_nonzero(drawn >= 0))
    plain = 2 * (1 + beyond) / (1 + len(drawn))
    reads = next(iter(first))
    given: dict[str, Any] = {"a": first[reads], "b": second[reads], "labels": labels}
    if reads == "confidence":
        given |= {"labels": None, "correct_a": first["correct"], "correct_b": second["correct"]}
    used = paired_difference(
        measure.function,
        **given,
        **measure.arguments(N_BINS),
        n_resamples=RESAMPLES["tests"],
        seed=int(rng.integers(1 << 31)),
    )
    return bool(plain <= 1 - LEVEL + 1e-9), bool(used.p_value <= 1 - LEVEL + 1e-9)


def points_table(population: Population, options: argparse.Namespace) -> None:
    """Print what changes if resamples of smooth measures move confidences to the means of cells.

    The resamples are the same, so what differs is due to the cells alone: the largest difference over all
    models and several samples of the standard error, the mean, and the ends, in percent of the standard
    error.
    """
    names, cells = options.measures or [n for n, each in MEASURES.items() if each.smooth], (256, 1024)
    sizes = (500,) if options.quick else (500, 3000, 12_000, 50_000)
    n_samples, n_resamples = (1, 20) if options.quick else (3, 400)
    print_head(
        "% of the standard error, by number of cells", "n", *(f"{each:,}" for each in cells), "CPU time"
    )
    for name in names:
        for n in sizes:
            found = [
                on_points(name, population, n, seed, temperature, cells, n_resamples)
                for seed in range(n_samples)
                for temperature in TEMPERATURES.values()
            ]
            largest = np.max([changes for changes, _ in found], axis=0)
            shown = (" / ".join(f"{100 * change:.2f}" for change in each) for each in largest)
            print_row(name, f"{n:,}", *shown, f"{np.median([share for _, share in found]):.2f}")


def on_points(
    name: str,
    population: Population,
    n: int,
    seed: int,
    temperature: float,
    cells: Sequence[int],
    n_resamples: int,
) -> tuple[list[tuple[float, float, float]], float]:
    """Return changes of standard error, mean and ends by number of cells, and the last share of CPU time."""
    measure, units = MEASURES[name], Units.of(None, n)
    rows, labels = population.draw(n, np.random.default_rng([n, seed, 3]))
    given = rows_of(measure, softmax(population.logits[rows] / temperature), labels)
    changes: list[tuple[float, float, float]] = []
    drawn: list[np.ndarray] = []
    seconds: list[float] = []
    for number in (None, *cells):
        outcomes, kinds = check_outcomes(**given), None
        if number is not None:
            outcomes, kinds = merged(outcomes, cells=number)
        pairs = {"confidence": outcomes.confidence, "correct": outcomes.correct}
        resampler = CountResampler(0.0, counted(measure, pairs), units, kinds=kinds)
        start = time.process_time()
        drawn.append(resampler.replicates(n_resamples, np.random.default_rng(seed)))
        seconds.append(time.process_time() - start)
    tails, error = [(1 - LEVEL) / 2, (1 + LEVEL) / 2], drawn[0].std()
    for each in drawn[1:]:
        ends = np.abs(np.quantile(each, tails) - np.quantile(drawn[0], tails)).max()
        changes.append((abs(each.std() - error) / error, abs((each - drawn[0]).mean()) / error, ends / error))
    return changes, seconds[-1] / seconds[0]


def exchangeable(noise: float) -> Callable[[Population, int, np.random.Generator], Pair]:
    """Return what draws two equally good models: the same logits, with noise of their own."""

    def draw(population: Population, n: int, rng: np.random.Generator) -> Pair:
        rows, labels = population.draw(n, rng)
        a, b = population.logits[rows] + noise * rng.normal(size=(2, n, population.logits.shape[1]))
        return softmax(a / 2.2), softmax(b / 2.2), labels

    return draw


def both_calibrated(population: Population, n: int, rng: np.random.Generator) -> Pair:
    """Draw the predictions of two calibrated models, one of which knows less."""
    rows, labels = population.draw(n, rng)
    return population.truth[rows], population.coarse[rows], labels


def different(population: Population, n: int, rng: np.random.Generator) -> Pair:
    """Draw the predictions of a strongly and of a slightly overconfident model."""
    rows, labels = population.draw(n, rng)
    return softmax(population.logits[rows] / 1.2), softmax(population.logits[rows] / 2.2), labels


CASES = {
    "equal, independent errors": exchangeable(2.0),
    "equal, similar errors": exchangeable(0.3),
    "both calibrated": both_calibrated,
    "different": different,
}


def rows_of(measure: Measure, probs: np.ndarray, labels: np.ndarray) -> RowArrays:
    """Return what a measure reads."""
    if measure.reads != "outcomes":
        return {"probs": probs, "labels": labels}
    return {"confidence": probs.max(axis=1).clip(max=1.0), "correct": probs.argmax(axis=1) == labels}


def counted(measure: Measure, rows: RowArrays) -> Weighted:
    """Return a measure as a function of how often each sample is counted."""
    options = measure.arguments(N_BINS)
    terms = terms_of(measure, {**rows, **options})
    weighted = weighted_of(measure, rows, options) if terms is None else mean_weights(terms)
    assert weighted is not None
    return weighted


def softmax(z: Any) -> np.ndarray:
    """Return the softmax of each row."""
    e = np.exp(z - z.max(axis=1, keepdims=True))
    return np.asarray(e / e.sum(axis=1, keepdims=True))


def seeds(runs: int, first: int) -> Iterator[np.random.Generator]:
    """Yield a generator for each run."""
    return (np.random.default_rng([seed, 2]) for seed in range(first, first + runs))


def triple(found: Found, name: str, stated: Mapping[str, Any], method: str, column: int) -> str:
    """Return the percentages of a measure for all models."""
    return " / ".join(f"{100 * found[name, title][method][column]:.0f}" for title in stated)


def mean(found: Mapping[int, Found], method: str, column: int) -> str:
    """Return the mean percentage over all measures, models and numbers of samples."""
    every = [cells[method][column] for each in found.values() for cells in each.values()]
    return f"{100 * np.mean(every):.1f}"


def mean_width(found: Found, method: str) -> float:
    """Return the mean ratio of widths over all measures and models."""
    return float(np.mean([cells[method][2] / cells["percentile"][2] for cells in found.values()]))


if __name__ == "__main__":
    main()
