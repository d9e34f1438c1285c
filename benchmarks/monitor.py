"""How often a drift monitor raises a false alarm, and how soon it finds a drift.

    python benchmarks/monitor.py [--runs 1000] [--quick]

Simulated predictions: the label comes from the softmax of ten normal logits; the model states the softmax of
the logits times a factor. Real ones: the bundled CIFAR-10 network, resampled with replacement. Each run has
a reference of its own, of 5,000 samples unless said otherwise; where it is the validation set, runs differ in
its order. The monitor is looked at after every sample. Drifts have a fifth of the runs, late ones a fiftieth.

Groups: simulated predictions of several groups, of which one, or none, drifts. Late labels: a month of files
that come out of order, some rows and labels twice, 5 % of the labels never; a run reads them every day, once
in peace and once killed at one write in five, and is compared with the labelled rows in the defined order.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeAlias
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from calibrant import Predictions
from calibrant.data import load_bundled
from calibrant.data.columns import Columns
from calibrant.files import write_file
from calibrant.metrics import expected_calibration_error
from calibrant.monitoring import DriftMonitor, DriftReference, Monitoring, follow
from calibrant.monitoring.files import follow_labels
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
    print()
    print_head("groups, 20,000 samples", "runs", "alarms", "of the group", "of others", "median row")
    for n_groups, n_bad in ((3, 0), (20, 0), (3, 1), (20, 1)):
        print_row(*group_cells(n_groups, n_bad, runs=max(runs // 5, 1), length=length))
    print()
    print_head(
        "late labels",
        "rows",
        "tested",
        "never labelled",
        "killed",
        "alarm",
        "same alarm",
        "same bytes",
        "largest state",
    )
    for days in (2, 4) if args.quick else (10, 30):
        print_row(*late_cells(days, n=100 if args.quick else 5000))
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


def group_cells(n_groups: int, n_bad: int, *, runs: int, length: int) -> tuple[object, ...]:
    """Return one row of the table of groups: how often the one that drifts is named, and how often others."""
    named, others, alarms, rows = 0, 0, 0, []
    for seed in range(runs):
        rng = np.random.default_rng([seed, 11])
        monitoring = Monitoring(grouped(20_000, n_groups, 0, rng), window=10**6, by="group")
        monitoring.update(grouped(length, n_groups, n_bad, rng))
        found = [test.name for test in monitoring.groups if test.alarm is not None]
        named += "0" in found and n_bad > 0
        others += any(name != "0" or n_bad == 0 for name in found)
        if monitoring.alarm is not None:
            alarms += 1
            rows.append(monitoring.alarm.row)
    title = f"{n_groups} groups, {'logits x 1.5 in one of them' if n_bad else 'no drift'}"
    row = f"{np.median(rows):,.0f}" if rows else ""
    return title, runs, alarms, named if n_bad else "", others, row


def grouped(n: int, n_groups: int, n_bad: int, rng: np.random.Generator) -> Predictions:
    """Draw predictions of groups of equal size, of which the first ones drift."""
    groups = rng.integers(n_groups, size=n)
    logits = rng.normal(scale=2.5, size=(n, 10))
    honest = confidence(logits)
    stated = np.where(groups < n_bad, confidence(1.5 * logits), honest)
    return Predictions(confidence=stated, correct=rng.random(n) < honest, groups=groups)


def late_cells(days: int, *, n: int) -> tuple[object, ...]:
    """Return one row of the table of late labels: a month with and without kills, and the plain order."""
    rng = np.random.default_rng(days)
    draw = simulated()
    before = Predictions(**dict(zip(("confidence", "correct"), draw(5000, rng), strict=True)))
    with TemporaryDirectory() as place:
        folder = Path(place)
        plain = PlainOrder(folder)
        deaths = largest = 0
        for day in month(folder, days, n, rng):
            run_day(folder, before, day, folder / "calm.json")
            largest = max(largest, sum(file.stat().st_size for file in folder.glob("calm.json*")))
            while True:
                try:
                    with killed_at_random(rng):
                        late = run_day(folder, before, day, folder / "rough.json")
                    break
                except Killed:
                    deaths += 1
            plain.read()
        states = [sorted(folder.glob(f"{name}.json*")) for name in ("calm", "rough")]
        same = [[file.read_bytes() for file in files] for files in states]
    expected = Monitoring(before)
    expected.update(
        Predictions(confidence=[c for c, _ in plain.tested], correct=[h for _, h in plain.tested])
    )
    assert late.late is not None
    alarms = [None if each.alarm is None else (each.alarm.row, each.alarm.since) for each in (late, expected)]
    return (
        f"{days} days, logits x 1.5 from the middle on",
        f"{days * n:,}",
        f"{late.n:,}",
        f"{late.late.never:,}",
        deaths,
        "none" if alarms[0] is None else f"row {alarms[0][0]:,}",
        alarms[0] == alarms[1],
        same[0] == same[1],
        f"{largest / 1e6:.2f} MB",
    )


def month(folder: Path, days: int, n: int, rng: np.random.Generator) -> Iterator[int]:
    """Yield each day after its files have come, and the days after until patience is over."""
    comes: dict[int, list[tuple[str, pa.Table]]] = {day: [] for day in range(days + 13)}
    for kind in ("rows", "labels"):
        (folder / kind).mkdir()
    for day in range(days):
        stated, hits = simulated(1.0 if day < days // 2 else 1.5)(n, rng)
        ids = np.array([f"{day}-{row}" for row in range(n)])
        both = np.concatenate([np.arange(n), rng.integers(n, size=n // 50)])
        rows = pa.table({"id": ids[both], "confidence": stated[both]})
        delay = int(rng.choice([0, 0, 0, 2])) if day else 0
        comes[day + delay].append((f"rows/{day:02}", rows))
        labelled = rng.permutation(n)[: int(0.95 * n)]
        for part, some in enumerate(np.array_split(labelled, 3)):
            again = np.concatenate([some, labelled[: n // 50]])
            labels = pa.table({"id": ids[again], "correct": hits[again]})
            comes[day + int(rng.integers(0, 6))].append((f"labels/{day:02}-{part}", labels))
    for day, files in comes.items():
        for name, table in files:
            pq.write_table(table, folder / f"{name}.parquet")
        yield day


def run_day(folder: Path, before: Predictions, day: int, state: Path) -> Monitoring:
    """Read what is new at a day, and save after every step."""
    monitoring = Monitoring.load(state, before) if state.exists() else Monitoring(before)
    columns, rows = Columns(ids="id"), str(folder / "rows")
    now = {"columns": columns, "now": lambda: 1e9 + 86_400 * day}
    for _ in follow_labels(monitoring, folder / "labels", [rows], patience=7 * 86_400, **now):
        monitoring.save(state)
    for _ in follow(monitoring, rows, **now):
        monitoring.save(state)
    monitoring.save(state)
    return monitoring


class Killed(BaseException):
    """The process ends here."""


@contextmanager
def killed_at_random(rng: np.random.Generator) -> Iterator[None]:
    """Let one write of a state in five be the last, before or after it happened."""

    def write_or_die(path: Path, content: str | bytes) -> None:
        fate = rng.random()
        if fate < 0.1:
            raise Killed
        write_file(path, content)
        if fate > 0.9:
            raise Killed

    with patch("calibrant.monitoring.monitor.write_file", write_or_die):
        yield


class PlainOrder:
    """The labelled rows in the defined order, by a plain loop over records."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.seen = folder, set()
        self.rows, self.known, self.used, self.tested = {}, {}, set(), []

    def read(self) -> None:
        """Read the files that are new."""
        for kind in ("labels", "rows"):
            for file in sorted(set((self.folder / kind).iterdir()) - self.seen):
                self.seen.add(file)
                for record in pq.read_table(file).to_pylist():
                    if kind == "labels":
                        self.known[record["id"]] = record["correct"]
                    elif record["id"] not in self.used:
                        self.used.add(record["id"])
                        self.rows[record["id"]] = record["confidence"]
                ready = [name for name in self.rows if name in self.known]
                self.tested += [(self.rows.pop(name), self.known[name]) for name in ready]


if __name__ == "__main__":
    main()
