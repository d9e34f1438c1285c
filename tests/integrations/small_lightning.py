"""A small network, its data and its module for tests with Lightning."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

pl = pytest.importorskip("lightning.pytorch")

EPOCHS = 3


def samples(n, seed):
    """Three overlapping classes, numbered so that a loss can know each sample."""
    draw = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 3, (n,), generator=draw)
    inputs = torch.randn(n, 4, generator=draw) + nn.functional.one_hot(labels, 4)
    return TensorDataset(inputs, labels, torch.arange(n))


TRAIN, VAL = samples(60, 0), samples(45, 1)


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3))


def as_dictionary(logits, labels):
    return {"logits": logits, "labels": labels}


class Module(pl.LightningModule):
    """A network that is trained with a loss; ``hide`` keeps the loss from being a part of the module."""

    def __init__(self, loss, *, hide=False, outputs=as_dictionary):
        super().__init__()
        self.model = network()
        self.losses = [loss] if hide else nn.ModuleList([loss])
        self.outputs = outputs

    def training_step(self, batch, _):
        inputs, labels, indices = batch
        loss = self.losses[0]
        return loss(self.model(inputs), labels, **({"indices": indices} if loss.needs else {}))

    def validation_step(self, batch, _):
        return self.outputs(self.model(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.SGD(self.model.parameters(), lr=0.5)


def loaders():
    return DataLoader(TRAIN, batch_size=20), DataLoader(VAL, batch_size=20)
