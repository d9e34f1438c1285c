"""What probabilities of exactly 0 should count as: the NLL on test data after a fit on rounded probabilities.

The logits of ten classes are 2.5 or 6 times too large. Their probabilities are rounded to some digits, as in
files. A temperature is fitted on logarithms of 4000 of them, in which no probability counts as less than a
floor, and the NLL is measured on 8000 others.

Run: ``python benchmarks/zeros.py`` (ten seconds).
"""

from collections.abc import Sequence

import numpy as np

from calibrant.inputs import Floats
from calibrant.metrics import negative_log_likelihood
from calibrant.posthoc import TemperatureScaling
from timing import benchmark_parser, print_head, print_row

FLOORS = (2.3e-308, 1.2e-38, 1e-16, 1e-12, 1e-9, 1e-6)


def rounded(n: int, seed: int, *, factor: float, digits: int | None) -> tuple[Floats, Floats]:
    """Return the probabilities of an overconfident model, and labels."""
    rng = np.random.default_rng(seed)
    logits = 2 * rng.normal(size=(n, 10))
    labels = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
    p = np.exp(factor * (logits - logits.max(axis=1, keepdims=True)))
    p /= p.sum(axis=1, keepdims=True)
    if digits is not None:
        p = p.round(digits)
        p /= p.sum(axis=1, keepdims=True)
    return p, labels


def nll(floor: float, *, factor: float, digits: int | None, n: int) -> float:
    """Return the NLL on test data after a fit in which no probability counts as less than the floor."""
    (fitting, y), (test, truth) = (
        rounded(size, seed, factor=factor, digits=digits) for seed, size in enumerate((n, 2 * n))
    )
    calibrator = TemperatureScaling.fit(np.log(np.maximum(fitting, floor)), y)
    calibrated = calibrator.predict_log_proba(np.log(np.maximum(test, floor)))
    return negative_log_likelihood(logits=calibrated, labels=truth)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print one row for each floor."""
    options = benchmark_parser(__doc__, "a tenth of the samples").parse_args(arguments)
    n = 400 if options.quick else 4000
    columns = [(factor, digits) for factor in (2.5, 6.0) for digits in (2, 4, None)]
    print_head("floor", *(f"x{factor:g}, {digits or 'all'} digits" for factor, digits in columns))
    for floor in FLOORS:
        values = (nll(floor, factor=factor, digits=digits, n=n) for factor, digits in columns)
        print_row(f"{floor:.0e}", *(f"{value:.3f}" for value in values))


if __name__ == "__main__":
    main()
