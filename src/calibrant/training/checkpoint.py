"""Checkpoints that are whole or not there: files first, then one small file that names them."""

import io
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from calibrant.errors import FormatError, InputError
from calibrant.files import atomic_path

MANIFEST, FOLDER = "checkpoint.json", "checkpoints"
_FORMAT = 1


@dataclass(frozen=True)
class Best:
    """The epoch whose weights are kept: its number, its score, and the file of its weights."""

    epoch: int
    score: float
    weights: str


@dataclass(frozen=True)
class Checkpoint:
    """Where a run can go on.

    Attributes:
        stage: The stage that was being trained.
        epoch: The last epoch that is done, from 1.
        finished: Whether the stage is over; its kept weights then are those of ``weights``.
        weights: File of the weights.
        state: File of the optimiser and of the loss; none when the stage is over.
        best: The best epoch so far, if one is looked for.
    """

    stage: str
    epoch: int
    finished: bool
    weights: str
    state: str | None = None
    best: Best | None = None


def read_checkpoint(folder: Path) -> Checkpoint | None:
    """Return where the run in this folder can go on; none if it never came to a checkpoint."""
    path = folder / MANIFEST
    try:
        saved = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise FormatError(f"{path}: expected a checkpoint, got what is no JSON; start anew") from error
    if not isinstance(saved, dict) or saved.pop("format", None) != _FORMAT:
        raise FormatError(f"{path}: expected a checkpoint of format {_FORMAT}, got another; start anew")
    best = saved.pop("best", None)
    try:
        return Checkpoint(**saved, best=None if best is None else Best(**best))
    except TypeError as error:
        raise FormatError(f"{path}: expected a checkpoint, got other keys ({error}); start anew") from None


def write_checkpoint(folder: Path, checkpoint: Checkpoint) -> None:
    """Make this the checkpoint of the folder, then remove the files that no checkpoint names any more."""
    write_bytes(
        folder / MANIFEST, json.dumps({"format": _FORMAT, **asdict(checkpoint)}, indent=1).encode() + b"\n"
    )
    named = {checkpoint.weights, checkpoint.state, checkpoint.best and checkpoint.best.weights}
    for path in (folder / FOLDER).iterdir():
        if f"{FOLDER}/{path.name}" not in named:
            path.unlink(missing_ok=True)


def save_weights(path: Path, weights: Mapping[str, Tensor]) -> None:
    """Write weights as safetensors; those that share memory are written apart."""
    whole = {name: value.detach().cpu().clone().contiguous() for name, value in weights.items()}
    write_bytes(path, safetensors.torch.save(whole))


def load_weights(path: Path) -> dict[str, Tensor]:
    """Read weights from safetensors."""
    try:
        return safetensors.torch.load_file(path)
    except (OSError, SafetensorError) as error:
        raise FormatError(f"{path}: expected weights in safetensors, got: {error}") from error


def fill(module: nn.Module, path: Path) -> None:
    """Give a module the weights of a file; those of another model are refused."""
    try:
        module.load_state_dict(load_weights(path))
    except RuntimeError as error:
        raise FormatError(f"{path}: expected the weights of this model, got others ({error})") from error


def save_state(path: Path, state: Mapping[str, Any]) -> None:
    """Write the state of an optimiser and of a loss."""
    buffer = io.BytesIO()
    torch.save(dict(state), buffer)
    write_bytes(path, buffer.getvalue())


def load_state(path: Path) -> dict[str, Any]:
    """Read what :func:`save_state` wrote; nothing but tensors and plain values is ever unpickled."""
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many kinds for a broken file
        raise FormatError(f"{path}: expected the state of an optimiser, got: {error}") from error
    if not isinstance(state, dict):
        raise FormatError(f"{path}: expected the state of an optimiser, got {type(state).__name__}")
    return state


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file whole or not at all; a full disk is reported by the file's name."""
    try:
        with atomic_path(path) as temporary, temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise InputError(
            f"{path}: expected room for {len(content):,} bytes, got: {reason}; "
            "what was there before is untouched"
        ) from error


def remove_remains(folder: Path) -> None:
    """Remove temporary files that a killed run left behind."""
    for path in folder.rglob(".calibrant-*"):
        path.unlink(missing_ok=True)
