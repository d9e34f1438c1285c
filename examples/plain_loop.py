"""AdaFocal in your own training loop: one update per epoch, and a checkpoint that includes the loss.

Run it with ``python examples/plain_loop.py``; it takes a few seconds. A small network learns the digits of
scikit-learn, with every fifth label replaced by a random one, once with cross-entropy and once with AdaFocal.
The table shows its calibration on a separate test set. Training is interrupted halfway and resumed from a
checkpoint.
"""

import tempfile
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from calibrant import Predictions, evaluate
from calibrant.files import atomic_path
from calibrant.losses import Loss
from calibrant.losses.names import make_loss

MEASURES = ("accuracy", "nll", "brier", "ece")


def digits() -> dict[str, tuple[Tensor, Tensor]]:
    """Return inputs and labels for training, validation and testing."""
    images, labels = (torch.from_numpy(part) for part in load_digits(return_X_y=True))
    inputs = images.float() / 16
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    train, val, test = order[:900], order[900:1300], order[1300:]
    noisy = labels.clone()
    noisy[train[::5]] = torch.randint(0, 10, (180,), generator=torch.Generator().manual_seed(1))
    return {
        "train": (inputs[train], noisy[train]),
        "val": (inputs[val], noisy[val]),
        "test": (inputs[test], labels[test]),
    }


def train(loss: Loss, data: dict[str, tuple[Tensor, Tensor]], *, epochs: int, checkpoint: Path) -> nn.Module:
    """Train a network; if there is a checkpoint, resume from it."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    parts: dict[str, nn.Module | torch.optim.Optimizer] = {
        "model": model,
        "optimizer": optimizer,
        "loss": loss,
    }
    first = 0
    if checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=True)
        for name, part in parts.items():
            part.load_state_dict(saved[name])
        first = saved["epoch"] + 1

    inputs, labels = data["train"]
    for epoch in range(first, epochs):
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(epoch))
        for rows in order.split(64):
            optimizer.zero_grad()
            loss(model(inputs[rows]), labels[rows]).backward()
            optimizer.step()

        # The one addition: losses without memory do nothing here, so the loop is the same for all losses.
        with torch.no_grad():
            loss.update(model(data["val"][0]), data["val"][1])

        states = {name: part.state_dict() for name, part in parts.items()}
        with atomic_path(checkpoint) as temporary:
            torch.save({"epoch": epoch, **states}, temporary)
    return model


def main(epochs: int = 30) -> dict[str, dict[str, float]]:
    """Train with two losses, then print and return the measures of the test set."""
    data = digits()
    rows = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in ("cross_entropy", "adafocal"):
            loss, checkpoint = make_loss(name), Path(folder, f"{name}.pt")
            train(loss, data, epochs=epochs // 2, checkpoint=checkpoint)  # interrupted halfway ...
            loss = make_loss(name)
            model = train(loss, data, epochs=epochs, checkpoint=checkpoint)  # ... and resumed
            with torch.no_grad():
                test = Predictions(logits=model(data["test"][0]), labels=data["test"][1])
            rows[name] = dict(evaluate(test, measures=MEASURES).metrics)
            rows[name]["updates"] = len(loss.history)
    print(f"{'loss':15}" + "".join(f"{name:>10}" for name in rows["adafocal"]))
    for name, row in rows.items():
        print(f"{name:15}" + "".join(f"{value:10.3g}" for value in row.values()))
    return rows


if __name__ == "__main__":
    main()
