"""Losses of score maps are those of the pixels that count; those that make no sense there say so."""

from functools import partial
from typing import Any

import pytest
import torch

from calibrant import losses
from calibrant.errors import InputError
from calibrant.losses.loss import SampleLoss
from calibrant.losses.names import LOSSES
from tests.pixels.scenes import scene

PER_SAMPLE = [
    name
    for name, entry in LOSSES.items()
    if hasattr(losses, f"{name}_loss") and entry.reads == "logits" and issubclass(entry.module, SampleLoss)
]


def _maps():
    scores, masks = scene(3)
    return torch.as_tensor(scores, dtype=torch.float64), torch.as_tensor(masks).long()


@pytest.mark.parametrize("name", PER_SAMPLE)
def test_a_loss_of_maps_is_that_of_the_pixels_that_count_with_class_weights(name):
    maps, masks = _maps()
    weight = torch.tensor([0.5, 1.0, 2.0, 4.0], dtype=torch.float64)
    sizes = {"n_classes": 4} if name == "ols" else {}
    loss: Any = partial(LOSSES[name].module, **sizes)
    kept = masks != 255
    rows = maps.movedim(1, -1)[kept]
    found = loss(ignore_index=255, weight=weight)(maps, masks)
    torch.testing.assert_close(found, loss(weight=weight)(rows, masks[kept]))


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (
            lambda maps, masks: losses.crl_loss(maps, masks, correctness=torch.ones(3), ignore_index=255),
            "correctness ranking has no history for single positions",
        ),
        (
            lambda maps, masks: losses.kde_loss(
                maps.repeat(10, 1, 1, 1), masks.repeat(10, 1, 1), ignore_index=255
            ),
            "whose pairs are compared, .* or fewer positions of dense predictions",
        ),
        (
            lambda maps, masks: losses.supervised_contrastive_loss(maps, masks),
            r"embeddings: expected floating-point numbers of shape \(n, d\) or \(n, views, d\)",
        ),
    ],
)
def test_a_loss_that_makes_no_sense_for_pixels_says_so_in_one_sentence(loss, message):
    maps, masks = _maps()
    with pytest.raises(InputError, match=message) as caught:
        loss(maps, masks)
    assert "\n" not in str(caught.value)
