"""Archives of arrays by name: NumPy's ``.npz`` and ``.safetensors``."""

import math
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, BadZipFile, ZipFile, ZipInfo, is_zipfile

import numpy as np
import numpy.typing as npt
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from calibrant.data.columns import ColumnName, Columns, FileRows
from calibrant.data.contents import (
    ARRAYS,
    IDS,
    SIGNAL,
    beside_columns,
    from_beside,
    from_text,
    group_columns,
    is_group,
    notes_of,
    of_class_one,
    present,
    signal_arrays,
    to_arrays,
    to_text,
    under_our_names,
)
from calibrant.data.predictions import Stored
from calibrant.errors import FormatError, InputError
from calibrant.files import digest, read_value

# Arrays that take more memory than a file of their size may are refused, unless they are small anyway.
_MOST_TIMES, _FEW_BYTES = 200, 256e6
# The digest of each tensor and text, as JSON in the header of a safetensors file.
_DIGESTS = "calibrant_digests"
_A_DIGEST = re.compile(r'"([^"]+)": "[0-9a-f]{64}"')
_DAMAGED = "the file was damaged, or changed by another program that kept the digests; write it again"


class Npz:
    """One array per key, class names and groups as arrays of text, metadata as JSON text."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def names(self) -> list[str]:
        """Return the names of all arrays."""
        with self.opened() as archive:
            return list(archive.files)

    def read(
        self, columns: Columns, kept: npt.NDArray[np.bool_] | None = None
    ) -> tuple[dict[str, Any], list[str]]:
        """Return the arrays with our keys, and all names; pickled arrays are refused, never loaded."""
        with self.opened() as archive:
            names = list(archive.files)
            ours = under_our_names(names, columns)
            found = [key for key in (*ARRAYS, "class_names", "metadata") if key in ours]
            self._check_sizes(archive.zip, {key: ours[key] for key in ARRAYS if key in ours})
            values: dict[str, Any] = {key: _entry(archive, ours[key]) for key in found}
            values |= from_beside({name: _entry(archive, name) for name in beside_columns(names)})
        values = _part(values, kept)
        if "class_names" in values:
            values["class_names"] = values["class_names"].tolist()
        if "metadata" in values:
            values["metadata"] = from_text(str(values["metadata"]), "metadata")
        return values, names

    def read_columns(self, wanted: Sequence[str], optional: Sequence[str] = ()) -> FileRows:
        """Return arrays by name; pickled arrays are refused, never loaded."""
        with self.opened() as archive:
            names = present(wanted, optional, archive.files)
            return FileRows({name: _vector(_entry(archive, name), name) for name in names})

    def write(self, predictions: Stored) -> None:
        """Write a compressed archive without pickled content."""
        arrays = to_arrays(predictions) | signal_arrays(predictions)
        if predictions.groups is not None:
            for name, groups in group_columns(predictions.groups).items():
                arrays[name] = np.asarray(groups.values, dtype=str)
        notes = notes_of(predictions)
        if "class_names" in notes:
            arrays["class_names"] = np.asarray(notes["class_names"], dtype=str)
        if "metadata" in notes:
            arrays["metadata"] = np.asarray(to_text(notes["metadata"]))
        with self.path.open("wb") as file:  # given a name, NumPy may append a suffix
            # Numbers and texts, never pickled; NumPy before 2.1 writes an argument allow_pickle as an array.
            np.savez_compressed(file, **arrays)  # type: ignore[arg-type]  # for NumPy any array could be that one

    def _check_sizes(self, archive: ZipFile, names: Mapping[str, str]) -> None:
        """Refuse arrays by their headers: different numbers of rows, and much more than the file suggests.

        Args:
            archive: The open archive.
            names: The names of arrays with one row for each sample, by our names.
        """
        headers = {key: header for key, name in names.items() if (header := _header(archive, name))}
        scores = "logits" in headers or "probs" in headers
        unused = ("confidence", "correct") if scores else ("labels",)  # as in select_form
        rows = {
            key: shape[0]
            for key, (shape, _) in headers.items()
            if len(shape) in (1, 2) and key not in unused  # others are refused when they are read
        }
        first = next(iter(rows), "")
        for key, count in rows.items():
            if count != rows[first]:
                raise InputError(
                    f"{key}: expected {rows[first]} entries, one per prediction, got {count}; {first} has "
                    f"{rows[first]} rows"
                )
        needed = sum(math.prod(shape) * kind.itemsize for shape, kind in headers.values())
        most = min(max(_FEW_BYTES, _MOST_TIMES * self.path.stat().st_size), _memory())
        if needed > most:
            raise InputError(
                f"expected arrays of at most {most / 1e6:,.0f} MB ({_MOST_TIMES} times the file, or all "
                f"memory), got {needed / 1e6:,.0f} MB by their headers; write the rows to Parquet files in a "
                "folder, which are read as a stream"
            )

    @contextmanager
    def opened(self) -> Iterator[Any]:
        """Open the archive, after the names of its arrays have been compared."""
        if not is_zipfile(self.path):  # np.load would take it for a pickle and advise to allow that
            raise BadZipFile("not a zip archive")
        # Given a path, np.load leaves the file open if the archive is damaged.
        with self.path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            for name in archive.zip.namelist():
                # Compares the name with that beside the data; an array under a damaged name would be ignored.
                archive.zip.open(name).close()
            yield archive


def _header(archive: ZipFile, name: str) -> tuple[tuple[int, ...], np.dtype[Any]] | None:
    """Return the shape and the type of an array from the beginning of its data; None if it is unusual."""
    try:
        with archive.open(f"{name}.npy") as file:
            version = np.lib.format.read_magic(file)
            read = {
                (1, 0): np.lib.format.read_array_header_1_0,
                (2, 0): np.lib.format.read_array_header_2_0,
            }[version]
            shape, _, kind = read(file)
    except (KeyError, ValueError):  # reading it says what is wrong
        return None
    return None if kind.hasobject else (shape, kind)


def _memory() -> float:
    """Return the bytes of memory of this machine, if it tells."""
    try:
        return float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (AttributeError, ValueError, OSError):
        return math.inf


class Safetensors:
    """One tensor per key; class names, names of groups and metadata as JSON text in the header.

    The header also has a digest of each of them, by which damage is noticed.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def names(self) -> list[str]:
        """Return the names of all tensors."""
        with safe_open(self.path, framework="pt") as file:
            return list(file.keys())

    def read(
        self, columns: Columns, kept: npt.NDArray[np.bool_] | None = None
    ) -> tuple[dict[str, Any], list[str]]:
        """Return the tensors with our keys, class names and metadata from the header, and all names."""
        with safe_open(self.path, framework="pt") as file:
            names = list(file.keys())
            ours = under_our_names(names, columns)
            values: dict[str, Any] = {key: file.get_tensor(ours[key]) for key in ARRAYS if key in ours}
            beside = {name: file.get_tensor(name) for name in beside_columns(names)}
            header = file.metadata() or {}
        _check_digests({ours[key]: tensor for key, tensor in values.items()} | beside, header, names)
        named = {
            name: _named(tensor, from_text(header[name], name))
            if is_group(name) and name in header
            else tensor
            for name, tensor in beside.items()
        }
        values = _part(values | from_beside(named), kept)
        notes = {key: header[key] for key in ("class_names", "metadata") if key in header}
        return values | {key: from_text(text, key) for key, text in notes.items()}, names

    def read_columns(self, wanted: Sequence[str], optional: Sequence[str] = ()) -> FileRows:
        """Return tensors by name, as arrays."""
        with safe_open(self.path, framework="pt") as file:
            names = present(wanted, optional, list(file.keys()))
            tensors = {name: file.get_tensor(name) for name in names}
            header = file.metadata() or {}
            every = list(file.keys())
        _check_digests(tensors, header, every)
        columns: dict[str, ColumnName] = {n: _vector(_array(tensor), n) for n, tensor in tensors.items()}
        for name in (name for name in names if is_group(name) and name in header):
            columns[name] = _named(tensors[name], from_text(header[name], name))
        return FileRows(columns)

    def write(self, predictions: Stored) -> None:
        """Write the tensors in their own type, bfloat16 included; groups as places among their names."""
        tensors = {key: predictions.arrays[key] for key in (*ARRAYS, IDS) if key in predictions.arrays}
        tensors |= {f"{SIGNAL}{name}": signal for name, signal in predictions.signals.items()}
        header = {key: to_text(value) for key, value in notes_of(predictions).items()}
        if predictions.groups is not None:
            for name, groups in group_columns(predictions.groups).items():
                tensors[name], header[name] = groups.codes, to_text(groups.names)
        _save_tensors(self.path, tensors, header)


def _save_tensors(path: Path, tensors: Mapping[str, Tensor], header: Mapping[str, str]) -> None:
    # Tensors that share memory, such as logits and features side by side, must be copied.
    copies = {key: tensor.clone().contiguous() for key, tensor in tensors.items()}
    digests = {key: digest(*_parts_of(key, copies, header)) for key in {**copies, **header}}
    save_file(copies, path, metadata={**header, _DIGESTS: to_text(digests)})


def write_arrays(source: Path, out: Path, arrange: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Write an archive again with other arrays; those that stay are copied as they are, never unpickled.

    Args:
        source: The archive, ``.npz`` or ``.safetensors``.
        out: The file to write, of the same format.
        arrange: Takes what the archive holds by name, and returns it with NumPy arrays in place of some.
    """
    if source.suffix.lower() == ".safetensors":
        with safe_open(source, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # no mapping
            header = {key: text for key, text in (file.metadata() or {}).items() if key != _DIGESTS}
        new = {
            name: value if isinstance(value, Tensor) else _like(tensors.get(name), value)
            for name, value in arrange(dict(tensors)).items()
        }
        _save_tensors(out, new, header)
        return
    with ZipFile(source) as old, ZipFile(out, "w", ZIP_DEFLATED) as target, Npz(source).opened() as arrays:
        members = {info.filename.removesuffix(".npy"): info for info in old.infolist()}
        for name, value in arrange(dict(members)).items():
            with target.open(f"{name}.npy", "w", force_zip64=True) as written:
                if isinstance(value, ZipInfo):
                    with old.open(value) as read:
                        shutil.copyfileobj(read, written)
                else:
                    before = torch.from_numpy(_entry(arrays, name)) if name in members else None
                    np.lib.format.write_array(written, _like(before, value).numpy(), allow_pickle=False)


def _like(old: Tensor | None, new: npt.NDArray[Any]) -> Tensor:
    """Return new numbers as a tensor, in the type of the old ones if these have fractions."""
    one = old is not None and old.ndim == 1 and new.ndim == 2 and new.shape[1] == 2
    tensor = torch.from_numpy(np.ascontiguousarray(of_class_one(new) if one else new))
    if old is not None and old.is_floating_point() and tensor.is_floating_point():
        return tensor.to(old.dtype)
    return tensor


def _part(values: dict[str, Any], kept: npt.NDArray[np.bool_] | None) -> dict[str, Any]:
    """Return the rows of arrays that are kept; names of classes and notes are not about rows."""
    if kept is None:
        return values
    rows = {key: value for key, value in values.items() if key not in ("class_names", "metadata", "signals")}
    return values | {key: _rows(value, kept) for key, value in rows.items()}


def _rows(value: Any, kept: npt.NDArray[np.bool_]) -> Any:  # noqa: ANN401  # an array, or several by name
    if isinstance(value, dict):
        return {name: _rows(each, kept) for name, each in value.items()}
    if isinstance(value, list):
        return [each for each, used in zip(value, kept.tolist(), strict=True) if used]
    return value[torch.from_numpy(kept) if isinstance(value, Tensor) else kept]


def _parts_of(key: str, tensors: Mapping[str, Tensor], header: Mapping[str, str]) -> list[Tensor | str]:
    """Return what a file holds under a key: a tensor, a text of the header, or both."""
    held: list[Tensor | str] = [tensors[key]] if key in tensors else []
    return [*held, header[key]] if key in header else held


def _check_digests(read: Mapping[str, Tensor], header: Mapping[str, str], names: Sequence[str]) -> None:
    """Refuse tensors and texts with other digests than when they were written.

    Args:
        read: The tensors that were read.
        header: The texts of the header; files of others, and of earlier versions, have no digests.
        names: The names of all tensors.
    """
    if _DIGESTS not in header and any(
        name in names or name in header for text in header.values() for name in _A_DIGEST.findall(text)
    ):
        raise FormatError(f"{_DIGESTS}: expected the digests under this name, got them elsewhere; {_DAMAGED}")
    digests = read_value(dict[str, str], from_text(header.get(_DIGESTS, "{}"), _DIGESTS), _DIGESTS)
    for key, expected in digests.items():
        if key not in names and key not in header:
            raise FormatError(f"{key}: expected it beside its digest, got none; {_DAMAGED}")
        is_read = key in read or key not in names
        if is_read and digest(*_parts_of(key, read, header)) != expected:
            raise FormatError(f"{key}: expected the content that its digest names, got other; {_DAMAGED}")


def _vector(array: npt.NDArray[Any], name: str) -> npt.NDArray[Any]:
    if array.ndim == 0:
        raise InputError(f"{name}: expected a value for each answer, got a single one; save an array")
    return array


def _array(tensor: Tensor) -> npt.NDArray[Any]:
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()


def _named(codes: Tensor, names: Sequence[str]) -> list[str]:
    if codes.ndim != 1 or not all(0 <= code < len(names) for code in codes.tolist()):
        raise FormatError(f"groups: expected places among {len(names)} names, got others; write it again")
    return [names[code] for code in codes.tolist()]


def _entry(archive: Any, key: str) -> Any:  # noqa: ANN401  # NumPy gives archives no type
    try:
        return archive[key]
    except ValueError as error:
        if "allow_pickle" not in str(error):
            raise
        dtype = "str" if key in ("class_names", "metadata") else "float"
        raise FormatError(
            f"{key}: expected plain numbers or text, got pickled Python objects, which are never read; "
            f"save np.asarray({key}, dtype={dtype}) instead"
        ) from None
