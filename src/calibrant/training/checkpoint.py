"""Checkpoints: the files of weights and states are written first, then one small file that names them."""

import io
import json
import pickle
import re
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

import safetensors.torch
import torch
from torch import Tensor, nn

from calibrant.errors import FormatError
from calibrant.files import at_least, matching, read_dataclass, read_json, reading, write_file

MANIFEST, FOLDER = "checkpoint.json", "checkpoints"
_FORMAT = 1
# Other files in the folder are not ours, so they are never removed.
_OURS = re.compile(r"(encoder|classifier)-[a-z0-9-]+\.(safetensors|pt)|\.calibrant-.+", re.ASCII)

StageName: TypeAlias = Literal["encoder", "classifier"]
_Epoch: TypeAlias = Annotated[int, at_least(1)]
_Path: TypeAlias = Annotated[
    str, matching(rf"{FOLDER}/\w[\w.-]*", f"the path of a file in {FOLDER}, as {FOLDER}/encoder-0001.pt")
]


@dataclass(frozen=True)
class Best:
    """The best epoch so far: its number, its score, and the file of its weights."""

    epoch: _Epoch
    score: float
    weights: _Path


@dataclass(frozen=True)
class Checkpoint:
    """The point from which a run can be resumed.

    Attributes:
        stage: Name of the stage.
        epoch: The last finished epoch, from 1.
        finished: Whether the stage is over; ``weights`` are then those that the stage keeps.
        weights: File of the weights.
        state: File of the state of the optimiser and of the loss; None when the stage is over.
        best: The best epoch so far, unless the last one is kept.
    """

    stage: StageName
    epoch: _Epoch
    finished: bool
    weights: _Path
    state: _Path | None = None
    best: Best | None = None


def read_checkpoint(folder: Path) -> Checkpoint | None:
    """Return the checkpoint of the run in this folder; None if it has none yet."""
    path = folder / MANIFEST
    if not path.exists():
        return None
    saved = read_json(path, "a checkpoint")
    if not isinstance(saved, dict) or saved.pop("format", None) != _FORMAT:
        raise FormatError(f"{path}: expected a checkpoint of format {_FORMAT}, got another; start anew")
    with reading(str(path), "a checkpoint"):
        checkpoint = read_dataclass(Checkpoint, saved)
        if checkpoint.finished != (checkpoint.state is None):
            raise FormatError("state: expected one exactly if the stage is not finished, got the opposite")
        if checkpoint.best is not None and checkpoint.best.epoch > checkpoint.epoch:
            raise FormatError(f"best.epoch: expected at most {checkpoint.epoch}, got {checkpoint.best.epoch}")
        return checkpoint


def write_checkpoint(folder: Path, checkpoint: Checkpoint) -> None:
    """Make this the checkpoint of the folder, then remove the files that it does not name."""
    write_file(folder / MANIFEST, json.dumps({"format": _FORMAT, **asdict(checkpoint)}, indent=1) + "\n")
    named = {checkpoint.weights, checkpoint.state, checkpoint.best and checkpoint.best.weights}
    for path in (folder / FOLDER).iterdir():
        if f"{FOLDER}/{path.name}" not in named and _OURS.fullmatch(path.name):
            path.unlink(missing_ok=True)


def save_weights(path: Path, weights: Mapping[str, Tensor]) -> None:
    """Write weights as safetensors; weights that share memory are copied first."""
    copied = {name: value.detach().cpu().clone().contiguous() for name, value in weights.items()}
    write_file(path, safetensors.torch.save(copied))


def load_weights(path: Path) -> dict[str, Tensor]:
    """Read weights from safetensors."""
    with reading(str(path), "weights in safetensors"):
        return safetensors.torch.load_file(path)


def fill(module: nn.Module, path: Path) -> None:
    """Load the weights of a file into a module; those of another model are refused."""
    try:
        module.load_state_dict(load_weights(path))
    except RuntimeError as error:
        detail = " ".join(str(error).split())[:300]
        raise FormatError(f"{path}: expected the weights of this model, got others ({detail})") from error


def save_state(path: Path, state: Mapping[str, Any]) -> None:
    """Write the state of an optimiser and of a loss."""
    buffer = io.BytesIO()
    torch.save(dict(state), buffer)
    write_file(path, buffer.getvalue())


def load_state(path: Path) -> dict[str, Any]:
    """Read the state of an optimiser and of a loss; only tensors and plain values are unpickled."""
    with reading(str(path), "the state of an optimiser"):
        try:
            with warnings.catch_warnings(action="ignore"):  # about pickles, before they are refused
                state = torch.load(path, map_location="cpu", weights_only=True)
        except pickle.UnpicklingError as error:
            raise ValueError(str(error)) from error
        if not isinstance(state, dict):
            raise FormatError(f"expected the state of an optimiser, got {type(state).__name__}")
        return state


def remove_remains(folder: Path) -> None:
    """Remove temporary files that a killed run left behind."""
    for path in folder.rglob(".calibrant-*"):
        path.unlink(missing_ok=True)
