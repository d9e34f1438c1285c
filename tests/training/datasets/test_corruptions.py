import colorsys
import sys

import numpy as np
import pytest
import torch

from calibrant.errors import InputError, MissingPackageError
from calibrant.training.datasets import CORRUPTIONS, corrupt


@pytest.fixture(scope="module")
def pictures() -> torch.Tensor:
    """Smooth colour gradients with some detail, of the size that the strengths were chosen for."""
    generator = torch.Generator().manual_seed(0)
    coarse = torch.rand(60, 3, 4, 4, generator=generator)
    smooth = torch.nn.functional.interpolate(coarse, size=32, mode="bilinear")
    detail = 0.1 * torch.rand(60, 3, 32, 32, generator=generator)
    return ((0.9 * smooth + detail) * 255).to(torch.uint8)


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_each_severity_is_further_from_the_original(name, pictures) -> None:
    distances = [
        float((corrupt(pictures, name, severity).double() - pictures.double()).abs().mean())
        for severity in (1, 2, 3, 4, 5)
    ]
    assert distances[0] > 0
    assert distances == sorted(distances)


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_grey_and_colour_keep_their_shape_and_the_seed_decides(name, pictures) -> None:
    few = pictures[:3]
    for images in (few, few[:, :1]):
        first = corrupt(images, name, 5, seed=4)
        assert first.shape == images.shape
        assert first.dtype == torch.uint8
        assert torch.equal(first, corrupt(images, name, 5, seed=4))
    noisy = not torch.equal(corrupt(few, name, 5, seed=4), corrupt(few, name, 5, seed=5))
    assert noisy == name.endswith("noise")


def test_images_beyond_the_first_thousand_have_noise_of_their_own() -> None:
    grey = torch.full((2100, 1, 2, 2), 128, dtype=torch.uint8)
    noisy = corrupt(grey, "gaussian_noise", 5)
    assert (noisy != 128).flatten(1).any(dim=1).all()
    assert not torch.equal(noisy[:1000], noisy[1000:2000])


def test_gaussian_noise_has_the_deviation_of_cifar_10_c() -> None:
    grey = torch.full((40, 3, 32, 32), 128, dtype=torch.uint8)
    for severity, deviation in enumerate((0.04, 0.06, 0.08, 0.09, 0.10), start=1):
        assert corrupt(grey, "gaussian_noise", severity).double().std() / 255 == pytest.approx(
            deviation, rel=0.02
        )


def test_shot_noise_has_the_variance_of_counted_photons() -> None:
    grey = torch.full((40, 3, 32, 32), 51, dtype=torch.uint8)
    values = corrupt(grey, "shot_noise", 5).double() / 255
    assert values.var() == pytest.approx(0.2 / 50, rel=0.05)
    assert values.mean() == pytest.approx(0.2, abs=0.005)


def test_impulse_noise_turns_a_share_black_or_white() -> None:
    grey = torch.full((40, 3, 32, 32), 100, dtype=torch.uint8)
    changed = corrupt(grey, "impulse_noise", 5)
    assert set(changed.unique().tolist()) == {0, 100, 255}
    assert (changed == 0).double().mean() == pytest.approx(0.035, rel=0.05)
    assert (changed == 255).double().mean() == pytest.approx(0.035, rel=0.05)


def test_brightness_adds_to_the_value_of_hsv(pictures) -> None:
    few = pictures[:1, :, :4, :4].clone()
    few[0, :, 0, 0] = 0
    result = corrupt(few, "brightness", 3)
    for row in range(4):
        for column in range(4):
            hue, saturation, value = colorsys.rgb_to_hsv(*(few[0, :, row, column] / 255).tolist())
            expected = np.array(colorsys.hsv_to_rgb(hue, saturation, min(value + 0.15, 1))) * 255
            assert np.abs(expected - result[0, :, row, column].numpy()).max() < 1.01


def test_contrast_shrinks_around_the_mean_of_each_channel(pictures) -> None:
    image = pictures[:1].double()
    mean = image.mean(dim=(2, 3), keepdim=True)
    expected = mean + 0.15 * (image - mean)
    assert (corrupt(pictures[:1], "contrast", 5).double() - expected).abs().max() <= 1


def test_blur_is_a_gaussian_of_the_stated_width() -> None:
    dot = torch.zeros(1, 1, 15, 15, dtype=torch.uint8)
    dot[0, 0, 7, 7] = 255
    weight = np.exp(-0.5 * np.arange(-4, 5) ** 2)
    expected = np.zeros((15, 15))
    expected[3:12, 3:12] = 255 * np.outer(weight, weight) / weight.sum() ** 2
    assert np.abs(corrupt(dot, "blur", 5)[0, 0].numpy() - expected).max() <= 1


def test_pixelate_and_jpeg_leave_a_flat_picture_as_it_is() -> None:
    flat = torch.full((2, 3, 32, 32), 90, dtype=torch.uint8)
    assert torch.equal(corrupt(flat, "pixelate", 5), flat)
    assert (corrupt(flat, "jpeg", 5).int() - 90).abs().max() <= 2


def test_unknown_names_severities_and_inputs_are_refused(pictures) -> None:
    with pytest.raises(InputError, match="corruption: expected one of gaussian_noise"):
        corrupt(pictures, "fog", 1)
    for severity in (0, 6, 2.0):
        with pytest.raises(InputError, match="severity: expected a whole number from 1 to 5"):
            corrupt(pictures, "blur", severity)
    with pytest.raises(InputError, match="images: expected uint8"):
        corrupt(pictures.float(), "blur", 1)


def test_without_pillow_the_sentence_says_what_to_install(pictures, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(MissingPackageError, match=r"expected the package pillow, got none.*'\.\[train\]'"):
        corrupt(pictures, "jpeg", 1)
