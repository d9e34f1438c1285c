"""The views of a step: each sample as it is, or one or several augmented versions of it."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from calibrant.training.config.settings import EncoderSettings, StageSettings, TrainingSettings
from calibrant.training.datasets.augment import augment, mirror, recolour, resized_crops
from calibrant.training.datasets.dataset import DataKind


@dataclass(frozen=True)
class Views:
    """How the inputs of a step are made from samples.

    Attributes:
        count: Versions of each sample.
        by: What changes an image: a ``"shift"``, a resized ``"crop"``, or a crop and its ``"colour"``; None
            to leave samples as they are.
        padding: Largest shift in pixels; an eighth of the height if not given.
        flip: Whether half of the images are mirrored.
    """

    count: int = 1
    by: Literal["shift", "crop", "colour"] | None = None
    padding: int | None = None
    flip: bool = False

    def of(self, inputs: Tensor, *, generator: torch.Generator, part: tuple[int, slice]) -> list[Tensor]:
        """Return the views of a batch; ``generator`` and ``part`` are those of :func:`augment`."""
        return [self._one(inputs, generator, part) for _ in range(self.count)]

    def _one(self, inputs: Tensor, generator: torch.Generator, part: tuple[int, slice]) -> Tensor:
        if self.by is None:
            return inputs
        if self.by == "shift":
            padding = inputs.shape[2] // 8 if self.padding is None else self.padding
            return augment(inputs, padding=padding, flip=self.flip, generator=generator, part=part)
        images = resized_crops(inputs, generator=generator, part=part)
        if self.flip:
            images = mirror(images, generator=generator, part=part)
        return recolour(images, generator=generator, part=part) if self.by == "colour" else images


def training_views(settings: StageSettings, kind: DataKind, *, mirrored: bool) -> Views:
    """Return the one view of a classifier's stage.

    Args:
        settings: Those of the stage.
        kind: What the samples are; only images are augmented.
        mirrored: Whether images are mirrored, unless the settings decide.
    """
    if not settings.augment or kind != "image":
        return Views()
    return Views(1, "shift", settings.padding, mirrored if settings.flip is None else settings.flip)


def encoder_views(settings: EncoderSettings, kind: DataKind, *, mirrored: bool) -> Views:
    """Return the views of an encoder's stage: two of images and one of other samples, if not given."""
    count = settings.views or (2 if kind == "image" else 1)
    return _several(settings, training_views(settings, kind, mirrored=mirrored), count)


def joint_views(
    training: TrainingSettings, encoder: EncoderSettings, kind: DataKind, *, mirrored: bool
) -> Views:
    """Return the views of joint training: two of images that are augmented, and one of others, if not given.

    Images are augmented if both tables ask for it. A shift or mirror image that ``[encoder]`` leaves open is
    that of ``[training]``.
    """
    flip = mirrored if training.flip is None else training.flip
    views = training_views(encoder, kind, mirrored=flip)
    if views.by is None or not training.augment:
        return Views(encoder.views or 1)
    padding = training.padding if encoder.padding is None else encoder.padding
    return _several(encoder, Views(1, views.by, padding, views.flip), encoder.views or 2)


def _several(settings: EncoderSettings, views: Views, count: int) -> Views:
    by = views.by if views.by is None else settings.views_by or views.by
    return Views(count, by, views.padding, views.flip)
