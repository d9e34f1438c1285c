"""A folder of pictures: one folder per class, or train, val and test folders with one folder per class."""

from collections.abc import Sequence
from pathlib import Path

import torch

from calibrant.errors import FormatError
from calibrant.files import reading
from calibrant.training.datasets.dataset import LabelledData, Splits, check_exists
from calibrant.training.datasets.pictures import check_size, decode
from calibrant.training.datasets.sampling import divide

SUFFIXES = (".png", ".jpg", ".jpeg")
_VALIDATION = ("val", "validation", "valid")


def load_image_folder(
    path: Path, *, size: int | Sequence[int] = 32, channels: int = 3, validation: float = 0.1, seed: int = 0
) -> Splits:
    """Return the pictures of ``path/class/*.png|jpg``, or of ``path/train/class/*`` and its siblings.

    Classes are numbered in the order of their names. Without a ``test`` folder, a fifth of the pictures is
    the test part; without ``val`` (``validation``, ``valid``), a share of the rest is the validation part.

    Args:
        path: The folder.
        size: Side of the images in pixels, or height and width; others are resized.
        channels: 3 for colour, 1 for grey.
        validation: Share of the training part that becomes the validation part.
        seed: Which samples that share is.
    """
    shape = check_size(size)
    if not check_exists(path).is_dir():
        raise FormatError(f"{path}: expected a folder of class folders, got a file; name the folder")
    folders = {"train": path / "train", "test": path / "test"}
    folders["validation"] = next((path / n for n in _VALIDATION if (path / n).is_dir()), path / "val")
    if not folders["train"].is_dir():
        folders = {"train": path}
    classes = _classes(folders["train"])
    parts = {
        name: _read(folder, classes, shape, channels) for name, folder in folders.items() if folder.is_dir()
    }
    held = parts.get("validation"), parts.get("test")
    with reading(path.name, "pictures"):
        return Splits(*divide(parts["train"], *held, share=validation, seed=seed))


def _classes(folder: Path) -> tuple[str, ...]:
    classes = tuple(sorted(entry.name for entry in folder.iterdir() if _is_folder(entry)))
    if len(classes) < 2:
        raise FormatError(
            f"{folder}: expected a folder for each of at least two classes, got {len(classes)}; "
            "put the pictures of each class into a folder of their own"
        )
    return classes


def _read(folder: Path, classes: tuple[str, ...], size: tuple[int, int], channels: int) -> LabelledData:
    unknown = sorted({entry.name for entry in folder.iterdir() if _is_folder(entry)} - set(classes))
    if unknown:
        raise FormatError(
            f"{folder}: expected the classes of the training folder, got {unknown[0]!r}; "
            "rename the folder or add it to training"
        )
    files: list[Path] = []
    labels: list[int] = []
    for label, name in enumerate(classes):
        pictures = _pictures(folder / name)
        files += pictures
        labels += [label] * len(pictures)
    if not files:
        raise FormatError(f"{folder}: expected {', '.join(SUFFIXES)} files, got none; check the path")
    names = [str(file.relative_to(folder.parent)) for file in files]
    images = decode(files, names, size=size, channels=channels, resize=True)
    return LabelledData(images, torch.tensor(labels), classes, "image")


def _is_folder(entry: Path) -> bool:
    return entry.is_dir() and not entry.name.startswith(".")


def _pictures(folder: Path) -> list[Path]:
    """Return the pictures of a class in the order of their names, without hidden files."""
    if not folder.is_dir():
        return []
    return sorted(
        file
        for file in folder.iterdir()
        if file.suffix.lower() in SUFFIXES and not file.name.startswith(".") and file.is_file()
    )
