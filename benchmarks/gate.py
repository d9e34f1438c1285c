"""How often the gate is wrong: failures of models that meet a requirement, and passes of those that do not.

    python benchmarks/gate.py [--runs 200] [--seed 0] [--only bounds|rare|together|baseline|needed]

The populations are those of ``intervals.py``, whose true values are known: a calibrated model, a slightly
overconfident one and an overconfident one. The bound of a requirement is the true value itself, where a gate
is wrong most often: each failure of ``measure <= bound`` is false, and each pass of ``measure < bound``.
"""

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
import torch

from calibrant import Predictions
from calibrant.decisions import Requirement, check_requirements
from calibrant.decisions.gate import Gate
from calibrant.decisions.requirement import Operator
from intervals import TEMPERATURES, Population, softmax
from timing import benchmark_parser, print_head, print_row

Draw: TypeAlias = Callable[[int, np.random.Generator], Predictions]

RESAMPLES = 200
MEASURED = ("accuracy", "nll", "ece", "classwise_ece")
TOGETHER = ("accuracy", "nll", "brier", "ece", "classwise_ece")


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a table of false failures and passes for each question."""
    parser = benchmark_parser(__doc__, "two runs with few samples and two measures")
    parser.add_argument("--runs", type=int, default=200, help="runs of each cell")
    parser.add_argument("--only", choices=list(TABLES), help="print only this table")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first run of each cell")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    models = Models(Population(), options.seed)
    for name, table in TABLES.items():
        if options.only in (None, name):
            table(models, 2 if options.quick else options.runs, options.quick)
            print()


class Models:
    """Models whose measures on the whole population are known, and the seed of the first run."""

    def __init__(self, population: Population, first_seed: int) -> None:
        self.population, self.first_seed = population, first_seed
        self.stated = {title: softmax(population.logits / t) for title, t in TEMPERATURES.items()}

    def truth(self, title: str, name: str) -> float:
        """Return the measure of infinitely many samples of a model."""
        return self.population.value(name, self.stated[title])

    def seeds(self, runs: int) -> range:
        """Return the seeds of some runs."""
        return range(self.first_seed, self.first_seed + runs)

    def draw(self, title: str) -> Draw:
        """Return what draws samples of a model."""

        def samples(n: int, rng: np.random.Generator) -> Predictions:
            rows, labels = self.population.draw(n, rng)
            return Predictions(probs=self.stated[title][rows], labels=labels)

        return samples

    def pair(self, n: int, rng: np.random.Generator, first: str, other: str) -> tuple[Predictions, ...]:
        """Draw the predictions of two models for the same samples."""
        rows, labels = self.population.draw(n, rng)
        return tuple(Predictions(probs=self.stated[title][rows], labels=labels) for title in (first, other))


def bounds_table(models: Models, runs: int, quick: bool) -> None:
    """Print how often one requirement is decided wrongly, for each measure, model and number of samples."""
    names, sizes = (("accuracy", "ece"), (60,)) if quick else (MEASURED, (200, 1000))
    print_head("false failures / false passes, %", *(f"{t}, n = {n:,}" for n in sizes for t in TEMPERATURES))
    for name in names:
        cells = []
        for n in sizes:
            for title in TEMPERATURES:
                requirement = Requirement(name, _worst(name), models.truth(title, name))
                cells.append(_wrong(models.draw(title), [requirement], n, models.seeds(runs)))
        print_row(name, *cells)


def rare_table(models: Models, runs: int, quick: bool) -> None:
    """Print how often a model passes whose misses are too rare to have occurred."""
    sizes = (50,) if quick else (20, 50, 100, 200)
    print_head("confidence 99.9 %, accuracy 98 %", *(f"n = {n}" for n in sizes))

    def draw(n: int, rng: np.random.Generator) -> Predictions:
        return Predictions(confidence=np.full(n, 0.999), correct=rng.random(n) < 0.98)

    truths = {"accuracy": 0.98, "ece": 0.019, "brier": 0.98 * 0.001**2 + 0.02 * 0.999**2}
    truths["nll"] = -0.98 * np.log(0.999) - 0.02 * np.log(0.001)
    for name, truth in truths.items():
        requirement = Requirement(name, _worst(name), truth)
        print_row(name, *(_wrong(draw, [requirement], n, models.seeds(runs)) for n in sizes))


def together_table(models: Models, runs: int, quick: bool) -> None:
    """Print how often a gate of five requirements, each of them at its bound, fails or passes as a whole."""
    names, sizes = (TOGETHER[:2], (60,)) if quick else (TOGETHER, (200, 1000))
    print_head(f"{len(names)} requirements at once", *(f"n = {n:,}" for n in sizes))
    for title in TEMPERATURES:
        wanted = [Requirement(name, _worst(name), models.truth(title, name)) for name in names]
        print_row(title, *(_wrong(models.draw(title), wanted, n, models.seeds(runs)) for n in sizes))


def baseline_table(models: Models, runs: int, quick: bool) -> None:
    """Print how often a model that is worse by just the margin fails or passes against a baseline."""
    names, sizes = (("nll",), (60,)) if quick else (("nll", "ece"), (200, 1000))
    first, other = "overconfident", "slightly overconfident"
    print_head("no worse than a baseline", *(f"{how}, n = {n:,}" for n in sizes for how in ("same", "other")))
    for name in names:
        margin = {name: models.truth(first, name) - models.truth(other, name)}
        cells = []
        for n in sizes:
            for paired in (True, False):
                gates = []
                for seed in models.seeds(runs):
                    rng = np.random.default_rng([n, seed, 3])
                    a, b = models.pair(n, rng, first, other)
                    b = b if paired else models.draw(other)(n, rng)
                    gates.append(
                        check_requirements(
                            a, baseline=b, margin=margin, paired=paired, n_resamples=RESAMPLES, seed=seed
                        )
                    )
                cells.append(_shares(gates))
        print_row(name, *cells)


def needed_table(models: Models, runs: int, quick: bool) -> None:
    """Print how often as many samples as were said to be needed are enough."""
    n, most = (60, 5_000) if quick else (300, 20_000)
    names = ("ece",) if quick else ("accuracy", "nll", "ece")
    print_head("requirement", "cannot tell", "median needed", "then passed / failed / cannot tell, %")
    for name in names:
        truth = models.truth("slightly overconfident", name)
        for factor in (0.6, 1.5) if name != "accuracy" else (0.97, 1.03):
            requirement = Requirement(name, _worst(name), factor * truth)
            unknown, needed, then = 0, [], []
            for seed in models.seeds(runs):
                draw = models.draw("slightly overconfident")
                gate = _gate(draw, [requirement], n, seed)
                if gate.outcome != "unknown":
                    continue
                unknown += 1
                m = gate.verdicts[0].needed
                needed.append(np.inf if m is None else m)
                if m is not None and m <= most:
                    then.append(_gate(draw, [requirement], m, runs + seed).outcome)
            shares = [100 * np.mean([each == o for each in then]) for o in ("passed", "failed", "unknown")]
            print_row(
                f"{requirement.measure} {requirement.operator} {factor:g} times the truth",
                f"{100 * unknown / runs:.0f} %",
                f"{np.median(needed):,.0f}" if needed else "",
                " / ".join(f"{share:.0f}" for share in shares) + f" ({len(then)} runs)",
            )


TABLES: dict[str, Callable[[Models, int, bool], None]] = {
    "bounds": bounds_table,
    "rare": rare_table,
    "together": together_table,
    "baseline": baseline_table,
    "needed": needed_table,
}


def _worst(name: str) -> Operator:
    return ">=" if name in ("accuracy", "auroc_correct") else "<="


def _gate(draw: Draw, wanted: Sequence[Requirement], n: int, seed: int) -> Gate:
    samples = draw(n, np.random.default_rng([n, seed, 4]))
    return check_requirements(samples, wanted, n_resamples=RESAMPLES, seed=seed)


def _wrong(draw: Draw, wanted: Sequence[Requirement], n: int, seeds: Sequence[int]) -> str:
    return _shares([_gate(draw, wanted, n, seed) for seed in seeds])


def _shares(gates: Sequence[Gate]) -> str:
    """Return the percentages of failed and of passed gates."""
    shares = [np.mean([gate.outcome == outcome for gate in gates]) for outcome in ("failed", "passed")]
    return " / ".join(f"{100 * share:.1f}".rstrip("0").rstrip(".") for share in shares)


if __name__ == "__main__":
    main()
