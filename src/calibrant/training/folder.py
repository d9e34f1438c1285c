"""The folder of a run: its configuration, its network, and its predictions."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Annotated, Any

import torch
from torch import Tensor

from calibrant.data.files import save_predictions
from calibrant.data.predictions import Predictions
from calibrant.errors import FormatError, InputError, listed
from calibrant.files import at_least, parse_toml, read_json, read_text, reading, write_file, writing
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
from calibrant.training.datasets.dataset import DataKind, Splits
from calibrant.training.models.by_name import Factory, make_model
from calibrant.training.network import Network, model_options
from calibrant.training.own_code import is_code, named_code
from calibrant.training.records import DYNAMICS, METRICS, EpochRow, read_rows

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


def new_folder(base: Path) -> Path:
    """Make and return the folder of a new run: ``base``, or ``base-2``, ``base-3``, ... if there are others.

    A folder is used again only if its run failed before it had trained, and nobody writes into it.
    """
    for number in count(1):
        folder = base if number == 1 else base.with_name(f"{base.name}-{number}")
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            if not folder.is_dir() or {each.name for each in folder.iterdir()} - {CONFIG, FOLDER}:
                continue
        except OSError as error:
            raise InputError(f"out: expected a folder to write to, got {folder}: {error.strerror}") from None
        return folder
    raise AssertionError


def only_folder(base: Path) -> Path:
    """Return the folder of the run to continue; refuse to guess if there are several."""
    others = sorted(each for each in base.parent.glob(f"{base.name}-*") if (each / CONFIG).exists())
    if others:
        known = listed([str(each) for each in (base, *others)])
        raise InputError(f"out: expected the folder of one run to continue, got several: {known}; name one")
    return base


def open_folder(folder: Path, config: Config, *, resume: bool) -> None:
    """Create the folder and write the configuration, or check that the run in it has the same one."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"folder: expected a folder, got the file {folder}; name another one")
    known = (folder / CONFIG).exists()
    # A run that failed before its first epoch, perhaps because of a misspelt loss, may be started again.
    started = any((folder / name).exists() for name in (METRICS, MANIFEST, WEIGHTS))
    if started and not resume:
        raise InputError(
            f"folder: expected a new folder, got {folder}, which contains a run; "
            "continue it with resume=True, or name another one"
        )
    if known and resume:
        changed = [
            key for key in differences(load_folder_config(folder), config) if not key.startswith(_FREE)
        ]
        if changed:
            raise InputError(
                f"resume: expected the configuration of the run in {folder}, got another {changed[0]}; "
                "leave it out to continue with the saved configuration"
            )
    try:
        (folder / FOLDER).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"folder: expected a folder to write to, got {folder}: {error.strerror}") from None
    remove_remains(folder)
    write_file(folder / CONFIG, config_to_toml(config))


def load_folder_config(folder: Path) -> Config:
    """Read the configuration of the run in a folder."""
    path = folder / CONFIG
    try:
        return config_from_table(parse_toml(read_text(path)))
    except FileNotFoundError:
        raise FormatError(f"{folder}: expected the folder of a run, got one without {CONFIG}") from None
    except (OSError, ValueError) as error:
        raise FormatError(f"{path}: expected the configuration of a run, got: {error}") from None


def check_code(config: Config, own: Config, factory: str | None) -> None:
    """Refuse to run code that the configuration in a folder names, unless the caller names it too.

    Args:
        config: The configuration in the folder, with the caller's changes.
        own: The caller's changes alone.
        factory: What the caller names as the function that makes the network.
    """
    named, repeated = named_code(config), named_code(own)
    for key in named.keys() - {"model.name"}:
        if repeated.get(key) != named[key]:
            raise InputError(
                f"{key}: expected no code in the configuration of a run, got {named[key]}; what a folder "
                "names is not run, so if it is yours, continue with your own configuration, or repeat "
                f"{key}={named[key]}"
            )
    name = config.model.name
    if is_code(name) and factory != name:
        raise InputError(
            f"factory: expected {name}, which the configuration of the run names, got {factory or 'none'}; "
            "it is code of your own, so pass it if you trust it"
        )
    if factory is not None and not is_code(name):
        raise InputError(f"factory: expected none for a run with our network {name}, got {factory}")


@dataclass(frozen=True)
class SavedNetwork:
    """How to make the network of a run again: the content of its file ``NETWORK``.

    Attributes:
        model: The settings of the model.
        n_classes: Number of classes.
        shape: Of one input.
        kind: What inputs are.
        class_names: One name per class, or none.
        words: The words of the built-in vocabulary, for texts.
    """

    model: ModelSettings
    n_classes: Annotated[int, at_least(2)]
    shape: tuple[Annotated[int, at_least(1)], ...]
    kind: DataKind
    class_names: tuple[str, ...] | None
    words: tuple[str, ...] | None

    def __post_init__(self) -> None:
        if self.class_names is not None and len(self.class_names) != self.n_classes:
            raise FormatError(
                f"class_names: expected one name for each of {self.n_classes} classes, "
                f"got {len(self.class_names)}"
            )


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
        with writing(path, "room for the predictions"):
            path.parent.mkdir(parents=True, exist_ok=True)
            save_predictions(part, path)


def read_network(folder: Path) -> SavedNetwork:
    """Read how the network of a finished run is made."""
    saved: SavedNetwork = read_json(folder / NETWORK, "the network of a finished run", SavedNetwork)
    return saved


def load_network(folder: str | Path, *, factory: Factory | None = None) -> Network:
    """Read the trained network of a finished run, in evaluation mode.

    It takes inputs as the data set holds them. Nothing that the folder names is imported or run: a network
    that was made by a function of your own needs that function again.

    Args:
        folder: The folder of the run.
        factory: The function that made the network, if its configuration has ``module:factory``.
    """
    folder = Path(folder)
    weights = load_weights(folder / WEIGHTS)
    path, saved = folder / NETWORK, read_network(folder)
    options = model_options(saved.model, saved.words)
    if saved.model.name == "huggingface":
        options["pretrained"] = False  # the weights are in the folder
    made_by = _maker(path, saved.model.name, factory)
    sizes = {"n_classes": saved.n_classes, "shape": saved.shape, **options}
    with reading(str(path), "a network that can be made"):
        if isinstance(made_by, str) and made_by != "huggingface":
            _check_sizes(made_by, sizes, weights)
        model = make_model(made_by, **sizes)
    network = Network(model, weights.get("mean"), weights.get("std"))
    # A run in bf16 or double precision has weights of that type.
    network.to(next((each.dtype for each in weights.values() if each.is_floating_point()), None))
    fill(network, folder / WEIGHTS)
    return network.eval()


def _check_sizes(name: str, sizes: Mapping[str, Any], weights: Mapping[str, Tensor]) -> None:
    """Refuse sizes that are not those of the weights before memory is taken for them."""
    most = max([1024, len(weights), *(size for each in weights.values() for size in each.shape)])
    for key, size in sizes.items():
        if key != "shape" and max(_whole_numbers(size), default=0) > most:
            raise FormatError(f"{key}: expected sizes of at most {most}, as in the weights, got {size}")
    with torch.device("meta"):
        model = make_model(name, **sizes)
    expected = {f"model.{key}": tuple(each.shape) for key, each in model.state_dict().items()}
    found = {key: tuple(each.shape) for key, each in weights.items() if key.startswith("model.")}
    wrong = sorted(key for key in {**expected, **found} if expected.get(key) != found.get(key))
    if wrong:
        raise FormatError(
            f"model: expected the network of the weights beside it, got one with {wrong[0]} of shape "
            f"{expected.get(wrong[0])} instead of {found.get(wrong[0])}"
        )


def _whole_numbers(value: object) -> Iterator[int]:
    """Yield all whole numbers in a value of JSON."""
    if isinstance(value, int):
        yield value
    elif isinstance(value, (list, tuple, Mapping)):
        for each in value.values() if isinstance(value, Mapping) else value:
            yield from _whole_numbers(each)


def _maker(path: Path, name: str, factory: Factory | None) -> str | Factory:
    """Return what makes the network that a file names: one of our models, or the caller's function."""
    if is_code(name):
        if factory is None:
            raise InputError(
                f"factory: expected the function that made the network of {path.parent}, got none; code that "
                f"a folder names, here {name}, is not run, so import and pass it yourself"
            )
        return factory
    if factory is not None:
        raise InputError(f"factory: expected none for {path.parent}, whose network is our {name}, got one")
    return name


def load_rows(folder: str | Path) -> tuple[list[EpochRow], list[EpochRow]]:
    """Read the measures and the dynamics of each epoch."""
    path = Path(folder)
    if not (path / METRICS).exists():
        raise FormatError(f"{path}: expected the folder of a run, got one without {METRICS}")
    dynamics = path / DYNAMICS
    return read_rows(path / METRICS), read_rows(dynamics) if dynamics.exists() else []


def load_runs(folders: Sequence[Path]) -> dict[str, list[tuple[list[EpochRow], list[EpochRow]]]]:
    """Read the measures and the dynamics of several runs, by the names of their losses.

    Runs that differ in nothing but the seed share a name. Of runs that share a loss and differ in something
    else, and of those without a configuration, the name of the folder is part of the name.
    """
    settings = {folder: _settings(folder) for folder in folders}
    found: dict[str, list[tuple[list[EpochRow], list[EpochRow]]]] = {}
    for folder, (loss, rest) in settings.items():
        is_alone = all(others == rest for same, others in settings.values() if same == loss)
        name = loss if loss and is_alone else ", ".join(filter(None, [loss, folder.name]))
        found.setdefault(name, []).append(load_rows(folder))
    return found


def _settings(folder: Path) -> tuple[str, dict[str, Any]]:
    """Return the loss of a run and its other settings that decide about its numbers, but for the seed."""
    if not (folder / CONFIG).exists():
        return "", {}
    table = parse_toml(read_text(folder / CONFIG))
    free = ("seed", "hardware", "output", "posthoc")
    rest = {name: value for name, value in table.items() if name not in free}
    return table.get("training", {}).get("loss", ""), rest
