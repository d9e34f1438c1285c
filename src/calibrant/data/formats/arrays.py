"""Predictions as the NumPy arrays that files hold."""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from calibrant.data.keys import ARRAYS
from calibrant.data.predictions import Predictions


def to_arrays(predictions: Predictions) -> dict[str, npt.NDArray[Any]]:
    """Return what is there by key; bfloat16, which NumPy does not know, becomes float32 without loss."""
    arrays = {}
    for key in ARRAYS:
        tensor = getattr(predictions, key)
        if tensor is not None:
            tensor = tensor.float() if tensor.dtype == torch.bfloat16 else tensor
            arrays[key] = np.ascontiguousarray(tensor.cpu().numpy())
    return arrays
