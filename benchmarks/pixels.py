"""Measures and calibration of segmentation: equality, memory, speed, ONNX, and what methods gain.

    python benchmarks/pixels.py

Writes ``docs/results/pixels.md``. The images of the speed test are written to a temporary folder (2.2 GB).
"""

import argparse
import os
import platform
import time
import tracemalloc
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch

import shapes
from calibrant import Predictions, evaluate
from calibrant.integrations.onnx import export_onnx
from calibrant.pixels import PixelImage, evaluate_pixels, images_of_batches, open_images
from calibrant.posthoc import PixelCalibration
from calibrant.posthoc.pixelwise import PIXEL_METHODS
from timing import benchmark_parser, print_head, print_row

PAGE = Path(__file__).resolve().parents[1] / "docs" / "results" / "pixels.md"
K, SIDE = 8, 256


def main(argv: Sequence[str] | None = None) -> None:
    """Run all parts, and write the page unless they are only tried out."""
    args = benchmark_parser(__doc__ or "", "few small images").parse_args(argv)
    if args.quick:
        _parts(args)
        return
    with redirect_stdout(StringIO()) as page:
        _parts(args)
    PAGE.write_text(page.getvalue(), encoding="utf-8")


def _parts(args: argparse.Namespace) -> None:
    print(
        "# Segmentation: measured in one pass, repaired pixel by pixel\n\n"
        "Are the measures of [score maps](../howto/pixels.md) those of all pixels, what do they cost, and "
        "what do methods gain?\n\n```sh\npython benchmarks/pixels.py\n```\n\n"
        f"{platform.machine()}, {os.cpu_count()} cores, PyTorch {torch.__version__}.\n"
    )
    _equality(args.quick)
    with TemporaryDirectory() as folder:
        sizes = (4, 8) if args.quick else (100, 1000)
        files = _written(Path(folder), sizes[-1])
        _memory(files, sizes)
        _speed(files, sizes[-1], repeats=1 if args.quick else 5)
    _methods(args.quick)


def _scene(rng: np.random.Generator, side: int = SIDE) -> tuple[np.ndarray, np.ndarray]:
    """Return noisy scores of regions of 16 x 16 pixels, and their classes."""
    coarse = rng.normal(size=(K, side // 16, side // 16)).astype(np.float32).repeat(16, 1).repeat(16, 2)
    scores = 2 * coarse + rng.normal(size=coarse.shape).astype(np.float32)
    return scores, coarse.argmax(axis=0).astype(np.uint8)


def _equality(quick: bool) -> None:
    """Compare with the measures of all pixels as rows."""
    rng = np.random.default_rng(0)
    n = 2 if quick else 20
    made = [_scene(rng, 64) for _ in range(n)]
    scores, masks = (np.stack(each) for each in zip(*made, strict=True))
    masks[:, :2] = 255
    kept, images = masks != 255, np.broadcast_to(np.arange(n)[:, None, None], masks.shape)
    print("## Equal to all pixels as rows\n\nThe largest difference of a measure and of an interval.\n")
    print_head("scores", "measures", "ends of intervals")
    for kind in (np.float64, np.float32):
        maps = scores.astype(kind)
        batch = [(torch.from_numpy(maps), torch.from_numpy(masks))]
        found = evaluate_pixels(images_of_batches(batch), intervals=True)
        rows = Predictions(
            logits=np.moveaxis(maps, 1, -1)[kept], labels=masks[kept].astype(int), units=images[kept].copy()
        )
        flat = evaluate(rows, measures=list(found.metrics), intervals=True)
        apart = max(abs(found.metrics[name] - flat.metrics[name]) for name in found.metrics)
        by_bootstrap = ("accuracy", "nll", "brier", "ece")
        ends = max(
            abs(ours - theirs)
            for name, each in found.intervals.items()
            if name in by_bootstrap
            for ours, theirs in ((each.low, flat.intervals[name].low), (each.high, flat.intervals[name].high))
        )
        print_row(np.dtype(kind).name, f"{apart:.1e}", f"{ends:.1e}")
    print(
        "\nThe softmax of float32 scores is computed in single precision and summed in double precision; for "
        "rows it is computed in double precision. Intervals are those of accuracy, NLL, Brier "
        "score and ECE.\n"
    )


def _written(folder: Path, n: int) -> tuple[Path, Path]:
    """Write images and their masks to a pair of files."""
    rng = np.random.default_rng(1)
    paths = folder / "logits.npy", folder / "labels.npy"
    maps = np.lib.format.open_memmap(paths[0], "w+", np.float32, (n, K, SIDE, SIDE))
    masks = np.lib.format.open_memmap(paths[1], "w+", np.uint8, (n, SIDE, SIDE))
    for number in range(n):
        maps[number], masks[number] = _scene(rng)
    return paths


class _First:
    """The first images of a pair of files."""

    def __init__(self, files: tuple[Path, Path], n: int) -> None:
        self.files, self.n = files, n

    def __len__(self) -> int:
        return self.n

    def __iter__(self) -> Iterator[PixelImage]:
        for number, image in enumerate(open_images(*self.files)):
            if number == self.n:
                return
            yield image


def _memory(files: tuple[Path, Path], sizes: Sequence[int]) -> None:
    print(
        "## Memory\n\nThe peak of what Python and NumPy allocate, while images of 256 x 256 pixels and 8 "
        "classes are measured with intervals; an image has 2.2 MB.\n"
    )
    print_head("images", "MB")
    for n in sizes:
        tracemalloc.start()
        evaluate_pixels(_First(files, n), intervals=True)
        print_row(f"{n:,}", f"{tracemalloc.get_traced_memory()[1] / 1e6:.1f}")
        tracemalloc.stop()
    print(
        "\nIntervals are drawn from the sums of up to 1,024 parts of the images; more images share them, so "
        "memory no longer grows.\n"
    )


def _speed(files: tuple[Path, Path], n: int, *, repeats: int) -> None:
    """Compare with reading the images and one softmax."""
    print(
        f"## Time\n\n{n:,} images of 256 x 256 pixels and 8 classes in memory-mapped files, which the system "
        f"holds in memory; the best of {repeats} runs, in turn, at a load of {os.getloadavg()[0]:.1f}.\n"
    )
    one, every = "reading and one softmax", "all measures"
    print_head("threads", f"{one}, s", f"{every}, s", "ratio", f"{one}, processor s", f"{every}", "ratio")
    before, ratios = torch.get_num_threads(), {}
    for threads in sorted({1, os.cpu_count() or 1}):
        torch.set_num_threads(threads)
        runs = [
            (_clocked(lambda: _softmax(files, n)), _clocked(lambda: evaluate_pixels(_First(files, n))))
            for _ in range(repeats)
        ]
        base, ours = ([min(times) for times in zip(*each, strict=True)] for each in zip(*runs, strict=True))
        wall, processor = (a / b for a, b in zip(ours, base, strict=True))
        cells = [f"{base[0]:.2f}", f"{ours[0]:.2f}", f"{wall:.1f}", f"{base[1]:.2f}", f"{ours[1]:.2f}"]
        print_row(threads, *cells, f"{processor:.1f}")
        ratios[threads] = wall, processor
    torch.set_num_threads(1)
    ranks = _clocked(lambda: evaluate_pixels(_First(files, n), ranks=True))[1]
    torch.set_num_threads(before)
    met = "met" if ratios[1][1] <= 2 else "missed"
    if os.getloadavg()[0] > 2 * (os.cpu_count() or 1):
        print("\nOther programs were using the machine: only the processor's times of one thread mean much.")
    print(
        "\nAll measures are those of all pixels, of each class and distance, and of each image. The aim is "
        f"at most twice the time of reading and one softmax. One thread takes {ratios[1][1]:.1f} times that "
        f"of the processor, so there the aim is {met}. With measures of ranks it takes {ranks:.2f} s of the "
        "processor: the confidences of each image are sorted.\n"
    )


def _clocked(run) -> tuple[float, float]:
    start, busy = time.perf_counter(), time.process_time()
    run()
    return time.perf_counter() - start, time.process_time() - busy


def _softmax(files: tuple[Path, Path], n: int) -> None:
    for image in _First(files, n):
        torch.softmax(image.scores, dim=0)


def _methods(quick: bool) -> None:
    """Compare methods on a small network."""
    n = (16, 8, 8) if quick else (24, 100, 300)
    train, val, test = (shapes.drawn(each, seed=seed) for seed, each in enumerate(n))
    network = shapes.trained(*train, epochs=20 if quick else 80)
    with torch.no_grad():
        maps = network(val[0])
    held_out = [(test[0][i : i + 20], test[1][i : i + 20]) for i in range(0, n[2], 20)]

    def measured(calibrator: PixelCalibration | None):
        return evaluate_pixels(
            images_of_batches(held_out, model=network), intervals=True, calibrator=calibrator
        )

    print(
        f"## Methods\n\nA small network, trained on {n[0]} pictures of squares and discs, which are too few "
        f"(`benchmarks/shapes.py`). Methods are fitted on 500 pixels of each of {n[1]} others and measured "
        f"on {n[2]} further ones, with 95 % intervals by image. The gap at the border is that of "
        "pixels "
        "beside another class. The last column is the largest difference between a probability of PyTorch "
        "and one of ONNX Runtime, on four pictures.\n"
    )
    between = "95 % interval"
    print_head("method", "NLL", between, "ECE %", between, "gap at the border, points", "accuracy %", "ONNX")
    for name in ("uncalibrated", *PIXEL_METHODS):
        calibrator = None if name == "uncalibrated" else PixelCalibration.fit(maps, val[1], method=name)
        found = measured(calibrator)
        nll, ece = found.intervals["nll"], found.intervals["ece"]
        print_row(
            name,
            f"{nll.value:.4f}",
            f"{nll.low:.4f} to {nll.high:.4f}",
            f"{100 * ece.value:.2f}",
            f"{100 * ece.low:.2f} to {100 * ece.high:.2f}",
            f"{100 * found.bands[0].test.gap:+.1f}",
            f"{100 * found.metrics['accuracy']:.2f}",
            "" if calibrator is None else f"{_apart(calibrator, maps[:4]):.0e}",
        )


def _apart(calibrator: PixelCalibration, maps: torch.Tensor) -> float:
    """Return how far the probabilities of ONNX Runtime are from those of PyTorch."""
    import onnxruntime

    with TemporaryDirectory() as folder:
        path = Path(folder) / "pixels.onnx"
        export_onnx(calibrator, path)
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        (found,) = session.run(["log_probs"], {"logits": maps.numpy()})
    return float(np.abs(np.exp(found) - calibrator(maps).exp().numpy()).max())


if __name__ == "__main__":
    main()
