"""SVHN from .mat files that the test writes in the original layout."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy.io import savemat

from calibrant.errors import FormatError, InputError
from calibrant.training.datasets import load_dataset
from calibrant.training.stages import _flips


def pixels(n, seed=0):
    """Random images as the files hold them: height, width, channel, sample."""
    return np.random.default_rng(seed).integers(0, 256, (32, 32, 3, n), dtype=np.uint8)


def labels(n):
    """Every digit in turn; 10 stands for the digit 0."""
    return np.arange(n)[:, None].astype(np.uint8) % 10 + 1


@pytest.fixture
def svhn(tmp_path):
    folder = tmp_path / "svhn"
    folder.mkdir()
    for seed, (part, n) in enumerate({"train": 40, "test": 20}.items()):
        savemat(
            folder / f"{part}_32x32.mat", {"X": pixels(n, seed), "y": labels(n)}, do_compression=seed == 0
        )
    return folder


def test_images_and_labels_stay_in_order_and_10_is_the_digit_0(svhn):
    for path in (svhn, svhn.parent):
        splits = load_dataset("svhn", path=path, validation=0.25)
        assert (len(splits.train), len(splits.validation), len(splits.test)) == (30, 10, 20)
        assert splits.test.labels.tolist() == [*range(1, 10), 0] * 2
        assert splits.train.class_names == tuple("0123456789")
    whole = pixels(20, 1)
    for sample in (0, 7, 19):
        for channel in range(3):
            expected = whole[:, :, channel, sample]
            assert np.array_equal(splits.test.inputs[sample, channel].numpy(), expected)


def test_another_size_resizes(svhn):
    splits = load_dataset("svhn", path=svhn, size=16)
    assert splits.train.inputs.shape[1:] == (3, 16, 16)
    by_hand = torch.from_numpy(pixels(20, 1).transpose(3, 2, 0, 1)).float().mean(dim=(1, 2, 3))
    assert (splits.test.inputs.float().mean(dim=(1, 2, 3)) - by_hand).abs().max() < 3
    with pytest.raises(InputError, match="^size: expected a whole number of pixels from 1, or two, got 0"):
        load_dataset("svhn", path=svhn, size=0)


def test_it_can_be_foreign_for_images_of_another_kind(svhn):
    splits = load_dataset("digits", foreign={"street": f"svhn:{svhn}"})
    assert splits.foreign["street"].inputs.shape == (20, 1, 8, 8)
    assert (splits.foreign["street"].labels == -1).all()


@pytest.mark.parametrize(("name", "mirrored"), [("svhn", False), ("digits", False), ("stl10", True)])
def test_digits_are_not_mirrored_in_training(name, mirrored):
    session = SimpleNamespace(config=SimpleNamespace(data=SimpleNamespace(name=name)))
    assert _flips(session) == mirrored


def refusal(path):
    with pytest.raises(FormatError) as caught:
        load_dataset("svhn", path=path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_missing_files_are_named(svhn, tmp_path):
    (svhn / "test_32x32.mat").unlink()
    assert refusal(svhn).endswith("got no test_32x32.mat; copy all files")
    (svhn / "train_32x32.mat").unlink()
    assert "expected train_32x32.mat, test_32x32.mat, got none of them" in refusal(svhn)
    assert "got nothing by that name" in refusal(tmp_path / "absent")
    (tmp_path / "svhn.zip").write_bytes(b"")
    assert refusal(tmp_path / "svhn.zip").endswith("expected a folder with SVHN, got a file; unpack it")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"X": pixels(4)}, "expected the variables X and y, got no y"),
        ({"X": pixels(4), "y": labels(5)}, r"expected X as uint8 of shape \(32, 32, 3, 5\) for 5 labels"),
        ({"X": pixels(4).astype(float), "y": labels(4)}, "expected X as uint8 .* got float64"),
        ({"X": pixels(4), "y": labels(4) - 1}, "expected labels from 1 to 10, .* got 0"),
        ({"X": pixels(4), "y": labels(4) + 10}, "expected labels from 1 to 10, .* got 14"),
    ],
)
def test_what_does_not_fit_is_named_with_its_file(svhn, content, message):
    savemat(svhn / "test_32x32.mat", content)
    with pytest.raises(FormatError, match=f"^test_32x32.mat: {message}"):
        load_dataset("svhn", path=svhn)


@pytest.mark.parametrize("share", [0, 0.1, 0.6])
def test_a_truncated_file_is_named(svhn, share):
    file = svhn / "train_32x32.mat"
    whole = file.read_bytes()
    file.write_bytes(whole[: int(share * len(whole))])
    assert refusal(svhn).startswith("train_32x32.mat: expected SVHN's .mat file, got")
