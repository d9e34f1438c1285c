"""Models as users bring them, by ``module:factory``; these go wrong when they are told to."""

import math

import torch
from torch import nn

# The training step, counted from 1, from which on logits are spoiled; none if they never are.
SPOILED_FROM: dict[str, int | None] = {"training": None, "validation": None}


class Fragile(nn.Module):
    """A small network that counts its training steps, and may spoil its logits after so many."""

    steps: torch.Tensor

    def __init__(self, *, n_classes, shape):
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), 8))
        self.head = nn.Linear(8, n_classes)
        self.register_buffer("steps", torch.tensor(0))

    def forward(self, inputs):
        if self.training:
            self.steps += 1
        limit = SPOILED_FROM["training" if self.training else "validation"]
        spoiled = limit is not None and int(self.steps) >= limit
        return self.head(self.body(inputs).relu()) * (float("nan") if spoiled else 1.0)


class Random(nn.Module):
    """A small network whose processes differ while they train: in what they drop, and by what they divide."""

    def __init__(self, *, n_classes, shape):
        super().__init__()
        self.body = nn.Sequential(
            nn.Flatten(), nn.Linear(math.prod(shape), 16), nn.BatchNorm1d(16), nn.ReLU()
        )
        self.drop = nn.Dropout(0.3)
        self.head = nn.Linear(16, n_classes)

    def forward(self, inputs):
        return self.head(self.drop(self.body(inputs)))
