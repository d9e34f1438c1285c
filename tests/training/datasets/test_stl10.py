"""STL-10 from binary files that the test writes in the original layout."""

import numpy as np
import pytest

from calibrant.errors import FormatError
from calibrant.training.datasets import load_dataset
from calibrant.training.datasets.stl10 import STL10


def pixels(n, seed=0):
    """Random images of shape (n, row, column, channel)."""
    return np.random.default_rng(seed).integers(0, 256, (n, 96, 96, 3), dtype=np.uint8)


def write(folder, part, images, labels):
    """Write byte for byte: sample by sample, channel by channel, down one column after the other."""
    with (folder / f"{part}_X.bin").open("wb") as file:
        for image in images:
            for channel in range(3):
                for column in range(96):
                    file.write(image[:, column, channel].tobytes())
    (folder / f"{part}_y.bin").write_bytes(bytes(labels))


@pytest.fixture
def stl10(tmp_path):
    folder = tmp_path / "stl10_binary"
    folder.mkdir()
    write(folder, "train", pixels(20), [*range(1, 11)] * 2)
    write(folder, "test", pixels(10, seed=1), range(10, 0, -1))
    return folder


def test_images_stand_upright_and_labels_begin_at_0(stl10):
    for path in (stl10, stl10.parent):
        splits = load_dataset("stl10", path=path, validation=0.5)
        assert (len(splits.train), len(splits.validation), len(splits.test)) == (10, 10, 10)
        assert splits.test.labels.tolist() == list(range(9, -1, -1))
        assert np.array_equal(splits.test.inputs.numpy(), pixels(10, seed=1).transpose(0, 3, 1, 2))
        assert splits.train.class_names == STL10


def test_another_size_resizes(stl10):
    splits = load_dataset("stl10", path=stl10, size=[32, 48], validation=0.5)
    assert splits.train.inputs.shape[1:] == (3, 32, 48)


def test_it_can_be_foreign(stl10):
    splits = load_dataset("digits", foreign={"stl10": f"stl10:{stl10}"})
    assert splits.foreign["stl10"].inputs.shape == (10, 1, 8, 8)
    assert (splits.foreign["stl10"].labels == -1).all()


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("test_y.bin", bytes([0, 1]), "test_y.bin: expected labels from 1 to 10, got 0"),
        ("test_y.bin", bytes([1, 11]), "test_y.bin: expected labels from 1 to 10, got 11"),
        ("test_y.bin", b"", "test_y.bin: expected labels of STL-10, got an empty file"),
        ("test_y.bin", bytes([1] * 9), "test_X.bin: expected 248832 bytes for 9 labels, got 276480"),
        ("train_X.bin", b"123", "train_X.bin: expected 552960 bytes for 20 labels, got 3"),
    ],
)
def test_what_does_not_fit_is_named_with_its_file(stl10, file, content, message):
    (stl10 / file).write_bytes(content)
    with pytest.raises(FormatError, match=f"^{message}"):
        load_dataset("stl10", path=stl10, validation=0.5)


def test_missing_files_are_named(stl10):
    (stl10 / "train_y.bin").unlink()
    with pytest.raises(FormatError, match=r"expected train_X.bin, .* got no train_y.bin; copy all files$"):
        load_dataset("stl10", path=stl10)
