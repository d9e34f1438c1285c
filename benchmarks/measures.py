"""Time, memory and value of measures beside other libraries, as ratios to a floor in the same run.

    python benchmarks/measures.py [--quick]

Floors are what a computation cannot do without: one ``np.sort`` of the confidences, or one
``log_softmax`` pass over the logits. Every time is the best of several runs, every memory the growth of
the peak resident set of a process of its own. Peers that are not installed are left out.
"""

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from calibrant import metrics
from calibrant.inference import with_interval
from timing import benchmark_parser, best_time, extra_memory, print_head, print_row


@dataclass(frozen=True)
class Case:
    """One computation by one library, and the floor it is compared with."""

    work: str
    library: str
    run: Callable[[], float]
    is_floor: bool = False


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure every case and print a Markdown table."""
    parser = benchmark_parser(__doc__, "a thousandth of the samples, each case once")
    quick = parser.parse_args(arguments).quick
    warnings.simplefilter("ignore")  # the peers' own
    print_head("work", "library", "seconds", "times the floor", "extra MB", "value")
    floor = 1.0
    for case in cases(1000 if quick else 1):
        try:
            seconds = best_time(case.run, most=1 if quick else 7)
            memory = extra_memory(case.run)
            value = case.run()
        except Exception as error:  # a peer that fails is a result, too
            print_row(case.work, case.library, f"fails: {type(error).__name__}", "", "", "")
            continue
        if case.is_floor:
            floor = seconds
        cells = (f"{seconds:.4f}", f"{seconds / floor:.2f}", f"{memory:.0f}", f"{value:.6f}")
        print_row(case.work, case.library, *cells)


def cases(shrink: int) -> Iterator[Case]:
    """Yield the cases, the floor of each work first."""
    rng = np.random.default_rng(0)
    for dtype in (np.float32, np.float64):
        n = 10_000_000 // shrink
        confidence: Any = (rng.random(n) ** 0.2).astype(dtype)
        correct = rng.random(n) < confidence**1.3
        yield from top_label_cases(f"{n:,} {dtype.__name__}", confidence, correct)
    for n, k in ((10_000 // shrink, 100), (50_000 // shrink, 1000)):
        logits = torch.from_numpy(rng.normal(size=(n, k)).astype(np.float32) * 2)
        yield from classwise_cases(f"{n:,} x {k}", logits, torch.from_numpy(rng.integers(0, k, n)))
    n = 1_000_000 // shrink
    confidence = rng.random(n)
    yield from smooth_cases(f"{n:,}", confidence, rng.random(n) < confidence**1.3)


def top_label_cases(size: str, confidence: np.ndarray, correct: np.ndarray) -> Iterator[Case]:
    """ECE with bins of equal width and of equal mass, with an interval, and AURC."""
    pairs: dict[str, Any] = {"confidence": confidence, "correct": correct}

    def floor() -> float:
        return float(np.sort(confidence)[-1])

    width, mass = f"ECE, {size}", f"ECE equal mass, {size}"
    yield Case(width, "floor: np.sort", floor, is_floor=True)
    yield Case(width, "calibrant", lambda: metrics.expected_calibration_error(**pairs))
    yield Case(
        width,
        "calibrant, 1,000 resamples",
        lambda: with_interval(metrics.expected_calibration_error, **pairs).value,
    )
    yield from (Case(width, name, run) for name, run in ece_peers(confidence, correct).items())
    yield Case(mass, "floor: np.sort", floor, is_floor=True)
    yield Case(mass, "calibrant", lambda: metrics.expected_calibration_error(**pairs, binning="mass"))
    yield from (Case(mass, name, run) for name, run in equal_mass_peers(confidence, correct).items())
    yield Case(f"AURC, {size}", "floor: np.sort", floor, is_floor=True)
    yield Case(f"AURC, {size}", "calibrant", lambda: metrics.aurc(**pairs))


def ece_peers(confidence: np.ndarray, correct: np.ndarray) -> dict[str, Callable[[], float]]:
    """Other libraries' ECE of the same pairs; their fifteen bins of equal width are ours."""
    peers: dict[str, Callable[[], float]] = {}
    try:
        from torchmetrics.functional.classification import binary_calibration_error

        preds, target = torch.from_numpy(confidence), torch.from_numpy(correct.astype(np.int64))
        peers["torchmetrics"] = lambda: float(binary_calibration_error(preds, target, n_bins=15))
    except ImportError:
        pass
    try:
        from netcal.metrics import ECE

        peers["netcal"] = lambda: float(ECE(15).measure(confidence, correct.astype(int)))
    except ImportError:
        pass
    return peers


def equal_mass_peers(confidence: np.ndarray, correct: np.ndarray) -> dict[str, Callable[[], float]]:
    """Other libraries' error with bins of equal mass."""
    peers: dict[str, Callable[[], float]] = {}
    try:
        import calibration

        if len(confidence) <= 1_000_000:  # Python lists of all samples
            peers["uncertainty-calibration"] = lambda: float(
                calibration.get_calibration_error(
                    confidence.astype(float), correct.astype(int), p=1, debias=False
                )
            )
    except ImportError:
        pass
    return peers


def classwise_cases(size: str, logits: torch.Tensor, labels: torch.Tensor) -> Iterator[Case]:
    """Classwise ECE of full distributions."""
    probs = torch.softmax(logits, dim=1)
    work = f"classwise ECE, {size}"

    def floor() -> float:
        return float(torch.log_softmax(logits, dim=1)[0, 0])

    yield Case(work, "floor: log_softmax", floor, is_floor=True)
    yield Case(work, "calibrant", lambda: metrics.classwise_calibration_error(probs, labels))
    try:
        import calibration

        if logits.numel() <= 1_000_000:
            table, y = probs.double().numpy(), labels.numpy()
            yield Case(
                work,
                "uncertainty-calibration",
                lambda: float(
                    calibration.get_calibration_error(table, y, p=1, debias=False, mode="marginal")
                ),
            )
    except ImportError:
        pass


def smooth_cases(size: str, confidence: np.ndarray, correct: np.ndarray) -> Iterator[Case]:
    """SmECE beside relplot, and the exact smCE, which nobody else has, as it grows."""
    try:
        import relplot

        yield Case(
            f"smECE, {size}",
            "floor: relplot",
            lambda: float(relplot.smECE(f=confidence, y=correct.astype(float))),
            is_floor=True,
        )
    except ImportError:
        pass
    yield Case(
        f"smECE, {size}", "calibrant", lambda: metrics.smooth_ece(confidence=confidence, correct=correct)
    )
    for part in (100, 10, 1):
        some, hits = confidence[::part].copy(), correct[::part].copy()
        work = f"smCE, {len(some):,}"

        def floor(some: np.ndarray = some) -> float:
            return float(np.sort(some)[-1])

        def ours(some: np.ndarray = some, hits: np.ndarray = hits) -> float:
            return metrics.smooth_calibration_error(confidence=some, correct=hits)

        yield Case(work, "floor: np.sort", floor, is_floor=True)
        yield Case(work, "calibrant", ours)


if __name__ == "__main__":
    main()
