"""A classifier together with how its inputs are brought to numbers, so that a saved one works on raw data."""

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from calibrant.training.config.settings import ModelSettings
from calibrant.training.datasets.dataset import LabelledData, Splits
from calibrant.training.models.by_name import make_model
from calibrant.training.models.classifier import Classifier
from calibrant.training.models.wrapped import WrappedClassifier

# Images are measured in parts of this many, so that floats of a whole set are never held at once.
_CHUNK = 4096


class Network(nn.Module):
    """A model that takes inputs as data sets hold them: images as uint8, embeddings, or token ids.

    Images are brought to mean 0 and deviation 1 per channel of the training part; these two numbers are saved
    with the weights.

    Args:
        model: What makes logits of numbers.
        mean: Of each channel of an image between 0 and 1; none for other inputs.
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
        """Return inputs as the model reads them."""
        if self.mean is None or self.std is None:
            return inputs.to(next(self.parameters()).dtype) if inputs.is_floating_point() else inputs
        shape = (1, -1, 1, 1)
        scale = 1 / (255 * self.std)
        # Convolutions on CPUs are faster when the channels of a pixel lie side by side.
        pixels = inputs.to(dtype=self.mean.dtype, memory_format=torch.channels_last)
        return (pixels * scale.view(shape)).sub_((self.mean / self.std).view(shape))

    def forward(self, inputs: Tensor) -> Tensor:
        """Return logits of shape ``(n, k)``."""
        return cast("Tensor", self.model(self.prepare(inputs)))

    def features(self, inputs: Tensor) -> Tensor | None:
        """Return what the last linear layer sees, of shape ``(n, d)``, or ``None``."""
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
        """Number of features of a sample, if it has any."""
        return self.model.n_features


def make_network(settings: ModelSettings, splits: Splits) -> Network:
    """Make the network that a configuration names, for this data set, with random weights."""
    options = model_options(settings, splits.words)
    model = make_model(
        settings.name, n_classes=splits.n_classes, shape=splits.train.inputs.shape[1:], **options
    )
    if splits.train.kind != "image":
        return Network(model)
    model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # missing in torch's types
    return Network(model, *channel_statistics(splits.train))


def model_options(settings: ModelSettings, words: Sequence[str] | None) -> dict[str, Any]:
    """Return the options of a model, with the size of the vocabulary for the one that needs it."""
    n_words = {"n_words": len(words)} if words is not None and settings.name == "text_cnn" else {}
    return {**n_words, **settings.options}


def channel_statistics(data: LabelledData) -> tuple[Tensor, Tensor]:
    """Return mean and standard deviation of each channel of images whose values lie between 0 and 1.

    A channel without variation has deviation 1.
    """
    total = torch.zeros(data.inputs.shape[1], dtype=torch.float64)
    squares = torch.zeros_like(total)
    for part in data.inputs.split(_CHUNK):
        values = part.double() / 255
        total += values.sum(dim=(0, 2, 3))
        squares += values.square().sum(dim=(0, 2, 3))
    count = data.inputs.numel() / data.inputs.shape[1]
    mean = total / count
    std = (squares / count - mean.square()).clamp_min(0).sqrt()
    return mean.float(), torch.where(std > 1e-6, std, 1.0).float()
