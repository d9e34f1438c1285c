"""Real predictions that come with the package, so that everything can be tried without a download."""

from importlib.resources import as_file, files

from calibrant.data.files import load_predictions
from calibrant.data.predictions import Predictions
from calibrant.errors import InputError

BUNDLED = ("cifar10_val", "cifar10_test", "cifar10_test_noise")


def load_bundled(name: str) -> Predictions:
    """Load the predictions of a small CIFAR-10 network; see the data card beside the files.

    Args:
        name: ``"cifar10_val"`` (5,000 images), ``"cifar10_test"`` (10,000 images) or
            ``"cifar10_test_noise"`` (the same 10,000 under Gaussian noise).

    Example:
        >>> load_bundled("cifar10_val").n
        5000
    """
    if name not in BUNDLED:
        raise InputError(f"name: expected one of {', '.join(BUNDLED)}, got {name!r}")
    with as_file(files("calibrant.data.bundled") / f"{name}.npz") as path:
        return load_predictions(path)
