"""AdaFocal under Ray Train: several workers train like one process, and resume if one of them is lost.

Run it with ``python examples/ray_train.py``, or with ``--quick`` for a few epochs; it needs ``ray[train]``
and takes about a minute, most of it to start Ray. A small network learns scikit-learn's digits; every fifth
label is random. Each worker has its share of every batch and of the validation set. Ray connects the workers
by torch.distributed, so Calibrant's losses see the whole batch, and AdaFocal's update sees the whole
validation set: ``--workers 0``, which trains in this process alone, prints the same table.
"""

import argparse
import logging
import os
import tempfile
from pathlib import Path
from typing import TypeAlias

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is sent anywhere; read when Ray is imported

import ray
import ray.train
import torch
from ray.train import Checkpoint, CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer, prepare_model
from sklearn.datasets import load_digits
from torch import Tensor, nn

from calibrant import Predictions, evaluate
from calibrant.losses import AdaFocalLoss

Parts: TypeAlias = dict[str, nn.Module | torch.optim.Optimizer]
MEASURES = ("accuracy", "nll", "brier", "ece")
SAVE_EVERY = 10


def digits() -> dict[str, tuple[Tensor, Tensor]]:
    """Return inputs and labels for training, validation and testing."""
    images, labels = (torch.from_numpy(part) for part in load_digits(return_X_y=True))
    inputs = images.float() / 16
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    train, val, test = order[:900], order[900:1301], order[1301:]
    noisy = labels.clone()
    noisy[train[::5]] = torch.randint(0, 10, (180,), generator=torch.Generator().manual_seed(1))
    return {
        "train": (inputs[train], noisy[train]),
        "val": (inputs[val], noisy[val]),
        "test": (inputs[test], labels[test]),
    }


def train(settings: dict[str, int]) -> None:
    """Train as one of the workers; Ray calls this on each of them."""
    rank, workers = ray.train.get_context().get_world_rank(), ray.train.get_context().get_world_size()
    data, epochs = digits(), settings["epochs"]
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    loss = AdaFocalLoss(n_bins=10)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    parts: Parts = {"model": model, "optimizer": optimizer, "loss": loss}
    first = resume(parts)
    # Only the model is prepared: a loss has no weights, and exchanges batch statistics by itself.
    parallel = prepare_model(model)

    inputs, labels = data["train"]
    for epoch in range(first, epochs):
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(epoch))
        for batch in order.split(60):
            rows = batch[rank::workers]  # the same number on every worker, because gradients are averaged
            optimizer.zero_grad()
            loss(parallel(inputs[rows]), labels[rows]).backward()
            optimizer.step()

        # Each worker predicts its share of the validation set; the update uses the whole set.
        val_inputs, val_labels = (part[rank::workers] for part in data["val"])
        with torch.no_grad():
            loss.update(model(val_inputs), val_labels)

        if (epoch + 1) % SAVE_EVERY == 0 or epoch + 1 == epochs:
            with torch.no_grad():
                test = Predictions(logits=model(data["test"][0]), labels=data["test"][1])
            row = dict(evaluate(test, measures=MEASURES).metrics)
            row |= {"least gamma": float(loss.gammas.min()), "most gamma": float(loss.gammas.max())}
            save(parts, epoch, row | {"updates": len(loss.history)}, write=rank == 0)


def save(parts: Parts, epoch: int, row: dict[str, float], *, write: bool) -> None:
    """Report the measures, and let one worker write a checkpoint; the state is the same on all workers."""
    with tempfile.TemporaryDirectory() as folder:
        if write:
            states = {name: part.state_dict() for name, part in parts.items()}
            torch.save({"epoch": epoch, **states}, Path(folder, "state.pt"))
        ray.train.report(row, checkpoint=Checkpoint.from_directory(folder) if write else None)


def resume(parts: Parts) -> int:
    """Load the last checkpoint, which exists if a worker was lost; return the next epoch."""
    saved = ray.train.get_checkpoint()
    if saved is None:
        return 0
    with saved.as_directory() as folder:
        states = torch.load(Path(folder, "state.pt"), weights_only=True)
    for name, part in parts.items():
        part.load_state_dict(states[name])
    return int(states["epoch"]) + 1


def main(epochs: int = 30, workers: int = 2) -> dict[str, float]:
    """Train, print the measures on the test set, and return them."""
    # On a cluster, use ray.init("auto") and a storage_path that all machines see.
    if workers:
        ray.init(num_cpus=workers, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    try:
        with tempfile.TemporaryDirectory() as folder:
            trainer = TorchTrainer(
                train,
                train_loop_config={"epochs": epochs},
                scaling_config=ScalingConfig(num_workers=workers, use_gpu=False),
                run_config=RunConfig(
                    name="adafocal",
                    storage_path=folder,
                    checkpoint_config=CheckpointConfig(num_to_keep=1),
                    failure_config=FailureConfig(max_failures=1),
                ),
            )
            row = dict(trainer.fit().metrics or {})
    finally:
        ray.shutdown()
    print("".join(f"{name:>12}" for name in row))
    print("".join(f"{value:12.4g}" for value in row.values()))
    return row


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a few epochs only")
    parser.add_argument("--workers", type=int, default=2, help="processes; 0 for this one alone")
    chosen = parser.parse_args()
    main(epochs=4 if chosen.quick else 30, workers=chosen.workers)
