"""Train four small networks on CIFAR-10 and write their predictions of corrupted test images.

    python benchmarks/shift_networks.py CIFAR10_FOLDER OUT [--networks plain augmented residual mixer]

CIFAR10_FOLDER holds CIFAR-10 as `calibrant.training.load_dataset("cifar10", path=…)` reads it. Each network
gets a folder in OUT: ``val.npz`` (5,000 images held out from training), ``test.npz`` (the 10,000 test images)
and, for each of the 15 corruptions of CIFAR-10-C and each severity, ``<corruption>-<severity>.npz`` of the
first 5,000 test images: logits, labels and features. Files that exist are not made again. On one core a
network takes 5 to 10 minutes, the corruptions of the images 4.

`benchmarks/shift.py` measures repair without labels on them.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from calibrant.training.datasets import corrupt, load_dataset
from calibrant.training.datasets.corruptions import CIFAR10_C, SEVERITIES

N_TEST = 5_000
_MEAN, _DEVIATION = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)


def _convolution(n_in: int, n_out: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(n_in, n_out, 3, stride, padding=1, bias=False), nn.BatchNorm2d(n_out), nn.ReLU()
    )


class Residual(nn.Module):
    """What a body returns, added to its input."""

    def __init__(self, *body: nn.Module) -> None:
        super().__init__()
        self.body = nn.Sequential(*body)

    def forward(self, x: Tensor) -> Tensor:
        """Return the input plus what the body makes of it."""
        return x + self.body(x)


def plain() -> nn.Sequential:
    """Four convolutions, pooled."""
    return nn.Sequential(
        _convolution(3, 32), nn.MaxPool2d(2), _convolution(32, 64), nn.MaxPool2d(2),
        _convolution(64, 128), _convolution(128, 128), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
    )  # fmt: skip


def residual() -> nn.Sequential:
    """Three stages of residual blocks."""
    blocks = [
        nn.Sequential(
            _convolution(n_in, n_out, stride=2),
            Residual(_convolution(n_out, n_out), _convolution(n_out, n_out)),
        )
        for n_in, n_out in ((24, 48), (48, 96), (96, 128))
    ]
    return nn.Sequential(_convolution(3, 24), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten())


def mixer() -> nn.Sequential:
    """Patches of 4 x 4 pixels, mixed in space and in channels (ConvMixer)."""

    def norm() -> nn.Sequential:
        return nn.Sequential(nn.GELU(), nn.BatchNorm2d(128))

    layers = [
        nn.Sequential(
            Residual(nn.Conv2d(128, 128, 5, groups=128, padding=2), norm()),
            nn.Conv2d(128, 128, 1),
            norm(),
        )
        for _ in range(4)
    ]
    return nn.Sequential(nn.Conv2d(3, 128, 4, 4), norm(), *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())


#: Body, epochs, whether images are flipped and moved, label smoothing.
NETWORKS: dict[str, tuple[Callable[[], nn.Sequential], int, bool, float]] = {
    "plain": (plain, 10, False, 0.0),
    "residual": (residual, 10, True, 0.0),
    "mixer": (mixer, 12, True, 0.0),
    "smoothed": (plain, 10, True, 0.1),
}


def _scaled(images: Tensor) -> Tensor:
    mean, deviation = (torch.tensor(each)[:, None, None] for each in (_MEAN, _DEVIATION))
    return ((images.float() / 255 - mean) / deviation).contiguous(memory_format=torch.channels_last)


def _moved(images: Tensor, generator: torch.Generator) -> Tensor:
    """Flip half of the images, and move each batch by up to three pixels."""
    flip = torch.rand(len(images), generator=generator) < 0.5
    images = torch.where(flip[:, None, None, None], images.flip(3), images)
    down, right = (int(each) for each in torch.randint(0, 7, (2,), generator=generator))
    return F.pad(images, (3, 3, 3, 3))[:, :, down : down + 32, right : right + 32]


def trained(name: str, images: Tensor, labels: Tensor) -> nn.Sequential:
    """Train one network: body and linear head."""
    build, epochs, augmented, smoothing = NETWORKS[name]
    torch.manual_seed(list(NETWORKS).index(name))
    generator = torch.Generator().manual_seed(0)
    model = nn.Sequential(build(), nn.Linear(128, 10))
    model.to(memory_format=torch.channels_last)
    size = 128
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=2e-4, nesterov=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimiser, 0.1, total_steps=epochs * -(-len(labels) // size)
    )
    for epoch in range(epochs):
        model.train()
        start, losses = time.perf_counter(), []
        for index in torch.randperm(len(labels), generator=generator).split(size):
            x = _scaled(images[index])
            x = _moved(x, generator) if augmented else x
            loss = F.cross_entropy(model(x), labels[index], label_smoothing=smoothing)
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
            optimiser.step()
            schedule.step()
            losses.append(loss.item())
        print(
            f"{name} epoch {epoch + 1}: {np.mean(losses):.3f}, {time.perf_counter() - start:.0f} s",
            flush=True,
        )
    return model.eval()


@torch.no_grad()
def write(model: nn.Sequential, images: Tensor, labels: Tensor, path: Path) -> None:
    """Write logits, labels and features of images."""
    features = torch.cat([model[0](_scaled(chunk)) for chunk in images.split(500)])
    logits = model[1](features)
    accuracy = float((logits.argmax(dim=1) == labels).float().mean())
    print(f"{path.parent.name} {path.stem}: accuracy {accuracy:.3f}", flush=True)
    arrays = {"logits": logits.numpy(), "labels": labels.numpy(), "features": features.half().numpy()}
    np.savez(path, **arrays)


def main() -> None:
    """Train and predict what does not exist yet."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cifar10", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    given = parser.parse_args()
    splits = load_dataset("cifar10", path=given.cifar10)
    models = {}
    for name in given.networks:
        folder = given.out / name
        folder.mkdir(parents=True, exist_ok=True)
        weights = folder / "weights.pt"
        if weights.exists():
            model = nn.Sequential(NETWORKS[name][0](), nn.Linear(128, 10))
            model.load_state_dict(torch.load(weights))
            models[name] = model.eval()
        else:
            models[name] = trained(name, splits.train.inputs, splits.train.labels)
            torch.save(models[name].state_dict(), weights)
        for part, rows in (("val", splits.validation), ("test", splits.test)):
            write(models[name], rows.inputs, rows.labels, folder / f"{part}.npz")
    images, labels = splits.test.inputs[:N_TEST], splits.test.labels[:N_TEST]
    for corruption in CIFAR10_C:
        for severity in SEVERITIES:
            corrupted = None
            for name, model in models.items():
                path = given.out / name / f"{corruption}-{severity}.npz"
                if not path.exists():
                    corrupted = corrupt(images, corruption, severity) if corrupted is None else corrupted
                    write(model, corrupted, labels, path)


if __name__ == "__main__":
    main()
