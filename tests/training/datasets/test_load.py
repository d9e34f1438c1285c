import numpy as np
import pytest
import torch
from PIL import Image

from calibrant.errors import InputError
from calibrant.training import datasets
from calibrant.training.datasets import CORRUPTIONS, DATASETS, load_dataset
from calibrant.training.datasets.corruptions import CIFAR10_C


@pytest.fixture(scope="module")
def digits():
    return load_dataset("digits")


def test_public_names_exist() -> None:
    assert all(hasattr(datasets, name) for name in datasets.__all__)
    assert next(iter(DATASETS)) == "digits"


def test_digits_use_the_whole_range_of_bytes_and_every_sample_once(digits) -> None:
    parts = (digits.train, digits.validation, digits.test)
    assert sum(map(len, parts)) == 1797
    assert {int(part.inputs.max()) for part in parts} == {255}
    assert all(part.labels.unique().tolist() == list(range(10)) for part in parts)


def test_the_seed_moves_validation_but_never_the_test_part(digits) -> None:
    other = load_dataset("digits", seed=1)
    assert torch.equal(other.test.inputs, digits.test.inputs)
    assert not torch.equal(other.validation.inputs, digits.validation.inputs)
    again = load_dataset("digits")
    assert torch.equal(again.train.inputs, digits.train.inputs)


def test_imbalance_and_noise_change_training_only(digits) -> None:
    hard = load_dataset("digits", imbalance=0.1, label_noise=0.2)
    assert torch.equal(hard.validation.labels, digits.validation.labels)
    assert torch.equal(hard.test.labels, digits.test.labels)
    clean = load_dataset("digits", imbalance=0.1)
    counts = clean.train.labels.bincount()
    assert counts[9] / counts[0] == pytest.approx(0.1, abs=0.01)
    assert torch.equal(hard.train.inputs, clean.train.inputs)
    wrong = int((hard.train.labels != clean.train.labels).sum())
    assert wrong == round(0.2 * len(clean.train))


@pytest.mark.parametrize("limit", [10, 11, 123, 1000, 1292])
def test_a_limit_keeps_that_many_training_samples_and_the_share_of_each_class(digits, limit) -> None:
    few = load_dataset("digits", limit=limit).train
    assert len(few) == limit
    exact = digits.train.labels.bincount() * limit / len(digits.train)
    assert (few.labels.bincount() - exact).abs().max() <= 1


def test_a_limit_leaves_validation_and_test_alone_and_only_takes_from_training(digits) -> None:
    few = load_dataset("digits", limit=200)
    assert torch.equal(few.validation.inputs, digits.validation.inputs)
    assert torch.equal(few.test.inputs, digits.test.inputs)
    pairs = set(_pairs(few.train))
    assert len(pairs) == 200  # no two digits are alike, so none was taken twice
    assert pairs <= set(_pairs(digits.train))


def _pairs(data):
    rows = data.inputs.flatten(1).numpy()
    return [(row.tobytes(), int(label)) for row, label in zip(rows, data.labels, strict=True)]


def test_the_seed_decides_which_samples_a_limit_keeps(tmp_path) -> None:
    path = _npz(tmp_path, np.arange(40) % 2)
    first, again, other = (
        load_dataset("embeddings", path=path, limit=10, seed=seed).train.inputs for seed in (0, 0, 1)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_a_limit_of_the_whole_training_part_or_more_changes_nothing(digits) -> None:
    for limit in (len(digits.train), 10**8):
        assert torch.equal(load_dataset("digits", limit=limit).train.inputs, digits.train.inputs)


def test_a_limit_keeps_one_of_each_class_however_rare_and_still_is_the_limit(tmp_path) -> None:
    # Nine classes of one sample each can give nothing, so all that goes is of the tenth.
    path = _npz(tmp_path, np.concatenate([np.arange(9), np.full(991, 9)]))
    for limit in (10, 11, 500):
        counts = load_dataset("embeddings", path=path, limit=limit).train.labels.bincount()
        assert counts.tolist() == [1] * 9 + [limit - 9]


def test_a_limit_comes_before_imbalance_and_noise() -> None:
    hard = load_dataset("digits", limit=500, imbalance=0.1, label_noise=0.2).train
    # A class of about fifty is the most common; the other nine fall off to a tenth of it.
    clean = load_dataset("digits", limit=500, imbalance=0.1).train
    assert 45 <= int(clean.labels.bincount()[0]) <= 55
    assert clean.labels.bincount()[9] / clean.labels.bincount()[0] == pytest.approx(0.1, abs=0.02)
    assert torch.equal(hard.inputs, clean.inputs)
    assert int((hard.labels != clean.labels).sum()) == round(0.2 * len(clean))


def test_a_limit_counts_the_classes_that_are_not_held_out() -> None:
    splits = load_dataset("digits", foreign_classes=[0, 1, 2, 3, 4], limit=5)
    assert sorted(splits.train.labels.tolist()) == [0, 1, 2, 3, 4]


def _npz(folder, labels):
    x = np.random.default_rng(0).normal(size=(len(labels), 3))
    parts = {
        f"{kind}_{part}": value
        for part in ("train", "val", "test")
        for kind, value in (("x", x), ("y", labels))
    }
    np.savez(folder / "a.npz", **parts)
    return folder / "a.npz"


def test_corruptions_become_shifted_test_sets_with_the_same_labels(digits) -> None:
    splits = load_dataset("digits", corruptions=["contrast", "jpeg-2"])
    assert list(splits.shifted) == [*(f"contrast-{s}" for s in range(1, 6)), "jpeg-2"]
    for part in splits.shifted.values():
        assert torch.equal(part.labels, digits.test.labels)
        assert not torch.equal(part.inputs, digits.test.inputs)
    assert len(load_dataset("digits", corruptions=[f"{name}-1" for name in CORRUPTIONS]).shifted) == 16


def test_one_word_stands_for_all_of_cifar_10_c() -> None:
    assert list(load_dataset("digits", corruptions=["cifar10_c-4"]).shifted) == [
        f"{name}-4" for name in CIFAR10_C
    ]
    assert len(load_dataset("digits", corruptions=["cifar10_c"]).shifted) == 15 * 5


def test_held_out_classes_become_foreign_and_the_rest_is_renumbered(digits) -> None:
    splits = load_dataset("digits", foreign_classes=["3", 8], corruptions=["blur-1"])
    assert splits.n_classes == 8
    assert splits.train.class_names == ("0", "1", "2", "4", "5", "6", "7", "9")
    out = torch.isin(digits.test.labels, torch.tensor([3, 8]))
    assert torch.equal(splits.foreign["held_out"].inputs, digits.test.inputs[out])
    assert torch.equal(splits.test.inputs, digits.test.inputs[~out])
    names = [digits.test.class_names[label] for label in digits.test.labels[~out]]
    assert [splits.test.class_names[label] for label in splits.test.labels] == names
    assert len(splits.shifted["blur-1"]) == len(splits.test)


def test_another_data_set_can_be_foreign(tmp_path) -> None:
    generator = np.random.default_rng(0)
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for number in range(5):
            pixels = generator.integers(0, 256, (20, 20, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / name / f"{number}.png")
    splits = load_dataset("digits", foreign={"things": f"image_folder:{tmp_path}"})
    assert splits.foreign["things"].inputs.shape == (2, 1, 8, 8)
    splits = load_dataset("image_folder", path=tmp_path, foreign={"digits": "digits"}, validation=0.3)
    assert splits.foreign["digits"].inputs.shape[1:] == splits.train.inputs.shape[1:] == (3, 32, 32)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "digit"}, "dataset: expected one of digits, cifar10.*got 'digit'; did you mean 'digits'"),
        ({"name": "cifar10"}, "path: expected the file or folder of cifar10, got none"),
        ({"path": "x"}, "path: expected none for digits, which is bundled"),
        ({"sise": 8}, "sise: expected an option of digits"),
        (
            {"name": "text", "path": "x", "lenght": 8},
            "lenght: expected an option of text .*did you mean 'length'",
        ),
        ({"seed": -1}, "seed: expected a whole number from 0, got -1"),
        ({"validation": 1.5}, "validation: expected a share between 0 and 1, got 1.5"),
        ({"corruptions": "blur"}, "corruptions: expected a list of names, got the one string 'blur'"),
        ({"corruptions": ["contrst-3"]}, "corruptions: expected one of.*did you mean 'contrast'"),
        ({"corruptions": ["blur-6"]}, "corruptions: expected one of.*got 'blur-6'"),
        ({"foreign": {"x": "cifar100"}}, "foreign: expected a data set and where it is"),
        ({"foreign_classes": [10]}, "foreign_classes: expected a name or a number from 0 to 9, got 10"),
        ({"foreign_classes": range(9)}, "foreign_classes: expected at least two classes to remain"),
        ({"imbalance": 10}, "imbalance: expected a ratio"),
        ({"label_noise": 2}, "label_noise: expected a share"),
        ({"limit": 9}, "limit: expected at least one sample of each of 10 classes, got 9; raise it"),
        ({"limit": 0}, "limit: expected a whole number of at least 1, got 0"),
        ({"limit": 0.5}, "limit: expected a whole number of at least 1, got 0.5"),
        ({"limit": True}, "limit: expected a whole number of at least 1, got True"),
    ],
)
def test_a_wrong_option_is_one_sentence(options, message) -> None:
    with pytest.raises(InputError, match=f"^{message}"):
        load_dataset(**{"name": "digits", **options})


@pytest.mark.parametrize(
    "options",
    [{"validation": 0}, {"limit": -1}, {"imbalance": 2}, {"label_noise": -1}, {"corruptions": ["haze"]}],
)
def test_a_wrong_option_is_refused_before_anything_is_read(tmp_path, options) -> None:
    with pytest.raises(InputError, match=f"^{next(iter(options))}: expected"):
        load_dataset("cifar10", path=tmp_path / "absent", **options)


def test_only_images_are_corrupted(tmp_path) -> None:
    rows = {"x_train": np.zeros((8, 2)), "y_train": np.arange(8) % 2}
    np.savez(tmp_path / "a.npz", **rows, x_test=rows["x_train"], y_test=rows["y_train"])
    with pytest.raises(InputError, match="corruptions: expected images, got embedding inputs"):
        load_dataset("embeddings", path=tmp_path / "a.npz", validation=0.5, corruptions=["blur"])
