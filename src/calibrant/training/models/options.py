"""What a model is asked to be, checked when it is made."""

from collections.abc import Sequence

from calibrant.errors import InputError
from calibrant.inputs import check_count


def check_image_shape(
    shape: Sequence[int], *, at_least: int = 1, multiple_of: int = 1
) -> tuple[int, int, int]:
    """Check the shape ``(channels, height, width)`` of an image that a network can take.

    Args:
        shape: Of one image, without the batch.
        at_least: Fewest pixels of a side.
        multiple_of: What a side must be a multiple of.
    """
    if len(shape) != 3:
        raise InputError(f"shape: expected (channels, height, width) of an image, got {tuple(shape)}")
    channels, height, width = (check_count(size, "shape") for size in shape)
    if min(height, width) < at_least:
        raise InputError(f"shape: expected at least {at_least} pixels a side, got {height} x {width}")
    if height % multiple_of or width % multiple_of:
        raise InputError(f"shape: expected sides that are multiples of {multiple_of}, got {height} x {width}")
    return channels, height, width


def check_probability(value: float, name: str) -> float:
    """Check a number from 0 up to 1, such as how much dropout drops; 1 would leave nothing."""
    if not 0 <= value < 1:
        raise InputError(f"{name}: expected a number from 0 up to, but not including, 1, got {value!r}")
    return value
