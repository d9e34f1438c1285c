"""Labelled samples, and a data set divided into parts for training."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Literal, Protocol, TypeAlias, TypeVar, get_args

import torch
from torch import Tensor

from calibrant.errors import FormatError, InputError
from calibrant.files import reading
from calibrant.inputs import check_units

DataKind: TypeAlias = Literal["image", "embedding", "text"]

_T = TypeVar("_T")

#: The label of an out-of-distribution sample.
FOREIGN = -1


class StoredImages(Protocol):
    """Images that are read when they are needed; see ``PictureFiles``."""

    def __len__(self) -> int: ...

    def take(self, rows: Tensor) -> "StoredImages":
        """Return the images of these rows, without reading them."""

    def read(self) -> Tensor:
        """Return all images, uint8 of shape ``(n, c, h, w)``."""

    def random_crops(self, draws: Sequence[Tensor], *, smallest: float) -> Tensor:
        """Return a random window of each image, chosen by four numbers between 0 and 1 for each."""


@dataclass(frozen=True, eq=False, repr=False)
class LabelledData:
    """Samples with their classes, in memory unless they are stored images.

    Attributes:
        inputs: Images as uint8 of shape ``(n, c, h, w)``, embeddings as floats of shape ``(n, d)``, or token
            ids as int64 of shape ``(n, length)``.
        labels: Classes as int64 of shape ``(n,)``; -1 for out-of-distribution samples.
        class_names: One name per class, or none.
        kind: ``"image"``, ``"embedding"`` or ``"text"``.
        units: What each sample belongs to, if samples depend on each other, such as a patient: whole numbers
            of shape ``(n,)``. None if each sample stands alone.
        stored: Images that stay files; ``inputs`` then has their shape on torch's device ``"meta"``, without
            any numbers, and :meth:`read` returns pixels.

    Example:
        >>> data = LabelledData(torch.zeros(3, 2), torch.tensor([0, 1, 1]), ("cat", "dog"), "embedding")
        >>> data.take([0, 2])
        LabelledData(n=2, embedding (2,), class_names)
    """

    inputs: Tensor
    labels: Tensor
    class_names: tuple[str, ...] | None
    kind: DataKind
    units: Tensor | None = None
    stored: StoredImages | None = None

    def __post_init__(self) -> None:
        _check_inputs(self.inputs, self.kind)
        if (self.stored is not None) != self.inputs.is_meta:
            raise InputError(
                "inputs: expected numbers, or none exactly if images are stored, got the opposite"
            )
        _check_labels(self.labels, n=len(self.inputs))
        if self.class_names is not None:
            _check_names(self.class_names, highest=int(self.labels.max()))
        if self.units is not None:
            check_units(self.units, n=len(self.inputs))

    def __len__(self) -> int:
        return len(self.inputs)

    def __repr__(self) -> str:
        names = "" if self.class_names is None else ", class_names"
        return f"LabelledData(n={len(self)}, {self.kind} {tuple(self.inputs.shape[1:])}{names})"

    def take(self, index: Tensor | Sequence[int]) -> "LabelledData":
        """Return the samples with these row numbers, or those where a mask of length ``n`` is true."""
        rows = torch.as_tensor(index)
        try:
            labels, units = self.labels[rows], None if self.units is None else self.units[rows]
            if self.stored is None:
                return replace(self, inputs=self.inputs[rows], labels=labels, units=units)
            stored = self.stored.take(_numbers(rows, len(self)))
            inputs = self.inputs.new_empty(len(labels), *self.inputs.shape[1:])
            return replace(self, inputs=inputs, labels=labels, units=units, stored=stored)
        except IndexError:
            raise InputError(
                f"index: expected row numbers below {len(self)} or a mask of that length, "
                f"got {rows.dtype} of shape {tuple(rows.shape)} with others"
            ) from None

    def read(self, rows: Tensor | slice) -> Tensor:
        """Return the inputs of these rows in memory."""
        if self.stored is None:
            return self.inputs[rows]
        return self.stored.take(_numbers(rows, len(self))).read()

    def read_crops(self, rows: Tensor, draws: Sequence[Tensor], *, smallest: float) -> Tensor:
        """Return a random window of each of these stored images."""
        assert self.stored is not None
        return self.stored.take(rows).random_crops(draws, smallest=smallest)

    def batches(self, size: int, place: slice = slice(None)) -> Iterator[Tensor]:
        """Yield the inputs in a place in memory, this many at a time; no rows are one empty batch."""
        start, stop, _ = place.indices(len(self))
        for first in range(start, max(stop, start + 1), size):
            yield self.read(slice(first, min(first + size, stop)))

    def as_foreign(self) -> "LabelledData":
        """Return the same samples as out-of-distribution samples, without classes."""
        return replace(self, labels=torch.full_like(self.labels, FOREIGN), class_names=None)


@dataclass(frozen=True, eq=False)
class Splits:
    """A data set divided into parts for training.

    Attributes:
        train: Trains the model.
        validation: Chooses checkpoints and fits calibrators.
        test: Results are reported on it.
        shifted: The test part under corruptions, by name, with its labels.
        foreign: Out-of-distribution samples, by name; their labels are -1.
        words: For text with the built-in vocabulary, the word of each token id: 0 pads and 1 is unknown.
    """

    train: LabelledData
    validation: LabelledData
    test: LabelledData
    shifted: Mapping[str, LabelledData] = field(default_factory=dict)
    foreign: Mapping[str, LabelledData] = field(default_factory=dict)
    words: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "shifted", MappingProxyType(dict(self.shifted)))
        object.__setattr__(self, "foreign", MappingProxyType(dict(self.foreign)))
        known = {"train": self.train, "validation": self.validation, "test": self.test, **self.shifted}
        for name, part in {**known, **self.foreign}.items():
            _check_alike(name, part, self.train)
        for name, part in known.items():
            if int(part.labels.min()) < 0:
                raise InputError(
                    f"{name}: expected a class for every sample, got the label -1; "
                    "pass such samples as foreign"
                )
        for name, part in self.foreign.items():
            if int(part.labels.max()) >= 0:
                raise InputError(
                    f"{name}: expected the label -1 for every out-of-distribution sample, "
                    f"got {int(part.labels.max())}; use as_foreign()"
                )

    def __reduce__(self) -> tuple[Callable[..., "Splits"], tuple[object, ...]]:
        # Worker processes receive pickled splits, and a read-only mapping cannot be pickled.
        parts = (self.train, self.validation, self.test)
        return Splits, (*parts, dict(self.shifted), dict(self.foreign), self.words)

    @property
    def n_classes(self) -> int:
        """Number of classes: that of the names or, without names, one more than the highest label."""
        if self.train.class_names is not None:
            return len(self.train.class_names)
        return 1 + max(int(part.labels.max()) for part in (self.train, self.validation, self.test))


def check_exists(path: Path) -> Path:
    """Return the path of an existing file or folder of data."""
    if not path.exists():
        raise FormatError(f"{path}: expected a file or a folder, got nothing by that name; check the path")
    return path


def folder_with(path: Path, names: Sequence[str]) -> Path | None:
    """Return the folder, this one or one in it, that has any of the files."""
    folders = [path, *sorted(entry for entry in path.iterdir() if entry.is_dir())]
    return next((folder for folder in folders if any((folder / name).is_file() for name in names)), None)


def check_folder(path: Path, what: str) -> Path:
    """Return the path of an existing folder that should contain ``what``."""
    if not check_exists(path).is_dir():
        archive = path.name.endswith((".tar.gz", ".tgz", ".zip"))
        todo = "unpack it" if archive else "name the folder it is in"
        raise FormatError(f"{path}: expected a folder with {what}, got a file; {todo}")
    return path


def find_data_files(path: Path, names: Sequence[str], what: str) -> Path:
    """Return the folder, this one or one in it, that has all of the files of a data set."""
    folder = folder_with(check_folder(path, what), names)
    if folder is None:
        raise FormatError(
            f"{path}: expected {', '.join(names)}, got none of them; name the folder they are in"
        )
    for name in names:
        if not (folder / name).is_file():
            raise FormatError(f"{folder}: expected {', '.join(names)}, got no {name}; copy all files")
    return folder


def read_data(path: Path, what: str, parse: Callable[[Path], _T]) -> _T:
    """Parse a file that exists and is not empty; errors name it."""
    check_exists(path)
    with reading(path.name, what):
        if path.is_dir():
            raise FormatError(f"expected {what}, got a folder; name a file inside it")
        if path.stat().st_size == 0:
            raise FormatError(f"expected {what}, got an empty file; copy it again")
        return parse(path)


def _numbers(rows: Tensor | slice, n: int) -> Tensor:
    """Return the row numbers that a slice or a mask stands for."""
    if isinstance(rows, slice):
        return torch.arange(n)[rows]
    return rows.nonzero().flatten() if rows.dtype == torch.bool else rows


def _check_inputs(inputs: Tensor, kind: DataKind) -> None:
    if kind not in get_args(DataKind):
        raise InputError(f"kind: expected 'image', 'embedding' or 'text', got {kind!r}")
    fits, wanted = {
        "image": (inputs.dtype == torch.uint8, "images as uint8 of shape (n, c, h, w)"),
        "embedding": (inputs.is_floating_point(), "floats of shape (n, d)"),
        "text": (inputs.dtype == torch.int64, "token ids as int64 of shape (n, length)"),
    }[kind]
    if not fits or inputs.ndim != (4 if kind == "image" else 2) or inputs.numel() == 0:
        raise InputError(
            f"inputs: expected {wanted} and at least one sample, got {inputs.dtype} of shape "
            f"{tuple(inputs.shape)}"
        )


def _check_labels(labels: Tensor, *, n: int) -> None:
    if labels.dtype != torch.int64 or labels.shape != (n,):
        raise InputError(
            f"labels: expected int64 of shape ({n},), got {labels.dtype} of shape {tuple(labels.shape)}"
        )
    if int(labels.min()) < FOREIGN:
        raise InputError(f"labels: expected classes from 0, or -1 for none, got {int(labels.min())}")


def _check_names(names: tuple[str, ...], *, highest: int) -> None:
    if highest >= len(names):
        raise InputError(
            f"labels: expected classes from 0 to {len(names) - 1}, which have names, got {highest}; "
            "name every class"
        )
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InputError(f"class_names: expected unique names, got {twice!r} twice; rename one of them")


def _check_alike(name: str, part: LabelledData, train: LabelledData) -> None:
    if part.kind != train.kind or part.inputs.shape[1:] != train.inputs.shape[1:]:
        raise InputError(
            f"{name}: expected {train.kind} inputs of shape {tuple(train.inputs.shape[1:])} as in training, "
            f"got {part.kind} inputs of shape {tuple(part.inputs.shape[1:])}; bring them to the same size"
        )
