"""Predictions of a network for a folder of pictures: those of a run, or a network of the user's own."""

import inspect
import pickle
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from calibrant.data.predictions import Predictions
from calibrant.errors import FormatError, InputError
from calibrant.files import reading
from calibrant.inputs import Progress, check_count
from calibrant.training.checkpoint import load_weights
from calibrant.training.config.settings import DataSettings
from calibrant.training.datasets.dataset import check_exists
from calibrant.training.datasets.image_folder import (
    SUFFIXES,
    USUAL_CROP,
    class_folders,
    has_class_folders,
    labelled_pictures,
    pictures_in,
)
from calibrant.training.datasets.picture_files import PictureFiles, check_crop
from calibrant.training.datasets.pictures import check_size
from calibrant.training.folder import load_folder_config, load_network, read_network
from calibrant.training.models.by_name import Factory
from calibrant.training.models.classifier import WrappedClassifier
from calibrant.training.network import Network

# A larger side or batch is a mistyped number.
_MOST_PIXELS, _MOST_AT_ONCE = 8192, 65_536


@dataclass(frozen=True, eq=False)
class ImageNetwork:
    """A network with what it needs to know about pictures.

    Attributes:
        network: Takes uint8 images and returns logits and features.
        size: Height and width of its images.
        channels: 3 for colour, 1 for grey.
        crop: Share of the centre that it sees; None for whole pictures, resized whatever their shape.
        n_classes: Number of its logits.
        class_names: Their names, if they are known.
    """

    network: Network
    size: tuple[int, int]
    channels: int
    crop: float | None
    n_classes: int
    class_names: tuple[str, ...] | None = None


@dataclass(frozen=True, eq=False)
class FoundPictures:
    """The pictures of a folder.

    Attributes:
        folder: The folder.
        files: Its pictures.
        labels: Their classes; None without folders of classes.
        class_names: The names of the classes.
    """

    folder: Path
    files: Sequence[Path]
    labels: Tensor | None
    class_names: tuple[str, ...] | None


def find_pictures(folder: str | Path, class_names: tuple[str, ...] | None = None) -> FoundPictures:
    """Return the pictures of a folder, with classes if they are in folders of classes.

    Args:
        folder: Pictures, or folders of pictures, each named after its class.
        class_names: The classes of the network, if it knows them; otherwise they are the folders, in
            alphabetical order, including empty ones.
    """
    folder = Path(folder)
    if not check_exists(folder).is_dir():
        raise InputError(f"images: expected a folder of pictures, got the file {folder}; name its folder")
    if has_class_folders(folder):
        names = class_folders(folder) if class_names is None else class_names
        return FoundPictures(folder, *labelled_pictures(folder, names), names)
    files = pictures_in(folder)
    if not files:
        raise InputError(
            f"images: expected {', '.join(SUFFIXES)} files, got none in {folder}; check the path"
        )
    return FoundPictures(folder, files, None, class_names)


def network_of_run(folder: str | Path, *, factory: Factory | None = None) -> ImageNetwork:
    """Return the network of a finished run, which sees pictures as its test part was seen.

    Args:
        folder: The folder of the run.
        factory: The function that made the network, if its configuration has ``module:factory``.
    """
    folder = Path(folder)
    saved = read_network(folder)
    if saved.kind != "image":
        raise InputError(f"network: expected a network of images, got one of {saved.kind} inputs in {folder}")
    channels, height, width = saved.shape
    crop = _crop_of(load_folder_config(folder).data)
    network = load_network(folder, factory=factory)
    return ImageNetwork(network, (height, width), channels, crop, saved.n_classes, saved.class_names)


def _crop_of(data: DataSettings) -> float | None:
    """Return the share of the centre that a data set shows of its pictures."""
    if data.name != "image_folder":
        return None
    crop: float | None = data.options.get("crop")
    return USUAL_CROP if crop is None and data.options.get("stream") else crop


def own_network(
    factory: Callable[..., Any],
    *,
    weights: str | Path | None = None,
    size: int = 224,
    crop: float = USUAL_CROP,
    mean: Sequence[float] = (0.0, 0.0, 0.0),
    std: Sequence[float] = (1.0, 1.0, 1.0),
    n_classes: int | None = None,
) -> ImageNetwork:
    """Return a network of the user's own, which takes colour images as floats and returns logits.

    Args:
        factory: Makes the network; if it has arguments ``n_classes`` and ``shape``, it gets them.
        weights: Its weights, in safetensors or as PyTorch saves a ``state_dict``; only tensors are unpickled.
        size: Side of the images in pixels.
        crop: Share of the largest centred square that the network sees.
        mean: Of each channel; it is subtracted from pixels between 0 and 1.
        std: Of each channel; the difference is divided by it.
        n_classes: Number of classes, if the factory needs it.
    """
    check_size(check_count(size, "size", at_most=_MOST_PIXELS))
    check_crop(crop)
    for name, values in (("mean", mean), ("std", std)):
        if len(values) != 3 or not all(torch.isfinite(torch.tensor(values))):
            raise InputError(f"{name}: expected three numbers, one for each channel, got {list(values)}")
    if min(std) <= 0:
        raise InputError(f"std: expected positive numbers, got {list(std)}")
    model = _made(factory, {"n_classes": n_classes, "shape": (3, size, size)})
    if weights is not None:
        _fill(model, Path(weights))
    k = _n_logits(model.eval(), size)
    wrapped = WrappedClassifier(model, n_classes=k)
    network = Network(wrapped, torch.tensor(mean), torch.tensor(std)).eval()
    return ImageNetwork(network, (size, size), 3, crop, k)


def _made(factory: Callable[..., Any], sizes: Mapping[str, object]) -> nn.Module:
    """Return the network that a function makes, given those sizes that it takes and that are known."""
    signature = inspect.signature(factory)
    known = {name: sizes[name] for name in signature.parameters if sizes.get(name) is not None}
    try:
        signature.bind(**known)
    except TypeError as error:
        given = ", ".join(known) or "nothing"
        raise InputError(f"network: expected a function of {given}, got another ({error})") from None
    model = factory(**known)
    if not isinstance(model, nn.Module):
        raise InputError(
            f"network: expected a function that returns an nn.Module, got {type(model).__name__}"
        )
    return model


@torch.no_grad()
def _n_logits(model: nn.Module, size: int) -> int:
    """Return the number of logits of a network, from an empty image."""
    try:
        logits = model(torch.zeros(1, 3, size, size))
    except RuntimeError as error:
        detail = " ".join(str(error).split())[:160]
        raise InputError(
            f"size: expected that of the images of the network, got {size}, which it does not take ({detail})"
        ) from error
    if not isinstance(logits, Tensor) or logits.ndim != 2 or logits.shape[1] < 2:
        got = f"shape {tuple(logits.shape)}" if isinstance(logits, Tensor) else type(logits).__name__
        raise InputError(
            f"network: expected logits of shape (n, k) with k from 2, got {got}; wrap the network"
        )
    return logits.shape[1]


def _fill(model: nn.Module, path: Path) -> None:
    """Load weights into a network of the user's own."""
    check_exists(path)
    found: Any = load_weights(path) if path.suffix == ".safetensors" else _unpickled(path)
    inner = found.get("state_dict", found) if isinstance(found, dict) else found
    if not isinstance(inner, dict) or not all(isinstance(value, Tensor) for value in inner.values()):
        raise FormatError(f"{path}: expected a state_dict of tensors, got something else; save that alone")
    try:
        model.load_state_dict(inner)
    except RuntimeError as error:
        detail = " ".join(str(error).split())[:300]
        raise FormatError(f"{path}: expected the weights of this network, got others ({detail})") from error


def _unpickled(path: Path) -> object:
    with reading(str(path), "weights of a network"), warnings.catch_warnings(action="ignore"):
        try:
            return torch.load(path, map_location="cpu", weights_only=True)
        except pickle.UnpicklingError as error:
            raise ValueError(f"only tensors are unpickled: {' '.join(str(error).split())[:80]}") from error


@torch.no_grad()
def predict_images(
    pictures: FoundPictures,
    seeing: ImageNetwork,
    *,
    batch_size: int = 64,
    features: bool = False,
    progress: Progress | None = None,
) -> Predictions:
    """Return the logits of pictures, read a batch at a time, on a GPU if there is one.

    Args:
        pictures: The pictures.
        seeing: The network.
        batch_size: Pictures that are in memory at a time.
        features: Whether the inputs of the network's last linear layer are returned too.
        progress: Called with what is done, how much of it, and how much there is.
    """
    check_count(batch_size, "batch_size", at_most=_MOST_AT_ONCE)
    _check_classes(seeing, pictures)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    network = seeing.network.to(device).eval()
    names = [file.relative_to(pictures.folder).as_posix() for file in pictures.files]
    files = PictureFiles(pictures.files, names, seeing.size, seeing.channels, seeing.crop)
    logits: list[Tensor] = []
    hidden: list[Tensor] = []
    for rows in torch.arange(len(files)).split(batch_size):
        z, h = network.logits_and_features(files.take(rows).read().to(device))
        logits.append(z.float().cpu())
        if features:
            hidden.append(_check_features(h).float().cpu())
        if progress is not None:
            progress("predicting", int(rows[-1]) + 1, len(files))
    return Predictions(
        logits=torch.cat(logits),
        labels=pictures.labels,
        features=torch.cat(hidden) if features else None,
        ids=names,
        class_names=pictures.class_names,
        metadata={"data": pictures.folder.name},
    )


def _check_classes(seeing: ImageNetwork, pictures: FoundPictures) -> None:
    names = pictures.class_names
    if names is not None and len(names) != seeing.n_classes:
        raise InputError(
            f"images: expected a folder for each of the network's {seeing.n_classes} classes, got "
            f"{len(names)}; add empty folders for classes without pictures"
        )


def _check_features(features: Tensor | None) -> Tensor:
    if features is None:
        raise InputError(
            "features: expected a network that ends with a linear layer, got another; leave it out"
        )
    return features
