"""How to fit SMART: test ECE on real predictions over options, epochs and stopping rules.

    python benchmarks/smart_stopping.py [--clinc FOLDER] [--splits 6] [--quick]
    python benchmarks/smart_stopping.py --predictions FOLDER [--splits 6] [--first 0]

SMART finds the likeliest curve first and then closes gaps. ``settled=0`` trains all epochs and keeps what it
gets. ``settled=1``, the default, draws the temperatures back by what chance alone would show. PTS trains a
network from the best single temperature.

With a folder of prediction files, another table is printed instead: temperature scaling and ways to fit SMART
on 1,000 and 3,000 samples of each file, with how often the temperature is the same for all samples.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from calibrant import evaluate
from calibrant.data import Predictions, load_predictions
from calibrant.evaluation.calibrated import calibrated
from calibrant.papers.model_predictions import prediction_sets, split
from calibrant.posthoc import (
    SMART,
    Calibrator,
    ParameterizedTemperatureScaling,
    SMARTPaper,
    TemperatureScaling,
)
from timing import benchmark_parser, print_head, print_row

EPOCHS = (25, 50, 100, 200, 400)

RECIPES: dict[str, tuple[type[Calibrator], dict[str, Any]]] = {
    "temperature": (TemperatureScaling, {}),
    "SMART, paper": (SMARTPaper, {}),
    "SMART, settled 0": (SMART, {"settled": 0}),
    "SMART": (SMART, {}),
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Fit every variant on random parts of every set and print one Markdown table."""
    parser = benchmark_parser(__doc__, "one split of the digits")
    parser.add_argument("--clinc", type=Path, help="folder with minilm_embeddings.npz")
    parser.add_argument("--predictions", type=Path, help="folder with .npz files of predictions")
    parser.add_argument("--splits", type=int, default=6)
    parser.add_argument("--first", type=int, default=0, help="seed of the first split, with --predictions")
    args = parser.parse_args(arguments)
    torch.set_num_threads(1)
    if args.predictions is not None:
        compare_recipes(args.predictions, range(args.first, args.first + args.splits))
        return
    splits, epochs = (1, EPOCHS[:1]) if args.quick else (args.splits, EPOCHS)
    known = prediction_sets(args.clinc)
    sets = {name: load() for name, load in known.items() if not args.quick or name == "digits"}
    print_head("fit", *(f"{name}: ECE %, NLL" for name in sets))
    variants: list[tuple[str, type[Calibrator], dict[str, Any]]] = [("temperature", TemperatureScaling, {})]
    variants += [(f"SMART, curve, settled {s}", SMART, {"settled": s}) for s in (1, 0, 0.5, 0.7, 1.5)]
    variants += [(f"SMART, paper, {e} epochs", SMARTPaper, {"epochs": e}) for e in epochs]
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


def compare_recipes(folder: Path, seeds: Sequence[int]) -> None:
    """Print test ECE, NLL and the share of constant temperatures on every file of predictions in a folder."""
    print_head("file", "samples", *(f"{name}: ECE %, NLL, constant" for name in RECIPES))
    for path in sorted(folder.glob("*.npz")):
        predictions = load_predictions(path)
        for samples in (1000, 3000):
            cells = []
            for method, options in RECIPES.values():
                rows = []
                for seed in seeds:
                    fitting, test = split(predictions, seed, n_validation=samples)
                    calibrator = method.fit(fitting.to_logits(), fitting.labels, **options)
                    found = evaluate(calibrated(calibrator, test), measures=["ece", "nll"]).metrics
                    rows.append((100 * found["ece"], found["nll"], is_constant(calibrator, fitting)))
                ece, nll, constant = np.mean(rows, axis=0)
                cells.append(f"{ece:.2f}, {nll:.4f}, {constant:.1f}")
            print_row(path.stem, str(samples), *cells)


def is_constant(calibrator: Calibrator, fitting: Predictions) -> bool:
    """Whether all samples get the same temperature."""
    if not isinstance(calibrator, SMART):
        return True
    temperature = calibrator.temperature(fitting.to_logits())
    return bool(temperature.std() < 1e-3 * temperature.mean())


if __name__ == "__main__":
    main()
