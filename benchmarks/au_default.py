"""What the selective risk loss does on three tasks, by score, coverage and weight gradient.

    python benchmarks/au_default.py [--quick] [--seeds 3] [--clinc minilm_embeddings.npz]

Every row is a mean over seeds: test accuracy, ECE and NLL in percent or nats. A setting *collapses* when it
loses more than ten points of cross-entropy's accuracy. CLINC150 needs its file of embeddings and is left
out without it.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from calibrant.data import load_bundled
from calibrant.losses.loss import Loss
from calibrant.losses.selective_risk import SelectiveRiskLoss
from calibrant.metrics import accuracy, expected_calibration_error, negative_log_likelihood
from timing import benchmark_parser, print_head, print_row


@dataclass(frozen=True)
class Task:
    """Inputs and labels to train and to test on, and the head and the time that overfit them."""

    name: str
    train: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]
    hidden: tuple[int, ...]
    epochs: int


@dataclass(frozen=True)
class Setting:
    """One column of options of the loss; a warm-up is a share of all epochs."""

    name: str
    make: Callable[[int], Loss]


def main(arguments: Sequence[str] | None = None) -> None:
    """Train every setting on every task and print a Markdown table."""
    parser = benchmark_parser(__doc__, "one seed, one epoch, three settings")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--clinc", type=Path, help="file of CLINC150 embeddings")
    parser.add_argument("--task", default="", help="tasks whose name contains this")
    parser.add_argument("--only", help="names of settings, separated by semicolons")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    seeds = 1 if options.quick else options.seeds
    print_head("task", "loss", "accuracy", "ECE", "NLL", "worst accuracy", "seconds")
    for task in (t for t in tasks(options.clinc) if options.task in t.name):
        epochs = 1 if options.quick else task.epochs
        wanted = options.only.split(";") if options.only else None
        chosen = [setting for setting in settings() if wanted is None or setting.name in wanted]
        for setting in chosen[: 3 if options.quick else None]:
            start = time.perf_counter()
            runs = [train(task, setting.make(epochs), epochs=epochs, seed=s) for s in range(seeds)]
            hits, ece, nll = np.mean(runs, axis=0)
            worst = min(run[0] for run in runs)
            took = (time.perf_counter() - start) / len(runs)
            cells = (f"{hits:.1f}", f"{ece:.2f}", f"{nll:.3f}", f"{worst:.1f}", f"{took:.1f}")
            print_row(task.name, setting.name, *cells)


def settings() -> Iterator[Setting]:
    """Yield cross-entropy, then the selective risk loss from no gradient of the weight to all of it."""
    yield Setting("cross-entropy", lambda epochs: SelectiveRiskLoss(warmup=epochs))
    for dial in (0.0, 0.1, 0.2, 0.3, 0.5, 1.0):
        yield setting(score="negative_entropy", coverage=0.5, weight_gradient=dial)
    for dial in (0.2, 0.3, 0.5):
        yield setting(score="msp", coverage=0.5, weight_gradient=dial)
    yield setting(score="softmax_margin", coverage=0.5, weight_gradient=0.3)
    for dial in (0.3, 0.5, 1.0):
        yield setting(score="msp", coverage=0.9, weight_gradient=dial)
    yield setting(score="msp", coverage=0.9, weight_gradient=1.0, warmup=1 / 3)


def setting(*, warmup: float = 0.0, **options: Any) -> Setting:
    """Name a setting after its score, coverage and weight gradient."""
    name = ", ".join(str(value) for value in options.values())
    name += f", warm-up {warmup:.0%}" if warmup else ""
    return Setting(name, lambda epochs: SelectiveRiskLoss(warmup=round(warmup * epochs), **options))


def tasks(clinc: Path | None) -> Iterator[Task]:
    """Yield three tasks of which two come with the installed packages."""
    digits = load_digits()
    x = torch.tensor(digits.data / 16, dtype=torch.float32)
    x = x + 0.35 * torch.randn(
        x.shape, generator=torch.Generator().manual_seed(0)
    )  # clean digits are too easy
    y = torch.tensor(digits.target)
    yield Task("digits with noise", (x[:600], y[:600]), (x[600:], y[600:]), (256, 256), 60)
    val, test = load_bundled("cifar10_val"), load_bundled("cifar10_test")
    x = torch.as_tensor(val.features, dtype=torch.float32)
    unseen = torch.as_tensor(test.features, dtype=torch.float32)
    centre, scale = x.mean(dim=0), x.std(dim=0)
    scale[scale < 1e-3] = 1  # features that never fire
    yield Task(
        "CIFAR-10 features",
        ((x - centre) / scale, torch.as_tensor(val.labels)),
        ((unseen - centre) / scale, torch.as_tensor(test.labels)),
        (512,),
        30,
    )
    if clinc is not None:
        data = np.load(clinc)
        pick = np.random.default_rng(0).permutation(len(data["y_train"]))[:3000]
        yield Task(
            "CLINC150, 3,000 queries",
            (torch.tensor(data["x_train"][pick]).float(), torch.tensor(data["y_train"][pick]).long()),
            (torch.tensor(data["x_test"]).float(), torch.tensor(data["y_test"]).long()),
            (1024, 1024),
            60,
        )


def train(task: Task, loss: Loss, *, epochs: int, seed: int) -> tuple[float, float, float]:
    """Train a head and return test accuracy and ECE in percent, and NLL."""
    torch.manual_seed(seed)
    x, y = task.train
    widths = (x.shape[1], *task.hidden)
    hidden = [m for a, b in pairwise(widths) for m in (nn.Linear(a, b), nn.ReLU())]
    model = nn.Sequential(*hidden, nn.Linear(widths[-1], int(y.max()) + 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(epochs):
        for batch in torch.randperm(len(x)).split(128):
            optimizer.zero_grad()
            loss(model(x[batch]), y[batch]).backward()
            optimizer.step()
        loss.update()
    with torch.no_grad():
        logits = model(task.test[0])
    probs, labels = torch.softmax(logits.double(), dim=1), task.test[1]
    return (
        100 * accuracy(probs, labels),
        100 * expected_calibration_error(probs, labels),
        negative_log_likelihood(logits=logits, labels=labels),
    )


if __name__ == "__main__":
    main()
