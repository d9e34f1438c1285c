"""Train the small CIFAR-10 network whose real predictions are shipped with Calibrant.

First a convolutional network is trained with plain cross-entropy; then, on its frozen features, a
perceptron, until it is clearly overconfident in a way that one temperature cannot repair, as networks
fine-tuned on features are. That is what post-hoc calibration is for. Images are read from the Hugging Face
parquet files of CIFAR-10 (columns ``img: {bytes, path}`` and ``label``)::

    python scripts/train_bundled.py CIFAR10_FOLDER --weights cnn.safetensors

The first stage is skipped when the weights file exists. Its twenty-four epochs take about half an hour on
two cores, the perceptron a few seconds.
"""

import argparse
import io
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import torch
import torch.nn.functional as F
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from calibrant import Predictions, evaluate, save_predictions
from calibrant.metrics import expected_calibration_error
from calibrant.posthoc import SMART, TemperatureScaling

CLASSES = [
    "airplane",
    "automobile",
    "bird",
    "cat",
    "deer",
    "dog",
    "frog",
    "horse",
    "ship",
    "truck",
]  # the official order
BUNDLED = Path(__file__).parents[1] / "src" / "calibrant" / "data" / "bundled"
N_VALIDATION = 5_000
NOISE_SEVERITY_5 = 0.10  # standard deviation on the unit scale, as in CIFAR-10-C
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)


class SmallCNN(nn.Module):
    """Four 3x3 convolutions to 128 pooled features, and a small head to train them with."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *_stage(3, 32),
            nn.MaxPool2d(2),
            *_stage(32, 64),
            nn.MaxPool2d(2),
            *_stage(64, 128),
            *_stage(128, 128),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(128, 64),
            nn.ReLU(),
        )
        self.head = nn.Linear(64, len(CLASSES))

    def forward(self, images: Tensor) -> Tensor:
        """Return logits."""
        logits: Tensor = self.head(self.body(images))
        return logits

    def pooled(self, images: Tensor) -> Tensor:
        """Return the features of the convolutions alone."""
        features: Tensor = self.body[:-2](images)
        return features


class Perceptron(nn.Module):
    """Two hidden layers of 256 units, 64 penultimate features, and a linear head."""

    mean: Tensor
    deviation: Tensor

    def __init__(self, pooled: Tensor) -> None:
        super().__init__()
        self.register_buffer("mean", pooled.mean(dim=0))
        self.register_buffer("deviation", pooled.std(dim=0))
        sizes = (pooled.shape[1], 256, 256, 64)
        self.body = nn.Sequential(
            *(layer for into, out in pairwise(sizes) for layer in (nn.Linear(into, out), nn.ReLU()))
        )
        self.head = nn.Linear(64, len(CLASSES))

    def forward(self, pooled: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits and penultimate features."""
        features = self.body((pooled - self.mean) / self.deviation)
        return self.head(features), features


def _stage(n_in: int, n_out: int) -> list[nn.Module]:
    return [nn.Conv2d(n_in, n_out, 3, padding=1, bias=False), nn.BatchNorm2d(n_out), nn.ReLU()]


def fresh_network() -> SmallCNN:
    """Return an untrained network in the memory layout that convolutions like best on a CPU."""
    model = SmallCNN()
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # missing in torch's annotations
    return model


def read_images(folder: Path, split: str) -> tuple[Tensor, Tensor]:
    """Read one split as uint8 images ``(n, 3, 32, 32)`` and labels."""
    files = sorted(folder.rglob(f"{split}-*.parquet"))
    if not files:
        raise SystemExit(f"no {split}-*.parquet below {folder}")
    table = pq.read_table(files)
    pictures = [
        np.asarray(Image.open(io.BytesIO(row["bytes"])).convert("RGB")) for row in table["img"].to_pylist()
    ]
    return torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2), torch.tensor(table["label"].to_pylist())


def normalise(unit_images: Tensor) -> Tensor:
    """Centre and scale images given on the unit scale."""
    mean, std = (torch.tensor(v)[:, None, None] for v in (MEAN, STD))
    return ((unit_images - mean) / std).contiguous(memory_format=torch.channels_last)


def batches(n: int, size: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Yield the indices of one shuffled epoch."""
    yield from torch.randperm(n, generator=generator).split(size)


def train(images: Tensor, labels: Tensor, *, epochs: int, seed: int) -> SmallCNN:
    """Train with cross-entropy, flips, and a one-cycle schedule."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    model = fresh_network()
    size = 128
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4, nesterov=True)
    steps = epochs * -(-len(labels) // size)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 0.1, total_steps=steps)
    for epoch in range(epochs):
        model.train()
        start, losses = time.perf_counter(), []
        for index in batches(len(labels), size, generator):
            x = normalise(images[index].float() / 255)
            flip = torch.rand(len(x), generator=generator) < 0.5
            x = torch.where(flip[:, None, None, None], x.flip(3), x)
            loss = F.cross_entropy(model(x), labels[index])
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
            optimiser.step()
            schedule.step()
            losses.append(loss.item())
        seconds = time.perf_counter() - start
        print(f"epoch {epoch + 1}: loss {np.mean(losses):.3f}, {seconds:.0f} s", flush=True)
    return model


@torch.no_grad()
def pooled_features(model: SmallCNN, images: Tensor, *, noise: float = 0.0) -> Tensor:
    """Return what the convolutions make of images, with Gaussian noise on the unit scale if asked for."""
    model.eval()
    generator = torch.Generator().manual_seed(0)
    parts = []
    for chunk in images.split(1000):
        x = chunk.float() / 255
        if noise:
            x = (x + noise * torch.randn(x.shape, generator=generator)).clamp(0, 1)
        parts.append(model.pooled(normalise(x)))
    return torch.cat(parts)


@torch.no_grad()
def report_linear_head(
    model: SmallCNN, validation: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor]
) -> None:
    """Print how well one temperature repairs the convolutions' own head, and what chance alone would show."""
    val, new = (
        model.head(model.body[-2:](pooled_features(model, images))) for images, _ in (validation, test)
    )
    probs = TemperatureScaling.fit(val, validation[1])(new).exp()
    sure = probs.amax(dim=1)
    hits = torch.rand(200, len(sure), generator=torch.Generator().manual_seed(0)) < sure
    chance = np.mean([expected_calibration_error(confidence=sure, correct=hit) for hit in hits])
    found = expected_calibration_error(probs, test[1])
    smart = expected_calibration_error(SMART.fit(val, validation[1])(new).exp(), test[1])
    print(
        f"linear head: ECE {found:.4f} after one temperature, {smart:.4f} after SMART, {chance:.4f} by chance"
    )


def train_perceptron(pooled: Tensor, labels: Tensor, *, epochs: int, seed: int) -> Perceptron:
    """Train with cross-entropy and Adam, without anything that would hold confidence back."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    model = Perceptron(pooled)
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(epochs):
        for index in batches(len(labels), 128, generator):
            loss = F.cross_entropy(model(pooled[index])[0], labels[index])
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
            optimiser.step()
    return model


def main() -> None:
    """Train, predict, and write the files that the package ships."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cifar10", type=Path, help="folder with the parquet files")
    parser.add_argument("--weights", type=Path, required=True, help="where the network is kept")
    parser.add_argument("--epochs", type=int, default=24, help="of the convolutions")
    parser.add_argument("--perceptron-epochs", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    images, labels = read_images(args.cifar10, "train")
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(args.seed))
    held_out, kept = order[:N_VALIDATION], order[N_VALIDATION:]
    if args.weights.exists():
        model = fresh_network()
        model.load_state_dict(load_file(args.weights))
    else:
        model = train(images[kept], labels[kept], epochs=args.epochs, seed=args.seed)
        save_file({k: v.contiguous() for k, v in model.state_dict().items()}, args.weights)
    report_linear_head(model, (images[held_out], labels[held_out]), read_images(args.cifar10, "test"))
    perceptron = train_perceptron(
        pooled_features(model, images[kept]), labels[kept], epochs=args.perceptron_epochs, seed=args.seed
    )

    test_images, test_labels = read_images(args.cifar10, "test")
    BUNDLED.mkdir(parents=True, exist_ok=True)
    for name, x, y, noise in (
        ("val", images[held_out], labels[held_out], 0.0),
        ("test", test_images, test_labels, 0.0),
        ("test_noise", test_images, test_labels, NOISE_SEVERITY_5),
    ):
        with torch.no_grad():
            logits, features = perceptron(pooled_features(model, x, noise=noise))
        predictions = Predictions(
            logits=logits.numpy(),
            labels=y.numpy(),
            features=features.half().numpy(),
            class_names=tuple(CLASSES),
        )
        save_predictions(predictions, BUNDLED / f"cifar10_{name}.npz")
        print(name, {k: round(v, 4) for k, v in evaluate(predictions).metrics.items()})
    save_file(
        {k: v.contiguous() for k, v in perceptron.head.state_dict().items()},
        BUNDLED / "cifar10_head.safetensors",
    )


if __name__ == "__main__":
    main()
