"""Classes held out of training: a foreign set that every data set can give."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from calibrant.errors import InputError
from calibrant.training.datasets.dataset import LabelledData, Splits


def hold_out_classes(splits: Splits, classes: Sequence[int | str]) -> Splits:
    """Return splits without these classes, whose test samples become the foreign set ``held_out``.

    The other classes are numbered anew without gaps, in the same order.

    Args:
        splits: The whole data.
        classes: Numbers of classes, or their names.
    """
    k = splits.n_classes
    out = {_number(name, splits) for name in classes}
    if k - len(out) < 2:
        raise InputError(
            f"foreign_classes: expected at least two classes to remain, got {len(out)} of {k} held out; "
            "hold out fewer"
        )
    kept = [c for c in range(k) if c not in out]
    renumbered = torch.full((k,), -1)
    renumbered[kept] = torch.arange(len(kept))
    names = splits.train.class_names
    kept_names = None if names is None else tuple(names[c] for c in kept)

    def without(part: LabelledData) -> LabelledData:
        rows = _mask(renumbered[part.labels] >= 0, "no sample of a remaining class")
        return LabelledData(
            part.inputs[rows], renumbered[part.labels[rows]], class_names=kept_names, kind=part.kind
        )

    held = _mask(renumbered[splits.test.labels] < 0, "no test sample of these classes")
    return replace(
        splits,
        train=without(splits.train),
        validation=without(splits.validation),
        test=without(splits.test),
        shifted={name: without(part) for name, part in splits.shifted.items()},
        foreign={**splits.foreign, "held_out": splits.test.take(held).as_foreign()},
    )


def _mask(rows: Tensor, otherwise: str) -> Tensor:
    if not bool(rows.any()):
        raise InputError(f"foreign_classes: expected samples on both sides, got {otherwise}; choose others")
    return rows


def _number(name: int | str, splits: Splits) -> int:
    names = splits.train.class_names or ()
    if isinstance(name, int) and 0 <= name < splits.n_classes:
        return name
    if isinstance(name, str) and name in names:
        return names.index(name)
    known = f"a name or a number from 0 to {splits.n_classes - 1}"
    raise InputError(f"foreign_classes: expected {known}, got {name!r}; see the class names of the data")
