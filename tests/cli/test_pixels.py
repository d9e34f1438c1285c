"""``calibrant evaluate``, ``calibrate``, ``apply`` and ``report`` on score maps: the image is the unit."""

import json

import numpy as np
import pytest

from calibrant import Predictions, evaluate
from calibrant.posthoc import PixelCalibration, load_calibrator
from tests.pixels.scenes import flat, scene


@pytest.fixture
def files(tmp_path):
    scores, masks = scene()
    others, other_masks = scene(seed=1)
    np.savez(tmp_path / "test.npz", logits=others, labels=other_masks)
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
        (("val.npz", "--measures", "smece"), "--measures: expected measures of sums or ranks"),
        (
            ("val.npz", "--ignore-index", "0"),
            "expected classes from 0 to 3 (or 0, which is ignored), got 255",
        ),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(arguments, message, files, run):
    name, *options = arguments
    code, _, error = run("evaluate", files / name, *options)
    assert code == 2
    assert message in error
    assert error.count("\n") == 1


def test_measures_of_ranks_are_those_that_are_named(files, run):
    code, shown, _ = run("evaluate", files / "val.npz", "--measures", "ece,aurc", "--json")
    found = json.loads(shown)
    assert code == 0
    assert list(found["metrics"]) == ["ece", "aurc"]
    assert found["bounds"]["aurc"]["low"] <= found["metrics"]["aurc"] <= found["bounds"]["aurc"]["high"]


def test_labels_have_the_name_of_the_scores_unless_others_are_named(files, run):
    code, shown, _ = run("evaluate", files / "val_logits.npy", "--json")
    assert code == 0
    assert json.loads(shown)["n_images"] == 12
    (files / "val_labels.npy").rename(files / "truth.npy")
    code, _, error = run("evaluate", files / "val_logits.npy")
    assert code == 2
    assert "expected a .npy file of labels of shape (n, h, w) beside it, got none" in error


@pytest.fixture
def folder(files, run):
    """What ``calibrate`` writes for score maps."""
    quick = ("--methods", "uncalibrated,temperature,local_temperature")
    code, shown, error = run(
        "calibrate", files / "val.npz", "--test", files / "test.npz", "--out", files / "honest", *quick
    )
    assert code == 0, error
    assert "val.npz: methods see 6,000 pixels of 12 images, at most 500 of each" in error
    assert "On all 8,832 test pixels: negative log-likelihood" in shown
    return files / "honest"


@pytest.mark.slow
def test_calibrate_compares_on_a_sample_and_measures_all_pixels_of_the_test_images(files, folder, run):
    calibrator = load_calibrator(folder / "calibrator.safetensors")
    assert isinstance(calibrator, PixelCalibration)
    results = json.loads((folder / "results.json").read_text())
    assert list(results["methods"]) == ["uncalibrated", "temperature", "local_temperature"]
    assert results["n_units"] == 12
    scores, masks = scene(seed=1)
    rows, labels, _ = flat(calibrator.predict_proba(scores), masks)
    expected = evaluate(Predictions(probs=rows, labels=labels), measures=["nll", "ece"])
    found = results["whole"]["after"]
    assert {name: found[name] for name in expected.metrics} == pytest.approx(expected.metrics, abs=1e-6)
    page = (folder / "report.html").read_text()
    for text in (
        "8,832 pixels of 12 images, 4 classes",
        "pixels to the border",
        "worst images",
        "after repair",
    ):
        assert text in page
    assert page.count("data:image/png;base64") == 2
    assert run("report", folder, "--out", files / "again.html")[0] == 0
    assert "pixels to the border" in (files / "again.html").read_text()


@pytest.mark.slow
def test_apply_writes_maps_of_every_layout(files, folder, run):
    saved = folder / "calibrator.safetensors"
    calibrator, (scores, masks) = load_calibrator(saved), scene(seed=1)
    expected = calibrator.predict_log_proba(scores).numpy()
    assert run("apply", saved, files / "test.npz", "--out", files / "new.npz")[0] == 0
    with np.load(files / "new.npz") as archive:
        assert np.array_equal(archive["labels"], masks)
        np.testing.assert_allclose(archive["logits"], expected, atol=1e-12)
    np.save(files / "test_logits.npy", scores.astype(np.float32))
    command = ("apply", saved, files / "test_logits.npy", "--write", "probs", "--out")
    assert run(*command, files / "new_probs.npy")[0] == 0
    found = np.load(files / "new_probs.npy")
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, np.exp(expected), atol=1e-5)
    maps = files / "logits"
    maps.mkdir()
    for number in (0, 1):
        np.save(maps / f"{number}.npy", scores[number, :, : 20 + number])
    code, shown, error = run("apply", saved, maps, "--out", files / "new_logits")
    assert code == 0, error
    assert "2 images calibrated by PixelCalibration" in shown
    assert np.load(files / "new_logits" / "1.npy").shape == (4, 21, 32)
    # What was written is read again.
    np.save(files / "new_labels.npy", masks)
    assert run("evaluate", files / "new_probs.npy")[0] == 0


@pytest.mark.slow
def test_report_describes_score_maps_without_a_fit(files, run):
    code, _, error = run("report", files / "val_logits.npy", "--out", files / "page.html")
    assert code == 0, error
    page = (files / "page.html").read_text()
    assert "pixels to the border" in page
    assert "after repair" not in page


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "message"),
    [
        (
            "apply {saved} val_logits.npy --out new_probs.npy",
            "out: expected a .npy file with 'logits' in its",
        ),
        ("apply {saved} val.npz --out new.npy", "out: expected a .npz file, as val.npz is, got new.npy"),
        (
            "apply {saved} val.npz --out new.npz --write confidence",
            "write: expected 'logits' or 'probs', got",
        ),
        ("apply {saved} val.npz --out new.npz --prior balanced", "--prior: expected none for score maps"),
        ("apply {saved} other.npz --out new.npz", "expected maps of the 4 classes of the fit, got 3"),
        ("apply {saved} nan.npz --out new.npz", "nan.npz, image 1: logits: expected numbers, got NaN in row"),
        ("calibrate val.npz --methods isotonic", "--methods: expected methods for pixels, got isotonic"),
        ("calibrate val.npz --by street", "expected score maps, which have no columns"),
        ("calibrate val.npz --test rows.npz", "expected shape (n, k, h, w), got (5, 3)"),
        ("calibrate rows.npz --labels val_labels.npy", "--labels: expected score maps beside it, got rows"),
        ("report val.npz test.npz", "FILE: expected one source of score maps, got more"),
    ],
)
def test_what_does_not_fit_a_repair_is_refused_in_one_line(command, message, files, run, monkeypatch):
    scores, _ = scene()
    saved = files / "calibrator.safetensors"
    PixelCalibration.fit(*scene()).save(saved)
    np.savez(files / "other.npz", logits=scores[:, :3])
    scores[1, 2, 3, 4] = np.nan
    np.savez(files / "nan.npz", logits=scores)
    np.savez(files / "rows.npz", logits=np.zeros((5, 3)), labels=np.zeros(5, dtype=int))
    monkeypatch.chdir(files)
    code, _, error = run(*command.format(saved=saved).split())
    assert code == 2
    assert message in error
    assert error.rstrip("\n").count("\n") <= error.count("methods see")
    assert not (files / "new.npz").exists()
