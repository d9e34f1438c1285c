"""Texts to token ids, by a vocabulary of the training texts or by the tokenizer of a pretrained model."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from calibrant.errors import InputError
from calibrant.extras import optional

PADDING, UNKNOWN = 0, 1

# A word with its apostrophes, or a single punctuation mark.
_WORD = re.compile(r"\w+(?:'\w+)*|[^\w\s]")

# Without a given length, longer texts are cut: one long text must not pad all others.
_MOST_TOKENS = 128


@dataclass(frozen=True)
class Vocabulary:
    """The words of the training texts, numbered from the most frequent; 0 pads and 1 is any other word.

    Example:
        >>> vocabulary = Vocabulary.of(["to be or not to be"])
        >>> vocabulary.words
        ('<pad>', '<unknown>', 'be', 'to', 'not', 'or')
        >>> vocabulary.encode(["To be, again"], length=5)
        tensor([[3, 2, 1, 1, 0]])
    """

    words: tuple[str, ...]

    @classmethod
    def of(cls, texts: Iterable[str], *, max_words: int = 20_000) -> "Vocabulary":
        """Return the most frequent words; equally frequent ones in alphabetical order."""
        counts = Counter(word for text in texts for word in split_words(text))
        ranked = sorted(counts, key=lambda word: (-counts[word], word))
        return cls(("<pad>", "<unknown>", *ranked[:max_words]))

    def encode(self, texts: Sequence[str], *, length: int) -> Tensor:
        """Return ids of shape ``(n, length)``; short texts are padded at the end, long ones cut."""
        number = {word: index for index, word in enumerate(self.words)}
        ids = torch.full((len(texts), length), PADDING)
        for row, text in enumerate(texts):
            # A text without words gets one token, because networks pool over the tokens.
            tokens = [number.get(word, UNKNOWN) for word in split_words(text)[:length]] or [UNKNOWN]
            ids[row, : len(tokens)] = torch.tensor(tokens)
        return ids


def split_words(text: str) -> list[str]:
    """Return the words and punctuation marks of a text in lower case.

    Example:
        >>> split_words("What's up?")
        ["what's", 'up', '?']
    """
    return _WORD.findall(text.lower())


def longest(texts: Iterable[str]) -> int:
    """Return the number of tokens of the longest text, at most 128."""
    return max(1, min(_MOST_TOKENS, max(len(split_words(text)) for text in texts)))


def pretrained_encoder(
    model: str, texts: Sequence[str], length: int | None
) -> Callable[[Sequence[str]], Tensor]:
    """Return a function from texts to ids of one length, by the tokenizer of a Hugging Face model.

    Args:
        model: Name on the Hub, or a folder.
        texts: Training texts; the longest sets the length if none is given, at most 128 tokens.
        length: Number of tokens that every text is padded or cut to.
    """
    with optional("tokenizer"):
        transformers: Any = import_module("transformers")
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    except (OSError, ValueError) as error:
        detail = " ".join(str(error).split())[:160]
        raise InputError(
            f"model: expected a name on the Hugging Face Hub or a folder, got {model!r} ({detail})"
        ) from error
    if tokenizer.pad_token_id is None:
        raise InputError(f"model: expected a tokenizer that can pad, got {model!r} without a padding token")
    if length is None:
        ids = tokenizer(list(texts), truncation=True, max_length=_MOST_TOKENS)["input_ids"]
        length = max(len(row) for row in ids)

    def encode(texts: Sequence[str]) -> Tensor:
        options = {"padding": "max_length", "truncation": True, "max_length": length}
        return torch.tensor(tokenizer(list(texts), **options)["input_ids"], dtype=torch.int64)

    return encode
