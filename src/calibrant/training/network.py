"""A classifier that normalises its inputs, so that a saved one takes raw data, and its predictions."""

import math
from collections.abc import Sequence
from typing import Any, cast

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from calibrant.losses.parts.global_batch import global_rows
from calibrant.training.config.settings import ModelSettings
from calibrant.training.datasets.dataset import LabelledData, Splits
from calibrant.training.models.by_name import make_model
from calibrant.training.models.classifier import Classifier, WrappedClassifier
from calibrant.training.processes import share_of

# Images that are floating-point numbers at one time while their statistics are computed.
_CHUNK = 4096
# Stored images whose statistics are computed: more would hardly change them.
_READ_FOR_STATISTICS = 10_000
# Samples that are predicted at once. The memory of larger batches goes back to the system each time, which
# takes longer.
_BATCH = 128


class Network(nn.Module):
    """A model that takes inputs as data sets hold them: images as uint8, embeddings, or token ids.

    Images are normalised to mean 0 and deviation 1 per channel of the training part; mean and deviation are
    saved with the weights.

    Args:
        model: The classifier.
        mean: Of each channel of an image between 0 and 1; None for other inputs.
        std: Of each channel.
    """

    mean: Tensor | None
    std: Tensor | None

    def __init__(
        self, model: Classifier | WrappedClassifier, mean: Tensor | None = None, std: Tensor | None = None
    ) -> None:
        super().__init__()
        self.model = model
        self.register_buffer("mean", mean)
        self.register_buffer("std", std)

    def prepare(self, inputs: Tensor) -> Tensor:
        """Return normalised images, and other inputs in the precision of the model."""
        if self.mean is None or self.std is None:
            return inputs.to(next(self.parameters()).dtype) if inputs.is_floating_point() else inputs
        shape = (1, -1, 1, 1)
        scale = 1 / (255 * self.std)
        # Convolutions on CPUs are faster when the channels of a pixel are adjacent in memory.
        pixels = inputs.to(dtype=self.mean.dtype, memory_format=torch.channels_last)
        return (pixels * scale.view(shape)).sub_((self.mean / self.std).view(shape))

    def forward(self, inputs: Tensor) -> Tensor:
        """Return logits of shape ``(n, k)``."""
        return cast("Tensor", self.model(self.prepare(inputs)))

    def features(self, inputs: Tensor) -> Tensor | None:
        """Return the input of the last linear layer, of shape ``(n, d)``, or ``None``."""
        return self.model.features(self.prepare(inputs))

    def logits_and_features(self, inputs: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return both from one pass."""
        return self.model.logits_and_features(self.prepare(inputs))

    @property
    def head(self) -> nn.Linear | None:
        """The last linear layer."""
        return self.model.head

    @property
    def n_features(self) -> int | None:
        """Number of features of a sample, if there are any."""
        return self.model.n_features


def make_network(settings: ModelSettings, splits: Splits) -> Network:
    """Return the network of a configuration for this data set, with random weights."""
    options = model_options(settings, splits.words)
    model = make_model(
        settings.name, n_classes=splits.n_classes, shape=splits.train.inputs.shape[1:], **options
    )
    if splits.train.kind != "image":
        return Network(model)
    model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # missing in torch's types
    return Network(model, *channel_statistics(splits.train))


def model_options(settings: ModelSettings, words: Sequence[str] | None) -> dict[str, Any]:
    """Return the options of a model; ``text_cnn`` also gets the size of the vocabulary."""
    n_words = {"n_words": len(words)} if words is not None and settings.name == "text_cnn" else {}
    return {**n_words, **settings.options}


def channel_statistics(data: LabelledData) -> tuple[Tensor, Tensor]:
    """Return mean and standard deviation of each channel, with pixels scaled to the range from 0 to 1.

    A constant channel gets deviation 1. Of stored images, at most 10,000 are read.
    """
    at_once = _CHUNK
    if data.stored is not None:
        at_once, every = _BATCH, math.ceil(len(data) / _READ_FOR_STATISTICS)
        data = data.take(torch.arange(0, len(data), every))
    total = torch.zeros(data.inputs.shape[1], dtype=torch.float64)
    squares = torch.zeros_like(total)
    for part in data.batches(at_once):
        values = part.double() / 255
        total += values.sum(dim=(0, 2, 3))
        squares += values.square().sum(dim=(0, 2, 3))
    count = data.inputs.numel() / data.inputs.shape[1]
    mean = total / count
    std = (squares / count - mean.square()).clamp_min(0).sqrt()
    return mean.float(), torch.where(std > 1e-6, std, 1.0).float()


def own_logits(fabric: Fabric, network: Network, data: LabelledData) -> Tensor:
    """Return the logits of this process's share of the data, on its device."""
    return _own_logits_and_features(fabric, network, data)[0]


def all_logits_and_features(
    fabric: Fabric, network: Network, data: LabelledData
) -> tuple[Tensor, Tensor | None]:
    """Return logits and features of all the data, on every process, in main memory."""
    logits, features = _own_logits_and_features(fabric, network, data, keep_features=True)
    return global_rows(logits).cpu(), None if features is None else global_rows(features).cpu()


@torch.no_grad()
def _own_logits_and_features(
    fabric: Fabric, network: Network, data: LabelledData, *, keep_features: bool = False
) -> tuple[Tensor, Tensor | None]:
    """Run the network in evaluation mode over this process's rows, then restore its mode."""
    was_training = network.training
    network.eval()
    rows = share_of(fabric).rows(len(data))
    logits: list[Tensor] = []
    features: list[Tensor] = []
    try:
        for batch in data.batches(_BATCH, rows):
            with fabric.autocast():
                z, h = network.logits_and_features(batch.to(fabric.device))
            logits.append(z.float())
            if keep_features and h is not None:
                features.append(h.float())
    finally:
        network.train(was_training)
    return torch.cat(logits), torch.cat(features) if features else None
