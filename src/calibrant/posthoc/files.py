"""Calibrators as files: safetensors with a format version, the method, its options and our version."""

import json
import os
from importlib.metadata import version
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from calibrant.errors import FormatError
from calibrant.files import atomic_path
from calibrant.posthoc.calibrator import Calibrator

FORMAT = "calibrant-calibrator"
VERSION = 1


def save_calibrator(calibrator: Calibrator, path: str | os.PathLike[str]) -> None:
    """Write a calibrator to a safetensors file, all or nothing."""
    header = {
        "format": FORMAT,
        "format_version": str(VERSION),
        "library_version": version("calibrant"),
        "calibrator": json.dumps(_describe(calibrator)),
    }
    tensors = {name: buffer.detach().cpu().clone() for name, buffer in calibrator.state_dict().items()}
    with atomic_path(path) as temporary:
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, temporary, metadata=header)


def load_calibrator(path: str | os.PathLike[str]) -> Calibrator:
    """Read a calibrator of any method.

    Raises:
        FormatError: The file is missing, damaged, of another kind, or of an unknown version.
    """
    path = Path(path)
    if not path.is_file():
        raise FormatError(f"{path.name}: expected a saved calibrator, got no such file in {path.parent}")
    try:
        with safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
    except (SafetensorError, OSError) as error:
        raise FormatError(
            f"{path.name}: expected a safetensors file, got one that cannot be read as such ({error})"
        ) from error
    if header.get("format") != FORMAT:
        raise FormatError(f"{path.name}: expected a saved calibrator, got a safetensors file of another kind")
    if header.get("format_version") != str(VERSION):
        raise FormatError(
            f"{path.name}: expected format version {VERSION}, got {header.get('format_version')}, written by "
            f"calibrant {header.get('library_version')}; use that version or fit again"
        )
    try:
        return _restore(json.loads(header["calibrator"]), tensors)
    except (KeyError, TypeError, ValueError) as error:
        raise FormatError(
            f"{path.name}: expected a complete calibrator, got a damaged one ({error})"
        ) from error


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


def _restore(description: dict[str, Any], tensors: dict[str, Tensor], prefix: str = "") -> Calibrator:
    method = Calibrator.methods.get(description["method"])
    if method is None:
        raise ValueError(f"the method {description['method']!r} is not known here")
    calibrator = method.__new__(method)
    Calibrator.__init__(calibrator, n_classes=description["n_classes"])
    for name in method.options:
        # An option that an older version did not have keeps the default of its class.
        if name in description["options"] or not hasattr(method, name):
            setattr(calibrator, name, description["options"][name])
    for name in description["buffers"]:
        calibrator.register_buffer(name, tensors[prefix + name])
    for name, part in description["parts"].items():
        calibrator.add_module(name, _restore(part, tensors, f"{prefix}{name}."))
    return calibrator
