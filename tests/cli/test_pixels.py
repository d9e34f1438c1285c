"""``calibrant evaluate`` on score maps: the image is the unit."""

import json

import numpy as np
import pytest

from calibrant import Predictions, evaluate
from tests.pixels.scenes import flat, scene


@pytest.fixture
def files(tmp_path):
    scores, masks = scene()
    np.savez(tmp_path / "val.npz", logits=scores, labels=masks)
    np.save(tmp_path / "val_logits.npy", scores)
    np.save(tmp_path / "val_labels.npy", masks)
    return tmp_path


def test_both_layouts_have_the_measures_of_all_pixels(files, run):
    _, archive, _ = run("evaluate", files / "val.npz", "--json", "--intervals")
    pair = ("evaluate", files / "val_logits.npy", "--labels", files / "val_labels.npy", "--json")
    _, mapped, _ = run(*pair)
    found = json.loads(archive)
    rows, labels, images = flat(*scene())
    expected = evaluate(Predictions(logits=rows, labels=labels, units=images))
    assert found["metrics"]["ece"] == pytest.approx(expected.metrics["ece"], abs=1e-12)
    assert found["metrics"] == json.loads(mapped)["metrics"]
    assert (found["n_images"], found["n"]) == (12, len(labels))
    assert found["intervals"]["ece"]["low"] < found["metrics"]["ece"] < found["intervals"]["ece"]["high"]


def test_the_page_shows_classes_distances_and_the_worst_images(files, run):
    code, shown, _ = run("evaluate", files / "val.npz")
    assert code == 0
    title = "8,832 pixels of 12 images, 4 classes"
    for text in (title, "predicted class", "pixels to the border", "worst images"):
        assert text in shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("val.npz", "--unit", "image"), "--unit: expected none for score maps, whose unit is the image"),
        (("val.npz", "--measures", "smece"), "--measures: expected core for score maps"),
        (
            ("val.npz", "--ignore-index", "0"),
            "expected classes from 0 to 3 (or 0, which is ignored), got 255",
        ),
        (("val_logits.npy",), "expected a .npy file of labels of shape (n, h, w) beside it, got none"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(arguments, message, files, run):
    name, *options = arguments
    code, _, error = run("evaluate", files / name, *options)
    assert code == 2
    assert message in error
    assert error.count("\n") == 1
