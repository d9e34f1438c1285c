"""The map of the gap is confidence minus accuracy in the square around each pixel."""

import numpy as np
import torch

from calibrant.pixels import PixelImage
from calibrant.pixels.gap_map import gap_map
from tests.pixels.scenes import scene


def test_the_gap_around_a_pixel_is_that_of_the_pixels_that_count():
    scores, masks = scene(1, height=8, width=8)
    masks[0, :4, :4] = 255
    image = PixelImage.of("a", "logits", scores[0], masks[0])
    found = gap_map(image, radius=1)
    p = torch.softmax(torch.as_tensor(scores[0]), dim=0).numpy()
    confidence, right = p.max(axis=0), p.argmax(axis=0) == masks[0]
    for row in range(8):
        for column in range(8):
            square = np.s_[max(0, row - 1) : row + 2, max(0, column - 1) : column + 2]
            counted = masks[0][square] != 255
            gaps = (confidence - right)[square][counted]
            expected = gaps.mean() if len(gaps) else np.nan
            np.testing.assert_allclose(found[row, column], expected, atol=1e-12)
