"""Pictures into pixels: PNG, JPEG and whatever else Pillow opens, decoded by several threads."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from os import cpu_count
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from calibrant.errors import FormatError, InputError, MissingPackageError

if TYPE_CHECKING:
    from PIL.Image import Image

# Pictures that one task of the pool decodes: enough for the pool's own work not to count.
_CHUNK = 256


def pillow() -> ModuleType:
    """Return ``PIL.Image``, which only those who read or write pictures need."""
    try:
        from PIL import Image
    except ImportError:
        raise MissingPackageError("pictures", "pillow", "train") from None
    return Image


def decode(
    sources: Sequence[bytes | Path],
    names: Sequence[str],
    *,
    size: tuple[int, int],
    channels: int = 3,
    resize: bool = False,
) -> Tensor:
    """Return pictures as uint8 of shape ``(n, channels, height, width)``.

    Args:
        sources: Encoded pictures, or the files that hold them.
        names: What each is called in a refusal.
        size: Height and width of the result.
        channels: 3 for colour, 1 for grey.
        resize: Whether pictures of another size are brought to this one rather than refused.
    """
    image = pillow()
    mode = {1: "L", 3: "RGB"}.get(channels)
    if mode is None:
        raise InputError(f"channels: expected 1 for grey or 3 for colour, got {channels}")
    pixels = np.empty((len(sources), *size, channels), dtype=np.uint8)

    def fill(row: int) -> None:
        source = sources[row]
        try:
            with image.open(BytesIO(source) if isinstance(source, bytes) else source) as opened:
                opened.load()
                picture = opened if opened.mode == mode else _in_mode(opened, mode)
        except Exception as error:
            # Decoders of damaged pictures raise nearly anything, not only OSError.
            detail = str(error).split(" <_io")[0][:120] or type(error).__name__
            raise FormatError(
                f"{names[row]}: expected a whole picture, got one that cannot be decoded ({detail}); "
                "it may be truncated or something else by that name"
            ) from error
        if picture.size != size[::-1]:
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
    """Call ``work`` on 0 to ``n - 1``, in chunks over the cores; Pillow lets other threads run meanwhile."""

    def chunk(start: int) -> None:
        for row in range(start, min(start + _CHUNK, n)):
            work(row)

    with ThreadPoolExecutor(min(8, cpu_count() or 1)) as pool:
        # Asking for the results raises the first failure.
        list(pool.map(chunk, range(0, n, _CHUNK)))


def _in_mode(picture: "Image", mode: str) -> "Image":
    if picture.mode.startswith("I;16"):
        # Converting 16 bits to 8 would cut off all above 255 instead of scaling.
        shades = np.asarray(picture).astype(np.uint16) >> 8
        return pillow().fromarray(shades.astype(np.uint8)).convert(mode)  # type: ignore[no-any-return]  # Pillow is imported when needed
    if picture.mode in ("I", "F"):
        raise ValueError(f"pixels of mode {picture.mode} have no fixed range")
    if picture.mode == "P":
        # Straight from a palette with transparency, Pillow warns.
        picture = picture.convert("RGBA")
    return picture.convert(mode)
