"""Small networks, which train in minutes on two cores; the papers' networks take days.

A multilayer perceptron for embeddings, tables and small images; two convolutional networks for images, one
that generalises and one that memorises; and convolutions over words with pooling over the whole text (Kim,
EMNLP 2014).
"""

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from calibrant.errors import InputError
from calibrant.inputs import check_count
from calibrant.training.models.classifier import (
    Classifier,
    check_counts,
    check_image_shape,
    check_probability,
    he_initialise,
)


class MLP(Classifier):
    """Fully connected layers with rectifiers, for inputs of any shape.

    Without hidden layers it is multinomial logistic regression, and its features are the inputs.

    Args:
        n_classes: Number of classes.
        shape: Of one input, without the batch; the input is flattened.
        hidden: Width of each hidden layer.
        dropout: Probability with which a hidden unit is dropped in training.

    Example:
        >>> MLP(n_classes=10, shape=(1, 8, 8), hidden=(32,)).n_features
        32

    References:
        Weights by He et al., "Delving Deep into Rectifiers", ICCV 2015; biases start at zero.
    """

    def __init__(
        self,
        *,
        n_classes: int,
        shape: Sequence[int],
        hidden: Sequence[int] = (256, 256),
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        check_count(n_classes, "n_classes", at_least=2)
        check_probability(dropout, "dropout")
        widths = [math.prod(check_count(size, "shape") for size in shape)]
        layers: list[nn.Module] = []
        for width in check_counts(hidden, "hidden", at_least=0):
            layers += [nn.Linear(widths[-1], width), nn.ReLU(), nn.Dropout(dropout)]
            widths.append(width)
        self.body = nn.Sequential(nn.Flatten(), *layers)
        self.head = nn.Linear(widths[-1], n_classes)
        for layer in self.body:
            if isinstance(layer, nn.Linear):
                nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
                nn.init.zeros_(layer.bias)
        nn.init.zeros_(self.head.bias)

    def features(self, inputs: Tensor) -> Tensor:
        """Return the last hidden layer."""
        h: Tensor = self.body(inputs)
        return h


class SmallCNN(Classifier):
    """Convolutions with batch normalisation, pooling between them, then the mean over the image.

    No paper proposes this network, but it has the same parts (the mean over the image is from Lin et al.,
    "Network in Network", 2014), and it works on images as small as the bundled digits.

    Args:
        n_classes: Number of classes.
        shape: ``(channels, height, width)``.
        widths: Channels of each convolution.

    Example:
        >>> sum(p.numel() for p in SmallCNN(n_classes=10, shape=(1, 8, 8)).parameters())
        94186
    """

    def __init__(
        self, *, n_classes: int, shape: Sequence[int], widths: Sequence[int] = (32, 64, 128)
    ) -> None:
        super().__init__()
        check_count(n_classes, "n_classes", at_least=2)
        widths = check_counts(widths, "widths")
        channels, _, _ = check_image_shape(shape, at_least=2 ** (len(widths) - 1))
        layers: list[nn.Module] = []
        for depth, (n_in, n_out) in enumerate(zip((channels, *widths), widths, strict=False)):
            if depth:
                layers.append(nn.MaxPool2d(2))
            layers += [nn.Conv2d(n_in, n_out, 3, padding=1, bias=False), nn.BatchNorm2d(n_out), nn.ReLU()]
        self.body = nn.Sequential(*layers)
        self.head = nn.Linear(widths[-1], n_classes)
        he_initialise(self)

    def features(self, inputs: Tensor) -> Tensor:
        """Return the mean over the image of the last convolution."""
        h: Tensor = self.body(inputs).mean(dim=(2, 3))
        return h


class ConvMLP(Classifier):
    """Convolutions, each followed by pooling, then fully connected layers over all positions.

    Without normalisation, and with a weight for each position, it memorises thousands of images in a few
    epochs and becomes as overconfident as the large networks of the papers, in minutes on one core.

    Args:
        n_classes: Number of classes.
        shape: ``(channels, height, width)``.
        widths: Channels of each convolution; each halves height and width.
        hidden: Width of each fully connected layer before the head.

    Example:
        >>> sum(p.numel() for p in ConvMLP(n_classes=10, shape=(3, 32, 32)).parameters())
        1147466

    References:
        The layout of LeNet-5: LeCun et al., "Gradient-Based Learning Applied to Document Recognition", 1998.
    """

    def __init__(
        self,
        *,
        n_classes: int,
        shape: Sequence[int],
        widths: Sequence[int] = (32, 64, 128),
        hidden: Sequence[int] = (512,),
    ) -> None:
        super().__init__()
        check_count(n_classes, "n_classes", at_least=2)
        widths = check_counts(widths, "widths")
        channels, height, width = check_image_shape(shape, at_least=2 ** len(widths))
        layers: list[nn.Module] = []
        for n_in, n_out in zip((channels, *widths), widths, strict=False):
            layers += [nn.Conv2d(n_in, n_out, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
        sizes = [
            widths[-1] * (height >> len(widths)) * (width >> len(widths)),
            *check_counts(hidden, "hidden", at_least=0),
        ]
        layers.append(nn.Flatten())
        for n_in, n_out in pairwise(sizes):
            layers += [nn.Linear(n_in, n_out), nn.ReLU()]
        self.body = nn.Sequential(*layers)
        self.head = nn.Linear(sizes[-1], n_classes)

    def features(self, inputs: Tensor) -> Tensor:
        """Return the last hidden layer."""
        h: Tensor = self.body(inputs)
        return h


PADDING = 0
"""The word that pads a short text to the length of the batch."""


class TextCNN(Classifier):
    """A network that looks for short phrases: each feature is the best match of one filter in the text.

    Words become vectors; filters over 3, 4 and 5 words run along the text, and each filter returns its
    largest response. Each text is padded on both sides by the length of the filter, so that the response does
    not depend on the padding of the batch. The global-pooling network of the calibration papers on 20
    Newsgroups is similar, with its filters stacked instead of side by side.

    Args:
        n_classes: Number of classes.
        shape: ``(length,)`` of a text in words; other lengths work too.
        n_words: Size of the vocabulary; word 0 is padding.
        width: Size of a word's vector.
        windows: Lengths of the filters in words.
        filters: Number of filters of each length.
        dropout: Probability with which a feature is dropped in training.
        vectors: Trained vectors such as GloVe, of shape ``(n_words, width)``, instead of random ones between
            -0.25 and 0.25.
        frozen: Do not train the vectors (the paper's "static" form).

    References:
        Kim, "Convolutional Neural Networks for Sentence Classification", EMNLP 2014. Weight decay replaces
        its bound on the norm of the head's weights.
    """

    def __init__(
        self,
        *,
        n_classes: int,
        shape: Sequence[int],
        n_words: int,
        width: int = 300,
        windows: Sequence[int] = (3, 4, 5),
        filters: int = 100,
        dropout: float = 0.5,
        vectors: Tensor | None = None,
        frozen: bool = False,
    ) -> None:
        super().__init__()
        check_count(n_classes, "n_classes", at_least=2)
        check_count(n_words, "n_words", at_least=2)
        windows = check_counts(windows, "windows")
        if len(shape) != 1:
            raise InputError(f"shape: expected (length,) of a text in words, got {tuple(shape)}")
        self.embedding = nn.Embedding(n_words, check_count(width, "width"), padding_idx=PADDING)
        self._set_vectors(vectors)
        self.embedding.weight.requires_grad_(not frozen)
        self.filters = nn.ModuleList(
            nn.Conv1d(width, check_count(filters, "filters"), window, padding=window) for window in windows
        )
        self.dropout = nn.Dropout(check_probability(dropout, "dropout"))
        self.head = nn.Linear(filters * len(windows), n_classes)

    @torch.no_grad()
    def _set_vectors(self, vectors: Tensor | None) -> None:
        weight = self.embedding.weight
        if vectors is None:
            nn.init.uniform_(weight, -0.25, 0.25)
        elif isinstance(vectors, Tensor) and vectors.shape == weight.shape:
            weight.copy_(vectors)
        else:
            given = tuple(vectors.shape) if isinstance(vectors, Tensor) else type(vectors).__name__
            raise InputError(f"vectors: expected a tensor of shape {tuple(weight.shape)}, got {given}")
        weight[PADDING].zero_()

    def features(self, inputs: Tensor) -> Tensor:
        """Return the best match of each filter; ``inputs`` are token ids of shape ``(n, length)``."""
        words = self.embedding(inputs).transpose(1, 2)
        best = [F.relu(layer(words)).amax(dim=2) for layer in self.filters]
        h: Tensor = self.dropout(torch.cat(best, dim=1))
        return h
