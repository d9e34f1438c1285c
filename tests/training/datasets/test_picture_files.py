"""Pictures that stay files: the pixels of a set in memory, a few at a time, and windows by the seed."""

import weakref

import numpy as np
import pytest
import torch
from PIL import Image

from calibrant.errors import FormatError, InputError
from calibrant.training import train
from calibrant.training.datasets import LabelledData, load_dataset, picture_files
from calibrant.training.datasets.picture_files import centre_box, random_box
from calibrant.training.datasets.pictures import decode
from calibrant.training.views import Views
from tests.training.small import BrokenOffError, CrashAfter, differing, final_weights, small_config

CLASSES = ("cat", "dog", "owl")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Pictures of many shapes; the classes differ in one colour."""
    folder, generator = tmp_path_factory.mktemp("pictures"), np.random.default_rng(0)
    for label, name in enumerate(CLASSES):
        (folder / name).mkdir()
        for number in range(60):
            height, width = generator.integers(9, 24, size=2)
            pixels = generator.integers(0, 128, size=(height, width, 3), dtype=np.uint8)
            pixels[..., label] += 120
            Image.fromarray(pixels).save(folder / name / f"{number:03}.png")
    return folder


def both(folder, **options):
    """Return the set streamed and in memory."""
    options = {"path": folder, "size": (8, 10), "crop": 0.875, "validation": 0.25, **options}
    return load_dataset("image_folder", stream=True, **options), load_dataset("image_folder", **options)


def test_a_streamed_set_has_the_pixels_classes_and_parts_of_one_in_memory(folder):
    streamed, whole = both(folder, limit=40, label_noise=0.1)
    for name in ("train", "validation", "test"):
        mine, other = getattr(streamed, name), getattr(whole, name)
        assert mine.inputs.is_meta
        assert repr(mine) == repr(other)
        assert torch.equal(mine.labels, other.labels)
        assert torch.equal(mine.read(slice(None)), other.inputs)
        assert torch.equal(torch.cat(list(mine.batches(7))), other.inputs)


@pytest.mark.parametrize("index", [[2, 0, 2], torch.arange(108) % 3 == 1])
def test_rows_are_taken_without_reading_them(folder, monkeypatch, index):
    streamed, whole = both(folder)
    with monkeypatch.context() as blocked:
        blocked.setattr(picture_files, "decode", None)
        taken = streamed.train.take(index)
    assert torch.equal(taken.read(slice(None)), whole.train.take(index).inputs)
    assert torch.equal(taken.labels, whole.train.labels[torch.as_tensor(index)])
    with pytest.raises(InputError, match="^index: expected row numbers below 108"):
        streamed.train.take([108])


def test_pixels_that_were_not_read_cannot_be_used_by_mistake(folder):
    streamed, _ = both(folder)
    with pytest.raises(NotImplementedError):
        streamed.train.inputs[:2].to("cpu")
    with pytest.raises(InputError, match="inputs: expected numbers, or none exactly if images are stored"):
        LabelledData(streamed.train.inputs, streamed.train.labels, None, "image")


def test_classes_are_held_out_of_a_streamed_set(folder):
    streamed, whole = both(folder, foreign_classes=["owl"])
    assert streamed.train.class_names == ("cat", "dog")
    for mine, other in (
        (streamed.train, whole.train),
        (streamed.foreign["held_out"], whole.foreign["held_out"]),
    ):
        assert torch.equal(mine.read(slice(None)), other.inputs)
        assert torch.equal(mine.labels, other.labels)


def small(folder, *changes, stream=True):
    options = f"{{size = 8, stream = {str(stream).lower()}, crop = 0.875}}"
    return small_config(
        "data.name=image_folder", f"data.path={folder}", f"data.options={options}", "data.limit=60", *changes
    )


def test_training_without_random_windows_is_that_of_a_set_in_memory(folder, tmp_path):
    runs = [
        train(small(folder, "training.augment=false", stream=stream), tmp_path / str(stream))
        for stream in (True, False)
    ]
    first, second = (final_weights(run.folder) for run in runs)
    for name, value in first.items():
        torch.testing.assert_close(value, second[name], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(*(run.predictions["test"].to_logits() for run in runs), rtol=1e-4, atol=1e-5)
    assert runs[0].metrics[-1]["train_loss"] == pytest.approx(runs[1].metrics[-1]["train_loss"], rel=1e-5)


@pytest.mark.parametrize("changes", [(), ("encoder.joint=0.5", "encoder.views_by=colour")])
def test_a_streamed_run_that_was_broken_off_ends_as_one_that_was_not(folder, tmp_path, changes):
    config = small(folder, *changes)
    whole = train(config, tmp_path / "whole")
    with pytest.raises(BrokenOffError):
        train(config, tmp_path / "broken", watcher=CrashAfter("classifier", 2, 1))
    resumed = train(config, tmp_path / "broken", resume=True)
    assert differing(final_weights(tmp_path / "broken"), final_weights(whole.folder)) == []
    assert [row["train_loss"] for row in resumed.metrics] == [row["train_loss"] for row in whole.metrics]


@pytest.mark.parametrize("by", ["shift", "crop", "colour"])
def test_the_seed_decides_the_windows_and_processes_that_share_a_batch_agree(folder, by):
    data = both(folder)[0].train
    rows = torch.arange(0, 40, 2)

    def windows(seed, place=slice(0, 20)):
        (images,) = Views(1, by, None, True).of(
            data,
            rows[place],
            generator=torch.Generator().manual_seed(seed),
            part=(20, place),
            device=torch.device("cpu"),
        )
        return images

    first = windows(0)
    assert first.shape == (20, 3, 8, 10)
    assert torch.equal(first, windows(0))
    assert not torch.equal(first, windows(1))
    assert not torch.equal(first, data.read(rows))
    assert torch.equal(torch.cat([windows(0, slice(0, 8)), windows(0, slice(8, 20))]), first)


def test_only_a_batch_of_images_is_in_memory_at_a_time(folder, tmp_path, monkeypatch):
    original, alive, most = decode, {"images": 0}, []

    def counted(files, *arguments, **options):
        images, n = original(files, *arguments, **options), len(files)
        alive["images"] += n
        most.append(alive["images"])
        weakref.finalize(images, lambda: alive.update(images=alive["images"] - n))
        return images

    monkeypatch.setattr(picture_files, "decode", counted)
    monkeypatch.setattr("calibrant.training.network._BATCH", 10)
    run = train(small(folder, "training.batch_size=10", "training.epochs=2"), tmp_path)
    n_test = run.predictions["test"].n
    assert n_test > 30
    assert sum(most) > 2 * 60 + n_test
    # One batch in use, and one that is being decoded.
    assert max(most) <= 20


def test_a_broken_picture_is_named_when_it_is_needed(tmp_path):
    for name in CLASSES:
        (tmp_path / name).mkdir()
        for number in range(6):
            Image.new("RGB", (9, 9)).save(tmp_path / name / f"{number}.png")
    for number in range(6):
        (tmp_path / "dog" / f"{number}.png").write_bytes(b"no picture")
    data = load_dataset("image_folder", path=tmp_path, stream=True, validation=0.3).train
    with pytest.raises(FormatError, match=r"dog/\d.png: expected a whole picture, got one that cannot"):
        data.read(data.labels == 1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"crop": 0.0}, "crop: expected a share above 0, at most 1, got 0.0; 0.875 is usual"),
        ({"crop": 1.5}, "crop: expected a share above 0, at most 1, got 1.5"),
        ({"stream": "yes"}, "stream: expected"),
        ({"stream": True, "channels": 4}, "channels: expected 1 for grey or 3 for colour, got 4"),
        ({"stream": True, "corruptions": ["contrast-3"]}, "corruptions: expected images in memory, got"),
    ],
)
def test_options_that_make_no_sense_are_refused(folder, options, message):
    with pytest.raises(InputError, match=f"^{message}"):
        load_dataset("image_folder", path=folder, **options)


def test_an_attack_needs_images_in_memory(folder, tmp_path):
    with pytest.raises(InputError, match=r"^output.fgsm: expected images in memory, got streamed ones"):
        train(small(folder, "output.fgsm=[8]"), tmp_path)


def test_without_a_share_streamed_pictures_are_cut_as_usual_and_others_resized(folder):
    streamed = load_dataset("image_folder", path=folder, size=8, stream=True)
    cut = load_dataset("image_folder", path=folder, size=8, crop=0.875)
    whole = load_dataset("image_folder", path=folder, size=8)
    assert torch.equal(streamed.test.read(slice(None)), cut.test.inputs)
    assert not torch.equal(whole.test.inputs, cut.test.inputs)


@pytest.mark.parametrize("size", [(32, 32), (16, 32), (30, 10)])
@pytest.mark.parametrize("picture", [(100, 100), (640, 480), (31, 500)])
def test_the_centre_has_the_shape_of_the_images_and_fits(size, picture):
    width, height = picture
    left, top, right, bottom = centre_box(width, height, size, share=1.0)
    assert (right - left) / (bottom - top) == pytest.approx(size[1] / size[0])
    assert left == pytest.approx(width - right)
    assert top == pytest.approx(height - bottom)
    assert min(left, top) == pytest.approx(0, abs=1e-9)


def test_random_windows_lie_inside_and_have_the_areas_and_shapes_of_the_definition():
    generator = np.random.default_rng(0)
    areas, ratios = [], []
    for draws in generator.random((2000, 4)):
        left, top, right, bottom = random_box(300, 300, (10, 10), draws, smallest=0.08)
        assert 0 <= left < right <= 300
        assert 0 <= top < bottom <= 300
        areas.append((right - left) * (bottom - top) / 300**2)
        ratios.append((right - left) / (bottom - top))
    assert 0.08 <= min(areas) < 0.09
    assert np.mean(areas) == pytest.approx(0.53, abs=0.03)
    assert 0.75 <= min(ratios) < 0.77
    assert 1.3 < max(ratios) <= 4 / 3 + 1e-9
