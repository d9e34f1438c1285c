"""How well class frequencies, and quality without labels, are estimated where the truth is known.

    python benchmarks/frequencies.py [--quick] [--shifts 40] [--clinc minilm_embeddings.npz] [--set CLINC]
        [--only error|intervals|levels|likelihood|quality]

Test sets are resampled to class frequencies drawn from Dirichlet distributions: the smaller the
concentration, the larger the shift. CLINC150 needs its file of sentence embeddings, on which two heads are
trained, and is left out without it.
"""

import argparse
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn

from calibrant.data import Predictions, load_bundled
from calibrant.data.predictions import join_predictions
from calibrant.decisions import estimate_frequencies, estimate_quality
from calibrant.errors import FitError
from calibrant.evaluation.calibrated import calibrated, fit_named
from calibrant.metrics import brier_score, negative_log_likelihood
from calibrant.posthoc import Calibrator, FrequencyCorrection
from timing import benchmark_parser, print_head, print_row

CONCENTRATIONS = (0.1, 1.0, 10.0, 100.0)
TABLES = ("error", "intervals", "levels", "likelihood", "quality")


@dataclass(frozen=True)
class Problem:
    """Labelled predictions with the old frequencies, and labelled ones to draw shifted sets from."""

    name: str
    labelled: Predictions
    pool: Predictions
    rows: int


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a table for each question."""
    parser = benchmark_parser(__doc__, "two shifts of few rows")
    parser.add_argument("--shifts", type=int, default=40, help="shifts of each concentration")
    parser.add_argument("--clinc", type=Path, help="file of CLINC150 embeddings")
    parser.add_argument("--set", default="", help="only sets whose name contains this")
    parser.add_argument(
        "--calibrators",
        nargs="+",
        default=("none", "temperature", "vector", "pool"),
        help="calibrators of the table of errors; the last one gets all concentrations",
    )
    parser.add_argument("--only", choices=TABLES, help="print only this table")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    if options.quick:
        options.shifts = 2
    problems = [each for each in all_problems(options) if options.set in each.name]
    for name in TABLES if options.only is None else (options.only,):
        print(f"\n{name}\n", flush=True)
        globals()[f"{name}_table"](problems, options)


def all_problems(options: argparse.Namespace) -> Iterator[Problem]:
    """Yield the bundled sets, and heads on CLINC150 if its file is there."""
    rows = 300 if options.quick else 5000
    validation, test, noise = (load_bundled(f"cifar10_{each}") for each in ("val", "test", "test_noise"))
    if options.quick:
        validation = validation.take(np.arange(1000))
    yield Problem("CIFAR-10", validation, test, rows)
    if options.quick:
        return
    order = np.random.default_rng(0).permutation(noise.n)
    yield Problem("CIFAR-10 under noise", noise.take(order[:5000]), noise.take(order[5000:]), rows)
    if options.clinc is not None:
        data = np.load(options.clinc)
        for name, hidden, epochs in (("linear head", (), 20), ("perceptron", (512,), 30)):
            head = trained(data["x_train"], data["y_train"], hidden, epochs)
            val, test = (predicted(head, data[f"x_{each}"], data[f"y_{each}"]) for each in ("val", "test"))
            yield Problem(f"CLINC150, {name}", val, test, 4500)


def trained(x: np.ndarray, y: np.ndarray, hidden: tuple[int, ...], epochs: int) -> nn.Module:
    """Train a head on embeddings by cross-entropy."""
    torch.manual_seed(0)
    inputs, labels = torch.from_numpy(x.astype(np.float32)), torch.from_numpy(y.astype(np.int64))
    widths = (x.shape[1], *hidden)
    layers = [layer for a, b in zip(widths, hidden, strict=False) for layer in (nn.Linear(a, b), nn.ReLU())]
    head = nn.Sequential(*layers, nn.Linear(widths[-1], int(labels.max()) + 1))
    optimizer = torch.optim.Adam(head.parameters(), lr=3e-3 if not hidden else 1e-3)
    for _ in range(epochs):
        for rows in torch.randperm(len(inputs)).split(128):
            optimizer.zero_grad()
            nn.functional.cross_entropy(head(inputs[rows]), labels[rows]).backward()
            optimizer.step()
    return head


@torch.no_grad()
def predicted(head: nn.Module, x: np.ndarray, y: np.ndarray) -> Predictions:
    """Return the predictions of a head."""
    return Predictions(logits=head(torch.from_numpy(x.astype(np.float32))), labels=y.astype(np.int64))


def shifted(
    pool: Predictions, concentration: float, n: int, rng: np.random.Generator
) -> tuple[Predictions, np.ndarray]:
    """Draw rows with class frequencies from a Dirichlet distribution; return them and the frequencies.

    A row is drawn once if there are enough of its class.
    """
    labels = pool.labels.numpy()
    frequencies = rng.dirichlet(np.full(pool.k, concentration))
    rows = []
    for c, m in enumerate(rng.multinomial(n, frequencies)):
        of_class = np.flatnonzero(labels == c)
        rows.append(rng.choice(of_class, size=m, replace=m > len(of_class)))
    return pool.take(np.concatenate(rows)), frequencies


def distance(a: np.ndarray, b: np.ndarray) -> float:
    """Return the total variation."""
    return float(np.abs(a - b).sum() / 2)


def shares_of(predictions: Predictions) -> np.ndarray:
    """Return the frequencies of the labels."""
    return np.bincount(predictions.labels.numpy(), minlength=predictions.k) / predictions.n


def calibrators(problem: Problem, names: Sequence[str]) -> dict[str, Calibrator | None]:
    """Return calibrators fitted on the labelled set, by name."""
    return {name: None if name == "none" else fit_named(name, problem.labelled) for name in names}


def runs_of(problem: Problem, options: argparse.Namespace) -> int:
    """Return the number of shifts: a quarter for problems with many classes, which take long."""
    return options.shifts if problem.pool.k < 100 else max(2, options.shifts // 4)


def error_table(problems: Sequence[Problem], options: argparse.Namespace) -> None:
    """Print the distance of estimated from true frequencies."""
    print_head(
        "set", "calibrator", "concentration", "shift", "EM", "BBSE", "applied", "labels counted",
        "EM below half", "applied below half", "counted below half", "BBSE below half",
    )  # fmt: skip
    for problem in problems:
        names = ("vector",) if options.quick else options.calibrators
        for name, calibrator in calibrators(problem, names).items():
            for concentration in CONCENTRATIONS if name == names[-1] else (1.0,):
                rng = np.random.default_rng(int(10 * concentration))
                errors = []
                for _ in range(runs_of(problem, options)):
                    rows, truth = shifted(problem.pool, concentration, problem.rows, rng)
                    found = estimate_frequencies(problem.labelled, rows, calibrator=calibrator, n_resamples=2)
                    each = (found.frequencies, found.second_opinion, found.applied)
                    known = (shares_of(problem.labelled), *each, shares_of(rows))
                    errors.append([distance(one, truth) for one in known])
                table = np.array(errors)
                half = (table < table[:, :1] / 2).mean(axis=0)
                print_row(
                    problem.name, name, concentration,
                    *(f"{each:.3f}" for each in table.mean(axis=0)),
                    *(f"{half[place]:.0%}" for place in (1, 3, 4, 2)),
                )  # fmt: skip


def intervals_table(problems: Sequence[Problem], options: argparse.Namespace) -> None:
    """Print how often intervals of fresh draws of both sets contain the true frequency."""
    print_head(
        "set", "concentration", "rows", "classes covered", "mean width", "shift detected", "fits", "seconds"
    )
    for problem in problems:
        both = join_predictions({"one": problem.labelled, "two": problem.pool})
        n = min(2000, problem.rows)
        m = n if both.k < 100 else 3000
        for concentration in CONCENTRATIONS[1:]:
            rng = np.random.default_rng(int(10 * concentration))
            covered, widths, detected, fits, start = [], [], [], [], time.perf_counter()
            runs = runs_of(problem, options)
            for run in range(runs):
                order = rng.permutation(both.n)
                labelled = both.take(order[:m])
                rows, truth = shifted(both.take(order[m:]), concentration, n, rng)
                found = estimate_frequencies(
                    labelled, rows, calibrator=fit_named("vector", labelled), n_resamples=200, seed=run
                )
                covered.append(np.mean((found.low <= truth) & (truth <= found.high)))
                widths.append(np.mean(found.high - found.low))
                detected.append(found.has_shift())
                fits.append(found.is_explained())
            seconds = (time.perf_counter() - start) / runs
            print_row(
                problem.name, concentration, f"{n:,}", f"{np.mean(covered):.1%}", f"{np.mean(widths):.4f}",
                f"{np.mean(detected):.0%}", f"{np.mean(fits):.0%}", f"{seconds:.1f}",
            )  # fmt: skip


def levels_table(problems: Sequence[Problem], options: argparse.Namespace) -> None:
    """Print how often tests reject without a shift, and how often confused classes are refused."""
    print_head(
        "set",
        "labelled",
        "unlabelled",
        "runs",
        "shift detected",
        "fit rejected",
        "refused",
        "refused if confused",
    )
    for problem in problems:
        both = join_predictions({"one": problem.labelled, "two": problem.pool})
        n = min(2000 if both.k < 100 else 3000, problem.rows, both.n // 2)
        runs = 5 * runs_of(problem, options)
        rng = np.random.default_rng(0)
        verdicts, refused, confused = [], 0, 0
        for run in range(runs):
            rows = rng.permutation(both.n)
            labelled, unlabelled = both.take(rows[:n]), both.take(rows[n : 2 * n])
            try:
                found = estimate_frequencies(
                    labelled, unlabelled, calibrator=fit_named("vector", labelled), n_resamples=100, seed=run
                )
                verdicts.append((found.has_shift(), not found.is_explained()))
            except FitError:
                refused += 1
            try:
                mixed = mixed_up(labelled, rng)
                estimate_frequencies(mixed, unlabelled, calibrator=fit_named("vector", mixed), n_resamples=2)
            except FitError:
                confused += 1
        shares = np.mean(verdicts, axis=0) if verdicts else (0.0, 0.0)
        print_row(
            problem.name, f"{n:,}", f"{n:,}", runs, *(f"{each:.1%}" for each in shares),
            f"{refused / runs:.0%}", f"{confused / runs:.0%}",
        )  # fmt: skip


def mixed_up(predictions: Predictions, rng: np.random.Generator) -> Predictions:
    """Return the predictions with two classes that nobody can tell apart: their labels are drawn again."""
    labels = predictions.labels.numpy().copy()
    either = np.flatnonzero(labels <= 1)
    labels[either] = rng.integers(2, size=len(either))
    return Predictions(logits=predictions.to_logits(), labels=labels)


def likelihood_table(problems: Sequence[Problem], options: argparse.Namespace) -> None:
    """Print the negative log-likelihood on shifted rows without and with a correction."""
    print_head(
        "set",
        "concentration",
        "not corrected",
        "true frequencies",
        "--adapt",
        "temperature alone",
        "--undo-resampling",
    )
    for problem in problems:
        base = fit_named("vector", problem.labelled)
        for concentration in CONCENTRATIONS[:3]:
            rng = np.random.default_rng(int(10 * concentration))
            losses = []
            for _ in range(max(2, options.shifts // 4)):
                rows, truth = shifted(problem.pool, concentration, 2 * problem.rows, rng)
                order = rng.permutation(rows.n)
                rows, world = rows.take(order[: problem.rows]), rows.take(order[problem.rows :])
                known = FrequencyCorrection.of(base, truth)
                found = estimate_frequencies(problem.labelled, rows, calibrator=base, n_resamples=2)
                # The model was trained on balanced classes; the calibrator is fitted on those of the world.
                alone = fit_named("temperature", world)
                undone = FrequencyCorrection.of(alone, alone.class_frequencies, old="balanced")
                losses.append([nll(each, rows) for each in (base, known, found.calibrator, alone, undone)])
            print_row(problem.name, concentration, *(f"{each:.4f}" for each in np.mean(losses, axis=0)))


def nll(calibrator: Calibrator, rows: Predictions) -> float:
    """Return the negative log-likelihood of calibrated predictions."""
    return negative_log_likelihood(calibrated(calibrator, rows).to_probs(), rows.labels)


def quality_table(problems: Sequence[Problem], options: argparse.Namespace) -> None:
    """Print how often the intervals of estimates without labels contain the truth."""
    print_head(
        "set", "labelled", "unlabelled", "runs", "accuracy covered", "Brier covered", "risk at 80 % covered",
        "mean width", "error of the accuracy", "warnings",
    )  # fmt: skip
    for problem in problems:
        both = join_predictions({"one": problem.labelled, "two": problem.pool})
        sizes = ((300, 300),) if options.quick else ((500, 2000), (2000, 2000), (2000, 500))
        for n, m in sizes:
            runs, rng = 5 * runs_of(problem, options), np.random.default_rng(0)
            rows = []
            for run in range(runs):
                order = rng.permutation(both.n)
                labelled, unlabelled = both.take(order[:n]), both.take(order[n : n + m])
                rows.append(measured_quality(labelled, unlabelled, run))
            print_quality(problem.name, n, m, np.array(rows))
    if not options.quick:
        validation, noise = load_bundled("cifar10_val"), load_bundled("cifar10_test_noise")
        rng, rows = np.random.default_rng(0), []
        for run in range(options.shifts):
            one, two = rng.permutation(5000)[:2000], rng.permutation(10000)[:2000]
            rows.append(measured_quality(validation.take(one), noise.take(two), run))
        print_quality("CIFAR-10, then noise", 2000, 2000, np.array(rows))


def measured_quality(labelled: Predictions, unlabelled: Predictions, seed: int) -> list[float]:
    """Return whether each interval contains the truth, its width, the error, and whether it warns."""
    found = estimate_quality(labelled, unlabelled, methods=["vector"], seed=seed)
    rows = calibrated(fit_named("vector", labelled, seed=seed), unlabelled)
    outcomes = rows.outcomes()
    accuracy = float(outcomes.correct.double().mean())
    sure = outcomes.confidence.argsort(descending=True)[: int(np.ceil(0.8 * rows.n))]
    truths = (
        accuracy,
        brier_score(rows.to_probs(), rows.labels),
        1 - float(outcomes.correct[sure].double().mean()),
    )
    given = (found.accuracy, found.brier, found.risk.at(0.8))
    covered = [each.low <= truth <= each.high for each, truth in zip(given, truths, strict=True)]
    width = found.accuracy.high - found.accuracy.low
    return [*covered, width, found.accuracy.value - accuracy, not found.trusted]


def print_quality(name: str, n: int, m: int, rows: np.ndarray) -> None:
    """Print one row of the table of estimates without labels."""
    covered, (width, error, warned) = rows[:, :3].mean(axis=0), rows[:, 3:].mean(axis=0)
    print_row(
        name, f"{n:,}", f"{m:,}", len(rows), *(f"{each:.1%}" for each in covered), f"{width:.3f}",
        f"{error:+.3f}", f"{warned:.1%}",
    )  # fmt: skip


if __name__ == "__main__":
    main()
