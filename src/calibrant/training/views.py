"""The views of a step: each sample as it is, or one or several augmented versions of it."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from calibrant.training.config.settings import EncoderSettings, StageSettings, TrainingSettings
from calibrant.training.datasets.augment import Part, augment, mirror, recolour, resized_crops, uniform
from calibrant.training.datasets.dataset import DataKind, LabelledData

# The usual smallest share of a picture that a classifier sees of large pictures, and an encoder.
_SMALLEST, _SMALLEST_VIEW = 0.08, 0.2


@dataclass(frozen=True)
class Views:
    """How the inputs of a step are made from samples.

    Attributes:
        count: Versions of each sample.
        by: What changes an image: a ``"shift"``, a resized ``"crop"``, or a crop and its ``"colour"``; None
            to leave samples as they are. Of stored images, all three cut random windows out of the files.
        padding: Largest shift in pixels; an eighth of the height if not given.
        flip: Whether half of the images are mirrored.
    """

    count: int = 1
    by: Literal["shift", "crop", "colour"] | None = None
    padding: int | None = None
    flip: bool = False

    def of(
        self,
        data: LabelledData,
        rows: Tensor,
        *,
        generator: torch.Generator,
        part: Part,
        device: torch.device,
    ) -> list[Tensor]:
        """Return the views of some samples on a device.

        Args:
            data: The samples.
            rows: Those of the batch.
            generator: As in :func:`augment`.
            part: As in :func:`augment`.
            device: Where the views are used.
        """
        if self.by is not None and data.stored is not None:
            return [self._window(data, rows, generator, part, device) for _ in range(self.count)]
        inputs = data.read(rows).to(device)
        return [self._one(inputs, generator, part) for _ in range(self.count)]

    def _one(self, inputs: Tensor, generator: torch.Generator, part: Part) -> Tensor:
        if self.by is None:
            return inputs
        if self.by == "shift":
            padding = inputs.shape[2] // 8 if self.padding is None else self.padding
            return augment(inputs, padding=padding, flip=self.flip, generator=generator, part=part)
        return self._changed(resized_crops(inputs, generator=generator, part=part), generator, part)

    def _window(
        self, data: LabelledData, rows: Tensor, generator: torch.Generator, part: Part, device: torch.device
    ) -> Tensor:
        """Return random windows of stored images; they replace shifts and crops."""
        draws = uniform(4, len(rows), generator=generator, part=part)
        smallest = _SMALLEST if self.by == "shift" else _SMALLEST_VIEW
        return self._changed(data.read_crops(rows, draws, smallest=smallest).to(device), generator, part)

    def _changed(self, images: Tensor, generator: torch.Generator, part: Part) -> Tensor:
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
