"""How long to train SMART, and when to stop: test ECE on real predictions over epochs and stopping rules.

    python benchmarks/smart_stopping.py [--clinc FOLDER] [--splits 6] [--quick]

``settled=0`` trains all epochs from the best single temperature and keeps what it gets. ``settled=1``, the
default, stops when the soft calibration error is down to what chance makes it and draws the temperatures back
towards one in proportion to what chance alone would show. PTS is trained by the same loop.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from calibrant import evaluate
from calibrant.bench.model_predictions import prediction_sets, split
from calibrant.evaluation.calibrated import calibrated
from calibrant.posthoc import SMART, Calibrator, ParameterizedTemperatureScaling, TemperatureScaling
from timing import benchmark_parser, print_head, print_row

EPOCHS = (25, 50, 100, 200, 400)


def main(arguments: Sequence[str] | None = None) -> None:
    """Fit every variant on random parts of every set and print one Markdown table."""
    parser = benchmark_parser(__doc__, "one split of the digits")
    parser.add_argument("--clinc", type=Path, help="folder with minilm_embeddings.npz")
    parser.add_argument("--splits", type=int, default=6)
    args = parser.parse_args(arguments)
    torch.set_num_threads(1)
    splits, epochs = (1, EPOCHS[:1]) if args.quick else (args.splits, EPOCHS)
    known = prediction_sets(args.clinc)
    sets = {name: load() for name, load in known.items() if not args.quick or name == "digits"}
    print_head("fit", *(f"{name}: ECE %, NLL" for name in sets))
    variants: list[tuple[str, type[Calibrator], dict[str, Any]]] = [("temperature", TemperatureScaling, {})]
    for settled in (0, 1):
        variants += [
            (f"SMART, settled {settled}, {e} epochs", SMART, {"settled": settled, "epochs": e})
            for e in epochs
        ]
    variants += [(f"SMART, settled {s}, 200 epochs", SMART, {"settled": s}) for s in (0.5, 0.7, 1.5)]
    variants += [(f"PTS, {e} epochs", ParameterizedTemperatureScaling, {"epochs": e}) for e in (10, *epochs)]
    for title, method, options in variants:
        cells = []
        for real in sets.values():
            rows = []
            for seed in range(splits):
                fitting, test = split(real.predictions, seed)
                assert fitting.labels is not None
                calibrator = method.fit(fitting.to_logits(), fitting.labels, **options)
                found = evaluate(calibrated(calibrator, test), measures=["ece", "nll"]).metrics
                rows.append((100 * found["ece"], found["nll"]))
            ece, nll = np.mean(rows, axis=0)
            cells.append(f"{ece:.2f}, {nll:.4f}")
        print_row(title, *cells)


if __name__ == "__main__":
    main()
