"""How far each pixel is from the border of its region, in bands, by a few minima and maxima of an image."""

from typing import Any

import numpy as np
import numpy.typing as npt

#: The largest distance of each band but the last, which has no end. A pixel beside another class has 1.
BANDS = (1, 2, 4, 8, 16)


def band_names() -> tuple[str, ...]:
    """Return the bands in words.

    Example:
        >>> band_names()
        ('1', '2', '3 to 4', '5 to 8', '9 to 16', 'above 16')
    """
    starts = (1, *(end + 1 for end in BANDS))
    named = (str(a) if a == b else f"{a} to {b}" for a, b in zip(starts, BANDS, strict=False))
    return (*named, f"above {BANDS[-1]}")


def border_bands(labels: npt.NDArray[Any], ignored: npt.NDArray[np.bool_] | None) -> npt.NDArray[np.uint8]:
    """Return the number of the band of each pixel, from 0, shape ``(h, w)``.

    The distance of a pixel is how many steps, also diagonal ones, lead to the next pixel of another class. A
    pixel lies within ``r`` steps of one if the largest and the smallest class in the square of radius ``r``
    around it differ. Ignored pixels have no class, and the border of the image is no border of a region.

    Args:
        labels: Classes, shape ``(h, w)``; 0 where they are ignored.
        ignored: Where labels are ignored; None if nowhere.

    Example:
        >>> border_bands(np.array([[0, 0, 0, 1, 1]]), None).tolist()
        [[2, 1, 0, 0, 1]]
    """
    most = np.iinfo(labels.dtype).max
    largest, smallest = labels.copy(), labels.copy()
    if ignored is not None:
        # One more than the class, so that 0 is less than any.
        largest += 1
        largest[ignored], smallest[ignored] = 0, most - 1
        smallest += 1
    band = np.zeros(labels.shape, dtype=np.uint8)
    reach = 0
    for end in BANDS:
        _reach(largest, np.maximum, end - reach)
        _reach(smallest, np.minimum, end - reach)
        reach = end
        band += largest == smallest
    return band


def _reach(values: npt.NDArray[Any], most: np.ufunc, step: int) -> None:
    """Widen the squares over which an extreme was taken by ``step`` in each direction, in place.

    Squares of at least this radius already overlap after a shift by ``step``, so three of them are enough.
    """
    for along in (values, values.T):
        if len(along) > step:
            before = along.copy(order="K")
            most(along[step:], before[:-step], out=along[step:])
            most(along[:-step], before[step:], out=along[:-step])
        else:
            along[:] = most.reduce(along, axis=0)
