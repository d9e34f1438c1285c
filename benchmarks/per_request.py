"""How long one request takes: a row or a number at a time, and a thousand rows, alone and in eight threads.

    python benchmarks/per_request.py [--quick]

"One" is ``predict_one``, or ``calibrator(0.9)`` for a confidence; "module" is the forward pass alone, without
any check; "ONNX Runtime" runs the exported graph. Times are microseconds of the fastest of several rounds,
for one call. Eight threads share one calibrator; their time is that of the round divided by all calls.
"""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import onnxruntime
import torch

from calibrant.data.bundled import load_bundled
from calibrant.evaluation import compare
from calibrant.integrations.onnx import export_onnx
from calibrant.posthoc import ConfidenceCalibrator
from calibrant.posthoc.calibrator import Calibrator
from timing import benchmark_parser, best_time, print_head, print_row

_THREADS = 8

Call = Callable[[], object]


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a row for each calibrator and size."""
    args = benchmark_parser(__doc__, "two methods, few calls").parse_args(arguments)
    torch.set_num_threads(1)
    print_head(
        *("calibrator", "rows", "one", "module", "ONNX Runtime", f"one, {_THREADS} threads"),
        f"ONNX Runtime, {_THREADS} threads",
    )
    for name, calibrator in calibrators(quick=args.quick):
        for rows in (1, 1000):
            times = [
                per_call(call, 20 if args.quick else 2000 if rows == 1 else 200, threads)
                for call, threads in calls(calibrator, rows)
            ]
            print_row(name, f"{rows:,}", *(f"{1e6 * each:,.0f}" for each in times))


def calibrators(*, quick: bool) -> Iterator[tuple[str, Calibrator]]:
    """Yield calibrators of confidences and of ten classes by name, all fitted on bundled predictions."""
    predictions = load_bundled("cifar10_val")
    outcomes = predictions.outcomes()
    for method in ("temperature",) if quick else ("temperature", "pool"):
        pairs = ConfidenceCalibrator.fit_pairs(outcomes.confidence, outcomes.correct, method=method)
        yield f"confidence, {method}", pairs
    compared = compare(predictions, methods="temperature" if quick else "auto", n_resamples=20)
    for result in compared.results:
        if result.name in ("temperature", "pool"):
            yield f"10 classes, {result.name}", result.calibrator


def calls(calibrator: Calibrator, rows: int) -> Iterator[tuple[Call, int]]:
    """Yield a request of each kind, and in how many threads it is made."""
    rng, one = np.random.default_rng(0), rows == 1
    request: Call
    if isinstance(calibrator, ConfidenceCalibrator):
        given = rng.uniform(0.2, 0.99, size=rows).astype(np.float32)
        half = torch.logit(torch.from_numpy(given).double()) / 2
        logits = torch.stack([-half, half], dim=1)
        request = partial(calibrator, 0.9) if one else partial(calibrator.predict_confidence, given)
    else:
        given = 3 * rng.standard_normal((rows, 10), dtype=np.float32)
        logits = torch.from_numpy(given)
        request = (
            partial(calibrator.predict_one, given[0]) if one else partial(calibrator.predict_proba, given)
        )

    def module() -> object:
        with torch.inference_mode():
            return calibrator(logits)

    session = session_of(calibrator)
    graph = partial(session.run, None, {session.get_inputs()[0].name: given})
    yield from ((request, 1), (module, 1), (graph, 1), (request, _THREADS), (graph, _THREADS))


def session_of(calibrator: Calibrator) -> onnxruntime.InferenceSession:
    """Return the exported graph, run in the caller's thread alone."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "calibrator.onnx"
        export_onnx(calibrator, path, n_classes=10)
        return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def per_call(call: Call, n: int, threads: int) -> float:
    """Return the seconds of one call, of ``n`` by each thread."""

    def several(*_: object) -> None:
        for _number in range(n):
            call()

    if threads == 1:
        return best_time(several, most=5) / n
    with ThreadPoolExecutor(threads) as pool:
        return best_time(lambda: list(pool.map(several, range(threads))), most=5) / (n * threads)


if __name__ == "__main__":
    main()
