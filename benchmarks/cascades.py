"""How often the promised risk of a cascade is broken, and which pair of real language models is cheapest.

    python benchmarks/cascades.py [--runs 1000] [--only simulation|real] [--data answers.parquet] [--quick]

Simulation: questions of known difficulty, and models of known skill that state their confidence with noise,
rounded to whole 5 % where it says "ties". Half of the worlds have 4 answers of each model to a question,
which share its difficulty. The thresholds are found on a sample, and the true risk is that of a population of
40,000 rows, whose probabilities are known.

Real: answers of 42 language models to the questions of MMLU-Pro (Linwei94/LLM-Calibration-Study on GitHub).
The file has no names of questions. A model that has all questions of a subject has them in the order of the
benchmark, which is checked: whether its answers are right must agree with the other models row by row, and
not if rows are moved. Models that lack answers cannot be matched and are left out.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq
from scipy.special import expit, logit

from calibrant.data.predictions import Predictions
from calibrant.decisions.cascade_rule import answers_of
from calibrant.decisions.cascades import Cascades
from calibrant.evaluation.paired import all_matched
from timing import benchmark_parser, print_head, print_row

Floats = npt.NDArray[np.float64]

# How easy questions are for each model: right in 60, 77, 88 and 94 % of the cases.
SKILLS = (0.7, 2.0, 3.2, 4.4)
POPULATION = 40_000


@dataclass(frozen=True)
class World:
    """Models that answer the same questions, what they cost, and the risk that is promised."""

    skills: tuple[int, ...]
    cost: tuple[float, ...]
    risk: float
    n: int
    person: float | None = None
    answers: int = 1
    ties: bool = False

    @property
    def cells(self) -> list[str]:
        """The world as the table names it."""
        stages = "a model" if len(self.skills) == 1 else f"{len(self.skills)} models"
        stages += "" if self.person is None else " and a person"
        rows = f"{self.n:,}" if self.answers == 1 else f"{self.n:,} units of {self.answers}"
        return [stages + (", ties" if self.ties else ""), rows, f"{100 * self.risk:g}"]

    def draw(self, n: int, rng: np.random.Generator) -> tuple[list[Floats], list[Floats]]:
        """Return the confidences of each model, and the probabilities that it is right."""
        ease = 2 * np.repeat(rng.normal(size=n), self.answers)
        right, stated = [], []
        for place in self.skills:
            own = ease + SKILLS[place] + 0.7 * np.repeat(rng.normal(size=n), self.answers)
            sure = expit(own + rng.normal(size=len(own)))
            stated.append((20 * sure).round() / 20 if self.ties else sure)
            right.append(expit(own))
        return stated, right

    def broken(self, runs: int) -> tuple[float, float, float]:
        """Return the shares of runs that break the promise or find no cascade, and the mean cost."""
        stated, right = self.draw(POPULATION // self.answers, np.random.default_rng(99))
        wrong = np.stack([1 - each for each in right], axis=1)
        if self.person is not None:
            wrong = np.append(wrong, np.zeros((len(wrong), 1)), axis=1)
        scores = logit(np.clip(np.stack(stated, axis=1), 1e-6, 1 - 1e-6))
        broken, none, costs = 0, 0, []
        for run in range(runs):
            rng = np.random.default_rng([1, run])
            confidence, probability = self.draw(self.n, rng)
            units = np.repeat(np.arange(self.n), self.answers) if self.answers > 1 else None
            models = {
                str(place): Predictions(confidence=c, correct=rng.random(len(p)) < p, units=units)
                for place, (c, p) in enumerate(zip(confidence, probability, strict=True))
            }
            found = Cascades.of(models, self.cost, person=self.person, seed=run)
            best = found.path.cheapest(self.risk)
            if best is None:
                none += 1
                continue
            thresholds = found.path.thresholds[best]
            answers = np.ones(wrong.shape, dtype=bool)
            answers[:, :-1] = scores[:, : len(thresholds)] >= thresholds
            stage = answers.argmax(axis=1)
            broken += float(wrong[np.arange(len(stage)), stage].mean()) > self.risk
            costs.append(float(found.answers.costs(thresholds)[stage].mean()))
        return broken / runs, none / runs, float(np.mean(costs)) if costs else np.nan


WORLDS = (
    World((0, 2), (1, 20), 0.15, 1000),
    World((0, 2), (1, 20), 0.15, 1000, ties=True),
    World((1, 3), (1, 20), 0.1, 500),
    World((1,), (1,), 0.05, 500, person=50),
    World((0, 1, 2), (1, 5, 20), 0.15, 1000),
    World((1, 2), (1, 5), 0.05, 1000, person=60),
    World((0, 1, 2), (1, 5, 20), 0.05, 1000, person=60),
    World((0, 2), (1, 20), 0.15, 300, answers=4),
    World((0, 2), (1, 20), 0.15, 300, answers=4, ties=True),
    World((1,), (1,), 0.05, 300, person=50, answers=4),
    World((1, 2), (1, 5), 0.05, 300, person=60, answers=4),
)


def print_simulation(runs: int, worlds: Sequence[World] = WORLDS) -> None:
    """Print how often the promise is broken."""
    print_head("cascade", "questions", "risk, %", "runs", "broken, %", "allowed, %", "none found, %", "cost")
    for world in worlds:
        number = runs if world.answers == 1 else max(1, runs // 4)
        broken, none, cost = world.broken(number)
        allowed = 0.05 + 2 * (0.05 * 0.95 / number) ** 0.5
        shares = [f"{100 * share:.1f}" for share in (broken, allowed, none)]
        print_row(*world.cells, f"{number:,}", *shares, f"{cost:.3g}")
    print()


# What asking costs is stated, not a price: small, middle, large models, and those that reason at length.
COSTS = {
    "Llama-3.2-3B-Instruct": 1,
    "gemma-3-4b-it": 1,
    "gemini-1.5-flash-8b": 1,
    "claude-3-haiku-20240307": 2,
    "Qwen2.5-14B-Instruct": 2,
    "Qwen3-14B": 2,
    "gemma-2-27b-it": 4,
    "claude-3-5-haiku-20241022": 4,
    "gpt-4o-2024-08-06": 20,
    "grok-2-1212": 20,
    "Llama-4-Maverick-17B-128E-Instruct-FP8": 20,
    "o1-mini-2024-09-12": 40,
    "deepseek-reasoner": 40,
}
SUBJECTS = ("law", "psychology")
REAL_RISKS = ((0.3, None), (0.1, 100.0))
# Questions of a sample with replacement from the real ones, for which the risk is then known.
REAL_SAMPLE = 1000


@dataclass(frozen=True)
class RealModel:
    """Confidences of a model by their kind, NaN where there is none, and hits, for all questions."""

    confidences: dict[str, Floats]
    correct: npt.NDArray[np.bool_]

    def confidence(self, kind: str) -> Floats:
        """Return the confidence of a kind, or the stated one of a model that has no other."""
        return self.confidences.get(kind, self.confidences["stated"])


def load_real(path: Path) -> dict[str, RealModel]:
    """Return the models that have all questions of the subjects, in the order of the benchmark."""
    table = pq.read_table(path).to_pydict()
    model, subject = np.array(table["model"]), np.array(table["category"])
    columns = {
        kind: np.array([np.nan if each is None else each for each in table[kind]], dtype=float)
        for kind in ("stated", "logprob")
    }
    correct = np.array(table["correct"], dtype=bool)
    found: dict[str, RealModel] = {}
    full = {name: _most(model[subject == name]) for name in SUBJECTS}
    for name in np.unique(model).tolist():
        rows = [np.flatnonzero((model == name) & (subject == each)) for each in SUBJECTS]
        if all(len(each) == full[of] for each, of in zip(rows, SUBJECTS, strict=True)):
            chosen = np.concatenate(rows)
            given = {kind: values[chosen] for kind, values in columns.items()}
            valid = {kind: np.where((each >= 0) & (each <= 1), each, np.nan) for kind, each in given.items()}
            kept = {kind: each for kind, each in valid.items() if not np.isnan(each).all()}
            found[name] = RealModel(kept, correct[chosen])
    return found


def _most(names: npt.NDArray[np.str_]) -> int:
    return int(np.unique(names, return_counts=True)[1].max())


def print_order(models: dict[str, RealModel]) -> None:
    """Print how much each model agrees with the others in the same row, and at most if rows are moved."""
    print_head("model", "right, %", "mean stated, %", "agrees in the same row", "at most if rows are moved")
    for name, each in models.items():
        others = np.mean([other.correct for key, other in models.items() if key != name], axis=0)
        moved = [np.roll(each.correct, by) for by in (*range(-50, 0), *range(1, 51))]
        same = np.corrcoef(each.correct, others)[0, 1]
        most = max(np.corrcoef(rolled, others)[0, 1] for rolled in moved)
        shares = [f"{100 * each.correct.mean():.1f}", f"{100 * np.nanmean(each.confidence('stated')):.1f}"]
        print_row(name, *shares, f"{same:.2f}", f"{most:.2f}")
    print()


@dataclass(frozen=True)
class Pair:
    """Two models, and the kind of confidence that decides."""

    first: str
    second: str
    kind: str

    def predictions(self, models: dict[str, RealModel]) -> dict[str, Predictions]:
        """Return the answers of both, without those that have no confidence."""
        found = {}
        for name in (self.first, self.second):
            confidence = models[name].confidence(self.kind)
            rows = np.flatnonzero(~np.isnan(confidence))
            found[name] = Predictions(
                confidence=confidence[rows], correct=models[name].correct[rows], ids=rows
            )
        return found

    @property
    def cost(self) -> list[float]:
        """What asking them costs."""
        return [COSTS[self.first], COSTS[self.second]]


def print_pairs(models: dict[str, RealModel], runs: int, best: int = 8) -> None:
    """Print the cheapest pairs, their models alone, and how often samples of the questions break the risk."""
    pairs = [
        Pair(*names, kind)
        for names in combinations(sorted(models, key=COSTS.__getitem__), 2)
        for kind in models[names[0]].confidences
    ]
    for risk, person in REAL_RISKS:
        every = {
            pair: Cascades.of(pair.predictions(models), pair.cost, person=person).for_risk(risk)
            for pair in pairs
        }
        found = {pair: each for pair, each in every.items() if each.chosen is not None}
        used = {pair: each for pair, each in found.items() if min(each.chosen.shares[:2]) > 0}
        asks = "no person" if person is None else f"a person for {person:g}"
        print(
            f"At most {100 * risk:g} % wrong, {asks}: {len(found)} of {len(pairs)} pairs keep it, "
            f"{len(used)} of them by both models\n"
        )
        print_head(
            "first",
            "second",
            "confidence",
            "cost of each",
            "right alone, %",
            "answered by each, %",
            "mean cost",
            "right, %",
        )
        cheapest = sorted(used, key=lambda pair: used[pair].chosen.cost)[:best]
        for pair in cheapest:
            point = used[pair].chosen
            print_row(
                pair.first,
                pair.second,
                pair.kind,
                ", ".join(f"{price:g}" for price in pair.cost),
                ", ".join(f"{100 * alone.accuracy:.1f}" for alone in used[pair].alone[:2]),
                ", ".join(f"{100 * share:.0f}" for share in point.shares),
                f"{point.cost:.2f} ({point.cost_low:.2f} to {point.cost_high:.2f})",
                f"{100 * point.accuracy:.1f} ({100 * point.accuracy_low:.1f} to "
                f"{100 * point.accuracy_high:.1f})",
            )
        print()
        if person is not None:
            _print_alone(models, risk, person)
        if cheapest:
            _print_resampled(cheapest[0].predictions(models), cheapest[0].cost, risk, person, runs)


def _print_alone(models: dict[str, RealModel], risk: float, person: float) -> None:
    """Print the single model that is cheapest before a person."""
    found = []
    for name, model in models.items():
        for kind in model.confidences:
            given = {name: Pair(name, name, kind).predictions(models)[name]}
            chosen = Cascades.of(given, [COSTS[name]], person=person).for_risk(risk).chosen
            found.append((chosen.cost, f"{name} ({kind})", chosen))
    cost, name, point = min(found, key=lambda each: each[0])
    print(
        f"One model before the person: {name} is cheapest, {cost:.2f} ({point.cost_low:.2f} to "
        f"{point.cost_high:.2f}), answers {100 * point.shares[0]:.0f} %\n"
    )


def _print_resampled(
    given: dict[str, Predictions], cost: Sequence[float], risk: float, person: float | None, runs: int
) -> None:
    """Print how often the risk is broken if the real questions are the population."""
    population = Cascades.of(given, cost).answers
    models = all_matched(given)
    wrong = population.wrong
    if person is not None:
        wrong = np.append(wrong, np.zeros((len(wrong), 1), dtype=bool), axis=1)
    scores = np.stack([answers_of(each)[0] for each in models.values()], axis=1)
    broken = none = 0
    for run in range(runs):
        rows = np.random.default_rng([2, run]).integers(population.n, size=REAL_SAMPLE)
        drawn = {name: each.take(rows).replaced(ids=None) for name, each in models.items()}
        path = Cascades.of(drawn, cost, person=person, seed=run).path
        place = path.cheapest(risk)
        if place is None:
            none += 1
            continue
        thresholds = path.thresholds[place]
        answers = np.ones(wrong.shape, dtype=bool)
        answers[:, :-1] = scores[:, : len(thresholds)] >= thresholds
        broken += float(wrong[np.arange(len(wrong)), answers.argmax(axis=1)].mean()) > risk
    print(
        f"{runs:,} samples of {REAL_SAMPLE:,} of the {population.n:,} questions of the first pair, with "
        f"replacement: {100 * broken / runs:.1f} % break the risk, {100 * none / runs:.1f} % find none\n"
    )


def main(argv: Sequence[str] | None = None) -> None:
    """Print the tables."""
    parser = benchmark_parser(__doc__, "4 runs of three worlds")
    parser.add_argument("--runs", type=int, default=1000, help="samples of each world; of units, a quarter")
    parser.add_argument("--only", choices=("simulation", "real"), help="print only this part")
    parser.add_argument("--data", type=Path, help="answers.parquet with model, category, stated, correct")
    options = parser.parse_args(argv)
    runs = 4 if options.quick else options.runs
    if options.only != "real":
        print_simulation(runs, (WORLDS[0], WORLDS[5], WORLDS[9]) if options.quick else WORLDS)
    if options.only != "simulation" and options.data is not None:
        models = load_real(options.data)
        print_order(models)
        print_pairs(models, runs)


if __name__ == "__main__":
    main()
