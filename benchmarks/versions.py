"""Whether this version calibrates worse than an earlier one: NLL, ECE and choice of both on real sets.

    git worktree add ../earlier COMMIT
    python benchmarks/versions.py --earlier ../earlier/src --data DIR [--seeds 3]

A fifth of each set, at most 25,000 samples, is fresh data; ``compare`` of both versions is fitted on the same
others. Differences are given in standard errors of the measure on the fresh data. The folder is that of
``benchmarks/large_sets.py``.
"""

import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch

import calibrant
from calibrant import Predictions
from calibrant.data.bundled import load_bundled
from calibrant.posthoc.fitting.folds import shuffled
from large_sets import most_fresh, real_sets
from timing import benchmark_parser, print_head, print_row

_SETS = (
    *("cifar100_lenet5", "cifar100_wide_resnet16_4", "cifar10_lenet5", "cifar10_wide_resnet16_4"),
    *("torchvision_resnet101", "MMLU-Pro, stated", "CIFAR-10, a network of one layer"),
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a row for each set, and the mean over them."""
    parser = benchmark_parser(__doc__, "the bundled predictions, one seed")
    parser.add_argument("--earlier", type=Path, required=True, help="folder of the earlier package's source")
    parser.add_argument("--data", type=Path, help="folder of real sets")
    parser.add_argument("--seeds", type=int, default=3, help="number of random splits of each set")
    args = parser.parse_args(arguments)
    sources = args.earlier, Path(calibrant.__file__).parents[1]
    print_head(
        "set", "samples", "NLL before", "now", "SE", "ECE % before", "now", "SE", "choice before", "now"
    )
    means = []
    with tempfile.TemporaryDirectory() as folder:
        for name, predictions in sets(None if args.quick else args.data):
            pairs = []
            for seed in range(1 if args.quick else args.seeds):
                save_parts(Path(folder), predictions, seed)
                pairs.append([measured(source, Path(folder), seed) for source in sources])
            means.append(print_set(name, predictions.n, pairs))
    nll, ece = (fmean(column) for column in zip(*means, strict=True))
    print(f"\nMean over the {len(means)} sets: {nll:+.3f} and {ece:+.3f} SE.")


def print_set(name: str, n: int, pairs: Sequence[Sequence[dict[str, Any]]]) -> tuple[float, float]:
    """Print the row of a set from what both versions gave on each split; return how far apart they are."""
    behind, cells = [], []
    for measure, scale, digits in (("nll", 1, 5), ("ece", 100, 3)):
        before, now = (fmean(pair[i][measure] for pair in pairs) for i in (0, 1))
        behind.append(fmean((new[measure] - old[measure]) / new["error_" + measure] for old, new in pairs))
        cells += [f"{scale * before:.{digits}f}", f"{scale * now:.{digits}f}", f"{behind[-1]:+.3f}"]
    choices = [" / ".join(dict.fromkeys(pair[i]["choice"] for pair in pairs)) for i in (0, 1)]
    print_row(name, f"{n:,}", *cells, *choices)
    return behind[0], behind[1]


def sets(folder: Path | None) -> Iterator[tuple[str, Predictions]]:
    """Yield the bundled set and those of the folder that are compared."""
    yield "bundled CIFAR-10 network", load_bundled("cifar10_val")
    if folder is not None:
        yield from (each for each in real_sets(folder) if each[0] in _SETS)


def save_parts(folder: Path, predictions: Predictions, seed: int) -> None:
    """Write the samples to fit and the fresh ones of a split, as both versions read them."""
    order = shuffled(predictions.n, seed=seed)
    n_fresh = most_fresh(predictions.n)
    for name, rows in (("fresh", order[:n_fresh]), ("rest", order[n_fresh:])):
        part = predictions.take(rows)
        if part.confidence is None:
            arrays = {"logits": part.to_logits(), "labels": part.labels}
        else:
            outcomes = part.outcomes()
            arrays = {"confidence": outcomes.confidence, "correct": outcomes.correct}
        np.savez(folder / f"{name}.npz", **{key: np.asarray(value) for key, value in arrays.items()})


def measured(source: Path, folder: Path, seed: int) -> dict[str, Any]:
    """Return what the package of a folder of source makes of the saved parts."""
    run = subprocess.run(
        [sys.executable, __file__, "--child", str(folder), str(seed)],
        env={**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    )
    found: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
    assert Path(found["package"]).is_relative_to(source.resolve()), "another package is installed over it"
    return found


def child(folder: str, seed: str) -> None:
    """Compare and choose with the package on the path, and print the measures on fresh data as JSON."""
    from calibrant.evaluation import choose, compare
    from calibrant.metrics.proper import log_losses

    torch.set_num_threads(1)
    rest, fresh = (
        Predictions(**np.load(Path(folder) / f"{name}.npz"))  # names are those of the arguments
        for name in ("rest", "fresh")
    )
    best = choose(compare(rest, test=fresh, n_resamples=20, seed=int(seed)))
    outcomes = best.test.outcomes()
    if best.test.confidence is None:
        losses = log_losses(best.test.labels, logits=best.test.to_logits())
    else:
        losses = log_losses(confidence=outcomes.confidence, correct=outcomes.correct)
    terms = {"nll": losses, "ece": outcomes.correct.double() - outcomes.confidence.double()}
    errors = {"error_" + name: float(each.std()) / math.sqrt(len(each)) for name, each in terms.items()}
    values = {name: best.test_metrics[name] for name in terms}
    package = str(Path(calibrant.__file__).resolve())
    print(json.dumps({"choice": best.name, "package": package, **values, **errors}))


if __name__ == "__main__":
    child(*sys.argv[2:]) if sys.argv[1:2] == ["--child"] else main()
