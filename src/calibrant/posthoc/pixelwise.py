"""Calibration of segmentation: a calibrator of class scores, applied to every pixel of score maps."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, Self, Unpack

import torch
from torch import Tensor

from calibrant.errors import InputError
from calibrant.files import between
from calibrant.inputs import ArrayLike, at_least_float32, check_choice, check_count, same_kind
from calibrant.posthoc.calibrator import Calibrator, GroupsLike
from calibrant.posthoc.fitting.stored import declare
from calibrant.posthoc.fitting_set import FittingSet, Rows
from calibrant.posthoc.local_temperature import LocalTemperature
from calibrant.posthoc.score_maps import (
    IGNORED_PIXEL,
    PixelSample,
    check_maps,
    neighbourhood,
    rows_of_maps,
)
from calibrant.posthoc.smart import SMART
from calibrant.posthoc.structured import StructuredVectorScaling
from calibrant.posthoc.temperature import TemperatureScaling
from calibrant.posthoc.vector import VectorScaling

#: The methods that make sense for each pixel: few numbers, and no search that needs all pixels at once.
PIXEL_METHODS: Mapping[str, type[Calibrator]] = MappingProxyType(
    {
        "temperature": TemperatureScaling,
        "vector": VectorScaling,
        "structured_vector": StructuredVectorScaling,
        "smart": SMART,
        "local_temperature": LocalTemperature,
    }
)


class PixelCalibration(Calibrator):
    """Calibrate each pixel of score maps: maps of shape ``(n, k, h, w)`` in, log-probabilities likewise out.

    Attributes:
        base: The calibrator of the class scores of a pixel.
        radius: The radius of the neighbourhood that a base with features reads: one of 2 has 5 x 5 pixels.

    Example:
        >>> maps, masks = 3 * torch.randn(4, 3, 8, 8), torch.randint(3, (4, 8, 8))
        >>> calibrator = PixelCalibration.fit(maps, masks, method="temperature")
        >>> calibrator(maps).shape
        torch.Size([4, 3, 8, 8])
    """

    options = ("radius", "preserves_accuracy")
    stored = declare()
    part_names = ("base",)

    base: Calibrator
    radius: Annotated[int, between(0, 1000)]

    def __init__(self, base: Calibrator, *, radius: int = 2) -> None:
        super().__init__(n_classes=base.n_classes)
        self.base = base
        self.radius = check_count(radius, "radius", at_least=0, at_most=1000)
        self.preserves_accuracy = base.preserves_accuracy

    @classmethod
    def fit(
        cls,
        logits: ArrayLike | FittingSet,
        labels: ArrayLike | None = None,
        *,
        method: str | type[Calibrator] = "temperature",
        radius: int = 2,
        pixels_per_image: int = 500,
        ignore_index: int = IGNORED_PIXEL,
        options: Mapping[str, Any] = MappingProxyType({}),
        **rows: Unpack[Rows],
    ) -> Self:
        """Fit a method on a random sample of the pixels of each image; the image is the unit.

        Args:
            logits: Maps of shape ``(n, k, h, w)``; or what :class:`~calibrant.posthoc.PixelSample` drew.
            labels: Integer classes of shape ``(n, h, w)``.
            method: ``"temperature"``, ``"vector"``, ``"structured_vector"``, ``"smart"`` or
                ``"local_temperature"``; or another method as a class.
            radius: The radius of the neighbourhood that ``"local_temperature"`` reads.
            pixels_per_image: How many pixels of each image are drawn.
            ignore_index: The label of pixels that do not count.
            options: Options of the method.
            **rows: A seed; weights and features of pixels are refused.
        """
        kind = pixel_method(method)
        if isinstance(logits, FittingSet):
            return cls(kind.fit(logits, **options), radius=radius)
        if labels is None:
            raise InputError("labels: expected integer classes of shape (n, h, w), got none")
        for name in rows.keys() - {"seed"}:
            raise InputError(
                f"{name}: expected none for pixels, got some; the image is the unit, and every pixel that is "
                "not ignored counts the same"
            )
        drawn = {"pixels_per_image": pixels_per_image, "ignore_index": ignore_index}
        sample = cls.sample(kind, radius=radius, seed=rows.get("seed", 0), **drawn)
        sample.add(logits, labels)
        return cls(kind.fit(sample.fitting_set(), **options), radius=radius)

    @staticmethod
    def sample(method: str | type[Calibrator], *, radius: int = 2, **options: int) -> PixelSample:
        """Return an empty sample that holds what a method reads; ``fit`` takes its fitting set.

        Args:
            method: The method.
            radius: The radius of the neighbourhood.
            **options: ``pixels_per_image``, ``ignore_index`` and ``seed``.
        """
        return PixelSample(radius=radius if pixel_method(method).needs_features else None, **options)

    @property
    def uses_features(self) -> bool:
        """Whether features beside the maps are needed: never, the base reads the maps around a pixel."""
        return False

    def forward(self, logits: Tensor, features: Tensor | None = None) -> Tensor:  # of all methods
        """Return calibrated log-probabilities of the shape of the maps, ``(n, k, h, w)`` or ``(n, k)``."""
        z = at_least_float32(logits)
        maps = z if z.ndim == 4 else z[:, :, None, None]
        signals = rows_of_maps(neighbourhood(maps, self.radius)) if self.base.uses_features else None
        n, _, height, width = maps.shape
        log_probs: Tensor = self.base(rows_of_maps(maps), signals)
        return log_probs.view(n, height, width, -1).movedim(-1, 1).reshape(z.shape)

    def predict_proba(
        self, logits: ArrayLike, features: ArrayLike | None = None, groups: GroupsLike | None = None
    ) -> ArrayLike:
        """Return calibrated probabilities of shape ``(n, k, h, w)`` in the caller's kind of array."""
        return same_kind(self.predict_log_proba(logits, features, groups).exp(), like=logits)

    @torch.no_grad()
    def predict_log_proba(
        self,
        logits: ArrayLike,
        features: ArrayLike | None = None,  # of all methods
        groups: GroupsLike | None = None,  # of all methods
    ) -> Tensor:
        """Check maps of shape ``(n, k, h, w)`` and return their calibrated log-probabilities."""
        maps = check_maps(logits)
        if self.n_classes not in (None, maps.shape[1]):
            raise InputError(
                f"logits: expected maps of the {self.n_classes} classes of the fit, got {maps.shape[1]}"
            )
        refuse_nan(maps, "logits")
        return torch.cat([self(image) for image in maps.split(1)])


def refuse_nan(maps: Tensor, name: str) -> None:
    """Refuse maps with NaN, and name the first pixel that has one."""
    if not bool(maps.isnan().any()):
        return
    image, _, row, column = (int(each) for each in maps.isnan().nonzero()[0])
    raise InputError(
        f"{name}: expected numbers, got NaN in row {row}, column {column} of image {image}; find out where "
        "the network made it"
    )


def pixel_method(method: str | type[Calibrator]) -> type[Calibrator]:
    """Return a method for pixels by its name, or a class as it is."""
    if isinstance(method, type) and issubclass(method, Calibrator):
        return method
    return PIXEL_METHODS[check_choice(method, "method", PIXEL_METHODS)]
