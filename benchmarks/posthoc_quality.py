"""Test calibration of every post-hoc method over random splits of real prediction sets.

    python benchmarks/posthoc_quality.py [--clinc FOLDER] [--splits 10] [--methods all] [--out FILE]

Every method is fitted on one random part of a set and measured on the rest, and on samples under noise,
which no fit has seen. The table has means over the splits, with the standard error of the ECE.
"""

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch

from calibrant import evaluate
from calibrant.errors import CalibrantError
from calibrant.evaluation.calibrated import calibrated, fit_method
from calibrant.papers.local_models import RealSet
from calibrant.papers.model_predictions import prediction_sets, split
from calibrant.posthoc.names import METHODS, resolve_methods
from timing import benchmark_parser, table_head, table_row

MEASURES = ("accuracy", "nll", "brier", "ece", "ece_equal_mass", "classwise_ece", "smece")
_COLUMNS = ("accuracy %", "NLL", "Brier", "ECE %", "AdaECE %", "cwECE %", "smECE %", "fit s")
_NOISY_COLUMNS = ("noisy accuracy %", "noisy ECE %", "noisy NLL")


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure all methods on all sets and print one Markdown table per set."""
    parser = benchmark_parser(__doc__, "one split of the digits, 150 samples to fit")
    parser.add_argument("--clinc", type=Path, help="folder with minilm_embeddings.npz")
    parser.add_argument("--splits", type=int, default=10)
    parser.add_argument("--methods", default="all", help="auto, all, or names separated by commas")
    parser.add_argument("--sets", default="", help="names separated by commas; all by default")
    parser.add_argument("--validation", type=int, help="samples to fit on, such as 50")
    parser.add_argument("--out", type=Path, help="write the tables to this file, too")
    args = parser.parse_args(arguments)
    torch.set_num_threads(1)
    methods = args.methods if args.methods in ("all", "auto") else args.methods.split(",")
    wanted = {"digits"} if args.quick else set(filter(None, args.sets.split(",")))
    splits, n_validation = (1, 150) if args.quick else (args.splits, args.validation)
    lines: list[str] = []
    for name, load in prediction_sets(args.clinc).items():
        if not wanted or name in wanted:
            for line in table(name, load(), resolve_methods(methods), splits, n_validation):
                print(line, flush=True)
                lines.append(line)
    if args.out is not None:
        args.out.write_text("\n".join(lines) + "\n", encoding="utf-8")


def table(
    name: str, real: RealSet, methods: list[str], splits: int, n_validation: int | None
) -> Iterator[str]:
    """Yield the lines of the table of one set."""
    predictions = real.predictions
    fitted_on = split(predictions, 0, n_validation=n_validation)[0].n
    yield f"\n### {name}: {fitted_on:,} to fit, {predictions.n - fitted_on:,} to test, {splits} splits\n"
    yield table_head("method", *_COLUMNS, *_NOISY_COLUMNS)
    for method in methods:
        try:
            rows = [measure(method, real, seed, n_validation) for seed in range(splits)]
        except CalibrantError as error:
            yield table_row(method, f"left out: {error}")
            continue
        mean, spread = np.mean(rows, axis=0), np.std(rows, axis=0) / np.sqrt(max(splits - 1, 1))
        cells = [f"{100 * mean[0]:.2f}", f"{mean[1]:.4f}", f"{mean[2]:.4f}"]
        cells.append(f"{100 * mean[3]:.2f} ± {100 * spread[3]:.2f}")
        cells += [f"{100 * value:.2f}" for value in mean[4:7]]
        cells.append(f"{mean[7]:.2f}")
        cells += [f"{100 * mean[8]:.2f}", f"{100 * mean[9]:.2f}", f"{mean[10]:.3f}"]
        yield table_row(method, *cells)


def measure(method: str, real: RealSet, seed: int, n_validation: int | None) -> list[float]:
    """Fit on one part and return the measures on the other, the time of the fit, and those under shift."""
    validation, test = split(real.predictions, seed, n_validation=n_validation)
    start = time.perf_counter()
    calibrator = fit_method(METHODS[method], validation, seed=seed)
    seconds = time.perf_counter() - start
    values = evaluate(calibrated(calibrator, test), measures=MEASURES).metrics
    shifted = evaluate(calibrated(calibrator, real.shifted), measures=["accuracy", "ece", "nll"]).metrics
    return [*(values[name] for name in MEASURES), seconds, *shifted.values()]


if __name__ == "__main__":
    main()
