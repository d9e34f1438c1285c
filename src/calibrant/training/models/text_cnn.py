"""Convolutions over words with pooling over the whole text (Kim, EMNLP 2014)."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from calibrant.errors import InputError
from calibrant.inputs import check_count
from calibrant.training.models.classifier import Classifier, check_probability

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
        check_count(len(windows), "number of windows")
        if len(shape) != 1:
            raise InputError(f"shape: expected (length,) of a text in words, got {tuple(shape)}")
        self.embedding = nn.Embedding(n_words, check_count(width, "width"), padding_idx=PADDING)
        self._set_vectors(vectors)
        self.embedding.weight.requires_grad_(not frozen)
        self.filters = nn.ModuleList(
            nn.Conv1d(width, check_count(filters, "filters"), check_count(window, "windows"), padding=window)
            for window in windows
        )
        self.dropout = nn.Dropout(check_probability(dropout, "dropout"))
        self.head = nn.Linear(filters * len(windows), n_classes)

    @torch.no_grad()
    def _set_vectors(self, vectors: Tensor | None) -> None:
        weight = self.embedding.weight
        if vectors is None:
            nn.init.uniform_(weight, -0.25, 0.25)
        elif vectors.shape == weight.shape:
            weight.copy_(vectors)
        else:
            raise InputError(f"vectors: expected shape {tuple(weight.shape)}, got {tuple(vectors.shape)}")
        weight[PADDING].zero_()

    def features(self, inputs: Tensor) -> Tensor:
        """Return the best match of each filter; ``inputs`` are token ids of shape ``(n, length)``."""
        words = self.embedding(inputs).transpose(1, 2)
        best = [F.relu(layer(words)).amax(dim=2) for layer in self.filters]
        h: Tensor = self.dropout(torch.cat(best, dim=1))
        return h
