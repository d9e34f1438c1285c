"""Arrays in a ``.npz`` file: images, or embeddings that another model has computed."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from zipfile import is_zipfile

import numpy as np
import torch
from torch import Tensor

from calibrant.data.numbering import numbered
from calibrant.errors import FormatError, InputError
from calibrant.files import reading
from calibrant.training.datasets.dataset import FOREIGN, DataKind, LabelledData, Splits, read_data
from calibrant.training.datasets.sampling import divide


def load_arrays(
    path: Path, *, train_index: str | None = None, validation: float = 0.1, seed: int = 0
) -> Splits:
    """Return samples from an archive of ``x_train y_train x_test y_test`` and optional arrays.

    Images are uint8 of shape ``(n, c, h, w)``, ``(n, h, w, c)`` with one or three channels, or ``(n, h, w)``;
    embeddings are floats of shape ``(n, d)`` and become float32. ``x_val`` with ``y_val`` is the validation
    part, which is otherwise taken from training; ``x_oos`` is an out-of-distribution set; ``class_names`` or
    ``labels`` names the classes; ``units_train``, ``units_val`` and ``units_test`` name what samples belong
    to that depend on each other.

    Args:
        path: The ``.npz`` file.
        train_index: Name of an array of row numbers; only these training samples are used.
        validation: Share of the training part for validation, if the file has none.
        seed: Which samples that share is.
    """
    arrays = read_data(path, "a .npz archive", _arrays)
    with reading(path.name, "images or embeddings"):
        names = _class_names(arrays)
        train = _part(arrays, "train", names)
        if train_index is not None:
            train = train.take(_rows(arrays, train_index, len(train)))
        held = _part(arrays, "val", names) if "x_val" in arrays else None
        parts = divide(train, held, _part(arrays, "test", names), share=validation, seed=seed)
        foreign = {}
        if "x_oos" in arrays:
            x, kind = _inputs(arrays, "x_oos")
            foreign["oos"] = LabelledData(x, torch.full((len(x),), FOREIGN), None, kind)
        return Splits(*parts, foreign=foreign)


def _arrays(path: Path) -> dict[str, Any]:
    if not is_zipfile(path):  # np.load would take it for a pickle and advise to allow pickles
        raise FormatError("expected a .npz archive, got something else; save it with np.savez")
    arrays = {}
    with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
        for name in archive.files:
            try:
                arrays[name] = archive[name]
            except ValueError as error:
                if "allow_pickle" in str(error):
                    raise FormatError(
                        f"{name}: expected plain numbers or text, got pickled Python objects, which are "
                        f"never read; save np.asarray({name}, dtype=...) instead"
                    ) from None
                raise
    return arrays


def _part(arrays: Mapping[str, Any], part: str, names: tuple[str, ...] | None) -> LabelledData:
    x, kind = _inputs(arrays, f"x_{part}")
    y = _get(arrays, f"y_{part}")
    if y.dtype.kind not in "iu":
        raise InputError(f"y_{part}: expected whole numbers, got {y.dtype}; number the classes from 0")
    if y.shape != (len(x),):
        raise InputError(
            f"y_{part}: expected one class for each of {len(x)} rows of x_{part}, got shape {y.shape}"
        )
    if y.min() < 0:
        raise InputError(
            f"y_{part}: expected classes from 0, got {y.min()}; put samples of no class into x_oos"
        )
    units = arrays.get(f"units_{part}")
    return LabelledData(
        x,
        torch.from_numpy(y.astype(np.int64)),
        names,
        kind,
        None if units is None else numbered(units, f"units_{part}", n=len(x)),
    )


def _inputs(arrays: Mapping[str, Any], name: str) -> tuple[Tensor, DataKind]:
    x = _get(arrays, name)
    if x.dtype == np.uint8 and x.ndim in (3, 4) and x.size:
        if x.ndim == 3:
            x = x[:, None]
        elif x.shape[1] not in (1, 3) and x.shape[3] in (1, 3):
            x = x.transpose(0, 3, 1, 2)
        return torch.from_numpy(np.ascontiguousarray(x)), "image"
    return _floats(x, name), "embedding"


def _floats(x: Any, name: str) -> Tensor:  # noqa: ANN401  # as below
    if x.dtype.kind != "f" or x.ndim != 2 or x.size == 0:
        raise InputError(
            f"{name}: expected images as uint8 of shape (n, c, h, w) or floats of shape (n, d), "
            f"got {x.dtype} of shape {x.shape}"
        )
    if not np.isfinite(x).all():
        row = int(np.flatnonzero(~np.isfinite(x).all(axis=1))[0])
        raise InputError(
            f"{name}: expected finite numbers, got NaN or infinity in row {row}; leave such rows out"
        )
    return torch.from_numpy(x.astype(np.float32))


def _get(arrays: Mapping[str, Any], name: str) -> Any:  # noqa: ANN401  # NumPy gives archives no type
    if name not in arrays:
        raise FormatError(f"expected {name}, got {', '.join(arrays) or 'nothing'}; rename what holds it")
    return arrays[name]


def _class_names(arrays: Mapping[str, Any]) -> tuple[str, ...] | None:
    for key in ("class_names", "labels"):
        if key in arrays and arrays[key].dtype.kind == "U":
            return tuple(str(name) for name in arrays[key].tolist())
    return None


def _rows(arrays: Mapping[str, Any], name: str, n: int) -> Tensor:
    rows = _get(arrays, name)
    if rows.ndim != 1 or rows.dtype.kind not in "iu" or rows.size == 0 or rows.min() < 0 or rows.max() >= n:
        raise InputError(
            f"{name}: expected row numbers from 0 to {n - 1}, got {rows.dtype} of shape {rows.shape}"
        )
    return torch.from_numpy(rows.astype(np.int64))
