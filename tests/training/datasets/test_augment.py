import pytest
import torch
from torch.nn.functional import pad

from calibrant.errors import InputError
from calibrant.training.datasets import augment
from calibrant.training.datasets.augment import two_views


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_every_image_is_a_window_of_itself_or_of_its_mirror_image(dtype) -> None:
    images = torch.randint(1, 256, (20, 3, 6, 5), generator=seeded()).to(dtype)
    result = augment(images, padding=2, generator=seeded(1))
    assert result.dtype == dtype
    assert result.shape == images.shape
    for image, changed in zip(images, result, strict=True):
        around = pad(image, (2, 2, 2, 2))
        windows = [around[:, top : top + 6, left : left + 5] for top in range(5) for left in range(5)]
        assert any(torch.equal(changed, each) or torch.equal(changed, each.flip(2)) for each in windows)


def test_all_shifts_and_both_directions_occur() -> None:
    images = torch.zeros(2000, 1, 3, 3, dtype=torch.uint8)
    images[:, 0, 1, 0] = 1
    moved = augment(images, padding=1, generator=seeded())
    # From the left edge of the middle row: out of sight, in column 0 or 1, or mirrored in column 2 or 1.
    seen = {tuple(position) for position in moved[:, 0].nonzero()[:, 1:].tolist()}
    assert seen == {(row, column) for row in range(3) for column in range(3)}
    flipped = (augment(images, padding=0, generator=seeded()) != images).flatten(1).any(dim=1)
    assert 900 < int(flipped.sum()) < 1100


def test_nothing_happens_when_nothing_is_asked() -> None:
    images = torch.randint(256, (4, 3, 8, 8), dtype=torch.uint8, generator=seeded())
    assert torch.equal(augment(images, padding=0, flip=False), images)


def test_the_generator_decides_and_two_views_differ() -> None:
    images = torch.randint(256, (64, 3, 8, 8), dtype=torch.uint8, generator=seeded())
    first, second = two_views(images, generator=seeded(3))
    assert torch.equal(first, two_views(images, generator=seeded(3))[0])
    assert torch.equal(first, augment(images, generator=seeded(3)))
    assert not torch.equal(first, second)


def test_only_batches_of_images_are_augmented() -> None:
    with pytest.raises(InputError, match=r"images: expected a batch of shape \(n, c, h, w\)"):
        augment(torch.zeros(3, 8, 8))
    with pytest.raises(InputError, match="padding: expected"):
        augment(torch.zeros(1, 3, 8, 8), padding=-1)
