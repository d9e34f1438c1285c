"""One image at a time: its class scores, its labels, and where they come from."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

import torch
from torch import Tensor, nn

from calibrant.errors import InputError
from calibrant.inputs import ArrayLike, to_tensor
from calibrant.posthoc.model import evaluating, logits_of
from calibrant.posthoc.score_maps import IGNORED_PIXEL, check_maps, check_masks

#: What score maps hold; it is never guessed from the numbers.
MapForm: TypeAlias = Literal["logits", "probs"]


@dataclass(frozen=True, eq=False)
class PixelImage:
    """The scores and the labels of one image.

    Attributes:
        name: What error messages and tables call it.
        form: What ``scores`` holds.
        scores: Logits or probabilities of shape ``(k, h, w)``.
        labels: Integer classes of shape ``(h, w)``; none if they are unknown.
        ignore_index: The label of pixels that do not count.
    """

    name: str
    form: MapForm
    scores: Tensor
    labels: Tensor | None
    ignore_index: int = IGNORED_PIXEL

    @classmethod
    def of(
        cls,
        name: str,
        form: MapForm,
        scores: ArrayLike,
        labels: ArrayLike | None,
        *,
        ignore_index: int = IGNORED_PIXEL,
    ) -> "PixelImage":
        """Check the scores and the labels of one image."""
        try:
            maps = check_maps(to_tensor(scores, form)[None], name=form)
            masks = None
            if labels is not None:
                masks = check_masks(to_tensor(labels, "labels")[None], maps, ignore_index=ignore_index)[0]
        except InputError as error:
            raise InputError(f"{name}: {error}") from None
        return cls(name, form, maps[0], masks, ignore_index)

    @property
    def k(self) -> int:
        """Number of classes."""
        return self.scores.shape[0]

    @property
    def logits(self) -> Tensor:
        """The logits, or the logarithms of the probabilities."""
        return self.scores if self.form == "logits" else self.scores.clamp_min(1e-12).log()

    def known_labels(self) -> Tensor:
        """Return the labels, or refuse an image without."""
        if self.labels is None:
            raise InputError(
                f"{self.name}: expected labels of shape {tuple(self.scores.shape[1:])}, got an image "
                "without; give its mask, or leave the image out"
            )
        return self.labels

    def changed(self, change: Callable[[Tensor], Tensor] | None) -> "PixelImage":
        """Return the image after a calibrator, which takes and returns maps of shape ``(1, k, h, w)``."""
        if change is None:
            return self
        with torch.no_grad():
            log_probs = change(self.logits[None])[0]
        # Log-probabilities are logits too, which keep small probabilities exact.
        return PixelImage(self.name, "logits", log_probs, self.labels, self.ignore_index)


class ImageSource(Protocol):
    """Images that are read one at a time, as often as needed."""

    def __iter__(self) -> Iterator[PixelImage]:
        """Yield the images in order."""

    def __len__(self) -> int:
        """Return the number of images."""


def images_of_batches(
    batches: Iterable[object],
    *,
    form: MapForm = "logits",
    model: nn.Module | None = None,
    ignore_index: int = IGNORED_PIXEL,
) -> Iterator[PixelImage]:
    """Yield the images of batches, such as those of a torch ``DataLoader``; one batch is held at a time.

    Args:
        batches: Pairs of scores ``(n, k, h, w)`` and labels ``(n, h, w)``; with a model, of inputs
            and labels.
        form: What the scores are, ``"logits"`` or ``"probs"``.
        model: A network from inputs to scores, run in evaluation mode without gradients.
        ignore_index: The label of pixels that do not count.

    Example:
        >>> loader = [(torch.zeros(2, 3, 4, 4), torch.zeros(2, 4, 4, dtype=torch.int64))]
        >>> [(image.name, image.k) for image in images_of_batches(loader)]
        [('image 0', 3), ('image 1', 3)]
    """
    number = 0
    for batch in batches:
        if not isinstance(batch, (tuple, list)) or len(batch) != 2:
            raise InputError(
                f"batches: expected pairs of scores and labels, got {type(batch).__name__}; make the loader "
                "yield (scores, labels)"
            )
        given, labels = batch
        scores = given if model is None else _scores_of(model, given)
        maps = check_maps(scores, name=form)
        masks = check_masks(labels, maps, ignore_index=ignore_index)
        for scored, mask in zip(maps, masks, strict=True):
            yield PixelImage(f"image {number}", form, scored, mask, ignore_index)
            number += 1


def _scores_of(model: nn.Module, inputs: Tensor) -> Tensor:
    with evaluating(model), torch.inference_mode():
        return logits_of(model(inputs))
