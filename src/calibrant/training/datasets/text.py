"""Classified texts, from JSON in the layout of CLINC150 or from CSV."""

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from calibrant.errors import InputError
from calibrant.training.datasets.dataset import FOREIGN, LabelledData, Splits
from calibrant.training.datasets.reading import naming
from calibrant.training.datasets.split import TEST_SHARE, check_validation, stratified_split
from calibrant.training.datasets.text_files import Texts, read_texts
from calibrant.training.datasets.tokens import Vocabulary, longest, pretrained_encoder


def load_text(
    path: Path,
    *,
    model: str | None = None,
    length: int | None = None,
    max_words: int = 20_000,
    validation: float = 0.1,
    seed: int = 0,
) -> Splits:
    """Return texts as token ids, from ``.json``, ``.csv``, or a folder with ``train.csv`` and its siblings.

    JSON has ``train``, ``val`` and ``test``, each a list of ``[text, label]``, and may have ``oos_test``, a
    foreign set; CSV has columns ``text`` and ``label``, and ``oos.csv`` in the folder is a foreign set. Parts
    that are missing are taken out of training. Classes are numbered in alphabetical order.

    Args:
        path: The file or the folder.
        model: A Hugging Face model whose tokenizer is used; without it, a vocabulary of the training words.
        length: Tokens per text; without it, those of the longest training text, at most 128.
        max_words: Size of the built-in vocabulary.
        validation: Share of the training part for validation, if there is none.
        seed: Which samples that share is.
    """
    if length is not None and length < 1:
        raise InputError(f"length: expected a number of tokens from 1, got {length}")
    if max_words < 1:
        raise InputError(f"max_words: expected a number of words from 1, got {max_words}")
    parts, foreign = read_texts(path)
    names = tuple(sorted(set(parts["train"].labels)))
    with naming(path, "texts"):
        labels = {part: _number(texts.labels, names, part) for part, texts in parts.items()}
        words = {part: list(texts.texts) for part, texts in parts.items()}
        _take_out(words, labels, "test", TEST_SHARE, 0)
        _take_out(words, labels, "validation", validation, seed)
    encode, vocabulary = _encoder(words["train"], model, length, max_words)
    known = {part: LabelledData(encode(words[part]), labels[part], names, "text") for part in words}
    return Splits(
        known["train"],
        known["validation"],
        known["test"],
        foreign={name: _foreign(texts, encode) for name, texts in foreign.items()},
        words=vocabulary,
    )


def _take_out(
    words: dict[str, list[str]], labels: dict[str, Tensor], part: str, share: float, seed: int
) -> None:
    """Move a share of the training part into a part that is missing."""
    if part in words:
        return
    check_validation(share)
    kept, held = stratified_split(labels["train"], share=share, seed=seed)
    texts, classes = words["train"], labels["train"]
    words[part], labels[part] = [texts[row] for row in held.tolist()], classes[held]
    words["train"], labels["train"] = [texts[row] for row in kept.tolist()], classes[kept]


def _encoder(
    texts: Sequence[str], model: str | None, length: int | None, max_words: int
) -> tuple[Callable[[Sequence[str]], Tensor], tuple[str, ...] | None]:
    """Return what turns texts into ids, and the words of the built-in vocabulary."""
    if model is not None:
        return pretrained_encoder(model, texts, length), None
    vocabulary = Vocabulary.of(texts, max_words=max_words)
    tokens = length or longest(texts)
    return lambda batch: vocabulary.encode(batch, length=tokens), vocabulary.words


def _number(labels: Sequence[str], names: tuple[str, ...], part: str) -> Tensor:
    number = {name: index for index, name in enumerate(names)}
    for label in labels:
        if label not in number:
            raise InputError(
                f"{part}: expected the classes of the training part, got {label!r}; "
                "rename it, or add it to training"
            )
    return torch.tensor([number[label] for label in labels])


def _foreign(texts: Texts, encode: Callable[[Sequence[str]], Tensor]) -> LabelledData:
    return LabelledData(encode(texts.texts), torch.full((len(texts.texts),), FOREIGN), None, "text")
