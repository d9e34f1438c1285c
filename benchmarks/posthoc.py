"""Time of post-hoc fits beside other libraries, as ratios to one ``log_softmax`` pass in the same run.

    python benchmarks/posthoc.py [--quick]

Every time is the best of several runs. Peers that are not installed are left out.
"""

import argparse
import time
import warnings
from collections.abc import Callable, Iterator

import numpy as np
import torch

from calibrant import Predictions
from calibrant.metrics import negative_log_likelihood
from calibrant.registry import METHODS

FITS = {
    (10_000, 100): ("temperature", "ensemble", "vector", "spline", "smart"),
    (50_000, 1000): ("temperature",),
    (10_000, 1000): ("smart",),
}


def main() -> None:
    """Time every fit and print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--quick", action="store_true", help="a hundredth of the samples, to see that it runs"
    )
    shrink = 100 if parser.parse_args().quick else 1
    warnings.simplefilter("ignore")  # the peers' own
    print("| fit | library | seconds | times log_softmax | NLL before | NLL after |")
    print("|---|---|---|---|---|---|")
    for (n, k), names in FITS.items():
        data = draw(n // shrink, k)
        logits = data.to_logits()
        floor = best_time(lambda logits=logits: torch.log_softmax(logits, dim=1))
        before = negative_log_likelihood(logits=logits, labels=data.labels)
        for name, library, fit in fits(data, names):
            seconds = best_time(fit)
            after = negative_log_likelihood(logits=fit(), labels=data.labels)
            cells = (f"{seconds:.4f}", f"{seconds / floor:.1f}", f"{before:.4f}", f"{after:.4f}")
            print(f"| {name}, {n // shrink:,} x {k} | {library} | {' | '.join(cells)} |", flush=True)


def fits(data: Predictions, names: tuple[str, ...]) -> Iterator[tuple[str, str, Callable[[], torch.Tensor]]]:
    """Yield method, library, and a function that fits and returns calibrated log-probabilities."""
    logits, labels = data.to_logits(), data.labels
    for name in (name for name in names if name in METHODS):
        yield name, "calibrant", lambda name=name: METHODS[name].fit(data).predict_log_proba(logits)
    if "temperature" in names and data.n * logits.shape[1] <= 1_000_000:
        try:
            from netcal.scaling import TemperatureScaling

            def by_netcal() -> torch.Tensor:
                probs = torch.softmax(logits.double(), dim=1).numpy()
                scaler = TemperatureScaling()
                scaler.fit(probs, labels.numpy())
                return torch.from_numpy(scaler.transform(probs)).clamp(min=1e-300).log()

            yield "temperature", "netcal", by_netcal
        except ImportError:
            pass


def draw(n: int, k: int) -> Predictions:
    """Draw predictions of an overconfident model."""
    rng = np.random.default_rng(0)
    logits = (rng.normal(size=(n, k)) * 2).astype(np.float32)
    probs = np.exp(logits - logits.max(axis=1, keepdims=True))
    probs /= probs.sum(axis=1, keepdims=True)
    labels = (probs.cumsum(axis=1) > rng.random((n, 1))).argmax(axis=1)
    return Predictions(logits=2.5 * logits, labels=labels)


def best_time(run: Callable[[], object], *, seconds: float = 3.0, most: int = 7) -> float:
    """Return the best of several runs within about the given time."""
    best, spent = float("inf"), 0.0
    for _ in range(most):
        start = time.perf_counter()
        run()
        took = time.perf_counter() - start
        best, spent = min(best, took), spent + took
        if spent > seconds:
            break
    return best


if __name__ == "__main__":
    main()
