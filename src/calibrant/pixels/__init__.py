"""Pixels: score maps of segmentation, read and measured image by image."""

import typing as _typing

from calibrant.lazy import import_when_used as _import_when_used

if _typing.TYPE_CHECKING:
    from calibrant.pixels.files import open_images
    from calibrant.pixels.images import PixelImage, images_of_batches
    from calibrant.pixels.measures import PixelMeasures, evaluate_pixels

__all__ = ["PixelImage", "PixelMeasures", "evaluate_pixels", "images_of_batches", "open_images"]

_import_when_used(__name__)
