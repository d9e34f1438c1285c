"""Images brought to another size."""

import pytest
import torch

from calibrant.errors import InputError
from calibrant.training.datasets import LabelledData, load_dataset
from calibrant.training.datasets.pictures import resized_like


def images(channels, size, value=0):
    pixels = torch.full((2, channels, size, size), value, dtype=torch.uint8)
    return LabelledData(pixels, torch.tensor([0, 1]), None, "image")


def test_grey_becomes_three_equal_channels_of_the_wanted_size():
    found = resized_like(images(1, 8, 200), images(3, 32))
    assert found.inputs.shape == (2, 3, 32, 32)
    assert (found.inputs == 200).all()


def test_colours_become_grey_by_their_mean():
    colourful = torch.zeros(1, 3, 4, 4, dtype=torch.uint8)
    colourful[:, 0], colourful[:, 1] = 30, 60
    data = LabelledData(colourful, torch.tensor([0]), None, "image")
    assert (resized_like(data, images(1, 4)).inputs == 30).all()


def test_left_stays_left_and_labels_stay():
    pixels = torch.zeros(1, 1, 8, 8, dtype=torch.uint8)
    pixels[..., :4] = 255
    found = resized_like(LabelledData(pixels, torch.tensor([7]), None, "image"), images(1, 16))
    assert (found.inputs[..., :6] == 255).all()
    assert (found.inputs[..., 10:] == 0).all()
    assert found.labels.tolist() == [7]


def test_images_of_the_right_size_are_returned_unchanged():
    data = images(3, 8)
    assert resized_like(data, images(3, 8)) is data


def test_two_channels_cannot_become_three():
    with pytest.raises(InputError, match="foreign: expected images of 1 or 3 channels, got 2"):
        resized_like(images(2, 8), images(3, 8))


def test_digits_can_be_out_of_distribution_for_images_of_any_size(tmp_path):
    from PIL import Image

    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for number in range(10):
            Image.new("RGB", (16, 16), (number, 0, 0)).save(tmp_path / name / f"{number}.png")
    splits = load_dataset(
        "image_folder", path=tmp_path, size=16, validation=0.3, foreign={"digits": "digits"}
    )
    assert splits.foreign["digits"].inputs.shape[1:] == (3, 16, 16)
    assert (splits.foreign["digits"].labels == -1).all()
