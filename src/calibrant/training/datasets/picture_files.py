"""Pictures that stay files until a batch of them is needed: sets that do not fit into memory."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

import torch
from torch import Tensor

from calibrant.errors import InputError
from calibrant.training.datasets.pictures import decode

#: Left, top, right and bottom edge of a window, in pixels.
Box: TypeAlias = tuple[float, float, float, float]


@dataclass(frozen=True, eq=False)
class PictureFiles:
    """Files of pictures, each decoded when it is read.

    Attributes:
        files: The files.
        names: The name of each in error messages.
        size: Height and width of the images.
        channels: 3 for colour, 1 for grey.
        crop: Share of the largest centred window with the shape of the images that is cut out; None to
            resize whole pictures, whatever their shape.
    """

    files: Sequence[Path]
    names: Sequence[str]
    size: tuple[int, int]
    channels: int
    crop: float | None

    def __len__(self) -> int:
        return len(self.files)

    def take(self, rows: Tensor) -> "PictureFiles":
        """Return the files of these rows, without reading them."""
        numbers = rows.tolist()
        return replace(
            self, files=[self.files[row] for row in numbers], names=[self.names[row] for row in numbers]
        )

    def read(self) -> Tensor:
        """Return the centre of each picture, uint8 of shape ``(n, c, h, w)``."""
        share = self.crop
        if share is None:
            return decode(self.files, self.names, size=self.size, channels=self.channels, resize=True)

        def window(_: int, width: int, height: int) -> Box:
            return centre_box(width, height, self.size, share=share)

        return decode(self.files, self.names, size=self.size, channels=self.channels, window=window)

    def random_crops(self, draws: Sequence[Tensor], *, smallest: float) -> Tensor:
        """Return a random window of each picture, uint8 of shape ``(n, c, h, w)``.

        Args:
            draws: Four random numbers between 0 and 1 for each picture: they decide the area, the ratio of
                sides, and the place from top and left.
            smallest: Smallest share of the area of a picture.
        """
        numbers = torch.stack(list(draws), dim=1).tolist()

        def window(row: int, width: int, height: int) -> Box:
            return random_box(width, height, self.size, numbers[row], smallest=smallest)

        return decode(self.files, self.names, size=self.size, channels=self.channels, window=window)


def centre_box(width: int, height: int, size: tuple[int, int], *, share: float) -> Box:
    """Return a window with the shape of ``size`` in the centre of a picture.

    Example:
        >>> centre_box(100, 60, (32, 32), share=0.5)
        (35.0, 15.0, 65.0, 45.0)
    """
    scale = share * min(width / size[1], height / size[0])
    wide, high = scale * size[1], scale * size[0]
    return (width - wide) / 2, (height - high) / 2, (width + wide) / 2, (height + high) / 2


def random_box(
    width: int,
    height: int,
    size: tuple[int, int],
    draws: Sequence[float],
    *,
    smallest: float,
    stretch: float = 4 / 3,
) -> Box:
    """Return the window that four numbers between 0 and 1 choose; a side that is too long is shortened.

    Example:
        >>> random_box(100, 100, (32, 32), (1.0, 0.5, 0.0, 0.0), smallest=0.08)
        (0.0, 0.0, 100.0, 100.0)
    """
    area, ratio, down, right = draws
    pixels = (smallest + (1 - smallest) * area) * width * height
    shape = size[1] / size[0] * math.exp((2 * ratio - 1) * math.log(stretch))
    wide, high = min(math.sqrt(pixels * shape), width), min(math.sqrt(pixels / shape), height)
    left, top = right * (width - wide), down * (height - high)
    return left, top, left + wide, top + high


def check_crop(crop: float) -> float:
    """Return a share of the centre to cut out, or refuse it."""
    if isinstance(crop, bool) or not 0 < crop <= 1:
        raise InputError(f"crop: expected a share above 0, at most 1, got {crop!r}; 0.875 is usual")
    return crop
