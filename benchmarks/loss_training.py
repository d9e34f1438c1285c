"""Train the same network with every loss and measure calibration before and after temperature scaling.

    python benchmarks/loss_training.py FOLDER [--rows rows.jsonl] [--tasks ...] [--losses ...] [--jobs 2]

A perceptron 384-512-512-150 on sentence embeddings of CLINC150 (``minilm_embeddings.npz`` with
``x_train y_train x_val y_val x_test y_test x_oos imbalanced_index``), Adam at 1e-3, in three tasks: all
15,000 training samples (8 epochs in batches of 256), the imbalanced 10,525 (12 epochs of the same), and
3,000 samples for 60 epochs in batches of 128, where cross-entropy is clearly overconfident. AdaFocal and
its relatives see the validation set after each epoch; the temperature is fitted on it, too. Losses
of embeddings train the two hidden layers through a projection; then a linear layer on the frozen features is
trained with cross-entropy for 30 epochs.

Rows that are already in the file are not computed again. ``--quick`` trains digits for one epoch.
"""

import json
import multiprocessing
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from calibrant import Predictions, evaluate
from calibrant.evaluation import detect_ood
from calibrant.evaluation.calibrated import calibrated
from calibrant.losses import Loss
from calibrant.losses.names import LOSSES, make_loss
from calibrant.posthoc import TemperatureScaling
from timing import benchmark_parser, table_head, table_row

MEASURES = ("accuracy", "ece", "ece_equal_mass", "classwise_ece", "nll", "auroc_correct")
_BEFORE = ("accuracy %", "ECE %", "AdaECE %", "cwECE %", "NLL", "AUROC %", "OOD AUROC %")
_AFTER = ("after T: ECE %", "AdaECE %", "cwECE %", "NLL")


@dataclass(frozen=True)
class Task:
    """Training, validation, test and out-of-distribution samples, and how long to train."""

    x: Tensor
    y: Tensor
    x_val: Tensor
    y_val: Tensor
    x_test: Tensor
    y_test: Tensor
    x_foreign: Tensor
    epochs: int
    batch_size: int


class Network(nn.Module):
    """Two hidden layers of one width and a linear head."""

    def __init__(self, n_in: int, width: int, n_classes: int) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(n_in, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.head = nn.Linear(width, n_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits."""
        logits: Tensor = self.head(self.body(x))
        return logits


def main(arguments: Sequence[str] | None = None) -> None:
    """Train what is missing and print one Markdown table per task."""
    parser = benchmark_parser(__doc__, "one epoch of digits in one process")
    parser.add_argument("folder", type=Path, nargs="?", help="folder with minilm_embeddings.npz")
    parser.add_argument("--rows", type=Path, help="file of finished rows, one JSON object per line")
    parser.add_argument("--tasks", default="full,imbalanced,overconfident")
    parser.add_argument("--losses", default=",".join(LOSSES), help="names separated by commas")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=1)
    args = parser.parse_args(arguments)
    tasks, seeds = (["quick"], 1) if args.quick else (args.tasks.split(","), args.seeds)
    rows = _read(args.rows)
    done = {(row["task"], row["loss"], row["seed"]) for row in rows}
    jobs = [
        (args.folder, task, loss, seed)
        for seed in range(seeds)
        for task in tasks
        for loss in args.losses.split(",")
        if (task, loss, seed) not in done
    ]
    if args.quick:
        rows += map(_train_and_measure, jobs)
    else:
        with multiprocessing.get_context("spawn").Pool(args.jobs) as pool:
            for row in pool.imap(_train_and_measure, jobs):
                rows.append(row)
                if args.rows is not None:
                    with args.rows.open("a", encoding="utf-8") as file:
                        file.write(json.dumps(row) + "\n")
    for line in tables(rows):
        print(line)


def load(folder: Path | None, name: str) -> Task:
    """Return a task by name."""
    if name == "quick":
        return _digits()
    if folder is None:
        raise SystemExit("folder: expected the folder of minilm_embeddings.npz, or --quick")
    data = np.load(folder / "minilm_embeddings.npz")
    x, y = (torch.from_numpy(data[key]) for key in ("x_train", "y_train"))
    few = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))[:3000]
    many = torch.arange(len(x))
    rows, epochs, batch_size = {
        "full": (many, 8, 256),
        "imbalanced": (torch.from_numpy(data["imbalanced_index"]).long(), 12, 256),
        "overconfident": (few, 60, 128),
    }[name]
    held = [torch.from_numpy(data[key]) for key in ("x_val", "y_val", "x_test", "y_test", "x_oos")]
    x_val, y_val, x_test, y_test, x_foreign = (
        part.float() if part.is_floating_point() else part.long() for part in held
    )
    return Task(x[rows].float(), y[rows].long(), x_val, y_val, x_test, y_test, x_foreign, epochs, batch_size)


def _digits() -> Task:
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    x, y = torch.from_numpy(images / 16).float(), torch.from_numpy(labels).long()
    x_foreign = torch.rand(100, 64, generator=torch.Generator().manual_seed(0))
    held_out = (x[600:1200], y[600:1200], x[1200:], y[1200:])
    return Task(x[:600], y[:600], *held_out, x_foreign, epochs=1, batch_size=64)


def train(task: Task, name: str, seed: int) -> Network:
    """Train with the recipe of the named loss."""
    torch.manual_seed(seed)
    n_classes = int(task.y.max()) + 1
    network = Network(task.x.shape[1], 512 if n_classes > 10 else 64, n_classes)
    if LOSSES[name].reads == "logits":
        loss = make_loss(name, n_classes=n_classes, n_samples=len(task.y))
        _fit(network, loss, task, task.epochs, seed)
        return network
    projection = nn.Linear(network.head.in_features, 128)
    encoder = nn.Sequential(network.body, projection)
    _fit(encoder, make_loss(name), task, task.epochs, seed)
    _fit_head(network, task, seed)
    return network


def _fit_head(network: Network, task: Task, seed: int) -> None:
    """Train the head on the frozen features, brought to unit scale, for 30 epochs of cross-entropy."""
    with torch.no_grad():
        features = network.body(task.x)
    mean, scale = features.mean(dim=0), features.std(dim=0).clamp_min(1e-6)
    frozen = replace(task, x=(features - mean) / scale)
    _fit(network.head, make_loss("cross_entropy"), frozen, 30, seed)
    with torch.no_grad():
        network.head.weight /= scale
        network.head.bias.sub_(network.head.weight @ mean)


def _fit(network: nn.Module, loss: Loss, task: Task, epochs: int, seed: int) -> None:
    learned = [parameter for parameter in network.parameters() if parameter.requires_grad]
    optimiser = torch.optim.Adam(learned, lr=1e-3, fused=True)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(epochs):
        for rows in torch.randperm(len(task.y), generator=generator).split(task.batch_size):
            extra = {"indices": rows} if "indices" in loss.needs else {}
            value = loss(network(task.x[rows]), task.y[rows], **extra)
            optimiser.zero_grad()
            value.backward()
            optimiser.step()
        if loss.validates:
            with torch.no_grad():
                loss.update(network(task.x_val), task.y_val)
        else:
            loss.update()


@torch.no_grad()
def measure(network: Network, task: Task) -> dict[str, float]:
    """Return the measures on the test set, before and after temperature scaling."""
    val, test, foreign = (network(x) for x in (task.x_val, task.x_test, task.x_foreign))
    before = Predictions(logits=test, labels=task.y_test)
    after = calibrated(TemperatureScaling.fit(val, task.y_val), before)
    row = dict(evaluate(before, measures=MEASURES).metrics)
    unknown = Predictions(logits=foreign, labels=torch.zeros(len(foreign), dtype=torch.int64))
    row["ood_auroc"] = detect_ood(before, unknown)["msp"].auroc
    repaired = evaluate(after, measures=["ece", "ece_equal_mass", "classwise_ece", "nll"]).metrics
    return row | {f"{name}_after": value for name, value in repaired.items()}


def _train_and_measure(job: tuple[Path | None, str, str, int]) -> dict[str, object]:
    folder, task_name, loss, seed = job
    torch.set_num_threads(1)
    task = load(folder, task_name)
    return {"task": task_name, "loss": loss, "seed": seed, **measure(train(task, loss, seed), task)}


def tables(rows: list[dict[str, object]]) -> Iterator[str]:
    """Yield the lines of one table per task: means over seeds, with the deviation of accuracy and ECE."""
    order = list(LOSSES)
    rows = sorted(rows, key=lambda row: (str(row["task"]), order.index(str(row["loss"]))))
    for task, group in groupby(rows, key=lambda row: row["task"]):
        yield f"\n### {task}\n"
        yield table_head("loss", *_BEFORE, *_AFTER)
        for loss, of_loss in groupby(group, key=lambda row: row["loss"]):
            runs = list(of_loss)
            cells = [_cell(runs, "accuracy", 100, True), _cell(runs, "ece", 100, True)]
            cells += [_cell(runs, name, 100) for name in ("ece_equal_mass", "classwise_ece")]
            cells += [_cell(runs, "nll", 1), _cell(runs, "auroc_correct", 100), _cell(runs, "ood_auroc", 100)]
            cells += [_cell(runs, f"{name}_after", 100) for name in MEASURES[1:4]]
            cells.append(_cell(runs, "nll_after", 1))
            yield table_row(LOSSES[str(loss)].recipe, *cells)


def _cell(runs: list[dict[str, object]], name: str, factor: int, spread: bool = False) -> str:
    values = [factor * float(str(run[name])) for run in runs]
    digits = 2 if factor == 100 else 3
    text = f"{np.mean(values):.{digits}f}"
    return f"{text} ± {np.std(values):.{digits}f}" if spread and len(values) > 1 else text


def _read(path: Path | None) -> list[dict[str, object]]:
    if path is None or not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


if __name__ == "__main__":
    main()
