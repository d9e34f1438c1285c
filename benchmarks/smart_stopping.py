"""How long to train SMART, and when to stop: test ECE on real predictions over epochs and stopping rules.

    python benchmarks/smart_stopping.py [--clinc FOLDER] [--splits 6] [--quick]

``settled=0`` trains all epochs from the best single temperature and keeps what it gets. ``settled=1``, the
default, stops when the soft calibration error is down to what chance makes it and draws the temperatures back
towards one in proportion to what chance alone would show. PTS is trained by the same loop.
"""

import argparse
from pathlib import Path

import numpy as np
import torch

from calibrant import evaluate
from calibrant.bench.sources import prediction_sets, split
from calibrant.evaluation.calibrated import calibrated
from calibrant.posthoc import SMART, Calibrator, ParameterizedTemperatureScaling, TemperatureScaling

EPOCHS = (25, 50, 100, 200, 400)


def main() -> None:
    """Fit every variant on random parts of every set and print one Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clinc", type=Path, help="folder with minilm_embeddings.npz")
    parser.add_argument("--splits", type=int, default=6)
    parser.add_argument("--quick", action="store_true", help="one split of the digits, to see that it runs")
    args = parser.parse_args()
    torch.set_num_threads(1)
    splits, epochs = (1, EPOCHS[:1]) if args.quick else (args.splits, EPOCHS)
    sets = {name: load() for name, load in prediction_sets(args.clinc).items()}
    if args.quick:
        sets = {"digits": sets["digits"]}
    print(f"| fit | {' | '.join(f'{name}: ECE %, NLL' for name in sets)} |")
    print("|---" * (1 + len(sets)) + "|")
    variants: list[tuple[str, type[Calibrator], dict[str, float]]] = [("temperature", TemperatureScaling, {})]
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
                calibrator = method.fit(fitting.to_logits(), fitting.labels, **options)
                found = evaluate(calibrated(calibrator, test), measures=["ece", "nll"]).metrics
                rows.append((100 * found["ece"], found["nll"]))
            ece, nll = np.mean(rows, axis=0)
            cells.append(f"{ece:.2f}, {nll:.4f}")
        print(f"| {title} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
