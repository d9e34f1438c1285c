"""How often a drift monitor raises a false alarm, and how soon it finds a drift.

    python benchmarks/monitor.py [--runs 1000] [--quick]

Simulated predictions: the label comes from the softmax of ten normal logits; the model states the softmax of
the logits times a factor. Real ones: the bundled CIFAR-10 network, resampled with replacement. Each run has
a reference of its own, of 5,000 samples unless said otherwise; where it is the validation set, runs differ in
its order. The monitor is looked at after every sample. Drifts have a fifth of the runs, late ones a fiftieth.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from calibrant.data import load_bundled
from calibrant.metrics import expected_calibration_error
from calibrant.monitoring import DriftMonitor, DriftReference
from timing import benchmark_parser, print_head, print_row

Pairs: TypeAlias = tuple[np.ndarray, np.ndarray]
# Draws a number of confidences and hits.
Draw: TypeAlias = Callable[[int, np.random.Generator], Pairs]

CHUNK = 1000


@dataclass(frozen=True)
class Case:
    """A reference, a stream, and how the stream begins before it drifts, if it does."""

    title: str
    reference: Draw
    stream: Draw
    n_reference: int = 5000
    past: int = 0
    restart_every: int | None = 1000
    known: bool = False
    fewer: int = 5


def main(arguments: Sequence[str] | None = None) -> None:
    """Run every case and print a table of false alarms, one of delays, and a time."""
    parser = benchmark_parser(__doc__, "one short run of each case")
    parser.add_argument("--runs", type=int, default=1000, help="runs of each case without drift")
    args = parser.parse_args(arguments)
    runs, length, horizon = (1, 1000, 2000) if args.quick else (args.runs, 20_000, 50_000)
    print_head(f"no drift, {length:,} samples", "runs", "false alarms", "share", "e-value at 99 % of peaks")
    for case in quiet_cases():
        monitors = [followed(case, seed, length, stop=False) for seed in range(runs)]
        alarms = sum(monitor.alarm for monitor in monitors)
        peak = np.exp(np.quantile([monitor.log_peak for monitor in monitors], 0.99))
        print_row(case.title, runs, alarms, f"{100 * alarms / runs:.1f} %", f"{peak:.1f}")
    print()
    print_head("drift", "ECE before, after", "runs", "found", "median delay", "90 % of delays up to")
    for case in drift_cases(past=4 if args.quick else 100):
        print_row(*drift_cells(case, max(runs // case.fewer, 1), horizon))
    print(f"\n{1_000_000 // (100 if args.quick else 1):,} samples: {seconds(args.quick):.2f} s")


def quiet_cases() -> list[Case]:
    """Return streams that are calibrated as their references are."""
    test = bundled("cifar10_test")
    return [
        Case("simulated, calibrated", simulated(), simulated()),
        Case("simulated, calibrated, regions known exactly", simulated(), simulated(), known=True),
        Case("simulated, logits x 1.5 in both", simulated(1.5), simulated(1.5)),
        Case("simulated, calibrated, stream of harder inputs", simulated(), simulated(spread=1.5)),
        Case("CIFAR-10 test in both", test, test),
        Case("CIFAR-10, validation then test", whole("cifar10_val"), test),
    ]


def drift_cases(past: int) -> list[Case]:
    """Return streams whose confidence is not what it was on the reference; ``past`` in thousands."""
    factors = (1.2, 1.5, 2.0)
    validation = whole("cifar10_val")
    cases = [Case(f"simulated, logits x {f}", simulated(), simulated(f)) for f in factors]
    cases += [
        Case("simulated, logits x 1.2, reference of 20,000", simulated(), simulated(1.2), n_reference=20_000)
    ]
    cases += [
        Case(f"simulated, logits x 1.5, then x {1.5 * f:.3g}", simulated(1.5), simulated(1.5 * f))
        for f in factors
    ]
    cases += [
        Case("simulated, logits x 1.5, then x 1 (repaired)", simulated(1.5), simulated()),
        Case("simulated, logits x 1.5 in both, harder inputs", simulated(1.5), simulated(1.5, spread=1.5)),
        *(Case(f"CIFAR-10, logits x {f}", validation, bundled("cifar10_test", f)) for f in factors),
        Case("CIFAR-10, logits x 0.5 (repaired)", validation, bundled("cifar10_test", 0.5)),
        Case("CIFAR-10, noisy images", validation, bundled("cifar10_test_noise")),
    ]
    for thousands, every in ((past // 5 or 1, 1000), (past // 5 or 1, None), (past, 1000), (past, None)):
        title = f"simulated, logits x 1.5 after {thousands},000 good ones, "
        title += "no restarts" if every is None else "restarts"
        late = Case(title, simulated(), simulated(1.5), past=1000 * thousands, restart_every=every, fewer=50)
        cases.append(late)
    return cases


def drift_cells(case: Case, runs: int, horizon: int) -> tuple[object, ...]:
    """Return one row of the table of delays, in samples since the drift began."""
    rng = np.random.default_rng(1)
    before, after = (
        100 * expected_calibration_error(confidence=c, correct=hits, binning="mass")
        for c, hits in (case.reference(50_000, rng), case.stream(50_000, rng))
    )
    delays = []
    for seed in range(runs):
        found = followed(case, seed, horizon, stop=True).alarm_at
        # An alarm before the drift is a false one, and the drift was not found.
        delays.append(np.inf if found is None or found <= case.past else found - case.past)
    share = 100 * np.mean(np.isfinite(delays))
    # An observed delay, not something between two of them.
    median, most = np.quantile(delays, [0.5, 0.9], method="higher")
    cells = [f"{d:,.0f}" if np.isfinite(d) else f"> {horizon:,}" for d in (median, most)]
    return case.title, f"{before:.1f} %, {after:.1f} %", runs, f"{share:.1f} %", *cells


def followed(case: Case, seed: int, length: int, *, stop: bool) -> DriftMonitor:
    """Follow one run of a case, to its end or until the alarm."""
    rng = np.random.default_rng([seed, 7])
    reference = DriftReference.from_outcomes(*case.reference(case.n_reference, rng))
    if case.known:
        reference = replace(
            reference, groups=tuple(replace(group, region=(0.0, 0.0)) for group in reference.groups)
        )
    monitor = DriftMonitor(reference, restart_every=case.restart_every)
    for start in range(0, case.past, 10 * CHUNK):
        monitor.update(*case.reference(min(10 * CHUNK, case.past - start), rng))
    while monitor.n < case.past + length and not (stop and monitor.alarm):
        monitor.update(*case.stream(CHUNK, rng))
    return monitor


def simulated(factor: float = 1.0, *, spread: float = 2.5, k: int = 10) -> Draw:
    """Return a source of simulated predictions whose logits are too large by a factor."""

    def draw(n: int, rng: np.random.Generator) -> Pairs:
        logits = rng.normal(scale=spread, size=(n, k))
        honest = confidence(logits)
        # The label is the predicted class with the probability of that class.
        return honest if factor == 1 else confidence(factor * logits), rng.random(n) < honest

    return draw


def bundled(name: str, factor: float = 1.0) -> Draw:
    """Return a source that draws from bundled predictions with replacement, logits times a factor."""
    stated, hits = real_pairs(name, factor)

    def draw(n: int, rng: np.random.Generator) -> Pairs:
        rows = rng.integers(len(stated), size=n)
        return stated[rows], hits[rows]

    return draw


def whole(name: str) -> Draw:
    """Return a source of all bundled predictions as they are, in an order of the run's own."""
    stated, hits = real_pairs(name, 1.0)

    def draw(n: int, rng: np.random.Generator) -> Pairs:
        rows = rng.permutation(len(stated))[:n]
        return stated[rows], hits[rows]

    return draw


def real_pairs(name: str, factor: float) -> Pairs:
    """Return confidences and hits of bundled predictions, logits times a factor."""
    predictions = load_bundled(name)
    logits = np.asarray(predictions.to_logits(), dtype=np.float64)
    return confidence(factor * logits), logits.argmax(axis=1) == np.asarray(predictions.labels)


def confidence(logits: np.ndarray) -> np.ndarray:
    """Return the largest entry of each softmax."""
    return np.asarray(1 / np.exp(logits - logits.max(axis=1, keepdims=True)).sum(axis=1))


def seconds(quick: bool) -> float:
    """Time one monitor over a million samples, or fewer, in batches of 10,000."""
    rng = np.random.default_rng(0)
    draw = simulated()
    monitor = DriftMonitor(DriftReference.from_outcomes(*draw(5000, rng)))
    batch = draw(10_000, rng)
    start = time.perf_counter()
    for _ in range(1 if quick else 100):
        monitor.update(*batch)
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
