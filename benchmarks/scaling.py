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
from typing import Any, TypeAlias

import numpy as np
import torch

from calibrant import Predictions, evaluate
from calibrant.posthoc.names import METHODS
from calibrant.streams import StreamMeasures, evaluate_stream, open_stream
from timing import benchmark_parser, best_time, print_head, print_row

Points: TypeAlias = list[tuple[int, float]]
# The work, the size that it grows with, and its seconds by that size.
Growth: TypeAlias = tuple[str, str, Points]
_SAMPLES = (10_000, 30_000, 100_000, 300_000, 1_000_000)
_CLASSES = (10, 30, 100, 300, 1000)
# SMART stops by itself after a number of epochs that depends on the data; here it is the same for all sizes.
_FITS: dict[str, dict[str, Any]] = {"temperature": {}, "smart": {"epochs": 80, "settled": 0}, "vector": {}}
_WORKERS = (1, 2)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure what is asked for, and print Markdown tables: every size first, then the exponents."""
    parser = benchmark_parser(__doc__, "small sizes, each once")
    parser.add_argument("--only", default=",".join(_PARTS), help="parts, separated by commas")
    parser.add_argument("--workers", type=int, help=argparse.SUPPRESS)
    chosen = parser.parse_args(arguments)
    torch.set_num_threads(1)
    if chosen.workers:
        found = train_epochs(chosen.workers, quick=chosen.quick)
        if found:
            print(json.dumps(found))
        return
    exponents: list[Growth] = []
    for part in chosen.only.split(","):
        exponents += _PARTS[part](100 if chosen.quick else 1)
    if exponents:
        print()
        print_head("work", "grows with", "from", "to", "exponent, all sizes", "exponent, last two")
    for work, size, points in exponents:
        slopes = (f"{exponent(points):.2f}", f"{exponent(points[-2:]):.2f}")
        print_row(work, size, f"{points[0][0]:,}", f"{points[-1][0]:,}", *slopes)


def exponent(points: Points) -> float:
    """Return the slope of the least-squares line through the logarithms of sizes and seconds."""
    sizes, seconds = np.log(np.array(points, dtype=np.float64)).T
    return float(np.polyfit(sizes, seconds, 1)[0])


def cpu_seconds(run: Callable[[], object], *, quick: bool) -> float:
    """Return the shortest CPU time of several runs after a first one; of one run if quick."""
    if quick:
        return best_time(run, most=1, clock=time.process_time)
    run()
    return best_time(run, seconds=4.0, most=5, clock=time.process_time)


def draw(n: int, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw logits of a model that is overconfident by a factor of 1.5, and labels."""
    rng = np.random.default_rng(0)
    logits = 2 * rng.standard_normal((n, k), dtype=np.float32)
    labels = (logits + rng.gumbel(size=(n, k)).astype(np.float32)).argmax(axis=1)
    return torch.from_numpy(1.5 * logits), torch.from_numpy(labels)


def series(
    work: str, run: Callable[..., object], shapes: Sequence[tuple[int, int]], by: int, *, quick: bool
) -> Points:
    """Time work on logits of several shapes, print a row for each, and return seconds by one size."""
    points = []
    for n, k in shapes:
        seconds = cpu_seconds(partial(run, *draw(n, k)), quick=quick)
        print_row(work, f"{n:,}", f"{k:,}", f"{seconds:.4f}", f"{1e6 * seconds / n:.3f}")
        points.append(((n, k)[by], seconds))
    return points


def heading(title: str, *columns: str) -> None:
    """Print the title and the head of a table."""
    print(f"\n{title}\n")
    print_head(*columns)


def evaluations(shrink: int) -> Iterator[Growth]:
    """Time the core measures of predictions in memory."""

    def run(z: torch.Tensor, y: torch.Tensor) -> None:
        evaluate(Predictions(logits=z, labels=y))

    heading("Measures in memory", "work", "samples", "classes", "CPU s", "CPU µs per sample")
    samples, classes = [(n // shrink, 10) for n in _SAMPLES], [(20_000 // shrink, k) for k in _CLASSES]
    yield "evaluate", "samples", series("evaluate", run, samples, 0, quick=shrink > 1)
    yield "evaluate", "classes", series("evaluate", run, classes, 1, quick=shrink > 1)


def fits(shrink: int) -> Iterator[Growth]:
    """Time post-hoc fits."""
    heading("Post-hoc fits", "fit", "samples", "classes", "CPU s", "CPU µs per sample")
    for name, options in _FITS.items():
        label = ", ".join((name, *(f"{value} {key}" for key, value in options.items() if value)))
        fit = partial(METHODS[name].calibrator.fit, **METHODS[name].options, **options)
        sizes = [(n // min(shrink, 20), 10) for n in _SAMPLES if n <= 300_000]
        classes = [(10_000 // min(shrink, 20), k) for k in _CLASSES if k <= 1000 // min(shrink, 10)]
        yield label, "samples", series(label, fit, sizes, 0, quick=shrink > 1)
        yield label, "classes", series(label, fit, classes, 1, quick=shrink > 1)


def streams(shrink: int) -> Iterator[Growth]:
    """Time the evaluation of a folder of Parquet files."""
    columns = ("work", "rows", "classes", "CPU s", "CPU µs per row", "rows per CPU second")
    heading("Streams", *columns)
    rows = [(n // shrink, 10) for n in (100_000, 1_000_000, 10_000_000)]
    classes = [(1_000_000 // shrink, 10), (200_000 // shrink, 100), (40_000 // shrink, 1000)]
    for size, shapes in (("rows", rows), ("classes, per row", classes)):
        points = []
        for n, k in shapes:
            with TemporaryDirectory() as folder:
                write_parquet(folder, n, k)
                seconds = cpu_seconds(partial(evaluate_folder, folder), quick=shrink > 1)
            cells = (f"{seconds:.4f}", f"{1e6 * seconds / n:.3f}", f"{n / seconds:,.0f}")
            print_row("evaluate_stream", f"{n:,}", f"{k:,}", *cells)
            points.append((n, seconds) if size == "rows" else (k, seconds / n))
        yield "evaluate_stream", size, points


def evaluate_folder(folder: str) -> None:
    """Evaluate the predictions in a folder of Parquet files."""
    evaluate_stream(open_stream(folder))


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


def merging(shrink: int) -> Iterator[Growth]:
    """Time what a worker adds when its sums are sent and merged, whatever the number of its rows."""
    heading("Merging the sums of a worker", "work", "classes", "kB sent", "CPU ms")
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

        seconds = cpu_seconds(run, quick=shrink > 1)
        print_row("state and merge", f"{k:,}", f"{len(text) / 1000:,.0f}", f"{1000 * seconds:.2f}")
        points.append((k, seconds))
    yield "state and merge", "classes", points


def training(shrink: int) -> Iterator[Growth]:
    """Time epochs with the same global batch on one process and on two, each in one thread."""
    heading(
        "Training a small CNN, batches of 128",
        "processes",
        "s per epoch",
        "times as fast",
        "CPU s of each process",
        "CPU s together, times one process",
    )
    first: dict[str, float] = {}
    for workers in _WORKERS:
        found = train_in_processes(workers, quick=shrink > 1)
        first = first or found
        print_row(
            workers,
            f"{found['seconds']:.3f}",
            f"{first['seconds'] / found['seconds']:.2f}",
            f"{found['cpu']:.3f}",
            f"{workers * found['cpu'] / first['cpu']:.2f}",
        )
    yield from ()


def train_in_processes(workers: int, *, quick: bool) -> dict[str, float]:
    """Train in new processes and return the shortest times of an epoch; a quick single one stays in this."""
    if quick and workers == 1:
        return train_epochs(1, quick=True)
    command = [sys.executable, __file__, "--workers", str(workers), *(["--quick"] if quick else [])]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    output = subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout
    return dict(json.loads(output.splitlines()[-1]))


def train_epochs(workers: int, *, quick: bool) -> dict[str, float]:
    """Train some epochs as one of several processes; the first returns the shortest times of an epoch."""
    from lightning_fabric import Fabric

    from calibrant.losses import SECALoss
    from calibrant.training.config.settings import Config, ModelSettings, TrainingSettings
    from calibrant.training.datasets import LabelledData, Splits
    from calibrant.training.network import make_network
    from calibrant.training.session import Session, Watcher
    from calibrant.training.stage import Stage, Trainer
    from calibrant.training.views import Views

    fabric = Fabric(accelerator="cpu", devices=workers, strategy="ddp" if workers > 1 else "auto")
    fabric.launch()
    torch.set_num_threads(1)
    n = 128 if quick else 1024
    images = torch.randint(256, (n, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    data = LabelledData(images, torch.arange(n) % 10, None, "image")
    torch.manual_seed(0)
    network = make_network(ModelSettings("small_cnn"), Splits(data, data, data))
    settings = TrainingSettings(epochs=1000, batch_size=128)
    views = Views(by="shift", flip=True)
    stage = Stage("classifier", 1, settings, network, network, network, SECALoss(), data, views)
    session = Session(fabric, Path("unused"), Config(), Watcher())  # an epoch alone writes nothing
    trainer = Trainer(session, stage)
    times = []
    for epoch in range(1, 3 if quick else 25):
        fabric.barrier()
        start, cpu = time.perf_counter(), time.process_time()
        trainer.epoch(epoch)
        times.append((time.perf_counter() - start, time.process_time() - cpu))
    seconds, cpu = (min(column) for column in zip(*times[1:], strict=True))
    reduced: Any = fabric.all_reduce(torch.tensor(cpu, dtype=torch.float64), reduce_op="mean")
    cpu = float(reduced)
    return {"seconds": seconds, "cpu": cpu} if fabric.is_global_zero else {}


_PARTS = {
    "evaluate": evaluations,
    "fits": fits,
    "streams": streams,
    "merging": merging,
    "training": training,
}


if __name__ == "__main__":
    main()
