"""A sample of the pixels of images as predictions, for what compares methods and describes rows."""

from collections.abc import Iterable, Sized

from calibrant.data.predictions import Predictions
from calibrant.inputs import Progress
from calibrant.pixels.images import PixelImage
from calibrant.posthoc.score_maps import PixelSample

#: How many pixels of each image are drawn, and the radius of the neighbourhood that their features describe.
PIXELS_PER_IMAGE, RADIUS = 500, 2


def pixel_rows(
    images: Iterable[PixelImage], *, seed: int = 0, progress: Progress | None = None
) -> Predictions:
    """Return a random sample of the pixels of each image as rows; the image is their unit.

    Features are what the pixels around each pixel are like, which ``"local_temperature"`` reads.

    Args:
        images: What :func:`~calibrant.pixels.open_images` returns.
        seed: Seed of the draws.
        progress: Called with the name of the image, the number that are done, and the total if it is known.
    """
    total = len(images) if isinstance(images, Sized) else 0
    sample: PixelSample | None = None
    for done, image in enumerate(images):
        if progress is not None:
            progress(image.name, done, max(total, done + 1))
        sample = sample or PixelSample(
            pixels_per_image=PIXELS_PER_IMAGE, ignore_index=image.ignore_index, radius=RADIUS, seed=seed
        )
        sample.add(image.logits[None], image.known_labels()[None])
    data = (sample or PixelSample()).fitting_set()
    return Predictions(logits=data.logits, labels=data.labels, features=data.features, units=data.units)
