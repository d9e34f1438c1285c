import sys

import numpy as np
import pytest
import torch
from PIL import Image

from calibrant.errors import FormatError, InputError, MissingPackageError
from calibrant.training.datasets import load_dataset

COLOURS = {"blue": (0, 0, 200), "green": (0, 150, 0), "red": (220, 0, 0)}


def fill(folder, n: int, *, size=(12, 10), suffix=".png") -> None:
    for name, colour in COLOURS.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        for number in range(n):
            Image.new("RGB", size, colour).save(folder / name / f"{number}{suffix}")


def test_one_folder_per_class_is_resized_and_divided(tmp_path) -> None:
    fill(tmp_path, 10)
    (tmp_path / "red" / "notes.txt").write_text("not a picture")
    (tmp_path / ".cache").mkdir()
    splits = load_dataset("image_folder", path=tmp_path, size=8, validation=0.25)
    assert [len(part) for part in (splits.train, splits.validation, splits.test)] == [18, 6, 6]
    assert splits.train.class_names == ("blue", "green", "red")
    assert splits.train.inputs.shape[1:] == (3, 8, 8)
    means = splits.test.inputs.float().mean(dim=(2, 3))
    expected = torch.tensor([COLOURS[splits.test.class_names[label]] for label in splits.test.labels])
    assert torch.equal(means, expected.float())


def test_the_folders_train_val_and_test_are_the_parts(tmp_path) -> None:
    for part, n in (("train", 4), ("validation", 2), ("test", 3)):
        fill(tmp_path / part, n, suffix=".JPG")
    splits = load_dataset("image_folder", path=tmp_path, size=[6, 9], channels=1)
    assert [len(part) for part in (splits.train, splits.validation, splits.test)] == [12, 6, 9]
    assert splits.train.inputs.shape[1:] == (1, 6, 9)


def test_palettes_and_deep_greys_become_bytes_without_a_warning(tmp_path) -> None:
    fill(tmp_path, 5)
    palette = Image.new("P", (4, 4))
    palette.putpalette([10, 20, 30])
    palette.save(tmp_path / "red" / "palette.png", transparency=b"\x80")
    deep = np.full((4, 4), 40_000, dtype=np.uint16)
    Image.fromarray(deep).save(tmp_path / "red" / "deep.png")
    splits = load_dataset("image_folder", path=tmp_path, size=4, validation=0.2)
    parts = (splits.train, splits.validation, splits.test)
    everything = torch.cat([part.inputs for part in parts]).flatten(2)[:, :, 0].tolist()
    assert [10, 20, 30] in everything
    assert [40_000 >> 8] * 3 in everything


@pytest.mark.parametrize("suffix", [".png", ".jpg"])
def test_a_truncated_picture_is_named(tmp_path, suffix) -> None:
    fill(tmp_path, 3, size=(64, 64), suffix=suffix)
    file = tmp_path / "green" / f"1{suffix}"
    file.write_bytes(file.read_bytes()[:-40])
    with pytest.raises(FormatError, match=f"green/1{suffix}: expected a whole picture, got one that cannot"):
        load_dataset("image_folder", path=tmp_path)


def test_a_folder_that_is_none_is_refused(tmp_path) -> None:
    with pytest.raises(FormatError, match="got nothing by that name"):
        load_dataset("image_folder", path=tmp_path / "absent")
    with pytest.raises(FormatError, match="each of at least two classes, got 0"):
        load_dataset("image_folder", path=tmp_path)
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    with pytest.raises(FormatError, match=r"expected .png, .jpg, .jpeg files, got none"):
        load_dataset("image_folder", path=tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(FormatError, match="got a file; name the folder"):
        load_dataset("image_folder", path=tmp_path / "file")


def test_a_class_that_training_does_not_know_is_refused(tmp_path) -> None:
    fill(tmp_path / "train", 2)
    fill(tmp_path / "test", 2)
    (tmp_path / "test" / "violet").mkdir()
    with pytest.raises(FormatError, match="expected the classes of the training folder, got 'violet'"):
        load_dataset("image_folder", path=tmp_path)


@pytest.mark.parametrize("size", [0, "32", 1.5, [8], [8, 0]])
def test_a_size_is_one_or_two_whole_numbers(tmp_path, size) -> None:
    with pytest.raises(InputError, match="size: expected a whole number of pixels"):
        load_dataset("image_folder", path=tmp_path, size=size)


def test_channels_and_pillow_are_checked(tmp_path, monkeypatch) -> None:
    fill(tmp_path, 2)
    with pytest.raises(InputError, match="channels: expected 1 for grey or 3 for colour, got 4"):
        load_dataset("image_folder", path=tmp_path, channels=4)
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(MissingPackageError, match="expected the package pillow, got none"):
        load_dataset("image_folder", path=tmp_path)
