"""Rows that depend on each other: what holds with units, and what rows alone would claim.

    python benchmarks/units.py [--only SECTION ...] [--runs 300] [--data FOLDER] [--out PAGE] [--quick]

Populations with a known truth: logits of four classes are normal, labels follow their softmax, and a model
states the softmax of these logits times a factor. A row copies scores and label of its unit with probability
``sqrt(rho)`` and has its own otherwise, so any two rows of a unit have the correlation ``rho``, whatever is
measured, and the true values do not depend on it. Units have five rows each, or 1 to 200.

Each section is stored in ``--keep`` when it is done, so that a run can be continued with ``--only``;
``--out`` writes the page from all stored sections.
"""

import argparse
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from textwrap import fill
from typing import Any, TypeAlias

import numpy as np
import torch

import calibrant
from calibrant import Predictions, compare, evaluate
from calibrant.decisions import PredictionSets, check_requirements, threshold_for_risk
from calibrant.errors import InputError
from calibrant.evaluation.choose import choose
from calibrant.inference import calibration_test, paired_difference, with_interval
from calibrant.metrics.names import MEASURES
from timing import benchmark_parser, extra_memory, print_head, print_row, table_head, table_row

Tables: TypeAlias = list[dict[str, Any]]

K, SCALE, N_BINS = 4, 2.0, 15
MEASURED = ("accuracy", "nll", "brier", "ece", "smece")
CORRELATIONS = (0.0, 0.3, 0.9)
SIZES = ("equal", "unequal", "very unequal")
# How much larger the logits of a model are than the true ones.
CALIBRATED, OVERCONFIDENT = 1.0, 1.7
# Few resamples, so that many runs are possible; p-values of 119 resamples reach 5 % exactly, and ends of
# intervals need more.
RESAMPLES, FOR_ENDS = 119, 399
# Means over samples take a millisecond: they get this many times the runs, and others a part of them.
MANY = 3
SLOW = {"ece": MANY, "smece": 3 * MANY}
# Questions with several answers: the shape of a log of language models.
QUESTIONS, ANSWERS, AGREEMENT, SUBJECTS = 540, 5, 0.8, 14


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the sections, print and store their tables, and write the page."""
    parser = benchmark_parser(__doc__, "two runs of few units")
    parser.add_argument("--runs", type=int, default=300, help="runs of each cell; slow ones get a part")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, help="sections to run, instead of all")
    parser.add_argument("--data", type=Path, help="folder with forecasts/ and judge_scores/")
    parser.add_argument("--keep", type=Path, default=Path("build/units"), help="folder of stored sections")
    parser.add_argument("--out", type=Path, help="also write the page, from all stored sections")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    for name in options.only or SECTIONS:
        began = time.process_time()
        found = SECTIONS[name](options)
        if found and not options.quick:
            options.keep.mkdir(parents=True, exist_ok=True)
            stored = {"tables": found, "runs": options.runs, "minutes": (time.process_time() - began) / 60}
            (options.keep / f"{name}.json").write_text(json.dumps(stored, indent=1), encoding="utf-8")
    if options.out is not None:
        options.out.write_text(page(options.keep), encoding="utf-8")


# --- populations ------------------------------------------------------------------------------------------


def softmax(z: np.ndarray) -> np.ndarray:
    """Return the softmax of each row."""
    e = np.exp(z - z.max(axis=1, keepdims=True))
    return np.asarray(e / e.sum(axis=1, keepdims=True))


def sizes(kind: str, n: int, rng: np.random.Generator) -> np.ndarray:
    """Return the number of rows of each unit: five, log-normal, or with a tail like that of cities."""
    if kind == "equal":
        return np.full(n, 5)
    drawn = 3 * np.exp(1.2 * rng.standard_normal(n)) if kind == "unequal" else 1 / (1 - rng.random(n))
    return np.clip(np.round(drawn), 1, 200).astype(int)


def fresh(n: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Return independent rows: logits, a label that follows them, and the noise of two models."""
    logits = SCALE * rng.standard_normal((n, K))
    labels = (softmax(logits).cumsum(axis=1) < rng.random((n, 1))).sum(axis=1).clip(max=K - 1)
    return {"logits": logits, "labels": labels, "a": rng.normal(size=(n, K)), "b": rng.normal(size=(n, K))}


def draw(kind: str, n: int, rho: float, rng: np.random.Generator) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Return rows of ``n`` units, and the unit of each row."""
    units = np.repeat(np.arange(n), sizes(kind, n, rng))
    rows, common = fresh(len(units), rng), fresh(n, rng)
    shared = rng.random(len(units)) < math.sqrt(rho)
    for name, values in rows.items():
        values[shared] = common[name][units[shared]]
    return rows, units


class Truth:
    """The true values of a model: those of many rows with all labels, weighted by their probabilities."""

    def __init__(self, factor: float, n: int = 200_000) -> None:
        logits = fresh(n, np.random.default_rng(99))["logits"]
        self.p, self.stated = softmax(logits), softmax(factor * logits)
        top = self.stated.argmax(axis=1)
        self.confidence, self.hit = self.stated.max(axis=1), self.p[np.arange(n), top]

    def value(self, name: str) -> float:
        """Return the measure of infinitely many samples."""
        if name == "nll":
            return float(-(self.p * np.log(self.stated)).sum(axis=1).mean())
        if name == "brier":
            return float(
                (self.p * (1 - 2 * self.stated)).sum(axis=1).mean()
                + np.square(self.stated).sum(axis=1).mean()
            )
        if name == "accuracy":
            return float(self.hit.mean())
        both = {
            "confidence": np.tile(self.confidence.clip(max=1.0), 2),
            "correct": np.repeat([True, False], len(self.hit)),
            "weights": np.concatenate([self.hit, 1 - self.hit]),
        }
        return float(MEASURES[name].function(**both, **MEASURES[name].arguments(N_BINS)))

    def risk(self, threshold: float) -> float:
        """Return the share of wrong answers among those at or above a confidence."""
        answered = self.confidence >= threshold
        return float(1 - self.hit[answered].mean()) if answered.any() else 0.0

    def coverage(self, least: float) -> float:
        """Return how often a set of all classes of at least this probability holds the true one."""
        return float((self.p * (self.stated >= least)).sum(axis=1).mean())


def rows_for(name: str, probs: np.ndarray, labels: np.ndarray) -> dict[str, np.ndarray]:
    """Return what a measure reads."""
    if MEASURES[name].reads != "outcomes":
        return {"probs": probs, "labels": labels}
    return {"confidence": probs.max(axis=1).clip(max=1.0), "correct": probs.argmax(axis=1) == labels}


def grid(options: argparse.Namespace) -> list[tuple[str, float]]:
    """Return the kinds of sizes and correlations."""
    if options.quick:
        return [("unequal", 0.9)]
    return [(kind, rho) for kind in SIZES for rho in CORRELATIONS]


def runs_of(options: argparse.Namespace, part: int = 1) -> int:
    """Return the number of runs of a cell."""
    return 2 if options.quick else max(2, options.runs // part)


def percent(values: Sequence[Any]) -> str:
    """Return a share in percent."""
    return f"{100 * float(np.mean(values)):.1f}"


class Writer:
    """A table that is printed row by row, and returned for the page."""

    def __init__(self, *head: str) -> None:
        self.head, self.rows = head, []
        print_head(*head)

    def row(self, *cells: object) -> None:
        """Print and keep a row."""
        self.rows.append([str(cell) for cell in cells])
        print_row(*cells)

    def table(self, **more: Any) -> dict[str, Any]:
        """Return the table, with numbers for the text of the page."""
        print()
        return {"head": self.head, "rows": self.rows, **more}


# --- sections ---------------------------------------------------------------------------------------------


def coverage(options: argparse.Namespace) -> Tables:
    """Count how often 95 % intervals cover the truth, by row and by unit."""
    tables = []
    for factor in (OVERCONFIDENT, CALIBRATED):
        truth = Truth(factor, 20_000 if options.quick else 200_000)
        # The means of a calibrated model are like those of another one.
        values = {name: truth.value(name) for name in MEASURED}
        values = values if factor == OVERCONFIDENT else {"ece": 0.0, "smece": 0.0}
        out, ends = Writer("units", "rows per unit", "correlation", *values), []
        for n in (12,) if options.quick else (100, 300) if factor == OVERCONFIDENT else (100,):
            for kind, rho in grid(options):
                hits = covered(kind, n, rho, factor, values, MANY * runs_of(options))
                out.row(
                    n, kind, rho, *(f"{percent(rows)} / {percent(units)}" for rows, units in hits.values())
                )
                ends += [100 * float(np.mean(units)) for _, units in hits.values()]
        few = len(hits["smece"][0])
        tables.append(out.table(factor=factor, low=min(ends), high=max(ends), few=few))
    return tables


def covered(
    kind: str, n: int, rho: float, factor: float, values: Mapping[str, float], runs: int
) -> dict[str, tuple[list[bool], list[bool]]]:
    """Return whether each run covers the truth, by row and by unit, for each measure."""
    hits: dict[str, tuple[list[bool], list[bool]]] = {name: ([], []) for name in values}
    for seed in range(runs):
        rows, units = draw(kind, n, rho, np.random.default_rng([seed, n, 1]))
        probs = softmax(factor * rows["logits"])
        for name, true in values.items():
            if runs > 2 * MANY and seed % SLOW.get(name, 1):
                continue
            given = rows_for(name, probs, rows["labels"]) | MEASURES[name].arguments(N_BINS)
            for place, of in enumerate((None, units)):
                found = with_interval(
                    MEASURES[name].function, **given, units=of, n_resamples=FOR_ENDS, seed=seed
                )
                hits[name][place].append(found.low <= true + 1e-12 and true <= found.high + 1e-12)
    return hits


def tests(options: argparse.Namespace) -> Tables:
    """Count how often the paired test finds a difference between two equally good models."""
    out, most = Writer("rows per unit", "correlation", *MEASURED), []
    n = 12 if options.quick else 100
    for kind, rho in grid(options):
        found: dict[str, tuple[list[bool], list[bool]]] = {name: ([], []) for name in MEASURED}
        for seed in range(MANY * runs_of(options)):
            rows, units = draw(kind, n, rho, np.random.default_rng([seed, n, 2]))
            a, b = (softmax(1.4 * (rows["logits"] + 1.5 * rows[each])) for each in "ab")
            for name in MEASURED:
                if not options.quick and seed % SLOW.get(name, 1):
                    continue
                first, second = (rows_for(name, p, rows["labels"]) for p in (a, b))
                reads = next(iter(first))
                given: dict[str, Any] = {"a": first[reads], "b": second[reads], "labels": rows["labels"]}
                if reads == "confidence":
                    given |= {"labels": None, "correct_a": first["correct"], "correct_b": second["correct"]}
                given |= MEASURES[name].arguments(N_BINS) | {"n_resamples": RESAMPLES, "seed": seed}
                for place, of in enumerate((None, units)):
                    p = paired_difference(MEASURES[name].function, **given, units=of).p_value
                    found[name][place].append(p <= 0.05 + 1e-9)
        out.row(kind, rho, *(f"{percent(one)} / {percent(other)}" for one, other in found.values()))
        most += [100 * float(np.mean(other)) for _, other in found.values()]
    return [out.table(n=n, most=max(most), mean=float(np.mean(most)))]


def calibration(options: argparse.Namespace) -> Tables:
    """Count how often a test rejects a calibrated model, and an overconfident one."""
    head = [f"{name}, {model}" for model in ("calibrated", "overconfident") for name in ("ECE", "Kuiper")]
    out, most = Writer("rows per unit", "correlation", *head), []
    n = 12 if options.quick else 100
    for kind, rho in grid(options):
        cells = []
        for factor in (CALIBRATED, OVERCONFIDENT):
            for statistic in ("ece", "kuiper"):
                rejected: tuple[list[bool], list[bool]] = ([], [])
                for seed in range(runs_of(options, 2)):
                    rows, units = draw(kind, n, rho, np.random.default_rng([seed, n, 3]))
                    given = rows_for("ece", softmax(factor * rows["logits"]), rows["labels"])
                    for place, of in enumerate((None, units)):
                        found = calibration_test(
                            **given, units=of, statistic=statistic, n_resamples=99, seed=seed
                        )
                        rejected[place].append(found.p_value <= 0.05)
                cells.append(f"{percent(rejected[0])} / {percent(rejected[1])}")
                if factor == CALIBRATED:
                    most.append(100 * float(np.mean(rejected[1])))
        out.row(kind, rho, *cells)
    return [out.table(n=n, most=max(most), runs=runs_of(options, 2))]


def gate(options: argparse.Namespace) -> Tables:
    """Count how often the gate fails a model that meets a requirement exactly."""
    truth = Truth(OVERCONFIDENT, 20_000 if options.quick else 200_000)
    wanted = {
        name: f"{name} {'>=' if name == 'accuracy' else '<='} {truth.value(name):.9f}"
        for name in ("accuracy", "nll", "ece")
    }
    out, most = Writer("rows per unit", "correlation", *wanted), []
    n = 12 if options.quick else 100
    for kind, rho in grid(options):
        failed: dict[str, tuple[list[bool], list[bool]]] = {name: ([], []) for name in wanted}
        for seed in range(MANY * runs_of(options)):
            rows, units = draw(kind, n, rho, np.random.default_rng([seed, n, 4]))
            for place, of in enumerate((None, units)):
                given = Predictions(
                    probs=softmax(OVERCONFIDENT * rows["logits"]), labels=rows["labels"], units=of
                )
                for name, text in wanted.items():
                    if not options.quick and seed % SLOW.get(name, 1):
                        continue
                    found = check_requirements(given, [text], n_resamples=FOR_ENDS, seed=seed)
                    failed[name][place].append(found.outcome == "failed")
        out.row(kind, rho, *(f"{percent(one)} / {percent(other)}" for one, other in failed.values()))
        most += [100 * float(np.mean(other)) for _, other in failed.values()]
    return [out.table(n=n, most=max(most))]


def decide(options: argparse.Namespace) -> Tables:
    """Count how often the risk of a threshold is larger than guaranteed, and what is answered."""
    truth, risk = Truth(OVERCONFIDENT, 20_000 if options.quick else 200_000), 0.2
    out, most = Writer("units", "rows per unit", "correlation", "broken", "answered, mean share"), []
    for n in (30,) if options.quick else (100, 500):
        for kind, rho in grid(options):
            broken: tuple[list[bool], list[bool]] = ([], [])
            answered: tuple[list[float], list[float]] = ([], [])
            for seed in range(runs_of(options)):
                rows, units = draw(kind, n, rho, np.random.default_rng([seed, n, 5]))
                pairs = rows_for("ece", softmax(OVERCONFIDENT * rows["logits"]), rows["labels"])
                for place, of in enumerate((None, units)):
                    threshold = _threshold(Predictions(**pairs, units=of), risk)
                    broken[place].append(truth.risk(threshold) > risk)
                    answered[place].append(float((truth.confidence >= threshold).mean()))
            cells = [f"{percent(one)} / {percent(other)}" for one, other in (broken, answered)]
            out.row(n, kind, rho, *cells)
            most.append(100 * float(np.mean(broken[1])))
    return [out.table(risk=risk, most=max(most))]


def _threshold(predictions: Predictions, risk: float) -> float:
    """Return the threshold of a guaranteed risk; infinite if no answer can have it."""
    try:
        found = threshold_for_risk(predictions, risk).threshold
    except InputError:  # too few units
        return math.inf
    return math.inf if math.isnan(found) else found


def prediction_sets(options: argparse.Namespace) -> Tables:
    """Compare the coverage of sets of new rows with what is guaranteed, and with their law."""
    truth, alpha = Truth(OVERCONFIDENT, 20_000 if options.quick else 200_000), 0.1
    head = ("mean coverage", "runs outside of the 99 % law", "worst 5 % of the runs")
    out, least, outside = Writer("units", "rows per unit", "correlation", *head), [], []
    for n in (30,) if options.quick else (100, 500):
        for kind, rho in grid(options):
            found: tuple[list[float], list[float]] = ([], [])
            beyond: tuple[list[bool], list[bool]] = ([], [])
            for seed in range(runs_of(options)):
                rows, units = draw(kind, n, rho, np.random.default_rng([seed, n, 6]))
                probs = softmax(OVERCONFIDENT * rows["logits"])
                for place, of in enumerate((None, units)):
                    given = Predictions(probs=probs, labels=rows["labels"], units=of)
                    share, law = _sets(given, alpha, truth)
                    found[place].append(share)
                    beyond[place].append(not law[0] <= share <= law[1])
            tails = [f"{100 * float(np.quantile(each, 0.05)):.1f}" for each in found]
            cells = [f"{percent(one)} / {percent(other)}" for one, other in (found, beyond)]
            out.row(n, kind, rho, *cells, " / ".join(tails))
            least.append(100 * float(np.mean(found[1])))
            outside.append(100 * float(np.mean(beyond[1])))
    return [out.table(alpha=alpha, least=min(least), outside=max(outside))]


def _sets(predictions: Predictions, alpha: float, truth: Truth) -> tuple[float, tuple[float, float]]:
    """Return the true coverage of fitted sets, and the ends of their law; all classes if none is allowed."""
    try:
        rule = PredictionSets.fit(predictions, alpha=alpha, allow_empty=True)
    except InputError:  # too few units: every set has all classes
        return 1.0, (0.0, 1.0)
    law = rule.law(level=0.99)
    # The score of a class is minus its probability.
    return truth.coverage(-float(rule.thresholds[0]) - 1e-9), (law.low, law.high)


def folds(options: argparse.Namespace) -> Tables:
    """Compare the chosen method on new units with the best single one, with and without units."""
    n, parts = (40, 1) if options.quick else (300, 15)
    out, behind = Writer("rows per unit", "correlation", "NLL above the best single method", "largest"), []
    for kind, rho in grid(options):
        if kind == "very unequal":
            continue
        gaps: tuple[list[float], list[float]] = ([], [])
        for seed in range(runs_of(options, parts)):
            rng = np.random.default_rng([seed, n, 7])
            rows, units = draw(kind, n, rho, rng)
            new, _ = draw(kind, 20 * n, 0.0, rng)
            test = Predictions(logits=OVERCONFIDENT * new["logits"], labels=new["labels"])
            for place, of in enumerate((None, units)):
                given = Predictions(logits=OVERCONFIDENT * rows["logits"], labels=rows["labels"], units=of)
                found = compare(given, test=test, n_resamples=100, seed=seed)
                on_new = {result.name: result.test_metrics["nll"] for result in found.results}
                single = min(value for name, value in on_new.items() if name != "pool")
                gaps[place].append(on_new[choose(found).name] - single)
        cells = [" / ".join(f"{of(each):.4f}" for each in gaps) for of in (np.mean, np.max)]
        out.row(kind, rho, *cells)
        behind.append(float(np.mean(gaps[1])))
    return [out.table(n=n, runs=runs_of(options, parts), most=max(behind))]


def questions(options: argparse.Namespace) -> Tables:
    """Try what people do with several answers to each question, by row and by question."""
    n, runs = (60, 2) if options.quick else (QUESTIONS, options.runs)
    truth = Truth(1.3, 20_000 if options.quick else 200_000)
    accuracy, risk = truth.value("accuracy"), 0.15
    counts = {name: ([], []) for name in ("paired", "risk", "gate")}
    for seed in range(runs):
        for place, models in enumerate(_answers(n, seed)):
            for first, second in combinations(models, 2):
                found = paired_difference(
                    MEASURES["accuracy"].function,
                    first.confidence,
                    second.confidence,
                    correct_a=first.correct,
                    correct_b=second.correct,
                    units=first.units,
                    seed=seed,
                )
                counts["paired"][place].append(found.p_value <= 0.05)
            counts["risk"][place].append(truth.risk(_threshold(models[0], risk)) > risk)
            wanted = f"accuracy >= {accuracy:.9f}"
            outcome = check_requirements(models[0], [wanted], n_resamples=200, seed=seed).outcome
            counts["gate"][place].append(outcome != "unknown")
    out = Writer("what is asked", "by row", "by question", "should be")
    names = {
        "paired": ("two equally accurate models differ, p at most 0.05", "at most 5 %"),
        "risk": (f"`decide --risk {risk}` is broken", "at most 5 %"),
        "gate": ("a gate at the true accuracy decides", "at most 5 %"),
    }
    for name, (title, wanted) in names.items():
        out.row(title, *(f"{percent(each)} %" for each in counts[name]), wanted)
    chosen, worse, behind = _by_subject(n, 2 if options.quick else 16)
    out.row("`calibrate --by subject` chooses `by_group`", *chosen, "subjects do not differ")
    out.row(
        "... and has a higher NLL on new questions than without", *worse, "what that costs is in the next row"
    )
    out.row("NLL of the choice on new questions, above the best single method", *behind, "at most 0.01")
    return [out.table(n=n, runs=runs)]


def _answers(n: int, seed: int) -> list[list[Predictions]]:
    """Return the answers of three equally good models to the same questions: without units, and with them."""
    rng = np.random.default_rng([seed, n, 8])
    units = np.repeat(np.arange(n), ANSWERS)
    subjects = rng.integers(SUBJECTS, size=n)[units]
    models = []
    for _ in range(3):
        rows, common = fresh(len(units), rng), fresh(n, rng)
        shared = rng.random(len(units)) < math.sqrt(AGREEMENT)
        logits = np.where(shared[:, None], common["logits"][units], rows["logits"])
        labels = np.where(shared, common["labels"][units], rows["labels"])
        models.append(rows_for("ece", softmax(1.3 * logits), labels))
    return [[Predictions(**each, units=of, groups=subjects) for each in models] for of in (None, units)]


def _by_subject(n: int, runs: int) -> tuple[list[str], list[str], list[str]]:
    """Return how often a correction for each subject is chosen, how often it is worse, and what it costs."""
    chosen, worse, behind = [0, 0], [0, 0], ([], [])
    for seed in range(runs):
        test = _answers(10 * n, 1000 + seed)[0][0]
        for place, (given, *_) in enumerate(_answers(n, seed)):
            found = compare(given, test=test, n_resamples=100, seed=seed)
            name = choose(found).name
            on_new = {result.name: result.test_metrics["nll"] for result in found.results}
            chosen[place] += name == "by_group"
            worse[place] += name == "by_group" and on_new[name] > on_new["pool"]
            single = min(value for other, value in on_new.items() if other not in ("pool", "by_group"))
            behind[place].append(on_new[name] - single)
    return (
        [f"{each} of {runs}" for each in chosen],
        [f"{each} of {runs}" for each in worse],
        [f"{np.mean(each):+.4f}" for each in behind],
    )


def cost(options: argparse.Namespace) -> Tables:
    """Measure the time of intervals by row and by unit, and the memory of many rows."""
    out = Writer("intervals", "by row", "by unit", "ratio")
    rng = np.random.default_rng(0)
    n, k = (300, 7) if options.quick else (3000, 77)
    logits = SCALE * rng.standard_normal((n, k))
    labels = (softmax(logits).cumsum(axis=1) < rng.random((n, 1))).sum(axis=1).clip(max=k - 1)
    units, ratios = np.arange(n) // 5, []
    for measures in ("core",) if options.quick else ("core", "all"):
        best = [math.inf, math.inf]
        for _ in range(1 if options.quick else 3):
            for place, of in enumerate((None, units)):
                given = Predictions(logits=1.5 * logits, labels=labels, units=of)
                began = time.process_time()
                evaluate(given, measures=measures, intervals=True)
                best[place] = min(best[place], time.process_time() - began)
        ratios.append(best[1] / best[0])
        title = f"{measures} measures of {n:,} x {k}, {n // 5:,} units"
        out.row(title, *(f"{each:.2f} s" for each in best), f"{ratios[-1]:.2f}")
    tables = [out.table(most=max(ratios))]
    many = 20_000 if options.quick else 10_000_000
    size = Writer("measure", f"{many:,} rows of {many // 10:,} units", "memory beside the data")
    units = np.repeat(
        np.arange(many // 10), rng.multinomial(many - many // 10, np.full(many // 10, 10 / many)) + 1
    )
    confidence = 0.5 + 0.5 * rng.random(many)
    shared = np.where(rng.random(many) < 0.5, rng.random(many // 10)[units], rng.random(many))
    given = Predictions(confidence=confidence, correct=shared < confidence - 0.03, units=units)
    for name in ("accuracy",) if options.quick else ("accuracy", "nll", "brier", "ece"):
        began = time.perf_counter()
        memory = extra_memory(lambda name=name: evaluate(given, measures=[name], intervals=True))
        size.row(name, f"{time.perf_counter() - began:.0f} s", f"{memory:,.0f} MB")
    return [*tables, size.table()]


def files(options: argparse.Namespace) -> Tables:
    """Compare standard errors by row and by unit on forecasts of elections and scores of a judge."""
    out = Writer("file", "rows", "units", "measure", "value", "standard error by row", "by unit", "ratio")
    needed = ("forecasts/governors_elections.csv", "judge_scores/answers.parquet")
    missing = [name for name in needed if options.data is None or not (options.data / name).is_file()]
    if missing:
        print(f"files: left out, because --data names no folder with {' and '.join(missing)}\n")
        return []
    import pandas as pd  # only for this section

    races = pd.read_csv(options.data / needed[0])
    races = races[races["probwin"] > 0.5]  # the favourite of each forecast
    given = {"confidence": races["probwin"], "correct": races["probwin_outcome"] == 1}
    _errors(out, "forecasts of elections", given, races.groupby(["year", "state"]).ngroup())
    answers = pd.read_parquet(options.data / needed[1])
    given = {"confidence": answers["judge_score"], "correct": answers["judge_score"] >= 0.8}
    prompts = answers.groupby("prompt_id").ngroup()
    _errors(
        out, "scores of a judge, four answers to a prompt", given, prompts, ("accuracy", "mean_confidence")
    )
    known = answers["oracle"].notna()
    given = {"confidence": answers["judge_score"][known], "correct": answers["oracle"][known] >= 0.8}
    _errors(
        out, "scores of a judge, one labelled answer to a prompt", given, prompts[known], ("accuracy", "ece")
    )
    return [out.table()]


def _errors(
    out: Writer,
    title: str,
    given: Mapping[str, Any],
    units: Any,
    names: Sequence[str] = ("accuracy", "brier", "nll", "ece", "smece"),
) -> None:
    pairs = {name: np.asarray(values) for name, values in given.items()}
    units = np.asarray(units)
    for name in names:
        metric = partial_brier if name == "brier" else MEASURES[name].function
        more = {} if name == "brier" else MEASURES[name].arguments(N_BINS)
        rows, by_unit = (with_interval(metric, **pairs, **more, units=of) for of in (None, units))
        ratio = by_unit.standard_error / rows.standard_error
        cells = (f"{each:.4f}" for each in (rows.value, rows.standard_error, by_unit.standard_error))
        out.row(title, f"{len(units):,}", f"{len(np.unique(units)):,}", name, *cells, f"{ratio:.1f}")


def partial_brier(confidence: Any, correct: Any) -> float:
    """Return the mean squared difference of confidence and hit."""
    return float(np.square(np.asarray(confidence) - np.asarray(correct)).mean())


SECTIONS: dict[str, Callable[[argparse.Namespace], Tables]] = {
    "coverage": coverage,
    "tests": tests,
    "calibration": calibration,
    "gate": gate,
    "decide": decide,
    "sets": prediction_sets,
    "folds": folds,
    "questions": questions,
    "cost": cost,
    "files": files,
}


# --- the page ---------------------------------------------------------------------------------------------


def page(keep: Path) -> str:
    """Return the page from all stored sections."""
    stored = {
        name: json.loads((keep / f"{name}.json").read_text(encoding="utf-8"))
        for name in SECTIONS
        if (keep / f"{name}.json").is_file()
    }
    minutes = sum(each["minutes"] for each in stored.values())
    torch_version = torch.__version__.split("+")[0]
    parts = [
        "# Rows that depend on each other: what was measured",
        wrapped(QUESTION),
        f"```sh\n{COMMAND}\n```",
        wrapped(
            f"with Calibrant {calibrant.__version__}, PyTorch {torch_version} and NumPy {np.__version__} "
            f"on one core: {minutes:.0f} minutes of processor time. {READING} {POPULATIONS}"
        ),
    ]
    for name, found in stored.items():
        title, words = TEXTS[name]
        first, n_runs = found["tables"][0], found["runs"]
        runs = {"runs": n_runs, "many": MANY * n_runs, "few": n_runs // 3}
        parts += [f"## {title}", wrapped(words.format(**{**runs, **first}))]
        for table in found["tables"]:
            if name == "coverage":
                model = "calibrated" if table["factor"] == CALIBRATED else "overconfident"
                parts.append(f"Model: {model}; {table['low']:.1f} to {table['high']:.1f} % by unit.")
            parts.append("\n".join([table_head(*table["head"]), *(table_row(*row) for row in table["rows"])]))
    return "\n\n".join(parts) + "\n"


def wrapped(text: str) -> str:
    """Return a paragraph in lines of the length of other pages."""
    return fill(" ".join(text.split()), 130, break_on_hyphens=False, break_long_words=False)


COMMAND = (
    "python benchmarks/units.py --data FOLDER --out docs/results/units.md   # --only SECTION ... for a part"
)

QUESTION = """
    Are intervals, tests, gates, thresholds, sets and folds right if rows depend on each other, such as
    several answers to one question, and what would rows alone claim? This page was made by
"""

READING = """
    Cells with two numbers are *by row / by unit*: what is printed without units, and with them. Shares are in
    percent of the runs of a cell; with 300 runs, 5 % has a standard error of 1.3 points.
"""

POPULATIONS = r"""
    The populations have a known truth: labels of four classes follow the softmax of normal logits,
    and a model states the softmax of 1.7 times these logits (overconfident; ECE 11 %) or of the
    logits themselves (calibrated). A row copies scores and label of its unit with probability
    $\sqrt\rho$, so any two rows of a unit have the correlation $\rho$. *Equal* units have 5 rows,
    *unequal* ones 1 to 200 (log-normal: 100 units are as good as 33 equal ones if their rows are
    copies), *very unequal* ones too (a tail like that of cities: as good as 14).
"""

TEXTS = {
    "coverage": (
        "Intervals",
        """
        How often 95 % intervals cover the true value: {many} runs for means, {runs} for `ece`,
        {few} for `smece`, whose shares are uncertain by 3 points. Intervals of means of 100 equal
        units with large correlation are a little short, as those of 100 independent rows are: the
        terms of the NLL are skewed. Very unequal units make them a little long. Where the true
        error is 0, the interval of a calibration error covers it if it begins at 0, which it does
        in 97.5 % of the runs or more, by design; intervals of calibration errors allow for the
        largest bias that resamples suggest, so they cover a bit more than 95 % in small samples.
        """,
    ),
    "tests": (
        "The paired test",
        """
        How often two equally good models differ with p at most 0.05: {many} runs for means, {runs} for
        `ece`, {few} for `smece`, of {n} units:
        the true logits with noise of each model, which rows of a unit share like all else. By
        unit at most {most:.1f} %, {mean:.1f} % on average.
        """,
    ),
    "calibration": (
        "Tests of calibration",
        """
        How often a calibrated model is rejected with p at most 0.05 (the size, at most {most:.1f}
        % by unit), and how often an overconfident one (the power), {runs} runs of {n} units. With
        very unequal units there is little power by unit, because there is little to see: most
        rows belong to a few units. The size by unit is below 5 % where rows hardly depend on each
        other, since few units leave open whether they do.
        """,
    ),
    "gate": (
        "The gate",
        """
        How often a gate whose bound is the true value fails: {many} runs of {n} units, {runs} for
        `ece`; 5 % are allowed. The largest share by unit is {most:.1f} %.
        """,
    ),
    "decide": (
        "Thresholds with a guarantee",
        """
        How often `decide --risk {risk}` at 95 % answers with a true share of wrong answers above
        {risk}, {runs} runs, and the mean share that is answered. By unit the guarantee was broken
        in at most {most:.1f} %. It costs answers, most of all if units are very unequal: the
        largest unit could have been lucky, so few units allow no answer at all.
        """,
    ),
    "sets": (
        "Prediction sets",
        """
        The true coverage of sets with alpha {alpha}, {runs} runs: its mean, which is guaranteed
        to be 90 % at least (by unit the smallest is {least:.1f} %), and how often it lies outside
        of the interval that `law` states for 99 % of the runs (by unit at most {outside:.1f} %).
        """,
    ),
    "folds": (
        "Folds and the choice of a method",
        """
        `compare` and `choose` with {n} units: the NLL of the chosen method on new units minus
        that of the single method that is best there, mean and largest of {runs} runs. By unit at
        most {most:.4f} on average. Folds that split units choose methods that have learnt the
        rows of the other folds by heart.
        """,
    ),
    "questions": (
        "Several answers to each question",
        """
        A log with a common shape: 3 equally good models, {n} questions, 5 answers of each model to
        each of them, which agree strongly (correlation 0.8), 14 subjects that do not differ.
        Confidences and hits; {runs} draws, 16 for the choice.
        """,
    ),
    "cost": (
        "What it costs",
        """
        `evaluate` with intervals, processor time; by unit at most {most:.2f} times that by row.
        The second table has one core, too: time and the growth of the peak resident set while an
        interval is computed.
        """,
    ),
    "files": (
        "Files of others",
        """
        Standard errors by row and by unit of two files that are not part of the project. The
        favourites of forecasts of elections for governors
        (fivethirtyeight/checking-our-work-data): a race is forecast day after day in up to three
        ways, and a unit is a race, that is, year and state. Scores of a judge for the answers of
        four policies to the same prompts (cimo-labs/cje), right if 0.8 or more: a unit is a
        prompt. Where each prompt has one row, both are the same to the last digit.
        """,
    ),
}


if __name__ == "__main__":
    main()
