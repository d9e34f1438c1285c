"""How cost grows with samples, classes and processes, as exponents of a power law.

    OMP_NUM_THREADS=1 python benchmarks/scaling.py [--quick] [--only evaluate,fits,streams,merging,training]

Times are CPU seconds of one thread, the least of several runs, so that others on the machine matter little;
of training also the clock's, since processes wait for one another. The exponent b of
``seconds = a * size ** b`` is the slope of a line through the logarithms, once of all sizes and once of the
two largest, where what a call costs whatever its size matters least.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from calibrant import Predictions, evaluate
from calibrant.posthoc.names import METHODS
from calibrant.streams import StreamMeasures, evaluate_stream, open_stream

Points = list[tuple[int, float]]
_SAMPLES = (10_000, 30_000, 100_000, 300_000, 1_000_000)
_CLASSES = (10, 30, 100, 300, 1000)
# SMART stops by itself after a number of epochs that depends on the data; here it is the same for all sizes.
_FITS: dict[str, dict[str, Any]] = {"temperature": {}, "smart": {"epochs": 80, "settled": 0}, "vector": {}}
_WORKERS = (1, 2)


def main() -> None:
    """Measure what is asked for, and print Markdown tables: every size first, then the exponents."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it runs")
    parser.add_argument("--only", default=",".join(_PARTS), help="parts, separated by commas")
    parser.add_argument("--workers", type=int, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    if chosen.workers:
        train_epochs(chosen.workers, quick=chosen.quick)
        return
    exponents = []
    for part in chosen.only.split(","):
        exponents += _PARTS[part](100 if chosen.quick else 1)
    if exponents:
        print("\n| work | grows with | from | to | exponent, all sizes | exponent, last two |")
        print("|---|---|---|---|---|---|")
    for work, size, points in exponents:
        ends = f"{points[0][0]:,} | {points[-1][0]:,}"
        print(f"| {work} | {size} | {ends} | {exponent(points):.2f} | {exponent(points[-2:]):.2f} |")


def exponent(points: Points) -> float:
    """Return the slope of the least-squares line through the logarithms of sizes and seconds."""
    sizes, seconds = np.log(np.array(points, dtype=np.float64)).T
    return float(np.polyfit(sizes, seconds, 1)[0])


def cpu_seconds(run: Callable[[], Any], *, budget: float = 4.0, most: int = 5) -> float:
    """Return the least CPU time of several runs after a first one, within about so many seconds."""
    run()
    best, spent = float("inf"), 0.0
    for _ in range(most):
        start = time.process_time()
        run()
        took = time.process_time() - start
        best, spent = min(best, took), spent + took
        if spent > budget:
            break
    return best


def draw(n: int, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw logits of a model that is overconfident by a factor of 1.5, and labels."""
    rng = np.random.default_rng(0)
    logits = 2 * rng.standard_normal((n, k), dtype=np.float32)
    labels = (logits + rng.gumbel(size=(n, k)).astype(np.float32)).argmax(axis=1)
    return torch.from_numpy(1.5 * logits), torch.from_numpy(labels)


def series(work: str, run: Callable[..., Any], shapes: Sequence[tuple[int, int]], by: int) -> Points:
    """Time work on logits of several shapes, print a row for each, and return seconds by one size."""
    points = []
    for n, k in shapes:
        z, y = draw(n, k)
        seconds = cpu_seconds(lambda z=z, y=y: run(z, y))
        print(f"| {work} | {n:,} | {k:,} | {seconds:.4f} | {1e6 * seconds / n:.3f} |", flush=True)
        points.append(((n, k)[by], seconds))
    return points


def heading(title: str, columns: str) -> None:
    """Print the head of a table."""
    print(f"\n{title}\n\n| {columns} |\n|" + "---|" * (columns.count("|") + 1), flush=True)


def evaluations(shrink: int) -> Iterator[tuple[str, str, Points]]:
    """Time the core measures of predictions in memory."""

    def run(z: torch.Tensor, y: torch.Tensor) -> None:
        evaluate(Predictions(logits=z, labels=y))

    heading("Measures in memory", "work | samples | classes | CPU s | CPU µs per sample")
    yield "evaluate", "samples", series("evaluate", run, [(n // shrink, 10) for n in _SAMPLES], 0)
    yield "evaluate", "classes", series("evaluate", run, [(20_000 // shrink, k) for k in _CLASSES], 1)


def fits(shrink: int) -> Iterator[tuple[str, str, Points]]:
    """Time post-hoc fits."""
    heading("Post-hoc fits", "fit | samples | classes | CPU s | CPU µs per sample")
    for name, options in _FITS.items():
        label = ", ".join((name, *(f"{value} {key}" for key, value in options.items() if value)))
        fit = partial(METHODS[name].calibrator.fit, **METHODS[name].options, **options)
        sizes = [(n // min(shrink, 20), 10) for n in _SAMPLES if n <= 300_000]
        classes = [(10_000 // min(shrink, 20), k) for k in _CLASSES if k <= 1000 // min(shrink, 10)]
        yield label, "samples", series(label, fit, sizes, 0)
        yield label, "classes", series(label, fit, classes, 1)


def streams(shrink: int) -> Iterator[tuple[str, str, Points]]:
    """Time the evaluation of a folder of Parquet files."""
    heading("Streams", "work | rows | classes | CPU s | CPU µs per row | rows per CPU second")
    rows = [(n // shrink, 10) for n in (100_000, 1_000_000, 10_000_000)]
    classes = [(1_000_000 // shrink, 10), (200_000 // shrink, 100), (40_000 // shrink, 1000)]
    for size, shapes in (("rows", rows), ("classes, per row", classes)):
        points = []
        for n, k in shapes:
            with TemporaryDirectory() as folder:
                write_parquet(folder, n, k)
                seconds = cpu_seconds(lambda folder=folder: evaluate_stream(open_stream(folder)))
            cells = (f"{seconds:.4f}", f"{1e6 * seconds / n:.3f}", f"{n / seconds:,.0f}")
            print(f"| evaluate_stream | {n:,} | {k:,} | {' | '.join(cells)} |", flush=True)
            points.append((n, seconds) if size == "rows" else (k, seconds / n))
        yield "evaluate_stream", size, points


def write_parquet(folder: str, n: int, k: int) -> None:
    """Write float32 probabilities and labels in files of up to 250,000 rows, the same four in turn."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    of_file = min(n // 4, 250_000)
    z, y = draw(4 * of_file, k)
    probs = torch.softmax(z, dim=1)
    tables = []
    for rows in torch.arange(4 * of_file).split(of_file):
        flat = pa.array(probs[rows].numpy().ravel())
        tables.append(
            pa.table({"probs": pa.FixedSizeListArray.from_arrays(flat, k), "labels": y[rows].numpy()})
        )
    for number in range(n // of_file):
        pq.write_table(tables[number % 4], Path(folder, f"{number}.parquet"), row_group_size=65_536)


def merging(shrink: int) -> Iterator[tuple[str, str, Points]]:
    """Time what a worker adds when its sums are sent and merged, whatever the number of its rows."""
    heading("Merging the sums of a worker", "work | classes | kB sent | CPU ms")
    points = []
    for k in (10, 100, 1000):
        filled = StreamMeasures()
        z, y = draw(max(20_000 // shrink, 200), k)
        filled.update(Predictions(probs=torch.softmax(z, dim=1), labels=y))
        text, total = filled.state(), StreamMeasures()
        total.merge(StreamMeasures.from_state(text))

        def run(text: str = text, total: StreamMeasures = total, filled: StreamMeasures = filled) -> None:
            filled.state()
            total.merge(StreamMeasures.from_state(text))

        seconds = cpu_seconds(run)
        print(f"| state and merge | {k:,} | {len(text) / 1000:,.0f} | {1000 * seconds:.2f} |", flush=True)
        points.append((k, seconds))
    yield "state and merge", "classes", points


def training(shrink: int) -> Iterator[tuple[str, str, Points]]:
    """Time epochs with the same global batch on one process and on two, each in one thread."""
    heading(
        "Training a small CNN, batches of 128",
        "processes | s per epoch | times as fast | CPU s of each process | CPU s together, times one process",
    )
    first: dict[str, float] = {}
    for workers in _WORKERS:
        command = [sys.executable, __file__, "--workers", str(workers), *(["--quick"] if shrink > 1 else [])]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        told = subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout
        found = json.loads(told.splitlines()[-1])
        first = first or found
        cells = (
            f"{found['seconds']:.3f}",
            f"{first['seconds'] / found['seconds']:.2f}",
            f"{found['cpu']:.3f}",
        )
        print(
            f"| {workers} | {' | '.join(cells)} | {workers * found['cpu'] / first['cpu']:.2f} |", flush=True
        )
    yield from ()


def train_epochs(workers: int, *, quick: bool) -> None:
    """Train some epochs as one of several processes; the first prints the least times of an epoch."""
    from lightning_fabric import Fabric

    from calibrant.losses import SECALoss
    from calibrant.training.config import ModelSettings, TrainingSettings
    from calibrant.training.datasets import LabelledData, Splits
    from calibrant.training.network import make_network
    from calibrant.training.stage import Stage, Trainer

    fabric = Fabric(accelerator="cpu", devices=workers, strategy="ddp" if workers > 1 else "auto")
    fabric.launch()
    torch.set_num_threads(1)
    n = 512 if quick else 1024
    images = torch.randint(256, (n, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    data = LabelledData(images, torch.arange(n) % 10, None, "image")
    torch.manual_seed(0)
    network = make_network(ModelSettings("small_cnn"), Splits(data, data, data))
    settings = TrainingSettings(epochs=1000, batch_size=128)
    stage = Stage("classifier", 1, settings, network, network, network, SECALoss(), data)
    trainer = Trainer(fabric, stage, seed=0, stepped=lambda *_: None, last_good=lambda: "")
    times = []
    for epoch in range(1, 3 if quick else 25):
        fabric.barrier()
        start, cpu = time.perf_counter(), time.process_time()
        trainer.epoch(epoch)
        times.append((time.perf_counter() - start, time.process_time() - cpu))
    seconds, cpu = (min(column) for column in zip(*times[1:], strict=True))
    cpu = float(fabric.all_reduce(torch.tensor(cpu, dtype=torch.float64), reduce_op="mean"))
    if fabric.is_global_zero:
        print(json.dumps({"seconds": seconds, "cpu": cpu}))


_PARTS = {
    "evaluate": evaluations,
    "fits": fits,
    "streams": streams,
    "merging": merging,
    "training": training,
}


if __name__ == "__main__":
    main()
