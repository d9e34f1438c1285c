"""CIFAR-10 and CIFAR-100, from Hugging Face parquet or from the original binaries."""

from pathlib import Path

from torch import Tensor

from calibrant.errors import FormatError
from calibrant.training.datasets.cifar_binary import TEST_FILES, TRAIN_FILES, read_binaries
from calibrant.training.datasets.cifar_classes import CIFAR10, CIFAR100
from calibrant.training.datasets.cifar_parquet import find_shards, read_shards
from calibrant.training.datasets.dataset import LabelledData, Splits
from calibrant.training.datasets.reading import check_exists
from calibrant.training.datasets.split import divide


def load_cifar10(path: Path, *, validation: float = 0.1, seed: int = 0) -> Splits:
    """Return CIFAR-10 from a folder with ``train*.parquet`` and ``test*.parquet`` or ``data_batch_*.bin``.

    The folder may be one above these. The Python version of the archive is pickled and refused.
    """
    return _load(path, CIFAR10, validation=validation, seed=seed)


def load_cifar100(path: Path, *, validation: float = 0.1, seed: int = 0) -> Splits:
    """Return CIFAR-100 with its fine labels, from parquet or from ``train.bin`` and ``test.bin``."""
    return _load(path, CIFAR100, validation=validation, seed=seed)


def _load(path: Path, classes: tuple[str, ...], *, validation: float, seed: int) -> Splits:
    train, test = (LabelledData(*part, classes, "image") for part in _parts(check_exists(path), len(classes)))
    return Splits(*divide(train, None, test, share=validation, seed=seed))


def _parts(path: Path, n_classes: int) -> list[tuple[Tensor, Tensor]]:
    """Return images and labels of the training and the test part."""
    if not path.is_dir():
        unpack = (
            "unpack it" if path.name.endswith((".tar.gz", ".tgz", ".zip")) else "name the folder it is in"
        )
        raise FormatError(f"{path}: expected a folder with CIFAR-{n_classes}, got a file; {unpack}")
    shards = {part: find_shards(path, part) for part in ("train", "test")}
    if shards["train"] and shards["test"]:
        return [read_shards(shards[part], n_classes=n_classes) for part in ("train", "test")]
    if any(shards.values()):
        missing = "test" if shards["train"] else "train"
        raise FormatError(f"{path}: expected train*.parquet and test*.parquet, got no {missing}*.parquet")
    files = {"train": TRAIN_FILES[n_classes], "test": TEST_FILES[n_classes]}
    folder = _folder_with(path, [*files["train"], *files["test"]])
    if folder is not None:
        return [read_binaries(folder, names, n_classes=n_classes) for names in files.values()]
    pickles = ["data_batch_1", "test_batch"] if n_classes == 10 else ["train", "meta"]
    if _folder_with(path, pickles) is not None:
        raise FormatError(
            f"{path}: expected CIFAR-{n_classes} as parquet or binary files, got the Python version, whose "
            "pickles are never read; fetch the binary version"
        )
    raise FormatError(
        f"{path}: expected train*.parquet and test*.parquet, or {files['train'][0]} and {files['test'][0]}, "
        "got neither; name the folder they are in"
    )


def _folder_with(path: Path, names: list[str]) -> Path | None:
    """Return the folder, this one or one in it, that has any of the files."""
    folders = [path, *sorted(entry for entry in path.iterdir() if entry.is_dir())]
    return next((folder for folder in folders if any((folder / name).is_file() for name in names)), None)
