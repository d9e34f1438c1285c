"""``calibrant apply --adapt shift``: a calibrator bent to new data, from the command line."""

import re
import shutil

import numpy as np
import pytest

from calibrant import Predictions, evaluate, load_predictions, save_predictions
from calibrant.data.bundled import load_bundled


@pytest.fixture(scope="module")
def calibrated_folder(tmp_path_factory, run_once):
    """Validation and noisy predictions, and the folder that calibrate wrote."""
    folder = tmp_path_factory.mktemp("shift")
    save_predictions(load_bundled("cifar10_val"), folder / "val.npz")
    noisy = load_bundled("cifar10_test_noise").take(np.arange(3000))
    save_predictions(noisy, folder / "noisy.npz")
    code, _, err = run_once(
        "calibrate", str(folder / "val.npz"), "--methods", "temperature", "--out", str(folder / "calibrated")
    )
    assert code == 0, err
    return folder


def test_the_data_of_the_fit_are_found_and_the_calibrator_is_bent(calibrated_folder, run, monkeypatch):
    monkeypatch.chdir(calibrated_folder)
    words = ("apply", "calibrated/calibrator.safetensors", "noisy.npz", "--out")
    code, out, err = run(*words, "adapted.npz", "--adapt", "shift")
    assert (code, err) == (0, "")
    assert out.startswith("Shift of 3,000 predictions without labels\n")
    assert "it is bent by a temperature of" in " ".join(out.split())
    assert run(*words, "alone.npz")[0] == 0
    one, two = (
        evaluate(load_predictions(name), measures=["ece"]).metrics["ece"]
        for name in ("alone.npz", "adapted.npz")
    )
    assert two < one / 2


def test_of_a_large_stream_a_sample_with_its_features_gives_the_same_answer(
    calibrated_folder, run, monkeypatch, tmp_path
):
    monkeypatch.chdir(calibrated_folder)
    noisy = load_bundled("cifar10_test_noise")
    (tmp_path / "parts").mkdir()
    for name, rows in (("a", slice(0, 7000)), ("b", slice(7000, 10_000))):
        part = noisy.take(np.arange(10_000)[rows]).replaced(labels=None)
        save_predictions(part, tmp_path / "parts" / f"{name}.parquet")
    words = ("apply", "calibrated/calibrator.safetensors", tmp_path / "parts", "--adapt", "shift", "--out")
    code, whole, err = run(*words, tmp_path / "one")
    assert (code, err) == (0, "")
    assert whole.startswith("Shift of 10,000 predictions")
    monkeypatch.setattr("calibrant.streams.files._LARGE", 1000)
    monkeypatch.setattr("calibrant.decisions.shift.MOST_ROWS", 6000)
    code, sampled, err = run(*words, tmp_path / "two")
    assert (code, err) == (
        0,
        f"{tmp_path / 'parts'}: the estimate sees a sample of 6,000 rows of its 10,000\n",
    )
    assert sampled.startswith("Shift of 6,000 predictions")
    shares = [
        float(re.search(r"accuracy by neighbours in features +([\d.]+) %", out)[1])
        for out in (whole, sampled)
    ]
    assert shares[0] == pytest.approx(shares[1], abs=2)
    assert "10,000 predictions in 2 files calibrated" in sampled


def test_a_calibrator_elsewhere_needs_labelled_predictions(calibrated_folder, run, monkeypatch, tmp_path):
    monkeypatch.chdir(calibrated_folder)
    shutil.copy("calibrated/calibrator.safetensors", tmp_path / "alone.safetensors")
    words = ("apply", str(tmp_path / "alone.safetensors"), "noisy.npz", "--adapt", "shift", "--out", "x.npz")
    code, _, err = run(*words)
    assert code == 2
    assert "--labelled: expected labelled predictions of the same model beside --adapt, got none" in err
    assert run(*words, "--labelled", "val.npz")[0] == 0


def test_confidences_are_refused(calibrated_folder, run, monkeypatch):
    monkeypatch.chdir(calibrated_folder)
    save_predictions(Predictions(confidence=np.full(40, 0.7), correct=np.arange(40) % 2), "pairs.npz")
    code, _, err = run(
        "apply", "calibrated/calibrator.safetensors", "pairs.npz", "--adapt", "shift", "--out", "x.npz"
    )
    assert code == 2
    assert err.startswith("calibrant: unlabelled: expected scores of classes")
    assert err.count("\n") == 1


def test_boxes_and_score_maps_are_refused(calibrated_folder, run, monkeypatch):
    monkeypatch.chdir(calibrated_folder)
    np.save("maps.npy", np.zeros((2, 10, 4, 4), dtype=np.float32))
    words = ("apply", "calibrated/calibrator.safetensors")
    for source, what in (
        (("maps.npy", "--out", "x.npy"), "score maps"),
        (("found.json", "--ground-truth", "truth.json", "--out", "x.json"), "boxes"),
    ):
        code, _, err = run(*words, *source, "--adapt", "shift")
        assert (code, err) == (2, f"calibrant: --adapt: expected none for {what}, got one; leave it out\n")
