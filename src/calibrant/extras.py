"""Packages that the core does without: which extra has each, and the one sentence when it is missing."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from calibrant.errors import MissingPackageError

# The name to install and the extra that has it, by the name to import.
_PACKAGES = {
    "pyarrow": ("pyarrow", "tables"),
    "matplotlib": ("matplotlib", "plots"),
    "jinja2": ("jinja2", "report"),
    "vl_convert": ("vl-convert-python", "report"),
    "sklearn": ("scikit-learn", "sklearn"),
    "threadpoolctl": ("threadpoolctl", "bench"),
    "accelerate": ("accelerate", "train"),
    "lightning": ("lightning", "train"),
    "lightning_fabric": ("lightning-fabric", "train"),
    "pytorch_lightning": ("lightning", "train"),
    "PIL": ("pillow", "train"),
    "tomli_w": ("tomli-w", "train"),
    "torchmetrics": ("torchmetrics", "train"),
    "transformers": ("transformers", "train"),
    "onnx": ("onnx", "export"),
    "onnxruntime": ("onnxruntime", "export"),
    "onnxscript": ("onnxscript", "export"),
    "fsspec": ("fsspec", "scale"),
    "ray": ("ray", "scale"),
    "h5py": ("h5py", "bench"),
    "mlflow": ("mlflow-skinny", "mlflow"),
}


@contextmanager
def optional(purpose: str) -> Iterator[None]:
    """Import packages of an extra inside the block; one that is missing is one sentence that names the extra.

    Args:
        purpose: What needs the packages; the sentence begins with it.

    Raises:
        MissingPackageError: A package of an extra is not installed; others are mistakes in the code.

    Example:
        >>> with optional("figures"):
        ...     import matplotlib
    """
    try:
        yield
    except ModuleNotFoundError as error:
        module = (error.name or "").partition(".")[0]
        if isinstance(error, MissingPackageError) or module not in _PACKAGES:
            raise
        raise _missing(purpose, module) from error


def why_missing(purpose: str, *modules: str) -> MissingPackageError | None:
    """Return why what needs these modules cannot be done; None if it can. They are not imported."""
    absent = [module for module in modules if find_spec(module) is None]
    return _missing(purpose, *absent) if absent else None


def _missing(purpose: str, *modules: str) -> MissingPackageError:
    names = " and ".join(_PACKAGES[module][0] for module in modules)
    return MissingPackageError(purpose, names, _PACKAGES[modules[0]][1])
