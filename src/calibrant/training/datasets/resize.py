"""Images of one data set brought to the size of another, so that a network can look at strangers."""

import torch
import torch.nn.functional as F

from calibrant.errors import InputError
from calibrant.training.datasets.dataset import LabelledData

_CHUNK = 1024


def resized_like(data: LabelledData, like: LabelledData) -> LabelledData:
    """Return images with the channels, height and width of other ones.

    Grey becomes three equal channels, colours become grey by their mean, and pixels are interpolated.

    Example:
        >>> pixels, label = torch.zeros(1, 1, 8, 8, dtype=torch.uint8), torch.tensor([0])
        >>> small = LabelledData(pixels, label, None, "image")
        >>> large = LabelledData(pixels.repeat(1, 3, 4, 4), label, None, "image")
        >>> resized_like(small, large)
        LabelledData(n=1, image (3, 32, 32))
    """
    if data.kind != "image" or like.kind != "image" or data.inputs.shape[1:] == like.inputs.shape[1:]:
        return data
    channels, height, width = like.inputs.shape[1:]
    if data.inputs.shape[1] != channels and 1 not in (channels, data.inputs.shape[1]):
        raise InputError(
            f"foreign: expected images of 1 or {channels} channels, got {data.inputs.shape[1]} channels"
        )
    parts = []
    for part in data.inputs.split(_CHUNK):
        values = part.float()
        if values.shape[1] > channels:
            values = values.mean(dim=1, keepdim=True)
        values = values.expand(-1, channels, -1, -1)
        if values.shape[2:] != (height, width):
            values = F.interpolate(values, (height, width), mode="bilinear", antialias=True)
        parts.append(values.round().clamp(0, 255).to(torch.uint8))
    return LabelledData(torch.cat(parts), data.labels, data.class_names, data.kind)
