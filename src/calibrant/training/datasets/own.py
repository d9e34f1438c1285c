"""Data of the user's own, from a function that a configuration names as ``module:function``."""

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from calibrant.errors import InputError
from calibrant.training.datasets.dataset import DataKind, LabelledData, Splits
from calibrant.training.datasets.sampling import divide
from calibrant.training.own_code import imported

_PARTS = ("train", "validation", "test")


def load_own_data(name: str, options: Mapping[str, Any]) -> Splits:
    """Call the function that ``"module:name"`` names, and return its data in parts.

    It gets the options; of these ``validation`` and ``seed``, which are always there, only if it takes them.
    It returns :class:`Splits`, or one data set, or two (training, test), three (training, validation, test),
    or a mapping of these names. A data set is a :class:`LabelledData`, or a Dataset or DataLoader of pairs of
    an input and a class. Missing parts are taken from the training part.
    """
    factory = imported(name, "data.name")
    takes = inspect.signature(factory).parameters
    arguments = {
        key: each for key, each in options.items() if key in takes or key not in ("validation", "seed")
    }
    try:
        inspect.signature(factory).bind(**arguments)
    except TypeError as error:
        raise InputError(
            f"data: expected options that {name} takes, got {', '.join(arguments)} ({error})"
        ) from None
    found = factory(**arguments)
    if isinstance(found, Splits):
        return found
    parts = _parts(found, name)
    train = labelled(parts["train"], f"{name}, train")
    others = [labelled(parts[part], f"{name}, {part}") if part in parts else None for part in _PARTS[1:]]
    return Splits(*divide(train, *others, share=options["validation"], seed=options["seed"]))


def _parts(found: object, name: str) -> Mapping[str, Any]:
    if isinstance(found, (tuple, list)):
        found = dict(zip({2: ("train", "test"), 3: _PARTS}.get(len(found), ()), found, strict=False))
    elif not isinstance(found, Mapping):
        found = {"train": found}
    if not set(found) <= set(_PARTS) or "train" not in found:
        raise InputError(
            f"data: expected {name} to return Splits, a data set, or those of train, validation and test, "
            f"got {', '.join(map(str, found)) or 'another number of them'}"
        )
    return found


def labelled(data: object, name: str) -> LabelledData:
    """Return a data set in memory; ``name`` begins the message of an error."""
    if isinstance(data, LabelledData):
        return data
    if not isinstance(data, DataLoader) and not (hasattr(data, "__getitem__") and hasattr(data, "__len__")):
        raise InputError(
            f"{name}: expected a Dataset with a length, or a DataLoader, got {type(data).__name__}"
        )
    inputs, labels = [], []
    for x, y in _pairs(data, name):
        inputs.append(x)
        labels.append(y)
    if not inputs:
        raise InputError(f"{name}: expected samples, got none")
    try:
        joined = torch.cat(inputs)
    except RuntimeError:
        raise InputError(f"{name}: expected inputs of one shape, got several; resize or pad them") from None
    kind, x = _of_kind(joined, name)
    classes = getattr(data, "classes", None)
    names = tuple(map(str, classes)) if isinstance(classes, (list, tuple)) else None
    return LabelledData(x, torch.cat(labels).long(), names, kind)


def _pairs(data: Any, name: str) -> Iterator[tuple[Tensor, Tensor]]:  # noqa: ANN401  # whatever users have
    """Yield inputs and classes as tensors with a first dimension of samples."""
    whole = isinstance(data, DataLoader)
    items = data if whole else (data[row] for row in range(len(data)))
    for item in items:
        if not isinstance(item, (tuple, list)) or len(item) != 2:
            raise InputError(f"{name}: expected pairs of an input and a class, got {type(item).__name__}")
        x, y = torch.as_tensor(_array(item[0])), torch.as_tensor(item[1])
        if not whole:
            x, y = x[None], y[None]
        if y.ndim != 1 or y.is_floating_point() or len(x) != len(y):
            raise InputError(f"{name}: expected one whole number as the class of each input, got {item[1]!r}")
        yield x, y


def _array(value: object) -> Any:  # noqa: ANN401  # a tensor, or an array of anything else
    if isinstance(value, Tensor):
        return value
    array = np.asarray(value)
    if array.ndim == 3 and array.dtype == np.uint8 and not isinstance(value, np.ndarray):
        array = array.transpose(2, 0, 1)  # a picture of Pillow has its channels last
    return np.ascontiguousarray(array)


def _of_kind(x: Tensor, name: str) -> tuple[DataKind, Tensor]:
    if x.ndim == 3 and x.dtype == torch.uint8:
        x = x[:, None]
    if x.ndim == 4 and x.is_floating_point():
        low, high = float(x.min()), float(x.max())
        if not 0 <= low <= high <= 1:
            raise InputError(
                f"{name}: expected images as uint8, or floats from 0 to 1, got {low:g} to {high:g}; leave "
                "the normalisation out, the network has its own"
            )
        x = (x * 255).round().to(torch.uint8)
    if x.ndim == 4 and x.dtype == torch.uint8:
        return "image", x
    if x.ndim == 2 and x.is_floating_point():
        return "embedding", x.float()
    if x.ndim == 2 and not x.is_floating_point():
        return "text", x.long()
    raise InputError(
        f"{name}: expected images (c, h, w), vectors of floats or token ids, got {x.dtype} of shape "
        f"{tuple(x.shape[1:])}"
    )
