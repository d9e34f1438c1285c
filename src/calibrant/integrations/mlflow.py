"""MLflow models: a network and its calibrator, or a calibrator alone, saved as data and without pickles."""

import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from warnings import catch_warnings, simplefilter

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from calibrant._version import __version__
from calibrant.errors import InputError
from calibrant.extras import optional
from calibrant.files import make_folder
from calibrant.inputs import ArrayLike, to_tensor
from calibrant.posthoc.calibrator import Calibrator
from calibrant.posthoc.confidence import ConfidenceCalibrator
from calibrant.posthoc.files import load_calibrator
from calibrant.posthoc.model import evaluating

with optional("mlflow"), catch_warnings():
    simplefilter("ignore", UserWarning)  # of MLflow about hints of its own
    import mlflow.pyfunc
    from mlflow.models import infer_signature

_CALIBRATOR, _NETWORK = "calibrator.safetensors", "network.pt2"


def save_mlflow(
    path: str | os.PathLike[str],
    calibrator: Calibrator,
    *,
    example: ArrayLike,
    network: nn.Module | None = None,
) -> Path:
    """Save an MLflow model of flavour ``python_function``, from inputs to calibrated probabilities.

    The network is exported by :func:`torch.export.export`, for batches of any size, and the calibrator is a
    safetensors file, so that nothing is unpickled and the code of the network is not needed. The model has a
    signature and an input example. Loading needs Calibrant's core and MLflow.

    Args:
        path: The folder to write, which must not exist.
        calibrator: A fitted calibrator of logits or of confidences.
        example: At least two inputs of the network; without a network, logits or confidences.
        network: A network that returns a tensor of logits.

    Returns:
        The folder: ``mlflow.pyfunc.load_model(folder).predict(inputs)`` gives probabilities.
    """
    folder = Path(path)
    if folder.exists():
        raise InputError(f"path: expected a new folder, got {folder}, which is there; name another one")
    inputs = to_tensor(example, "example")
    if inputs.ndim == 0 or len(inputs) < 2:
        raise InputError(f"example: expected at least two inputs, got shape {tuple(inputs.shape)}")
    make_folder(folder.parent)
    with TemporaryDirectory(prefix=".calibrant-", dir=folder.parent) as scratch:
        data = Path(scratch, "calibrant")
        data.mkdir()
        calibrator.save(data / _CALIBRATOR)
        if network is not None:
            with evaluating(network):
                batch = {0: torch.export.Dim("batch")}
                torch.export.save(
                    torch.export.export(network, (inputs,), dynamic_shapes=(batch,)), data / _NETWORK
                )
        given = inputs.numpy(force=True)
        mlflow.pyfunc.save_model(
            Path(scratch, "model"),
            loader_module=__name__,
            data_path=os.fspath(data),
            pip_requirements=[f"calibrant=={__version__}", f"torch=={torch.__version__.partition('+')[0]}"],
            signature=infer_signature(given, _Probabilities(data).predict(given)),
            input_example=given[:2],
        )
        Path(scratch, "model").rename(folder)
    return folder


class _Probabilities:
    """What MLflow calls: arrays, data frames or lists of inputs become probabilities."""

    def __init__(self, data: Path) -> None:
        self.calibrator = load_calibrator(data / _CALIBRATOR)
        network = data / _NETWORK
        self.network = torch.export.load(network).module() if network.is_file() else None

    def predict(self, inputs: Any, params: object = None) -> npt.NDArray[Any]:  # noqa: ANN401, ARG002  # of MLflow
        """Return probabilities of shape ``(n, k)``, or repaired confidences of shape ``(n,)``."""
        array = inputs.to_numpy() if hasattr(inputs, "to_numpy") else np.asarray(inputs)
        if isinstance(self.calibrator, ConfidenceCalibrator):
            return np.asarray(self.calibrator.predict_confidence(array))
        if self.network is None:
            return np.asarray(self.calibrator.predict_proba(array))
        with torch.no_grad():
            return np.asarray(self.calibrator.predict_proba(self.network(torch.as_tensor(array)).numpy()))


def _load_pyfunc(path: str) -> _Probabilities:
    """Load the data of a model; MLflow looks for this name."""
    return _Probabilities(Path(path))
