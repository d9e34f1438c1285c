import numpy as np
import pytest
import torch

from calibrant.errors import CalibrantError, FormatError
from calibrant.training.datasets import load_dataset


def arrays(**changes) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(0)
    made = {}
    for part, n in (("train", 40), ("val", 8), ("test", 12)):
        made[f"x_{part}"] = generator.normal(size=(n, 5)).astype(np.float16)
        made[f"y_{part}"] = (np.arange(n) % 4).astype(np.int16)
    made["x_oos"] = generator.normal(size=(6, 5)).astype(np.float16)
    made["labels"] = np.array(["a", "b", "c", "d"])
    return {name: value for name, value in {**made, **changes}.items() if value is not None}


def load(tmp_path, content, **options):
    np.savez(tmp_path / "data.npz", **content)
    return load_dataset("embeddings", path=tmp_path / "data.npz", **options)


def test_the_parts_of_the_file_are_the_parts(tmp_path) -> None:
    splits = load(tmp_path, arrays())
    assert [len(part) for part in (splits.train, splits.validation, splits.test)] == [40, 8, 12]
    assert splits.train.inputs.dtype == torch.float32
    assert np.array_equal(splits.test.inputs.numpy(), arrays()["x_test"].astype(np.float32))
    assert splits.test.class_names == ("a", "b", "c", "d")
    assert splits.foreign["oos"].labels.tolist() == [-1] * 6


def test_validation_is_taken_out_of_training_when_there_is_none(tmp_path) -> None:
    splits = load(tmp_path, arrays(x_val=None, y_val=None, x_oos=None, labels=None), validation=0.2)
    assert splits.validation.labels.bincount().tolist() == [2, 2, 2, 2]
    assert len(splits.train) == 32
    assert not splits.foreign
    assert splits.n_classes == 4


def test_an_index_in_the_file_chooses_the_training_rows(tmp_path) -> None:
    content = arrays(few=np.array([0, 1, 2, 3, 8]))
    assert load(tmp_path, content, train_index="few").train.labels.tolist() == [0, 1, 2, 3, 0]
    with pytest.raises(CalibrantError, match="data.npz: few: expected row numbers from 0 to 39"):
        load(tmp_path, arrays(few=np.array([40])), train_index="few")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x_test": None}, "data.npz: expected x_test, got x_train, y_train"),
        ({"y_val": None}, "data.npz: expected y_val"),
        (
            {"x_train": np.zeros((40, 5), int)},
            r"data.npz: x_train: expected images as uint8 .* or floats of shape \(n, d\), got int64",
        ),
        (
            {"x_test": np.full((12, 5), np.nan)},
            "data.npz: x_test: expected finite numbers, got NaN or infinity in row 0",
        ),
        ({"y_train": np.zeros(39, int)}, "data.npz: y_train: expected one class for each of 40 rows"),
        ({"y_train": np.zeros(40)}, "data.npz: y_train: expected whole numbers, got float64"),
        ({"y_test": np.full(12, -1)}, "data.npz: y_test: expected classes from 0, got -1"),
        ({"y_test": np.full(12, 4)}, "data.npz: labels: expected classes from 0 to 3"),
        ({"x_oos": np.zeros((3, 4))}, r"data.npz: oos: expected embedding inputs of shape \(5,\)"),
        (
            {"y_train": np.array([None] * 40)},
            "data.npz: y_train: expected plain numbers or text, got pickled",
        ),
    ],
)
def test_what_cannot_be_embeddings_is_refused(tmp_path, changes, message) -> None:
    with pytest.raises(CalibrantError, match=f"^{message}"):
        load(tmp_path, arrays(**changes))


def test_a_truncated_or_other_file_is_named(tmp_path) -> None:
    load(tmp_path, arrays())
    file = tmp_path / "data.npz"
    whole = file.read_bytes()
    file.write_bytes(whole[:-200])
    with pytest.raises(FormatError, match="^data.npz: expected a .npz archive"):
        load_dataset("embeddings", path=file)
    file.write_bytes(whole[:300] + b"damaged" + whole[307:])
    with pytest.raises(
        FormatError, match=r"^data.npz: expected a .npz archive, got a file that cannot be read"
    ):
        load_dataset("embeddings", path=file)
    with pytest.raises(FormatError, match="got a folder"):
        load_dataset("embeddings", path=tmp_path)


def test_units_stay_with_their_rows_and_on_one_side(tmp_path) -> None:
    patients = np.array([f"p{i // 4}" for i in range(40)])
    content = arrays(x_val=None, y_val=None, units_train=patients, units_test=np.arange(12))
    splits = load(tmp_path, content, validation=0.3)
    train, held = (set(part.units.tolist()) for part in (splits.train, splits.validation))
    assert not train & held
    assert len(train | held) == 10
    assert splits.test.units.tolist() == list(range(12))
    with pytest.raises(CalibrantError, match="units_test: expected 12 entries"):
        load(tmp_path, arrays(units_test=np.arange(3)))


@pytest.mark.parametrize("shape", [(3, 6, 5), (6, 5, 3), (6, 5), (1, 6, 5)])
def test_images_as_bytes_have_their_channels_first_or_last_or_none(tmp_path, shape):
    generator = np.random.default_rng(0)
    images = {
        f"x_{part}": generator.integers(0, 256, (n, *shape)).astype(np.uint8)
        for part, n in (("train", 40), ("val", 8), ("test", 12), ("oos", 6))
    }
    np.savez(tmp_path / "data.npz", **arrays(**images))
    splits = load_dataset("arrays", path=tmp_path / "data.npz")
    channels = 3 if 3 in shape else 1
    assert splits.train.kind == splits.foreign["oos"].kind == "image"
    assert splits.train.inputs.shape == (40, channels, 6, 5)
    test = images["x_test"].transpose(0, 3, 1, 2) if shape == (6, 5, 3) else images["x_test"]
    assert np.array_equal(splits.test.inputs.numpy(), test.reshape(12, channels, 6, 5))
