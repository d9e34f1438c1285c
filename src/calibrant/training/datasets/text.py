"""Labelled texts: JSON as CLINC150 has it, CSV, or 20 Newsgroups and DBpedia as they are distributed."""

import csv
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from calibrant.data.numbering import numbered
from calibrant.errors import FormatError, InputError
from calibrant.files import parse_json, reading
from calibrant.inputs import check_count
from calibrant.training.datasets.dataset import FOREIGN, LabelledData, Splits, check_exists, read_data
from calibrant.training.datasets.published_texts import published_texts
from calibrant.training.datasets.sampling import TEST_SHARE, check_validation, stratified_split
from calibrant.training.datasets.tokens import Vocabulary, longest, pretrained_encoder

_ALIASES = {"train": ("train",), "validation": ("val", "validation", "valid"), "test": ("test",)}
_LABELLED = "CSV with columns text and label"


class _Texts(NamedTuple):
    """Texts, the names of their classes, and of their units; out-of-distribution texts have no classes."""

    texts: list[str]
    classes: list[str]
    units: list[str] | None = None


# The parts that a file or a folder has, and its out-of-distribution sets.
_Found: TypeAlias = tuple[dict[str, _Texts], dict[str, _Texts]]


def load_text(
    path: Path,
    *,
    model: str | None = None,
    length: int | None = None,
    max_words: int = 20_000,
    headers: bool = True,
    validation: float = 0.1,
    seed: int = 0,
) -> Splits:
    """Return texts as token ids, from ``.json``, ``.csv``, or a folder with ``train.csv`` and its siblings.

    JSON has ``train``, ``val`` and ``test``, each a list of ``[text, label]``, and may have ``oos_test``; CSV
    has columns ``text`` and ``label``, and the folder may have ``oos.csv``. These two are out-of-distribution
    sets. A column ``unit`` names what texts belong to that depend on each other, such as their author.
    Missing parts are taken from the training part, without splitting a unit. Classes are numbered in
    alphabetical order.

    ``20news-bydate.tar.gz`` and ``dbpedia_csv.tar.gz`` are read as they are distributed, without unpacking
    them to the disk; so are the folders that they unpack to.

    Args:
        path: The file or the folder.
        model: A Hugging Face model whose tokenizer is used; without it, a vocabulary of the training words.
        length: Tokens per text; without it, those of the longest training text, at most 128.
        max_words: Size of the built-in vocabulary.
        headers: Whether the texts of 20 Newsgroups begin with their headers, some of which name the group.
        validation: Share of the training part for validation, if there is none.
        seed: Which samples that share is.
    """
    if length is not None:
        check_count(length, "length")
    check_count(max_words, "max_words")
    parts, foreign = _read_texts(path, headers=headers)
    names = tuple(sorted(set(parts["train"].classes)))
    with reading(path.name, "texts"):
        labels = {part: _numbered(texts.classes, names, part) for part, texts in parts.items()}
        texts = {part: each.texts for part, each in parts.items()}
        units = {
            part: numbered(each.units, f"unit of {part}", n=len(each.texts))
            for part, each in parts.items()
            if each.units is not None
        }
        _take_out(texts, labels, units, "test", TEST_SHARE, 0)
        _take_out(texts, labels, units, "validation", validation, seed)
    encode, vocabulary = _encoder(texts["train"], model, length, max_words)
    known = {
        part: LabelledData(encode(texts[part]), labels[part], names, "text", units.get(part))
        for part in texts
    }
    return Splits(
        known["train"],
        known["validation"],
        known["test"],
        foreign={
            name: LabelledData(encode(each.texts), torch.full((len(each.texts),), FOREIGN), None, "text")
            for name, each in foreign.items()
        },
        words=vocabulary,
    )


def _take_out(
    texts: dict[str, list[str]],
    labels: dict[str, Tensor],
    units: dict[str, Tensor],
    part: str,
    share: float,
    seed: int,
) -> None:
    """Move a share of the training part into a part that is missing."""
    if part in texts:
        return
    check_validation(share)
    all_texts, all_labels, all_units = texts["train"], labels["train"], units.get("train")
    kept, held = stratified_split(all_labels, share=share, seed=seed, units=all_units)
    for name, rows in (("train", kept), (part, held)):
        texts[name], labels[name] = [all_texts[row] for row in rows.tolist()], all_labels[rows]
        units |= {} if all_units is None else {name: all_units[rows]}


def _encoder(
    texts: Sequence[str], model: str | None, length: int | None, max_words: int
) -> tuple[Callable[[Sequence[str]], Tensor], tuple[str, ...] | None]:
    """Return the function from texts to token ids, and the words of the built-in vocabulary."""
    if model is not None:
        return pretrained_encoder(model, texts, length), None
    vocabulary = Vocabulary.of(texts, max_words=max_words)
    tokens = length or longest(texts)
    return lambda batch: vocabulary.encode(batch, length=tokens), vocabulary.words


def _numbered(classes: Sequence[str], names: tuple[str, ...], part: str) -> Tensor:
    number = {name: index for index, name in enumerate(names)}
    for label in classes:
        if label not in number:
            raise InputError(
                f"{part}: expected the classes of the training part, got {label!r}; "
                "rename it, or add it to training"
            )
    return torch.tensor([number[label] for label in classes])


def _read_texts(path: Path, *, headers: bool) -> _Found:
    published = published_texts(check_exists(path), headers=headers)
    if published is not None:
        return {part: _Texts(*each) for part, each in published.items()}, {}
    if not headers:
        raise InputError(f"headers: expected true for {path.name}, which is not 20 Newsgroups, got false")
    if path.is_dir():
        return _folder(path)
    if path.suffix.lower() == ".json":
        return read_data(path, "JSON with train, val and test", _clinc)
    if path.suffix.lower() == ".csv":
        return {"train": read_data(path, _LABELLED, _labelled)}, {}
    raise FormatError(
        f"{path.name}: expected a .json or .csv file, a folder of .csv files, or a .tar.gz archive, "
        f"got {path.suffix or 'no suffix'!r}"
    )


def _folder(path: Path) -> _Found:
    files = {
        part: next((path / f"{name}.csv" for name in names if (path / f"{name}.csv").exists()), None)
        for part, names in _ALIASES.items()
    }
    if files["train"] is None:
        raise FormatError(f"{path}: expected train.csv, got none; name the file, or call it train.csv")
    parts = {part: read_data(file, _LABELLED, _labelled) for part, file in files.items() if file is not None}
    foreign = path / "oos.csv"
    if not foreign.exists():
        return parts, {}
    return parts, {"oos": read_data(foreign, "CSV with a column text", _unlabelled)}


def _labelled(path: Path) -> _Texts:
    rows = _rows(path, ("text", "label"))
    units = [row["unit"] for row in rows] if "unit" in rows[0] else None
    return _Texts([row["text"] for row in rows], [row["label"] for row in rows], units)


def _unlabelled(path: Path) -> _Texts:
    return _Texts([row["text"] for row in _rows(path, ("text",))], [])


def _rows(path: Path, columns: Sequence[str]) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.DictReader(file, strict=True)
        names = list(reader.fieldnames or [])
        for column in columns:
            if column not in names:
                raise FormatError(f"expected a column {column}, got {', '.join(names)}; rename what holds it")
        rows = []
        for row in reader:
            if any(not row[column] for column in columns):
                raise FormatError(
                    f"expected {' and '.join(columns)} in every line, got line {reader.line_num} without; "
                    "complete it or leave it out"
                )
            rows.append(row)
    if not rows:
        raise FormatError("expected at least one line below the header, got none")
    return rows


def _clinc(path: Path) -> _Found:
    content = parse_json(path.read_text(encoding="utf-8-sig"))
    if not isinstance(content, Mapping):
        raise FormatError(f"expected an object with train, val and test, got a {type(content).__name__}")
    parts = {}
    for part, names in _ALIASES.items():
        for name in names:
            if content.get(name):
                parts[part] = _pairs(content[name], name)
                break
    if "train" not in parts:
        raise FormatError(
            f"expected train, got {', '.join(map(str, content)) or 'nothing'}; rename what holds it"
        )
    if not content.get("oos_test"):
        return parts, {}
    return parts, {"oos": _Texts(_pairs(content["oos_test"], "oos_test").texts, [])}


def _pairs(entries: Any, name: str) -> _Texts:  # noqa: ANN401  # any JSON value
    if not isinstance(entries, list):
        raise FormatError(f"{name}: expected a list of [text, label], got a {type(entries).__name__}")
    for number, entry in enumerate(entries):
        if not (isinstance(entry, list) and len(entry) == 2 and all(isinstance(item, str) for item in entry)):
            raise FormatError(
                f"{name}: expected [text, label] in every entry, got {str(entry)[:60]!r} in entry {number}"
            )
    return _Texts([text for text, _ in entries], [label for _, label in entries])
