"""Evaluate a folder of Parquet files larger than one would load, beside pyarrow reading the same columns.

    python benchmarks/stream.py [--rows 2000000] [--quick]

Makes a folder of float32 probabilities of ten classes, times pyarrow reading the columns of predictions and
labels alone, batch by batch, and evaluates the folder. Each runs in a process of its own, of which the best
of three times and the peak resident set are told; the one that only imports says how much of that is not the
stream's.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

_CLASSES = 10
_PER_FILE = 500_000


def main() -> None:
    """Make the folder, measure, and print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--quick", action="store_true", help="few rows, to see that it runs")
    parser.add_argument("--work", choices=list(_WORK), help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.work:
        print(json.dumps(_measured(chosen.work, chosen.folder)))
        return
    rows = 20_000 if chosen.quick else chosen.rows
    with TemporaryDirectory() as folder:
        _in_process("make", f"{folder}:{rows}")
        print("| work | seconds | CPU seconds | rows/s | times pyarrow | peak MB |")
        print("|---|---|---|---|---|---|")
        floor = None
        for work in ("import", "pyarrow", "calibrant", "calibrant by group"):
            found = _in_process(work, folder)
            floor = found["seconds"] if work == "pyarrow" else floor
            ratio = "" if floor is None else f"{found['seconds'] / floor:.2f}"
            speed = "" if work == "import" else f"{rows / found['seconds']:,.0f}"
            cells = (f"{found['seconds']:.3f}", f"{found['cpu']:.3f}", speed, ratio)
            print(f"| {work} | {' | '.join(cells)} | {found['peak']:.0f} |", flush=True)


def _in_process(work: str, folder: str) -> dict[str, float]:
    command = [sys.executable, __file__, "--work", work, "--folder", folder]
    answer = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return dict(json.loads(answer))


def _measured(work: str, folder: str) -> dict[str, float]:
    run = _WORK[work](folder)
    best = {"seconds": float("inf")}
    for _ in range(1 if work == "make" else 3):
        start, cpu = time.perf_counter(), time.process_time()
        run()
        found = {"seconds": time.perf_counter() - start, "cpu": time.process_time() - cpu}
        best = min(best, found, key=lambda times: times["seconds"])
    return best | {"peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


def _make(folder: str):
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    path, _, rows = folder.rpartition(":")

    def run() -> None:
        rng = np.random.default_rng(0)
        for number, start in enumerate(range(0, int(rows), _PER_FILE)):
            n = min(_PER_FILE, int(rows) - start)
            logits = 2 * rng.normal(size=(n, _CLASSES)).astype(np.float32)
            probs = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
            drawn = (probs.cumsum(axis=1) > rng.random((n, 1))).argmax(axis=1)
            table = {
                "probs": pa.FixedSizeListArray.from_arrays(pa.array(probs.ravel()), _CLASSES),
                "labels": drawn,
                "version": pa.array(rng.integers(0, 8, n).astype(str)).dictionary_encode(),
            }
            pq.write_table(pa.table(table), Path(path, f"{number:05}.parquet"), row_group_size=131_072)

    return run


def _import(folder: str):
    import calibrant.evaluation.stream  # noqa: F401  # what is measured

    del folder
    return lambda: None


def _pyarrow(folder: str):
    import pyarrow.dataset as ds

    def run() -> None:
        for _ in ds.dataset(folder, format="parquet").to_batches(columns=["probs", "labels"]):
            pass

    return run


def _calibrant(folder: str, by: str | None = None):
    from calibrant.data.stream import open_stream
    from calibrant.evaluation.stream import evaluate_stream

    return lambda: evaluate_stream(open_stream(folder, columns_by=by))


_WORK = {
    "make": _make,
    "import": _import,
    "pyarrow": _pyarrow,
    "calibrant": _calibrant,
    "calibrant by group": lambda folder: _calibrant(folder, "version"),
}


if __name__ == "__main__":
    main()
