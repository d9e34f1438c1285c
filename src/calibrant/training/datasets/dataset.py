"""What training reads: labelled samples in memory, and the parts they are divided into."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Literal, TypeAlias, get_args

import torch
from torch import Tensor

from calibrant.errors import InputError

Kind: TypeAlias = Literal["image", "embedding", "text"]

# The label of a sample that belongs to none of the classes.
FOREIGN = -1


@dataclass(frozen=True, eq=False, repr=False)
class LabelledData:
    """Samples with their classes, all in memory.

    Attributes:
        inputs: Images as uint8 of shape ``(n, c, h, w)``, embeddings as floats of shape ``(n, d)``, or token
            ids as int64 of shape ``(n, length)``.
        labels: Classes as int64 of shape ``(n,)``; all -1 for samples that belong to no class.
        class_names: One name per class, or none.
        kind: ``"image"``, ``"embedding"`` or ``"text"``.

    Example:
        >>> data = LabelledData(torch.zeros(3, 2), torch.tensor([0, 1, 1]), ("cat", "dog"), "embedding")
        >>> data.take([0, 2])
        LabelledData(n=2, embedding (2,), class_names)
    """

    inputs: Tensor
    labels: Tensor
    class_names: tuple[str, ...] | None
    kind: Kind

    def __post_init__(self) -> None:
        _check_inputs(self.inputs, self.kind)
        _check_labels(self.labels, n=len(self.inputs))
        if self.class_names is not None:
            _check_names(self.class_names, highest=int(self.labels.max()))

    def __len__(self) -> int:
        return len(self.inputs)

    def __repr__(self) -> str:
        names = "" if self.class_names is None else ", class_names"
        return f"LabelledData(n={len(self)}, {self.kind} {tuple(self.inputs.shape[1:])}{names})"

    def take(self, index: Tensor | Sequence[int]) -> "LabelledData":
        """Return the samples of these row numbers, or those where a mask of length ``n`` is true."""
        rows = torch.as_tensor(index)
        try:
            return replace(self, inputs=self.inputs[rows], labels=self.labels[rows])
        except IndexError:
            raise InputError(
                f"index: expected row numbers below {len(self)} or a mask of that length, "
                f"got {rows.dtype} of shape {tuple(rows.shape)} with others"
            ) from None

    def as_foreign(self) -> "LabelledData":
        """Return the same samples as members of no class."""
        return replace(self, labels=torch.full_like(self.labels, FOREIGN), class_names=None)


@dataclass(frozen=True, eq=False)
class Splits:
    """A data set divided for training: what to learn from, choose by, test on, and be unsure about.

    Attributes:
        train: What the model learns from.
        validation: What checkpoints and calibrators are chosen by.
        test: What results are reported on.
        shifted: The test part under corruptions, by name; the labels still hold.
        foreign: Samples of no known class, by name; their labels are -1.
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
                    f"{name}: expected the label -1 for every foreign sample, got {int(part.labels.max())}; "
                    "use as_foreign()"
                )

    def __reduce__(self) -> tuple[Callable[..., "Splits"], tuple[object, ...]]:
        # Processes that are handed the splits need it: a read-only mapping cannot be pickled as it is.
        parts = (self.train, self.validation, self.test)
        return Splits, (*parts, dict(self.shifted), dict(self.foreign), self.words)

    @property
    def n_classes(self) -> int:
        """Number of classes: that of the names or, without names, one more than the highest label."""
        if self.train.class_names is not None:
            return len(self.train.class_names)
        return 1 + max(int(part.labels.max()) for part in (self.train, self.validation, self.test))


def _check_inputs(inputs: Tensor, kind: Kind) -> None:
    if kind not in get_args(Kind):
        raise InputError(f"kind: expected 'image', 'embedding' or 'text', got {kind!r}")
    fits = {
        "image": inputs.dtype == torch.uint8 and inputs.ndim == 4,
        "embedding": inputs.is_floating_point() and inputs.ndim == 2,
        "text": inputs.dtype == torch.int64 and inputs.ndim == 2,
    }[kind]
    wanted = {
        "image": "images as uint8 of shape (n, c, h, w)",
        "embedding": "floats of shape (n, d)",
        "text": "token ids as int64 of shape (n, length)",
    }[kind]
    if not fits or inputs.numel() == 0:
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
