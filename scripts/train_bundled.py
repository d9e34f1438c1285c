"""Train the small CIFAR-10 network whose real predictions are shipped with Calibrant.

The network is trained with plain cross-entropy until it is clearly overconfident, which is what
post-hoc calibration is for. Images are read from the Hugging Face parquet files of CIFAR-10
(columns ``img: {bytes, path}`` and ``label``)::

    python scripts/train_bundled.py CIFAR10_FOLDER --weights cnn.safetensors

Training is skipped when the weights file exists, so that the predictions can be written again
from the same network. Twenty-four epochs take about half an hour on two cores.
"""

import argparse
import io
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import torch
import torch.nn.functional as F
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from calibrant import Predictions, evaluate, save_predictions

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
    """Four 3x3 convolutions and a linear head on 64 penultimate features."""

    def __init__(self, n_classes: int = 10, n_features: int = 64) -> None:
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
            nn.Linear(128, n_features),
            nn.ReLU(),
        )
        self.head = nn.Linear(n_features, n_classes)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits and penultimate features."""
        features = self.body(images)
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
            loss = F.cross_entropy(model(x)[0], labels[index])
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
            optimiser.step()
            schedule.step()
            losses.append(loss.item())
        seconds = time.perf_counter() - start
        print(f"epoch {epoch + 1}: loss {np.mean(losses):.3f}, {seconds:.0f} s", flush=True)
    return model


@torch.inference_mode()
def predict(model: SmallCNN, images: Tensor, *, noise: float = 0.0) -> tuple[Tensor, Tensor]:
    """Return logits and features, with Gaussian noise on the unit scale if asked for."""
    model.eval()
    generator = torch.Generator().manual_seed(0)
    logits, features = [], []
    for chunk in images.split(1000):
        x = chunk.float() / 255
        if noise:
            x = (x + noise * torch.randn(x.shape, generator=generator)).clamp(0, 1)
        z, h = model(normalise(x))
        logits.append(z)
        features.append(h)
    return torch.cat(logits), torch.cat(features)


def main() -> None:
    """Train, predict, and write the files that the package ships."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cifar10", type=Path, help="folder with the parquet files")
    parser.add_argument("--weights", type=Path, required=True, help="where the network is kept")
    parser.add_argument("--epochs", type=int, default=24)
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

    test_images, test_labels = read_images(args.cifar10, "test")
    BUNDLED.mkdir(parents=True, exist_ok=True)
    for name, x, y, noise in (
        ("val", images[held_out], labels[held_out], 0.0),
        ("test", test_images, test_labels, 0.0),
        ("test_noise", test_images, test_labels, NOISE_SEVERITY_5),
    ):
        logits, features = predict(model, x, noise=noise)
        predictions = Predictions(
            logits=logits.numpy(),
            labels=y.numpy(),
            features=features.half().numpy(),
            class_names=tuple(CLASSES),
        )
        save_predictions(predictions, BUNDLED / f"cifar10_{name}.npz")
        print(name, {k: round(v, 4) for k, v in evaluate(predictions).metrics.items()})
    save_file(
        {k: v.contiguous() for k, v in model.head.state_dict().items()}, BUNDLED / "cifar10_head.safetensors"
    )


if __name__ == "__main__":
    main()
