"""Calibrant in Lightning: a loss in the module, and one callback in the Trainer.

Run it with ``python examples/lightning_callback.py``; it takes some seconds. A small network learns the
digits of scikit-learn, of whose labels every fifth is drawn at random, with cross-entropy and with AdaFocal.
The callback gives AdaFocal the predictions of the validation set after each epoch, and logs the measures that
the table shows.
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
    """A small network, trained with any loss."""

    def __init__(self, loss: Loss) -> None:
        super().__init__()
        self.model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
        self.loss = loss

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:  # noqa: ARG002  # Lightning's hook
        """Return the loss of a batch."""
        inputs, labels = batch
        return self.loss(self.model(inputs), labels)

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> dict[str, Tensor]:  # noqa: ARG002  # as above
        """Return what the callback reads."""
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
    """Train with two losses, print what the callback logged in the last epoch, and return it."""
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
    print(f"{'loss':15}" + "".join(f"{name:>20}" for name in names))
    for loss, row in rows.items():
        print(f"{loss:15}" + "".join(f"{row[name]:20.3f}" for name in names))
    return rows


if __name__ == "__main__":
    main()
