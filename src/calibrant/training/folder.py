"""The folder of a run: its configuration, its network, and its predictions."""

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path

from calibrant.data.files import save_predictions
from calibrant.data.predictions import Predictions
from calibrant.errors import FormatError, InputError
from calibrant.files import write_file, writing
from calibrant.training.checkpoint import (
    FOLDER,
    MANIFEST,
    fill,
    load_weights,
    remove_remains,
    save_weights,
)
from calibrant.training.config.settings import Config, ModelSettings
from calibrant.training.config.toml import config_from_table, config_to_table, config_to_toml, differences
from calibrant.training.datasets.dataset import Splits
from calibrant.training.models.by_name import make_model
from calibrant.training.network import Network, model_options
from calibrant.training.records import DYNAMICS, METRICS, EpochRow, read_json_lines

CONFIG, NETWORK, WEIGHTS, PREDICTIONS = "config.toml", "network.json", "model.safetensors", "predictions"

# What may change when a run is resumed: the hardware, the output, the post-hoc methods, and what helps a run
# that failed.
_FREE = (
    "hardware.",
    "output.",
    "posthoc.",
    "training.optimizer.lr",
    "training.clip_gradient",
    "encoder.optimizer.lr",
    "encoder.clip_gradient",
)


def open_folder(folder: Path, config: Config, *, resume: bool) -> None:
    """Create the folder and write the configuration, or check that the run in it has the same one."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"--out: expected a folder, got the file {folder}; name another one")
    known = (folder / CONFIG).exists()
    # A run that failed before its first epoch, perhaps because of a misspelt loss, may be started again.
    started = any((folder / name).exists() for name in (METRICS, MANIFEST, WEIGHTS))
    if started and not resume:
        raise InputError(
            f"--out: expected a new folder, got {folder}, which contains a run; "
            "continue it with --resume, or name another one"
        )
    if known and resume:
        changed = [
            key for key in differences(load_folder_config(folder), config) if not key.startswith(_FREE)
        ]
        if changed:
            raise InputError(
                f"--resume: expected the configuration of the run in {folder}, got another {changed[0]}; "
                "leave out CONFIG to continue with the saved configuration"
            )
    try:
        (folder / FOLDER).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--out: expected a folder to write to, got {folder}: {error.strerror}") from None
    remove_remains(folder)
    write_file(folder / CONFIG, config_to_toml(config))


def load_folder_config(folder: Path) -> Config:
    """Read the configuration of the run in a folder."""
    path = folder / CONFIG
    try:
        return config_from_table(tomllib.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        raise FormatError(f"{folder}: expected the folder of a run, got one without {CONFIG}") from None
    except (OSError, ValueError) as error:
        raise FormatError(f"{path}: expected the configuration of a run, got: {error}") from None


def save_network(
    folder: Path, config: Config, network: Network, splits: Splits, predictions: Mapping[str, Predictions]
) -> None:
    """Write the trained network and its predictions."""
    save_weights(folder / WEIGHTS, network.state_dict())
    described = {
        "model": config_to_table(config)["model"],
        "n_classes": splits.n_classes,
        "shape": list(splits.train.inputs.shape[1:]),
        "kind": splits.train.kind,
        "class_names": splits.train.class_names,
        "words": splits.words,
    }
    write_file(folder / NETWORK, json.dumps(described))
    for name, part in predictions.items():
        path = folder / PREDICTIONS / f"{name}.npz"
        path.parent.mkdir(parents=True, exist_ok=True)
        with writing(path, "room for the predictions"):
            save_predictions(part, path)


def load_network(folder: str | Path) -> Network:
    """Read the trained network of a finished run, in evaluation mode.

    It takes inputs as the data set holds them.
    """
    folder = Path(folder)
    weights = load_weights(folder / WEIGHTS)
    try:
        saved = json.loads((folder / NETWORK).read_text(encoding="utf-8"))
        settings = ModelSettings(saved["model"]["name"], saved["model"].get("options", {}))
        n_classes, shape, words = saved["n_classes"], saved["shape"], saved["words"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise FormatError(f"{folder}: expected the folder of a finished run, got: {error!r}") from error
    model = make_model(settings.name, n_classes=n_classes, shape=shape, **model_options(settings, words))
    network = Network(model, weights.get("mean"), weights.get("std"))
    # A run in bf16 or double precision has weights of that type.
    network.to(next((each.dtype for each in weights.values() if each.is_floating_point()), None))
    fill(network, folder / WEIGHTS)
    return network.eval()


def load_rows(folder: str | Path) -> tuple[list[EpochRow], list[EpochRow]]:
    """Read the measures and the dynamics of each epoch."""
    path = Path(folder)
    if not (path / METRICS).exists():
        raise FormatError(f"{path}: expected the folder of a run, got one without {METRICS}")
    dynamics = path / DYNAMICS
    return read_json_lines(path / METRICS), read_json_lines(dynamics) if dynamics.exists() else []
