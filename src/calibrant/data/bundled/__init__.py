"""Real predictions that come with the package, to try Calibrant without a download."""

from importlib.resources import as_file, files

from calibrant.data.files import load_predictions
from calibrant.data.predictions import Predictions
from calibrant.inputs import check_choice

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
    with as_file(files("calibrant.data.bundled") / f"{check_choice(name, 'name', BUNDLED)}.npz") as path:
        return load_predictions(path)
