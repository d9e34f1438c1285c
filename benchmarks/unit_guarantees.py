"""How often guarantees for rows of new units are broken, and what they cost, beside other ways to give them.

    python benchmarks/unit_guarantees.py [--draws 200] [--only thresholds|sets] [--quick]

Simulated units of known truth. The confidence of a row and whether it is right are calibrated, and agree
within a unit as much as stated: the correlation of the normal variables behind them. Sizes are 5, or
lognormal from 1 to 200 with a mean of about 17. Where "larger are harder", units of more than 20 rows are
wrong three times as often as others.

Thresholds: "units" is what Calibrant does (the test of ``UnitRatios``); "bets" has a proof, the mean wealth
of 20 constant bets on units; "one row" is the exact binomial test of one random row of each unit; "rows"
takes all rows for independent ones. Sets: "units" counts a new unit of the mean size of a row's unit as
missed, "largest" one of the largest size, "each unit alike" weighs rows by one divided by the size of their
unit (hierarchical conformal prediction), "rows" takes rows for independent ones.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr

from calibrant.decisions.conformal import place_of_threshold
from calibrant.decisions.sets import _unit_size
from calibrant.decisions.thresholds import AnswerTests, RankedAnswers
from calibrant.inference.ratios import UnitRatios
from calibrant.inference.units import Units
from timing import benchmark_parser, print_head, print_row

Floats = npt.NDArray[np.float64]

LEVEL, ALPHA = 0.95, 0.1
BETS = (np.arange(20) + 0.5) / 20
# Rows of the population from which the truth of "larger are harder" is computed.
POPULATION_UNITS = 60_000


@dataclass(frozen=True)
class World:
    """A population of units: their sizes, the agreement within them, and whether larger ones are harder."""

    sizes: str
    agreement: float
    harder: bool = False

    @property
    def name(self) -> str:
        """The population as the tables name it."""
        return self.sizes + (", larger are harder" if self.harder else "")

    def draw(self, n_units: int, rng: np.random.Generator) -> tuple[Floats, npt.NDArray[np.bool_], Units]:
        """Return confidences, mistakes and units of a sample."""
        size = np.full(n_units, 5)
        if self.sizes != "5":
            size = np.exp(rng.normal(2.0, 1.3, n_units)).round().clip(1, 200).astype(np.int64)
        code = np.repeat(np.arange(n_units), size)
        doubt = 0.5 * self._uniform(code, rng) ** 2.5
        rate = doubt * np.where(size > 20, 1.5, 0.5)[code] if self.harder else doubt
        return 1 - doubt, self._uniform(code, rng) < rate, Units(code, n_units)

    def _uniform(self, code: npt.NDArray[np.int64], rng: np.random.Generator) -> Floats:
        common, own = rng.normal(size=code[-1] + 1)[code], rng.normal(size=len(code))
        return np.asarray(ndtr(math.sqrt(self.agreement) * common + math.sqrt(1 - self.agreement) * own))

    def truth(self) -> Callable[[float], tuple[float, float]]:
        """Return a function from a confidence to the share that is answered from it on, and its risk."""
        if not self.harder:

            def known(threshold: float) -> tuple[float, float]:
                share = min(1.0, ((1 - threshold) / 0.5) ** 0.4)
                return share, 0.5 * share**2.5 / 3.5

            return known
        confidence, wrong, _ = self.draw(POPULATION_UNITS, np.random.default_rng(99))
        order = np.argsort(-confidence)
        falling, total = -confidence[order], np.cumsum(wrong[order])

        def counted(threshold: float) -> tuple[float, float]:
            n = max(1, int(np.searchsorted(falling, -threshold, side="right")))
            return n / len(falling), total[n - 1] / n

        return counted


@dataclass(frozen=True, eq=False)
class Bets(AnswerTests):
    """The same steps, tested by bets on units."""

    def p_values(self, risk: float) -> Floats:
        """Return one divided by the mean wealth of constant bets, which is a p-value."""
        ratios = self.wrong
        assert isinstance(ratios, UnitRatios)
        x = (ratios.parts - risk * ratios.wholes) / ((1 - risk) * ratios.wholes.max(axis=1, keepdims=True))
        logs = np.stack([(ratios.counts * np.log1p(-bet * x)).sum(axis=1) for bet in BETS])
        return np.asarray(np.minimum(1.0, np.exp(-np.logaddexp.reduce(logs) + math.log(len(BETS)))))


def thresholds(
    confidence: Floats, wrong: npt.NDArray[np.bool_], units: Units, risk: float, rng: np.random.Generator
) -> Iterator[tuple[str, float | None]]:
    """Yield the lowest confidence that is answered, by the name of the test; None if there is none."""
    ranked = RankedAnswers.of(confidence, wrong, tie=0.0, units=units)
    tests = ranked.tests(500)
    first = np.append(0, np.cumsum(units.sizes)[:-1]) + rng.integers(0, units.sizes)
    alone = RankedAnswers.of(confidence[first], wrong[first], tie=0.0)
    rows = RankedAnswers.of(confidence, wrong, tie=0.0)
    found = {
        "units": ranked.step(ranked.certified(risk, LEVEL, tests)),
        "bets": ranked.step(ranked.certified(risk, LEVEL, Bets(tests.places, tests.evidence, tests.wrong))),
        "one row": alone.step(alone.certified(risk, LEVEL)),
        "rows": rows.step(rows.certified(risk, LEVEL)),
    }
    for name, step in found.items():
        yield name, step.lowest if step.answered else None


def print_thresholds(worlds: Sequence[World], numbers: Sequence[int], draws: int) -> None:
    """Print how many guarantees are broken, and how much is answered, in percent."""
    names = ("units", "bets", "one row", "rows")
    print_head("sizes", "agreement", "number", "risk", *names)
    for world in worlds:
        truth = world.truth()
        for n_units in numbers:
            for risk in (0.05, 0.1):
                rng = np.random.default_rng(0)
                broken, answered = (dict.fromkeys(names, 0.0) for _ in range(2))
                for _ in range(draws):
                    for name, lowest in thresholds(*world.draw(n_units, rng), risk, rng):
                        share, true_risk = (0.0, 0.0) if lowest is None else truth(lowest)
                        broken[name] += 100 * (true_risk > risk) / draws
                        answered[name] += 100 * share / draws
                cells = [f"{broken[name]:.1f} / {answered[name]:.0f}" for name in names]
                print_row(world.name, f"{world.agreement:g}", f"{n_units:,}", f"{100 * risk:g}", *cells)
    print()


def set_thresholds(scores: Floats, units: Units) -> Iterator[tuple[str, float]]:
    """Yield the threshold of scores by the name of the correction."""
    rising, n = np.sort(scores), len(scores)
    largest = int(units.sizes.max())
    for name, size in (("units", _unit_size(units.code)), ("largest", largest), ("rows", 1)):
        place = place_of_threshold(n, ALPHA, unit_size=size)
        yield name, float(rising[place - 1]) if place <= n else math.inf
    order = np.argsort(scores)
    total = np.cumsum((1 / (units.sizes[units.code] * (units.n + 1)))[order])
    place = int(np.searchsorted(total, 1 - ALPHA - 1e-12))
    yield "each unit alike", float(scores[order][place]) if place < n else math.inf


def print_sets(worlds: Sequence[World], numbers: Sequence[int], draws: int) -> None:
    """Print the mean coverage of rows of new units, in percent, with its standard error."""
    names = ("units", "largest", "each unit alike", "rows")
    print_head("sizes", "agreement", "number", *names)
    for world in worlds:
        # The score of a row is its doubt, and a mistake adds one to it.
        confidence, wrong, _ = world.draw(POPULATION_UNITS, np.random.default_rng(99))
        population = np.sort(1 - confidence + wrong)
        for n_units in numbers:
            rng = np.random.default_rng(0)
            found: dict[str, list[float]] = {name: [] for name in names}
            for _ in range(draws):
                confidence, wrong, units = world.draw(n_units, rng)
                for name, limit in set_thresholds(1 - confidence + wrong, units):
                    share = np.searchsorted(population, limit, side="right") / len(population)
                    found[name].append(100 * float(share))
            cells = [
                f"{np.mean(found[name]):.1f} ± {np.std(found[name]) / math.sqrt(draws):.1f}" for name in names
            ]
            print_row(world.name, f"{world.agreement:g}", f"{n_units:,}", *cells)
    print()


def main(argv: Sequence[str] | None = None) -> None:
    """Print both tables."""
    parser = benchmark_parser(__doc__, "5 draws of 100 units")
    parser.add_argument("--draws", type=int, default=200, help="number of samples of each population")
    parser.add_argument("--units", type=int, nargs="+", default=[100, 540], help="numbers of units")
    parser.add_argument("--only", choices=("thresholds", "sets"), help="print only this table")
    options = parser.parse_args(argv)
    draws, numbers = (5, [100]) if options.quick else (options.draws, options.units)
    worlds = [World(sizes, agreement) for sizes in ("5", "1 to 200") for agreement in (0.0, 0.3, 0.9)]
    worlds += [World("1 to 200", 0.9, harder=True)]
    if options.only != "sets":
        print(f"{draws} draws, level 95 %: guarantees broken / rows answered, in percent\n")
        print_thresholds(worlds, numbers, draws)
    if options.only != "thresholds":
        print(
            f"{5 * draws} draws, alpha {ALPHA:g}: rows of new units whose set holds the true class, percent\n"
        )
        print_sets(worlds, numbers, 5 * draws)


if __name__ == "__main__":
    main()
