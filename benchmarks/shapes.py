"""A small segmentation that anyone can train: squares and discs on noise, some of them with wrong labels."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

SIZE = 32
CLASSES = ("ground", "square", "disc")


def drawn(n: int, *, seed: int) -> tuple[Tensor, Tensor]:
    """Return pictures of shape ``(n, 1, 32, 32)`` with noise, and masks of shape ``(n, 32, 32)``.

    A shape is seen at its place with noise that is stronger in some pictures than in others.
    """
    rng = np.random.default_rng(seed)
    rows, columns = np.mgrid[:SIZE, :SIZE]
    masks = np.zeros((n, SIZE, SIZE), dtype=np.int64)
    for mask in masks:
        for kind in (1, 2):
            row, column = rng.integers(6, SIZE - 6, size=2)
            reach = rng.integers(3, 7)
            away = np.stack([np.abs(rows - row), np.abs(columns - column)])
            inside = away.max(axis=0) <= reach if kind == 1 else np.hypot(*away) <= reach + 1
            mask[inside] = kind
    noise = rng.uniform(0.3, 1.2, size=(n, 1, 1)) * rng.normal(size=masks.shape)
    pictures = 0.5 * (masks > 0) + 0.4 * (masks == 2) + noise
    return torch.from_numpy(pictures[:, None].astype(np.float32)), torch.from_numpy(masks)


def trained(pictures: Tensor, masks: Tensor, *, epochs: int = 40, seed: int = 0) -> nn.Module:
    """Return a network of four layers, trained on few pictures for too long, so that it is overconfident."""
    torch.manual_seed(seed)
    layers: list[nn.Module] = [nn.Conv2d(1, 24, 5, padding=2), nn.ReLU()]
    for step in (1, 2, 4):
        layers += [nn.Conv2d(24, 24, 3, padding=step, dilation=step), nn.ReLU()]
    network = nn.Sequential(*layers, nn.Conv2d(24, len(CLASSES), 1))
    optimizer = torch.optim.Adam(network.parameters(), lr=3e-3)
    for _ in range(epochs):
        for part in torch.randperm(len(pictures)).split(16):
            optimizer.zero_grad()
            F.cross_entropy(network(pictures[part]), masks[part]).backward()
            optimizer.step()
    return network.eval()
