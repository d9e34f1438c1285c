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


def border_bands(labels: npt.NDArray[Any], counted: npt.NDArray[np.bool_] | None) -> npt.NDArray[np.uint8]:
    """Return the number of the band of each pixel, from 0, shape ``(h, w)``.

    The distance of a pixel is how many steps, also diagonal ones, lead to the next pixel of another class. A
    pixel lies within ``r`` steps of one if the largest and the smallest class in the square of radius ``r``
    around it differ; where no pixel is ignored, if a pixel within ``r - 1`` steps has another class beside
    it. Ignored pixels have no class, and the border of the image is no border of a region.

    Args:
        labels: Classes, shape ``(h, w)``; any where they are ignored.
        counted: Where labels count; None if everywhere.

    Example:
        >>> border_bands(np.array([[0, 0, 0, 1, 1]]), None).tolist()
        [[2, 1, 0, 0, 1]]
    """
    (height, width), k = labels.shape, int(labels.max()) + 1
    # Room behind each row, so that what is widened along the rows of the flat array never meets the next row.
    row = width + BANDS[-1]
    reached = np.zeros((2, height, row), dtype=labels.dtype)
    # The largest class, and the smallest one as the largest of what remains to k; 0 is none.
    largest, smallest = reached[:, :, :width]
    np.add(labels, 1, out=largest)
    np.subtract(k, labels, out=smallest)
    if counted is not None:
        largest *= counted
        smallest *= counted
    reached, reach = reached.reshape(2, -1), 0
    n_near = np.zeros(height * row, dtype=np.uint8)
    for end in BANDS:
        for steps in (1, row):
            reached = _widened(reached, (end - reach) * steps)
        reach = end
        near = reached[0] if len(reached) == 1 else (reached[0] + reached[1] != k + 1).view(np.uint8)
        if counted is None and len(reached) == 2:
            near.reshape(height, row)[:, width:] = 0
            reached = near[None]
        n_near += near
    return (len(BANDS) - n_near).reshape(height, row)[:, :width]


def _widened(values: npt.NDArray[Any], shift: int) -> npt.NDArray[Any]:
    """Return the largest of each value and the two at a distance along the last dimension."""
    if shift >= values.shape[1]:
        return values
    widened = np.empty_like(values)
    np.maximum(values[:, shift:], values[:, :-shift], out=widened[:, shift:])
    widened[:, :shift] = values[:, :shift]
    np.maximum(widened[:, :-shift], values[:, shift:], out=widened[:, :-shift])
    return widened
