from io import BytesIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from calibrant.errors import FormatError
from calibrant.training.datasets import load_dataset
from calibrant.training.datasets.cifar import CIFAR10, CIFAR100


def pixels(n: int, seed: int = 0, side: int = 32) -> np.ndarray:
    """Return random images of shape (n, side, side, 3)."""
    return np.random.default_rng(seed).integers(0, 256, (n, side, side, 3), dtype=np.uint8)


def png(image: np.ndarray) -> bytes:
    buffer = BytesIO()
    Image.fromarray(image).save(buffer, "PNG")
    return buffer.getvalue()


def write_parquet(path, images, labels, *, image="img", label="label") -> None:
    rows = [{"bytes": png(each) if isinstance(each, np.ndarray) else each, "path": None} for each in images]
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    pq.write_table(pa.table({image: pa.array(rows, kind), label: pa.array(labels)}), path)


def write_records(path, images, *labels) -> None:
    flat = images.transpose(0, 3, 1, 2).reshape(len(images), -1)
    np.concatenate([*(np.array(each, dtype=np.uint8)[:, None] for each in labels), flat], axis=1).tofile(path)


@pytest.fixture
def parquet(tmp_path):
    """Two files of training images and one of test images, as on the Hugging Face Hub."""
    images = pixels(40)
    write_parquet(tmp_path / "train-00000-of-00002.parquet", images[:20], [i % 10 for i in range(20)])
    write_parquet(tmp_path / "train-00001-of-00002.parquet", images[20:], [i % 10 for i in range(20)])
    write_parquet(tmp_path / "test-00000-of-00001.parquet", pixels(10, seed=1), list(range(10)))
    return tmp_path


@pytest.fixture
def binaries(tmp_path):
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    for part in range(1, 6):
        write_records(folder / f"data_batch_{part}.bin", pixels(10, seed=part), range(10))
    write_records(folder / "test_batch.bin", pixels(10, seed=9), range(10))
    return folder


def test_parquet_gives_the_images_in_their_order(parquet) -> None:
    splits = load_dataset("cifar10", path=parquet, validation=0.25)
    assert len(splits.train) + len(splits.validation) == 40
    assert splits.test.labels.tolist() == list(range(10))
    assert np.array_equal(splits.test.inputs.numpy(), pixels(10, seed=1).transpose(0, 3, 1, 2))
    assert splits.train.class_names == CIFAR10


def test_binaries_give_the_images_in_their_order(binaries) -> None:
    for path in (binaries, binaries.parent):
        splits = load_dataset("cifar10", path=path, validation=0.2)
        assert len(splits.train) == 40
        assert splits.validation.labels.tolist().count(3) == 1
        assert np.array_equal(splits.test.inputs.numpy(), pixels(10, seed=9).transpose(0, 3, 1, 2))


def test_cifar_100_has_its_fine_labels_from_either_source(tmp_path) -> None:
    fine = [99, 99, 5, 5]
    (tmp_path / "bin").mkdir()
    write_records(tmp_path / "bin" / "train.bin", pixels(4), [1, 1, 2, 2], fine)
    write_records(tmp_path / "bin" / "test.bin", pixels(4, seed=1), [1, 1, 2, 2], fine)
    (tmp_path / "hub" / "cifar100").mkdir(parents=True)
    for part in ("train", "test"):
        file = tmp_path / "hub" / "cifar100" / f"{part}-00000-of-00001.parquet"
        write_parquet(file, pixels(4, seed=int(part == "test")), fine, label="fine_label")
    for folder in ("bin", "hub"):
        splits = load_dataset("cifar100", path=tmp_path / folder, validation=0.5)
        assert splits.test.labels.tolist() == fine
        assert splits.train.class_names == CIFAR100
        assert splits.n_classes == 100
        assert np.array_equal(splits.test.inputs.numpy(), pixels(4, seed=1).transpose(0, 3, 1, 2))


def refusal(path, name: str = "cifar10") -> str:
    with pytest.raises(FormatError) as caught:
        load_dataset(name, path=path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_truncated_parquet_file_is_named(parquet) -> None:
    file = parquet / "test-00000-of-00001.parquet"
    file.write_bytes(file.read_bytes()[:-50])
    assert refusal(parquet).startswith(
        "test-00000-of-00001.parquet: expected CIFAR in parquet, got a file that"
    )
    file.write_bytes(b"")
    assert "test-00000-of-00001.parquet: expected CIFAR in parquet, got an empty file" in refusal(parquet)


def test_a_missing_shard_or_part_is_noticed(parquet) -> None:
    (parquet / "train-00001-of-00002.parquet").unlink()
    assert "expected 2 files train-*.parquet, got 1" in refusal(parquet)
    (parquet / "train-00000-of-00002.parquet").unlink()
    assert "got no train*.parquet" in refusal(parquet)


@pytest.mark.parametrize(
    ("image", "label", "message"),
    [
        (png(pixels(1)[0])[:-900], 0, "row 1: expected a whole picture, got one that cannot be decoded"),
        (b"not a picture", 0, "row 1: expected a whole picture"),
        (pixels(1, side=28)[0], 0, "row 1: expected 32 x 32 pixels, got 28 x 28"),
        (None, 0, "expected encoded images in img, got none in row 1"),
        (pixels(1)[0], 10, "expected label from 0 to 9, got 10"),
        (pixels(1)[0], None, "expected whole numbers in label"),
    ],
)
def test_a_bad_row_is_named_with_its_file(parquet, image, label, message) -> None:
    write_parquet(parquet / "test-00000-of-00001.parquet", [pixels(1)[0], image], [0, label])
    assert refusal(parquet).startswith(f"test-00000-of-00001.parquet: {message}")


def test_other_columns_are_refused(parquet) -> None:
    write_parquet(parquet / "test-00000-of-00001.parquet", pixels(2), [0, 1], image="picture")
    assert "expected a column img or image, got picture, label" in refusal(parquet)
    pq.write_table(pa.table({"img": [1, 2], "label": [0, 1]}), parquet / "test-00000-of-00001.parquet")
    assert "expected img with bytes and path, got int64" in refusal(parquet)


def test_a_truncated_or_foreign_binary_is_named(binaries) -> None:
    file = binaries / "data_batch_3.bin"
    whole = file.read_bytes()
    file.write_bytes(whole[:-100])
    assert refusal(binaries).startswith("data_batch_3.bin: expected records of 3073 bytes, got 30630 bytes")
    file.write_bytes(b"\x0b" + whole[1:])
    assert "data_batch_3.bin: expected labels from 0 to 9, got 11" in refusal(binaries)
    file.unlink()
    assert "got no data_batch_3.bin" in refusal(binaries)


@pytest.mark.parametrize(("name", "files"), [("cifar10", ["data_batch_1"]), ("cifar100", ["train", "meta"])])
def test_pickles_are_never_read(tmp_path, name, files) -> None:
    for file in files:
        (tmp_path / file).write_bytes(b"\x80\x02")
    assert "got the Python version, whose pickles are never read" in refusal(tmp_path, name)


def test_what_is_not_cifar_at_all_is_refused(tmp_path) -> None:
    assert "expected train*.parquet and test*.parquet, or data_batch_1.bin" in refusal(tmp_path)
    assert "got nothing by that name" in refusal(tmp_path / "absent")
    archive = tmp_path / "cifar-10-binary.tar.gz"
    archive.write_bytes(b"")
    assert refusal(archive).endswith("got a file; unpack it")
