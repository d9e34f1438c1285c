import pytest
import torch
from torch.nn.functional import pad

from calibrant.errors import InputError
from calibrant.training.datasets import augment
from calibrant.training.datasets.augment import recolour, resized_crops, two_views


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


def noise(n: int, channels: int = 3, side: int = 8) -> torch.Tensor:
    return torch.randint(256, (n, channels, side, side), dtype=torch.uint8, generator=seeded(7))


@pytest.mark.parametrize("change", [augment, resized_crops, recolour])
def test_processes_that_share_a_batch_draw_the_numbers_of_one_process(change) -> None:
    images = noise(10)
    whole = change(images, generator=seeded(1))
    parts = [
        change(images[rows], generator=seeded(1), part=(10, rows)) for rows in (slice(0, 4), slice(4, 10))
    ]
    # A pixel near the middle of two shades may be rounded to either in a batch of another size.
    torch.testing.assert_close(torch.cat(parts).int(), whole.int(), atol=1, rtol=0)
    assert not torch.equal(whole, images)


def test_a_resized_crop_of_a_ramp_is_a_part_of_the_ramp() -> None:
    ramp = torch.arange(32, dtype=torch.float32).repeat(500, 1, 32, 1) + 100
    cut = resized_crops(ramp, smallest=0.25, stretch=1.0, generator=seeded())
    steps = cut[..., 0, 2:-2].diff(dim=-1)
    # Enlarged windows have a smaller slope, the same over all their width, and keep to the range.
    assert torch.allclose(steps, steps[..., :1].expand_as(steps), atol=1e-3)
    share = steps[:, 0, 0]
    assert 0.5 <= float(share.min()) < 0.55
    assert 0.95 < float(share.max()) <= 1.0
    assert float((share**2).mean()) == pytest.approx(0.625, abs=0.03)  # areas are uniform from 0.25 to 1
    assert 100 <= float(cut.min()) <= float(cut.max()) <= 131


def test_the_whole_image_is_a_window_of_itself() -> None:
    images = noise(5)
    assert torch.equal(resized_crops(images, smallest=1.0, stretch=1.0), images)


def test_a_share_of_the_images_turns_grey() -> None:
    images = noise(1000)
    changed = recolour(images, jittered=0.0, generator=seeded())
    grey = (changed[:, 0] == changed[:, 1]).flatten(1).all(1) & (changed[:, 1] == changed[:, 2]).flatten(
        1
    ).all(1)
    assert 150 < int(grey.sum()) < 250
    assert torch.equal(changed[~grey], images[~grey])
    red, green, blue = images[grey][0, :, 0, 0].double().tolist()
    brightness = 0.299 * red + 0.587 * green + 0.114 * blue
    assert changed[grey][0, 0, 0, 0].item() == pytest.approx(brightness, abs=0.51)


def test_colours_change_while_a_grey_image_stays_grey() -> None:
    images = torch.full((200, 3, 4, 4), 128, dtype=torch.uint8)
    changed = recolour(images, grey=0.0, generator=seeded())
    spread = changed.int().amax(1) - changed.int().amin(1)
    assert int(spread.max()) <= 1  # rounding
    factor = changed[:, 0, 0, 0].double() / 128
    assert 0.6 <= float(factor.min()) < 0.7
    assert 1.3 < float(factor.max()) <= 1.4
    colours = noise(200)
    assert (
        130 < int((recolour(colours, grey=0.0, generator=seeded()) != colours).flatten(1).any(1).sum()) < 190
    )


def test_a_turned_hue_has_the_same_brightness() -> None:
    from calibrant.training.datasets.augment import _turn_hue

    colours = torch.tensor([[[[120.0]], [[100.0]], [[90.0]]]]).repeat(3, 1, 1, 1)
    turned = _turn_hue(colours, torch.tensor([0.0, 0.1, 0.5]))[:, :, 0, 0]
    brightness = turned @ torch.tensor([0.299, 0.587, 0.114])
    assert brightness.tolist() == pytest.approx([brightness[0].item()] * 3, abs=0.05)
    assert turned[0].tolist() == pytest.approx([120, 100, 90], abs=0.01)
    # Half a turn reflects a colour in grey.
    assert (turned[2] + turned[0]).tolist() == pytest.approx([2 * brightness[0].item()] * 3, abs=0.1)


def test_images_of_one_channel_change_in_brightness_and_contrast() -> None:
    images = noise(50, channels=1)
    changed = recolour(images, generator=seeded())
    assert changed.shape == images.shape
    assert not torch.equal(changed, images)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda images: recolour(images[:, :2]), "images: expected uint8 images with 1 or 3 channels, got"),
        (lambda images: recolour(images.float()), "images: expected uint8 images with 1 or 3 channels, got"),
        (lambda images: recolour(images, strength=2), "strength: expected a number from 0 to 1, got 2"),
        (lambda images: resized_crops(images, smallest=0), "smallest: expected a share above 0"),
        (lambda images: resized_crops(images, stretch=0.5), "stretch: expected a ratio of at least 1"),
        (lambda images: resized_crops(images[0]), r"images: expected a batch of shape \(n, c, h, w\)"),
    ],
)
def test_a_change_that_makes_no_sense_is_refused(call, message) -> None:
    with pytest.raises(InputError, match=f"^{message}"):
        call(noise(2))
