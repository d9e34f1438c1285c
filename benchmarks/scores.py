"""Confidences of real networks, repaired from few rows: how far the repaired ones are from the truth.

    python benchmarks/scores.py --data DIR --splits 5

DIR holds one Parquet file for each network, with columns ``confidence`` and ``correct``. Of each file 1,000
random rows are fitted on and all others measured, as ``calibrant calibrate`` would do; printed is the ECE
in per cent, the mean over splits, before and after the methods and what is chosen by default. The last column
is a bound on what these rows allow: the true curve is known (isotonic regression of all other rows), and the
rows serve only to find two numbers, by Platt scaling of that curve.
"""

import argparse
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from calibrant import Predictions, compare, evaluate, load_predictions
from calibrant.data import load_bundled
from calibrant.evaluation import calibrated, make_choice
from calibrant.posthoc import ConfidenceCalibrator
from calibrant.show.table import Table

_METHODS = ("uncalibrated", "temperature", "platt", "logistic_spline", "isotonic_centred")


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a line for each network, and the mean of all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder of Parquet files")
    parser.add_argument("--splits", type=int, default=5, help="random splits of each file")
    parser.add_argument("--samples", type=int, default=1000, help="rows to fit on")
    parser.add_argument("--quick", action="store_true", help="the bundled network, one split")
    given = parser.parse_args(arguments)
    if given.quick:
        seen, given.splits, given.samples = load_bundled("cifar10_test").outcomes(), 1, 200
        networks = {"bundled": Predictions(confidence=seen.confidence, correct=seen.correct)}
    elif given.data is None:
        parser.error("--data: expected a folder, got none")
    else:
        networks = {path.stem: load_predictions(path) for path in sorted(given.data.glob("*.parquet"))}
    names = (*_METHODS, "chosen", "true curve")
    rows = {
        name: errors_of(every, n_splits=given.splits, n_samples=given.samples)
        for name, every in networks.items()
    }
    rows["mean"] = {name: float(np.mean([row[name] for row in rows.values()])) for name in names}
    lines = [[name, *(f"{100 * row[each]:.2f}" for each in names)] for name, row in rows.items()]
    print(Table.of(["ECE %", *names], lines).to_markdown())


def errors_of(every: Predictions, *, n_splits: int, n_samples: int) -> dict[str, float]:
    """Return the mean ECE of each method and of the default over random splits."""
    found = defaultdict(list)
    for seed in range(n_splits):
        order = np.random.default_rng(seed).permutation(every.n)
        fitted, rest = every.take(order[:n_samples]), every.take(order[n_samples:])
        comparison = compare(fitted, test=rest, n_resamples=100)
        for result in comparison.results:
            if result.name in _METHODS and result.test_metrics is not None:
                found[result.name].append(result.test_metrics["ece"])
        chosen = make_choice(comparison).result.test_metrics
        assert chosen is not None
        found["chosen"].append(chosen["ece"])
        found["true curve"].append(error_with_true_curve(fitted, rest))
    return {name: float(np.mean(values)) for name, values in found.items()}


def error_with_true_curve(fitted: Predictions, rest: Predictions) -> float:
    """Return the ECE of Platt scaling where the confidences are already those of the true curve."""
    curve = ConfidenceCalibrator.fit_pairs(rest.confidence, rest.correct, method="isotonic")
    known, true = (calibrated(curve, each) for each in (fitted, rest))
    platt = ConfidenceCalibrator.fit_pairs(known.confidence, known.correct, method="platt")
    return evaluate(calibrated(platt, true), measures=["ece"]).metrics["ece"]


if __name__ == "__main__":
    main()
