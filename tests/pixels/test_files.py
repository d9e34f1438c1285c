"""Score maps in files: every layout gives the same images, and what is missing is named."""

import numpy as np
import pytest

from calibrant.errors import CalibrantError
from calibrant.pixels import evaluate_pixels, open_images
from calibrant.pixels.headers import holds_images
from tests.pixels.scenes import scene


def _written(folder, layout, scores, masks):
    """Write score maps in one of the layouts; return what to open."""
    if layout == "npz":
        np.savez_compressed(folder / "val.npz", logits=scores, labels=masks)
        return folder / "val.npz", None
    if layout == "npy":
        np.save(folder / "val_logits.npy", scores)
        np.save(folder / "val_labels.npy", masks)
        return folder / "val_logits.npy", folder / "val_labels.npy"
    (folder / "logits").mkdir()
    (folder / "masks").mkdir()
    for number, (z, y) in enumerate(zip(scores, masks, strict=True)):
        if layout == "folder of npz":
            np.savez(folder / "logits" / f"{number}.npz", logits=z, labels=y)
            continue
        np.save(folder / "logits" / f"{number}.npy", z)
        if number % 2:
            np.save(folder / "masks" / f"{number}.npy", y)
        else:
            from PIL import Image

            Image.fromarray(y).save(folder / "masks" / f"{number}.png")
    return folder / "logits", None if layout == "folder of npz" else folder / "masks"


@pytest.mark.parametrize("layout", ["npz", "npy", "folder of npz", "folder of npy"])
def test_every_layout_gives_the_same_images(layout, tmp_path):
    scores, masks = scene(5, dtype=np.float32)
    source, labels = _written(tmp_path, layout, scores, masks)
    assert holds_images(source)
    images = open_images(source, labels)
    assert len(images) == 5
    for image, z, y in zip(images, scores, masks, strict=True):
        assert (image.form, image.k) == ("logits", 4)
        np.testing.assert_array_equal(image.scores.numpy(), z)
        assert image.labels is not None
        np.testing.assert_array_equal(image.labels.numpy(), y)
    assert evaluate_pixels(images).n == (masks != 255).sum()


def test_files_of_rows_hold_no_images(tmp_path):
    np.savez(tmp_path / "rows.npz", logits=np.zeros((3, 2)), labels=np.zeros(3, dtype=int))
    (tmp_path / "text.npz").write_text("nothing")
    assert not holds_images(tmp_path / "rows.npz")
    assert not holds_images(tmp_path / "text.npz")
    assert not holds_images(tmp_path / "none.npz")
    assert not holds_images(tmp_path / "rows.csv")


def _broken(folder, what, scores, masks):
    if what == "no labels":
        np.savez(folder / "a.npz", logits=scores)
        return folder / "a.npz", None
    if what == "no form":
        np.save(folder / "val.npy", scores)
        return folder / "val.npy", None
    if what == "no mask":
        source, labels = _written(folder, "folder of npy", scores, masks)
        (labels / "1.npy").unlink()
        return source, labels
    if what == "fewer masks":
        source, labels = _written(folder, "npy", scores, masks)
        np.save(labels, masks[1:])
        return source, labels
    if what == "cut":
        source, _ = _written(folder, "npy", scores, masks)
        source.write_bytes(source.read_bytes()[:-100])
        return source, folder / "val_labels.npy"
    if what == "objects":
        np.savez(folder / "a.npz", logits=np.array([{}]), labels=masks)
        return folder / "a.npz", None
    if what == "colours":
        from PIL import Image

        source, labels = _written(folder, "folder of npy", scores, masks)
        Image.new("RGB", (32, 24)).save(labels / "0.png")
        return source, labels
    return folder / "nothing.npy", None


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("no labels", "a.npz: expected labels beside logits, got none"),
        ("no form", "val.npy: expected 'logits' or 'probs' in the name"),
        ("no mask", "1.npy: expected its mask 1.npy or 1.png in masks, got an image without ground truth"),
        ("fewer masks", "val_labels.npy: expected labels of 3 images, as many as in val_logits.npy, got 2"),
        ("cut", "val_logits.npy: expected a .npy file"),
        ("objects", "expected numbers in C order, got objects"),
        ("colours", "0.png: expected a mask with one number per pixel, got colours"),
        ("no file", "nothing.npy: expected score maps or masks, got no such file"),
    ],
)
def test_what_is_missing_is_named_in_one_sentence(what, message, tmp_path):
    scores, masks = scene(3)
    with pytest.raises(CalibrantError, match=message) as caught:
        list(open_images(*_broken(tmp_path, what, scores, masks)))
    assert "\n" not in str(caught.value)
