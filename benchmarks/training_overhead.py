"""What Calibrant's training loop costs beyond a bare PyTorch loop with the same model, data and loss.

    python benchmarks/training_overhead.py [--models small_cnn,resnet20,mlp] [--rounds 9] [--quick]

Both make the same steps on the same images in the same order: augmentation, forward, loss, backward, SGD.
Ours does it through Lightning Fabric, with step sizes from a schedule, a check that the loss is finite, and a
call to whoever watches. Rounds of both alternate; times are CPU time of one thread, the least over rounds;
the ratio is the median over rounds, each of which compares two runs that follow one another.
"""

import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import torch
import torch.nn.functional as F
from lightning_fabric import Fabric

from calibrant.losses import CrossEntropyLoss
from calibrant.training.config.settings import Config, ModelSettings, TrainingSettings
from calibrant.training.datasets import LabelledData, Splits, augment
from calibrant.training.network import Network, make_network
from calibrant.training.optimization import seed_of
from calibrant.training.session import Session, Watcher
from calibrant.training.stage import Stage, Trainer
from calibrant.training.views import Views
from timing import benchmark_parser, print_head, print_row


def main(arguments: Sequence[str] | None = None) -> None:
    """Print one line per model."""
    parser = benchmark_parser(__doc__, "two small rounds")
    parser.add_argument("--models", default="small_cnn,resnet20,mlp")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--batch-size", type=int, default=128)
    args = parser.parse_args(arguments)
    torch.set_num_threads(1)
    names = ["mlp"] if args.quick else args.models.split(",")
    rounds, steps = (2, 3) if args.quick else (args.rounds, 12)
    print_head("model", "bare ms per step", "Calibrant ms per step", "ratio")
    for name in names:
        bare, ours = compare(name, args.batch_size, steps, rounds)
        ratio = median(b / a for a, b in zip(bare, ours, strict=True))
        print_row(name, f"{1000 * min(bare):.2f}", f"{1000 * min(ours):.2f}", f"{ratio:.3f}")


def compare(name: str, batch_size: int, steps: int, rounds: int) -> tuple[list[float], list[float]]:
    """Return the CPU seconds per step of the bare loop and of ours, round by round."""
    data = _images(batch_size * steps)
    settings = TrainingSettings(epochs=1000, batch_size=batch_size)
    splits = Splits(data, data, data)
    fabric = Fabric(accelerator="cpu", devices=1)
    torch.manual_seed(0)
    network = make_network(ModelSettings(name), splits)
    views = Views(by="shift", flip=True)
    stage = Stage("classifier", 1, settings, network, network, network, CrossEntropyLoss(), data, views)
    session = Session(fabric, Path("unused"), Config(), Watcher())  # an epoch alone writes nothing
    trainer = Trainer(session, stage)
    torch.manual_seed(0)
    other = make_network(ModelSettings(name), splits)
    optimizer = torch.optim.SGD(other.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    times: dict[str, list[float]] = {"bare": [], "ours": []}
    for epoch in range(1, rounds + 2):
        order = torch.randperm(len(data), generator=torch.Generator().manual_seed(seed_of(0, 1, epoch)))
        start = time.process_time()
        _bare_epoch(other, optimizer, data, order, batch_size)
        middle = time.process_time()
        trainer.epoch(epoch)
        times["bare"].append((middle - start) / steps)
        times["ours"].append((time.process_time() - middle) / steps)
    # The first round fills caches.
    return times["bare"][1:], times["ours"][1:]


def _bare_epoch(
    network: Network,
    optimizer: torch.optim.Optimizer,
    data: LabelledData,
    order: torch.Tensor,
    batch_size: int,
) -> None:
    network.train()
    for rows in order.split(batch_size):
        inputs = augment(data.inputs[rows], padding=4)
        loss = F.cross_entropy(network(inputs), data.labels[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss.item()


def _images(n: int) -> LabelledData:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(256, (n, 3, 32, 32), dtype=torch.uint8, generator=generator)
    return LabelledData(images, torch.arange(n) % 10, None, "image")


if __name__ == "__main__":
    main()
