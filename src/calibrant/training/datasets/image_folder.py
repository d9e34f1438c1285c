"""A folder of pictures: one folder per class, or train, val and test folders with one folder per class."""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from calibrant.errors import FormatError
from calibrant.files import reading
from calibrant.inputs import check_flag
from calibrant.training.datasets.dataset import LabelledData, Splits, check_exists
from calibrant.training.datasets.picture_files import PictureFiles, check_crop
from calibrant.training.datasets.pictures import check_channels, check_size, pillow
from calibrant.training.datasets.sampling import divide

SUFFIXES = (".png", ".jpg", ".jpeg")
#: The usual share of the centre: 224 pixels of a side of 256.
USUAL_CROP = 0.875
_VALIDATION = ("val", "validation", "valid")


def load_image_folder(
    path: Path,
    *,
    size: int | Sequence[int] = 32,
    channels: int = 3,
    crop: float | None = None,
    stream: bool = False,
    validation: float = 0.1,
    seed: int = 0,
) -> Splits:
    """Return the pictures of ``path/class/*.png|jpg``, or of ``path/train/class/*`` and its siblings.

    Classes are numbered in the order of their names. Without a ``test`` folder, a fifth of the pictures is
    the test part; without ``val`` (``validation``, ``valid``), a share of the rest is the validation part.

    Args:
        path: The folder.
        size: Side of the images in pixels, or height and width; others are resized.
        channels: 3 for colour, 1 for grey.
        crop: Share of the largest centred window with the shape of the images that is cut out and resized.
            If not given, whole pictures are resized, whatever their shape, and 0.875 of streamed ones.
        stream: Whether pictures stay files and each batch is decoded when it is needed, for sets that do not
            fit into memory. If images are augmented, training then reads random windows of the pictures.
        validation: Share of the training part that becomes the validation part.
        seed: Which samples that share is.
    """
    shape = check_size(size)
    check_flag(stream, "stream")
    if crop is not None:
        check_crop(crop)
    if not check_exists(path).is_dir():
        raise FormatError(f"{path}: expected a folder of class folders, got a file; name the folder")
    folders = {"train": path / "train", "test": path / "test"}
    folders["validation"] = next((path / n for n in _VALIDATION if (path / n).is_dir()), path / "val")
    if not folders["train"].is_dir():
        folders = {"train": path}
    classes = class_folders(folders["train"])
    centre = crop if crop is not None or not stream else USUAL_CROP
    parts = {}
    for name, folder in folders.items():
        if folder.is_dir():
            files, labels = labelled_pictures(folder, classes)
            parts[name] = _data(files, labels, classes, folder, shape, channels, centre, stream=stream)
    held = parts.get("validation"), parts.get("test")
    with reading(path.name, "pictures"):
        return Splits(*divide(parts["train"], *held, share=validation, seed=seed))


def has_class_folders(folder: Path) -> bool:
    """Return whether there are folders in a folder, each of which would be a class."""
    return any(_is_folder(entry) for entry in folder.iterdir())


def class_folders(folder: Path) -> tuple[str, ...]:
    """Return the names of the folders of classes, in alphabetical order."""
    classes = tuple(sorted(entry.name for entry in folder.iterdir() if _is_folder(entry)))
    if len(classes) < 2:
        raise FormatError(
            f"{folder}: expected a folder for each of at least two classes, got {len(classes)}; "
            "put the pictures of each class into a folder of their own"
        )
    return classes


def labelled_pictures(folder: Path, classes: tuple[str, ...]) -> tuple[list[Path], Tensor]:
    """Return the pictures in the folders of these classes, with their classes."""
    unknown = sorted({entry.name for entry in folder.iterdir() if _is_folder(entry)} - set(classes))
    if unknown:
        raise FormatError(
            f"{folder}: expected the classes of the training folder, got {unknown[0]!r}; "
            "rename the folder or add it to training"
        )
    files: list[Path] = []
    labels: list[int] = []
    for label, name in enumerate(classes):
        pictures = pictures_in(folder / name)
        files += pictures
        labels += [label] * len(pictures)
    if not files:
        raise FormatError(f"{folder}: expected {', '.join(SUFFIXES)} files, got none; check the path")
    return files, torch.tensor(labels)


def _data(
    files: list[Path],
    labels: Tensor,
    classes: tuple[str, ...],
    folder: Path,
    size: tuple[int, int],
    channels: int,
    crop: float | None,
    *,
    stream: bool,
) -> LabelledData:
    names = [str(file.relative_to(folder.parent)) for file in files]
    check_channels(channels)
    stored = PictureFiles(files, names, size, channels, crop)
    if not stream:
        return LabelledData(stored.read(), labels, classes, "image")
    pillow()  # raises an error before training if it is missing
    shape = torch.empty(len(files), channels, *size, dtype=torch.uint8, device="meta")
    return LabelledData(shape, labels, classes, "image", stored=stored)


def _is_folder(entry: Path) -> bool:
    return entry.is_dir() and not entry.name.startswith(".")


def pictures_in(folder: Path) -> list[Path]:
    """Return the pictures of a class in the order of their names, without hidden files."""
    if not folder.is_dir():
        return []
    return sorted(
        file
        for file in folder.iterdir()
        if file.suffix.lower() in SUFFIXES and not file.name.startswith(".") and file.is_file()
    )
