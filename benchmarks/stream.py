"""Evaluate a folder of Parquet files larger than one would load, beside pyarrow reading the same columns.

    python benchmarks/stream.py [--rows 20000000] [--repeats 3] [--ray] [--quick]

Makes a folder of float32 probabilities of ten classes: the bundled CIFAR-10 predictions, drawn again and
again with a little noise. Times pyarrow reading the columns of predictions and labels alone, as a dataset and
file by file, and evaluates the folder, the tenth part of it without and with weights, the folder by a
column, and the folder by unit with intervals; a unit has ten rows on average, anywhere in the files. Every
pass is the first one of a process of its own, whose imports are not counted, nor is the start of Ray's
workers; the fastest of several is told, with the largest resident set. The process that only imports says how
much of that is not the stream's.
"""

import argparse
import contextlib
import json
import logging
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias

from timing import benchmark_parser, print_head, print_row

# Does the work, and returns what it measured, if anything.
Work: TypeAlias = Callable[[], Any]

_CLASSES = 10
_PER_FILE = 500_000
_COLUMNS = ["probs", "labels"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Make the folders, measure, and print a Markdown table."""
    parser = benchmark_parser(__doc__, "few rows, and most passes in one process")
    parser.add_argument("--rows", type=int, default=20_000_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--ray", action="store_true", help="also on a local Ray cluster of two workers")
    parser.add_argument("--work", choices=list(_WORK), help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    chosen = parser.parse_args(arguments)
    if chosen.work:
        print(json.dumps(_measured(chosen.work, chosen.folder)))
        return
    rows, repeats = (20_000, 1) if chosen.quick else (chosen.rows, chosen.repeats)
    works = [work for work in _WORK if chosen.ray or "ray" not in work]
    with TemporaryDirectory() as folder:
        parts = {"all": rows, "tenth": rows // 10, "weighted": rows // 10}
        for part, n in parts.items():
            _write(Path(folder, part), n, weighted=part == "weighted")
        found: dict[str, list[dict[str, Any]]] = {work: [] for work in works}
        # In turns, so that other load on the machine affects all of them.
        for _ in range(repeats):
            for work in works:
                measured = _measured if chosen.quick and work != "calibrant" else _measured_in_process
                found[work].append(measured(work, str(Path(folder, _part(work)))))
    _print(found, parts)


def _print(found: dict[str, list[dict[str, Any]]], parts: dict[str, int]) -> None:
    print_head("work", "rows", "seconds", "CPU seconds", "rows/s", "times pyarrow", "peak MB")
    floor = min(times["seconds"] for times in found["pyarrow dataset"]) / parts["all"]
    for work, passes in found.items():
        n, cells = parts[_part(work)], ["", "", "", ""]
        best = min(passes, key=lambda times: times["seconds"])
        if work != "import":
            each = best["seconds"] / n
            cells = [
                f"{best['seconds']:.2f}",
                f"{best['cpu']:.2f}",
                f"{1 / each:,.0f}",
                f"{each / floor:.2f}",
            ]
        peak = max(times["peak"] for times in passes)
        print_row(work, f"{n:,}", *cells, f"{peak:.0f}")
    for work, passes in found.items():
        if "ray" in work:
            truth = found["calibrant"][0]["measures"]
            gaps = [abs(each["measures"][name] - truth[name]) for each in passes for name in truth]
            print(f"\n{work}: no measure differs from that of one process by more than {max(gaps):.1e}.")


def _part(work: str) -> str:
    if work.endswith("with weights"):
        return "weighted"
    return "tenth" if work.endswith("a tenth") else "all"


def _measured_in_process(work: str, folder: str) -> dict[str, Any]:
    command = [sys.executable, __file__, "--work", work, "--folder", folder]
    answer = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return dict(json.loads(answer.splitlines()[-1]))


def _measured(work: str, folder: str) -> dict[str, Any]:
    run = _WORK[work](folder)
    start, cpu = time.perf_counter(), time.process_time()
    result = run()
    seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
    measures = {} if result is None else dict(result.metrics)
    return {"seconds": seconds, "cpu": cpu, "peak": _peak(), "measures": measures}


def _peak() -> float:
    """Return the largest resident set in MB; what getrusage tells may be that of the parent process."""
    status = Path("/proc/self/status")
    if status.exists():
        told = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(told.split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _write(folder: Path, rows: int, *, weighted: bool = False) -> None:
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    from calibrant.data import load_bundled

    folder.mkdir()
    real = load_bundled("cifar10_test")
    assert real.logits is not None
    assert real.labels is not None
    rng = np.random.default_rng(0)
    for number, start in enumerate(range(0, rows, _PER_FILE)):
        drawn = rng.integers(0, real.n, min(_PER_FILE, rows - start))
        noise = rng.standard_normal((len(drawn), _CLASSES), dtype=np.float32)
        logits = real.logits.numpy()[drawn] + 0.1 * noise
        shares = np.exp(logits - logits.max(axis=1, keepdims=True))
        probs = shares / shares.sum(axis=1, keepdims=True)
        table = {
            "probs": pa.FixedSizeListArray.from_arrays(pa.array(probs.ravel()), _CLASSES),
            "labels": real.labels.numpy()[drawn],
            "version": pa.array(rng.integers(0, 8, len(drawn)).astype(str)).dictionary_encode(),
            "question": rng.integers(0, rows // 10, len(drawn)),
        }
        if weighted:
            table["weights"] = rng.gamma(1.0, size=len(drawn))
        pq.write_table(pa.table(table), folder / f"{number:05}.parquet", row_group_size=131_072)


def _import(folder: str) -> Work:
    import calibrant.streams  # noqa: F401  # what is measured

    del folder
    return lambda: None


def _dataset(folder: str) -> Work:
    import pyarrow.dataset as ds

    def run() -> None:
        for _ in ds.dataset(folder, format="parquet").to_batches(columns=_COLUMNS):
            pass

    return run


def _tables(folder: str) -> Work:
    import pyarrow.dataset  # noqa: F401  # which reading a table would import
    import pyarrow.parquet as pq

    def run() -> None:
        for file in sorted(Path(folder).iterdir()):
            pq.read_table(file, columns=_COLUMNS)

    return run


def _calibrant(folder: str, by: str | None = None, unit: str = "") -> Work:
    from calibrant.streams import evaluate_stream, open_stream

    stream = open_stream(folder, columns_by=by, columns_unit=unit or ())
    return lambda: evaluate_stream(stream, intervals=bool(unit))


def _ray(folder: str, *, kill: bool = False) -> Work:
    import ray

    from calibrant.streams import open_stream
    from calibrant.streams.ray import evaluate_stream_on_ray

    ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    # Starts the workers, which takes some seconds.
    evaluate_stream_on_ray(open_stream(next(Path(folder).iterdir())))
    killed: list[int] = []

    def disturb() -> None:
        time.sleep(2)
        while kill and not killed:
            killed.extend(_kill_a_worker())

    def run() -> Any:
        threading.Thread(target=disturb, daemon=True).start()
        result = evaluate_stream_on_ray(open_stream(folder))
        if kill and not killed:
            raise SystemExit("no worker was at work after two seconds, so none was killed")
        return result

    return run


def _kill_a_worker() -> list[int]:
    """Kill a process that measures a part at this moment, if one does."""
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (process / "cmdline").read_bytes().startswith(b"ray::Map(_measure)"):
                os.kill(int(process.name), signal.SIGKILL)
                return [int(process.name)]
    return []


_WORK: dict[str, Callable[[str], Work]] = {
    "import": _import,
    "pyarrow dataset": _dataset,
    "pyarrow, file by file": _tables,
    "calibrant": _calibrant,
    "calibrant, a tenth": _calibrant,
    "calibrant, a tenth with weights": _calibrant,
    "calibrant by group": lambda folder: _calibrant(folder, "version"),
    "calibrant by unit": lambda folder: _calibrant(folder, unit="question"),
    "calibrant on ray": _ray,
    "calibrant on ray, a worker killed": lambda folder: _ray(folder, kill=True),
}


if __name__ == "__main__":
    main()
