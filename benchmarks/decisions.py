"""How often the error rate on new data exceeds the guaranteed risk of a threshold, and what is answered.

    python benchmarks/decisions.py [--data FOLDER] [--splits 2000] [--n 2000] [--only splits|draws] [--quick]

A set of predictions is split at random, again and again: a threshold is found on one part, and the error
rate of its answers is measured on the other one. Both parts have chance in them, so a second table draws
samples with replacement from the whole set, whose error rates above all thresholds are known: this is what
the guarantee is about. Without FOLDER only the bundled CIFAR-10 predictions are used; FOLDER has
``predictions/cifar100_wide_resnet16_4.npz`` and ``llm_mmlu_pro/answers.parquet``.
"""

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from calibrant import Predictions, load_predictions
from calibrant.data import load_bundled
from calibrant.decisions.rule import calibrated_log_probs
from calibrant.decisions.thresholds import RankedAnswers, log_odds_of_answers
from timing import benchmark_parser, print_head, print_row

LEVEL = 0.95
RISKS = {
    "CIFAR-10": (0.02, 0.05, 0.1),
    "CIFAR-100, WideResNet": (0.02, 0.05, 0.1),
    "MMLU-Pro, deepseek-reasoner": (0.05, 0.07, 0.1),
    "MMLU-Pro, gemini-2.0-flash": (0.1, 0.12, 0.15),
}
# Statements of models about their answers, in a table of answers of many models.
MODELS = ("deepseek-reasoner", "gemini-2.0-flash")


class Population:
    """Scores and mistakes of a set, the surest first, with the error rate above every threshold."""

    def __init__(self, predictions: Predictions) -> None:
        log_probs = calibrated_log_probs(predictions)
        scores = log_odds_of_answers(log_probs, of_pairs=predictions.k is None).numpy()
        wrong = ~predictions.outcomes().correct.numpy()
        order = np.argsort(-scores, kind="stable")
        self.scores, self.wrong = scores[order], wrong[order]

    def __len__(self) -> int:
        return len(self.scores)

    def answered(self, rows: npt.NDArray[np.intp], threshold: float) -> tuple[float, float]:
        """Return the share of rows, in ascending order, at or above a threshold, and their error rate."""
        n = int(np.searchsorted(-self.scores[rows], -threshold, side="right"))
        return n / len(rows), float(self.wrong[rows[:n]].mean()) if n else 0.0


def populations(folder: Path | None) -> Iterator[tuple[str, Population]]:
    """Yield the sets by name."""
    yield "CIFAR-10", Population(load_bundled("cifar10_test"))
    if folder is None:
        return
    path = folder / "predictions" / "cifar100_wide_resnet16_4.npz"
    yield "CIFAR-100, WideResNet", Population(load_predictions(path))
    import pyarrow.parquet as pq

    table = pq.read_table(folder / "llm_mmlu_pro" / "answers.parquet").to_pandas()
    for model in MODELS:
        rows = table[(table["model"] == model) & table["stated"].notna()]
        pairs = Predictions(confidence=rows["stated"].to_numpy(), correct=rows["correct"].to_numpy())
        yield f"MMLU-Pro, {model}", Population(pairs)


def drawn(
    population: Population, n: int, times: int, *, replace: bool, seed: int
) -> Iterator[tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]]:
    """Yield rows to find a threshold on, and rows to measure it on, both in ascending order."""
    rng = np.random.default_rng(seed)
    everything = np.arange(len(population))
    for _ in range(times):
        if replace:
            yield np.sort(rng.integers(len(population), size=n)), everything
        else:
            chosen = np.zeros(len(population), dtype=bool)
            chosen[rng.permutation(len(population))[:n]] = True
            yield np.flatnonzero(chosen), np.flatnonzero(~chosen)


def measure(
    population: Population,
    risks: tuple[float, ...],
    draws: Iterator[tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]],
) -> dict[float, npt.NDArray[np.float64]]:
    """Return coverage and excess risk (0 or 1) of each draw, by risk."""
    found: dict[float, list[tuple[float, float]]] = {risk: [] for risk in risks}
    for fitting, new in draws:
        ranking = RankedAnswers.of(population.scores[fitting], population.wrong[fitting])
        for risk, rows in found.items():
            step = ranking.step(ranking.certified(risk, LEVEL))
            coverage, error = population.answered(new, step.middle) if step.answered else (0.0, 0.0)
            rows.append((coverage, float(error > risk)))
    return {key: np.array(rows) for key, rows in found.items()}


def print_table(options: argparse.Namespace, *, replace: bool) -> None:
    """Print the share of draws whose error rate is too large, and the mean coverage, in percent."""
    print_head("set", "risk", "above / answered")
    for name, population in populations(options.data):
        draws = drawn(population, options.n, options.splits, replace=replace, seed=options.seed)
        found = measure(population, RISKS[name], draws)
        for risk in RISKS[name]:
            answered, above = 100 * found[risk].mean(axis=0)
            print_row(name, f"{100 * risk:g}", f"{above:.1f} / {answered:.1f}")
    print()


def main(argv: Sequence[str] | None = None) -> None:
    """Print both tables."""
    parser = benchmark_parser(__doc__, "10 splits")
    parser.add_argument("--data", type=Path, help="folder of data sets that are not bundled")
    parser.add_argument("--splits", type=int, default=2000, help="number of splits of each set")
    parser.add_argument("--n", type=int, default=2000, help="samples that a threshold is found on")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=("splits", "draws"), help="print only this table")
    options = parser.parse_args(argv)
    options.splits = 10 if options.quick else options.splits
    if options.only != "draws":
        print(f"{options.splits} splits, thresholds found on {options.n} samples, in percent of the splits\n")
        print_table(options, replace=False)
    if options.only != "splits":
        print(f"{options.splits} draws of {options.n} samples with replacement, risk on the whole set\n")
        print_table(options, replace=True)


if __name__ == "__main__":
    main()
