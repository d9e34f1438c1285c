"""Calibrators as files: safetensors with a format version, the method, its options and our version."""

import inspect
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from types import GenericAlias
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from calibrant.errors import FormatError
from calibrant.files import (
    Share,
    atomic_path,
    between,
    digest,
    local_copy,
    parse_json,
    read_dataclass,
    read_value,
    reading,
)
from calibrant.lazy import import_all
from calibrant.posthoc.calibrator import Calibrator
from calibrant.posthoc.fitting.stored import Numbers, check_declared, check_undeclared

FORMAT = "calibrant-calibrator"
VERSION = 1

_MOST_CLASSES = 1 << 31

# A calibrator is tried out when it is loaded, with this many classes if it takes any number of them.
_SOME_CLASSES = 16
_MOST_TRIED = 1 << 20

# Sums of frequencies differ from 1 by rounding only.
_ROUNDING = 1e-6


def save_calibrator(calibrator: Calibrator, path: str | os.PathLike[str]) -> None:
    """Write a calibrator to a safetensors file, all or nothing."""
    write_described(path, FORMAT, VERSION, calibrator=describe(calibrator), tensors=calibrator.state_dict())


def write_described(
    path: str | os.PathLike[str],
    kind: str,
    kind_version: int,
    *,
    tensors: Mapping[str, Tensor],
    **description: Mapping[str, Any],
) -> None:
    """Write tensors to a safetensors file whose header describes them, all or nothing.

    Args:
        path: The file to write.
        kind: What the file holds, for the header.
        kind_version: Version of the format of such files.
        tensors: The tensors by name.
        **description: The description of the tensors, under the name that it has in the header.
    """
    ((name, table),) = description.items()
    described = json.dumps(table)
    held = {key: tensor.detach().cpu().clone().contiguous() for key, tensor in tensors.items()}
    header = {
        "format": kind,
        "format_version": str(kind_version),
        "library_version": version("calibrant"),
        name: described,
        "digest": _digest(described, held),
    }
    with atomic_path(path) as temporary:
        save_file(held, temporary, metadata=header)


def load_calibrator(path: str | os.PathLike[str]) -> Calibrator:
    """Read a calibrator of any method.

    Raises:
        FormatError: The file is missing, damaged, of another kind, or of an unknown version; or its numbers
            cannot be those of its method.
    """
    with reading_described(path, FORMAT, VERSION, "calibrator") as (description, tensors):
        calibrator = restore(description, tensors)
        _try_out(calibrator)
    return calibrator


def format_of(path: str | os.PathLike[str]) -> str | None:
    """Return what kind of file the header of a safetensors file names; None if it names none."""
    with local_copy(path) as place:
        if not place.is_file():
            return None
        with reading(place.name, "a safetensors file"), safe_open(place, framework="pt") as file:
            return (file.metadata() or {}).get("format")


@contextmanager
def reading_described(
    path: str | os.PathLike[str], kind: str, kind_version: int, name: str
) -> Iterator[tuple[Any, dict[str, Tensor]]]:
    """Yield the description and the tensors of a file of :func:`write_described`.

    The block takes the tensors that the description needs. At its end, tensors that are left and a digest
    that does not match are refused.

    Args:
        path: The file to read.
        kind: What it must hold.
        kind_version: The version that is known here.
        name: The name of the description in the header, and of the thing in error messages.
    """
    with local_copy(path) as path:
        if not path.is_file():
            raise FormatError(f"{path.name}: expected a saved {name}, got no such file in {path.parent}")
        with reading(path.name, "a safetensors file"), safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 - not a mapping
    if header.get("format") != kind:
        raise FormatError(f"{path.name}: expected a saved {name}, got a safetensors file of another kind")
    if header.get("format_version") != str(kind_version):
        raise FormatError(
            f"{path.name}: expected format version {kind_version}, got {header.get('format_version')}, "
            f"written by calibrant {header.get('library_version')}; use that version or fit again"
        )
    with reading(path.name, f"a complete {name}"):
        # Files of earlier versions have no digest.
        is_whole = header.get("digest") in (None, _digest(header[name], tensors))
        yield parse_json(header[name]), tensors
        if tensors:
            raise FormatError(f"{min(tensors)}: expected no such tensor, got one")
        if not is_whole:
            raise FormatError(
                "digest: expected that of the tensors and of the description, got another; the file was "
                "damaged or changed, so fit again or copy it again"
            )


def _digest(described: str, tensors: Mapping[str, Tensor]) -> str:
    """Return the digest of all that makes a calibrator; equal for equal fits."""
    named = ((name, tensors[name]) for name in sorted(tensors))
    return digest(described, *(part for pair in named for part in pair))


def describe(calibrator: Calibrator) -> dict[str, Any]:
    """Return what the header of a file says about a calibrator, and about the predictions that it takes."""
    taken = {name: getattr(calibrator, name) for name in ("class_names", "class_frequencies", "signal_names")}
    return _describe(calibrator) | {name: list(each) for name, each in taken.items() if each is not None}


def _describe(calibrator: Calibrator) -> dict[str, Any]:
    return {
        "method": _stored_class(calibrator).__name__,
        "n_classes": calibrator.n_classes,
        "options": {name: getattr(calibrator, name) for name in calibrator.options},
        "buffers": [name for name, _ in calibrator.named_buffers(recurse=False)],
        "parts": {
            name: _describe(part)
            for name, part in calibrator.named_children()
            if isinstance(part, Calibrator)
        },
    }


def _stored_class(calibrator: Calibrator) -> type[Calibrator]:
    """Return the first class that is known by its name: chains made on the fly are stored as ``Chain``."""
    return next(base for base in type(calibrator).__mro__ if Calibrator.methods.get(base.__name__) is base)


@dataclass(frozen=True)
class _Description:
    """What the header of a file says about a calibrator; the tensors follow from it."""

    method: str
    n_classes: Annotated[int, between(1, _MOST_CLASSES)] | None = None
    options: dict[str, Any] = field(default_factory=dict)
    buffers: tuple[str, ...] = ()
    parts: dict[str, Any] = field(default_factory=dict)
    class_names: tuple[str, ...] | None = None
    class_frequencies: tuple[Share, ...] | None = None
    signal_names: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        names, shares = self.class_names, self.class_frequencies
        if names is not None and not len(names) == len(set(names)) == (self.n_classes or len(names)):
            raise FormatError(
                f"class_names: expected {self.n_classes} different names, got {len(set(names))}"
            )
        k = self.n_classes or len(names or shares or ())
        if shares is not None and (len(shares) != k or abs(sum(shares) - 1) > _ROUNDING):
            raise FormatError(
                f"class_frequencies: expected {k} numbers with the sum 1, got {len(shares)} with the sum "
                f"{sum(shares):.6g}"
            )


def restore(
    table: object, tensors: dict[str, Tensor], n_classes: int | None = None, prefix: str = ""
) -> Calibrator:
    """Build a calibrator from its description, and take its tensors out of those of the file.

    Args:
        table: The description.
        tensors: Tensors that no calibrator has taken yet, by name.
        n_classes: The number of classes that it must have; any if None.
        prefix: Where the calibrator stands among those that hold it: the names of parts, each with a dot.
    """
    header = read_dataclass(_Description, table, prefix.removesuffix("."))
    import_all("calibrant.posthoc")
    method = Calibrator.methods.get(header.method)
    if method is None or inspect.isabstract(method):
        raise FormatError(f"{prefix}method: expected one that is known here, got {header.method!r}")
    if n_classes is not None and header.n_classes not in (None, n_classes):
        raise FormatError(f"{prefix}n_classes: expected {n_classes} or none, got {header.n_classes}")
    calibrator = method.__new__(method)
    Calibrator.__init__(calibrator, n_classes=header.n_classes)
    calibrator.class_names, calibrator.class_frequencies = header.class_names, header.class_frequencies
    calibrator.signal_names = header.signal_names
    _set_options(calibrator, header.options, prefix)
    _set_buffers(calibrator, header.buffers, tensors, prefix)
    expected = calibrator.part_names if _declared(method) is not None else tuple(header.parts)
    if set(expected) != set(header.parts):
        raise FormatError(
            f"{prefix}parts: expected {', '.join(expected) or 'none'}, got "
            f"{', '.join(header.parts) or 'none'}"
        )
    for name in expected:
        part = restore(header.parts[name], tensors, calibrator.part_classes, f"{prefix}{name}.")
        calibrator.add_module(name, part)
    if expected and "needs_features" in method.options:
        calibrator.needs_features = any(part.needs_features for part in _parts(calibrator))
    return calibrator


def _set_options(calibrator: Calibrator, options: dict[str, Any], prefix: str) -> None:
    method = type(calibrator)
    kinds = get_type_hints(method, include_extras=True)
    for name in method.options:
        where = f"{prefix}{name}"
        if name in options:
            setattr(calibrator, name, _option(kinds.get(name, Any), options[name], where))
        elif not hasattr(method, name):
            # An option that an older version did not have keeps the default of its class.
            raise FormatError(f"{where}: expected a value, got none")


def _option(kind: Any, value: object, where: str) -> Any:  # noqa: ANN401  # a type and a value of it
    if get_origin(kind) is list:
        return list(read_value(GenericAlias(tuple, (get_args(kind)[0], ...)), value, where))
    return read_value(kind, value, where)


def _set_buffers(
    calibrator: Calibrator, names: tuple[str, ...], tensors: dict[str, Tensor], prefix: str
) -> None:
    """Register the tensors of a calibrator, each checked against what its method declares."""
    for name in names:
        if prefix + name not in tensors:
            raise FormatError(f"{prefix}{name}: expected a tensor, got none")
    found = {name: tensors.pop(prefix + name) for name in names}
    declared = _declared(type(calibrator))
    if declared is None:
        check_undeclared(found, prefix)
    else:
        due = {name: numbers for name, numbers in declared.items() if numbers.belongs_to(calibrator)}
        check_declared(due, found, calibrator.sizes, prefix)
    calibrator.register_buffers(**found)


def _declared(method: type[Calibrator]) -> dict[str, Numbers] | None:
    """Return what a method and its bases declare of their buffers; None if none of them declares any."""
    every = [
        base.__dict__["stored"]
        for base in reversed(method.__mro__)
        if base.__dict__.get("stored") is not None
    ]
    if not every:
        return None
    return {name: numbers for declared in every for name, numbers in declared.items()}


def _parts(calibrator: Calibrator) -> list[Calibrator]:
    return [part for part in calibrator.children() if isinstance(part, Calibrator)]


@torch.no_grad()
def _try_out(calibrator: Calibrator) -> None:
    """Calibrate two rows: what the declarations cannot see, such as mixed types of numbers, fails here."""
    k = calibrator.n_classes or _SOME_CLASSES
    if k > _MOST_TRIED:
        return
    widths = (getattr(part, "n_features", None) for part in calibrator.modules())
    width = next((n for n in widths if n is not None), None)
    logits = torch.stack([torch.zeros(k), torch.linspace(4, -4, k)])
    log_probs = calibrator(logits, None if width is None else torch.ones(2, width))
    if log_probs.shape != logits.shape or bool(log_probs.isnan().any()):
        raise FormatError("expected numbers that give probabilities, got others")
