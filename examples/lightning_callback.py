"""Calibrant in Lightning: a loss in the module, and one callback in the Trainer.

Run it with ``python examples/lightning_callback.py``; it takes a few seconds. A small network learns the
digits of scikit-learn, with every fifth label replaced by a random one, once with cross-entropy and once with
AdaFocal. The callback passes the predictions of the validation set to AdaFocal after each epoch, and logs the
measures that the table shows.
"""

import tempfile

import lightning.pytorch as pl
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from calibrant.integrations.lightning import CalibrationCallback
from calibrant.losses import Loss
from calibrant.losses.names import make_loss


class DigitClassifier(pl.LightningModule):
    """A small network that any loss can train."""

    def __init__(self, loss: Loss) -> None:
        super().__init__()
        self.model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
        self.loss = loss

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:  # noqa: ARG002  # Lightning's hook
        """Return the loss of a batch."""
        inputs, labels = batch
        loss: Tensor = self.loss(self.model(inputs), labels)
        return loss

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> dict[str, Tensor]:  # noqa: ARG002  # as above
        """Return the logits and labels that the callback reads."""
        inputs, labels = batch
        return {"logits": self.model(inputs), "labels": labels}

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimizer."""
        return torch.optim.Adam(self.parameters(), lr=3e-3)


def loaders() -> tuple[DataLoader[tuple[Tensor, ...]], DataLoader[tuple[Tensor, ...]]]:
    """Return batches for training and for validation."""
    images, labels = (torch.from_numpy(part) for part in load_digits(return_X_y=True))
    labels[::5] = torch.randint(0, 10, labels[::5].shape, generator=torch.Generator().manual_seed(1))
    samples = TensorDataset(images.float() / 16, labels)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0)).tolist()
    train, val = (torch.utils.data.Subset(samples, part) for part in (order[:1000], order[1000:]))
    shuffle = torch.Generator().manual_seed(0)
    return DataLoader(train, batch_size=64, shuffle=True, generator=shuffle), DataLoader(val, batch_size=256)


def main(epochs: int = 30) -> dict[str, dict[str, float]]:
    """Train with two losses, then print and return what the callback logged in the last epoch."""
    rows = {}
    for name in ("cross_entropy", "adafocal"):
        pl.seed_everything(0, verbose=False)
        with tempfile.TemporaryDirectory() as folder:
            trainer = pl.Trainer(
                max_epochs=epochs,
                callbacks=[CalibrationCallback()],  # the one addition
                accelerator="cpu",
                devices=1,
                default_root_dir=folder,
                logger=False,
                enable_checkpointing=False,
                enable_progress_bar=False,
                enable_model_summary=False,
            )
            trainer.fit(DigitClassifier(make_loss(name)), *loaders())
        rows[name] = {key: float(value) for key, value in trainer.callback_metrics.items()}
    names = list(rows["adafocal"])
    width = max(map(len, names)) + 2
    print(f"{'loss':15}" + "".join(f"{name:>{width}}" for name in names))
    for loss, row in rows.items():
        print(f"{loss:15}" + "".join(f"{row[name]:{width}.3f}" for name in names))
    return rows


if __name__ == "__main__":
    main()
