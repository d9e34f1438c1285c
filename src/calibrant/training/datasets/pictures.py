"""Pictures into pixels: PNG, JPEG and whatever else Pillow opens, and images brought to another size."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from io import BytesIO
from os import cpu_count
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from calibrant.errors import FormatError, InputError
from calibrant.extras import optional
from calibrant.training.datasets.dataset import LabelledData

if TYPE_CHECKING:
    from PIL.Image import Image

# Most pictures that one task of the thread pool decodes, so that the cost of a task does not matter.
_CHUNK = 256
# Images that are floating-point numbers at one time.
_RESIZED_AT_ONCE = 1024


def pillow() -> ModuleType:
    """Import ``PIL.Image``, which is needed for pictures only."""
    with optional("pictures"):
        from PIL import Image
    return Image


def decode(
    sources: Sequence[bytes | Path],
    names: Sequence[str],
    *,
    size: tuple[int, int],
    channels: int = 3,
    resize: bool = False,
    window: Callable[[int, int, int], tuple[float, float, float, float]] | None = None,
) -> Tensor:
    """Return pictures as uint8 of shape ``(n, channels, height, width)``.

    Args:
        sources: Encoded pictures, or the files that hold them.
        names: The name of each in error messages.
        size: Height and width of the result.
        channels: 3 for colour, 1 for grey.
        resize: Whether pictures of another size are resized rather than refused.
        window: Returns the part of a picture to resize, as left, top, right and bottom, given its row, width
            and height; None for all of it.
    """
    image = pillow()
    mode = "L" if check_channels(channels) == 1 else "RGB"
    pixels = np.empty((len(sources), *size, channels), dtype=np.uint8)

    def fill(row: int) -> None:
        source = sources[row]
        try:
            with image.open(BytesIO(source) if isinstance(source, bytes) else source) as opened:
                opened.load()
                picture = opened if opened.mode == mode else _in_mode(opened, mode)
        except Exception as error:
            # Decoders raise almost any exception for damaged pictures, not only OSError.
            detail = str(error).split(" <_io")[0][:120] or type(error).__name__
            raise FormatError(
                f"{names[row]}: expected a whole picture, got one that cannot be decoded ({detail}); "
                "it may be truncated or something else by that name"
            ) from error
        if window is not None:
            box = window(row, *picture.size)
            picture = picture.resize(size[::-1], image.Resampling.BILINEAR, box=box)
        elif picture.size != size[::-1]:
            if not resize:
                raise FormatError(
                    f"{names[row]}: expected {size[1]} x {size[0]} pixels, "
                    f"got {picture.size[0]} x {picture.size[1]}; read other sizes as an image folder"
                )
            picture = picture.resize(size[::-1], image.Resampling.BILINEAR)
        pixels[row] = np.asarray(picture).reshape(*size, channels)

    in_threads(fill, len(sources))
    return torch.from_numpy(np.ascontiguousarray(pixels.transpose(0, 3, 1, 2)))


def in_threads(work: Callable[[int], None], n: int) -> None:
    """Call ``work`` on 0 to ``n - 1`` in several threads; Pillow releases Python's lock."""
    size = max(1, min(_CHUNK, n // 16))

    def chunk(start: int) -> None:
        for row in range(start, min(start + size, n)):
            work(row)

    with ThreadPoolExecutor(min(8, cpu_count() or 1)) as pool:
        # Reading the results raises the first exception.
        list(pool.map(chunk, range(0, n, size)))


def _in_mode(picture: "Image", mode: str) -> "Image":
    if picture.mode.startswith("I;16"):
        # Pillow would clip 16 bits at 255 instead of scaling them.
        shades = np.asarray(picture).astype(np.uint16) >> 8
        return pillow().fromarray(shades.astype(np.uint8)).convert(mode)  # type: ignore[no-any-return]  # Pillow is imported when needed
    if picture.mode in ("I", "F"):
        raise ValueError(f"pixels of mode {picture.mode} have no fixed range")
    if picture.mode == "P":
        # Pillow warns about a palette with transparency unless it is converted to RGBA first.
        picture = picture.convert("RGBA")
    return picture.convert(mode)


def check_channels(channels: int) -> int:
    """Return the number of channels of an image, or refuse it."""
    if channels not in (1, 3):
        raise InputError(f"channels: expected 1 for grey or 3 for colour, got {channels}")
    return channels


def check_size(size: int | Sequence[int]) -> tuple[int, int]:
    """Return height and width in pixels from the side of a square or from both."""
    height, width = size if isinstance(size, list | tuple) and len(size) == 2 else (size, size)
    if not (isinstance(height, int) and isinstance(width, int) and min(height, width) > 0):
        raise InputError(f"size: expected a whole number of pixels from 1, or two, got {size!r}")
    return height, width


def resized(data: LabelledData, size: tuple[int, int]) -> LabelledData:
    """Return images with another height and width, whose pixels are interpolated."""
    if data.inputs.shape[2:] == size:
        return data
    parts = (_interpolated(part.float(), size) for part in data.inputs.split(_RESIZED_AT_ONCE))
    return replace(data, inputs=torch.cat(list(parts)))


def _interpolated(values: Tensor, size: tuple[int, int]) -> Tensor:
    if values.shape[2:] != size:
        values = F.interpolate(values, size, mode="bilinear", antialias=True)
    return values.round().clamp(0, 255).to(torch.uint8)


def resized_like(data: LabelledData, like: LabelledData) -> LabelledData:
    """Return images with the channels, height and width of other ones, so that one network can read both.

    Grey becomes three equal channels, colours become grey by their mean, and pixels are interpolated. Inputs
    that are not images are returned unchanged.

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
    for part in data.inputs.split(_RESIZED_AT_ONCE):
        values = part.float()
        if values.shape[1] > channels:
            values = values.mean(dim=1, keepdim=True)
        parts.append(_interpolated(values.expand(-1, channels, -1, -1), (height, width)))
    return replace(data, inputs=torch.cat(parts))
