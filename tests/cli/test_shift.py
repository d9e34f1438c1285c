"""``calibrant apply --adapt shift``: a calibrator bent to new data, from the command line."""

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
