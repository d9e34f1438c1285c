"""Calibrators of score maps: fitted on a sample of pixels by image, maps in and maps out, everywhere."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from calibrant.errors import InputError
from calibrant.posthoc import (
    Calibrator,
    LocalTemperature,
    PixelCalibration,
    PixelSample,
    TemperatureScaling,
    load_calibrator,
)
from calibrant.posthoc.pixelwise import PIXEL_METHODS
from calibrant.posthoc.score_maps import neighbourhood, rows_of_maps
from tests.pixels.scenes import scene, uneven

METHODS = pytest.mark.parametrize("method", PIXEL_METHODS)


def _loss(log_probs, masks):
    return float(F.nll_loss(log_probs, torch.as_tensor(masks).long(), ignore_index=255))


@METHODS
def test_a_method_takes_and_returns_maps_and_lowers_the_loss(method):
    scores, masks = uneven()
    calibrator = PixelCalibration.fit(scores[:10], masks[:10], method=method)
    log_probs = calibrator(scores[10:])
    assert log_probs.shape == scores[10:].shape
    assert torch.allclose(log_probs.exp().sum(dim=1), torch.ones(10, 32, 32), atol=1e-5)
    assert _loss(log_probs, masks[10:]) < _loss(torch.log_softmax(scores[10:], dim=1), masks[10:])


@METHODS
def test_the_map_of_a_pixel_is_that_of_its_row(method):
    scores, masks = uneven(6)
    calibrator = PixelCalibration.fit(scores, masks, method=method, radius=1)
    signals = rows_of_maps(neighbourhood(scores, 1)) if calibrator.base.uses_features else None
    rows = calibrator.base.predict_log_proba(rows_of_maps(scores), signals)
    assert torch.allclose(rows_of_maps(calibrator(scores)), rows, atol=1e-5)


@METHODS
def test_a_saved_calibrator_returns_the_same_maps(method, tmp_path):
    scores, masks = uneven(4)
    calibrator = PixelCalibration.fit(scores, masks, method=method, radius=3)
    calibrator.save(tmp_path / "pixels.safetensors")
    loaded = load_calibrator(tmp_path / "pixels.safetensors")
    assert isinstance(loaded, PixelCalibration)
    assert loaded.radius == 3
    assert torch.allclose(loaded(scores), calibrator(scores))


@pytest.mark.slow
@pytest.mark.parametrize("method", ["structured_vector", "smart", "local_temperature"])
def test_the_graph_is_equal_to_torch_for_images_of_any_size(method, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    from calibrant.integrations.onnx import export_onnx

    scores, masks = uneven(4)
    calibrator = PixelCalibration.fit(scores, masks, method=method)
    export_onnx(calibrator, tmp_path / "pixels.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "pixels.onnx", providers=["CPUExecutionProvider"])
    for maps in (scores, scores[:1, :, :9, :17]):
        (found,) = session.run(["log_probs"], {"logits": maps.numpy()})
        assert np.abs(np.exp(found) - calibrator(maps).exp().numpy()).max() < 1e-5


def test_local_temperature_finds_where_one_temperature_fails():
    scores, masks = uneven(30)
    single = PixelCalibration.fit(scores[:20], masks[:20], method="temperature")
    local = PixelCalibration.fit(scores[:20], masks[:20], method="local_temperature")
    after = [_loss(each(scores[20:]), masks[20:]) for each in (single, local)]
    assert after[1] < after[0]
    first, second = torch.as_tensor(scores).topk(2, dim=1).values.unbind(dim=1)
    clear = first - second > 1e-4  # where rounding cannot change the class
    assert torch.equal(local(scores).argmax(dim=1)[clear], scores.argmax(dim=1)[clear])


def test_local_temperature_is_never_less_likely_than_one_temperature_on_the_fitting_set():
    for seed in range(3):
        scores, masks = uneven(3, seed=seed)
        sample = PixelSample(pixels_per_image=200, radius=2)
        sample.add(scores, masks)
        data = sample.fitting_set()
        fitted = LocalTemperature.fit(data)(data.logits, data.features)
        single = TemperatureScaling.fit(data)(data.logits)
        assert F.nll_loss(fitted, data.labels) <= F.nll_loss(single, data.labels) + 1e-6


def test_signals_are_means_over_the_square_around_a_pixel():
    maps = torch.randn(1, 3, 6, 5, dtype=torch.float64)
    found = neighbourhood(maps, 1)
    p = torch.softmax(maps[0], dim=0)
    for row in range(6):
        for column in range(5):
            near = p[:, max(0, row - 1) : row + 2, max(0, column - 1) : column + 2].flatten(1)
            entropy = -(near * near.log()).sum(dim=0).mean() / np.log(3)
            doubt = 1 - near.amax(dim=0).mean()
            disagreement = 1 - near.mean(dim=1).square().sum()
            expected = torch.stack([entropy, doubt, disagreement])
            assert torch.allclose(found[0, :, row, column], expected)


def test_the_sample_is_by_image_and_does_not_depend_on_batches():
    scores, masks = scene(5)
    masks[2] = 255
    whole, parts = PixelSample(pixels_per_image=50), PixelSample(pixels_per_image=50)
    whole.add(scores, masks)
    for z, y in zip(scores, masks, strict=True):
        parts.add(z[None], y[None])
    data, same = whole.fitting_set(), parts.fitting_set()
    assert torch.equal(data.logits, same.logits)
    assert torch.equal(data.labels, same.labels)
    assert data.n_units == 4
    assert data.units is not None
    assert torch.bincount(data.units).tolist() == [50] * 4
    assert all(len(data.folds[data.units == unit].unique()) == 1 for unit in range(4))
    assert int(data.labels.max()) < 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "tempratur"}, "method: expected .* did you mean 'temperature'"),
        ({"weights": [1.0]}, "weights: expected none for pixels"),
        ({"pixels_per_image": 0}, "pixels_per_image: expected"),
        ({"radius": -1, "method": "local_temperature"}, "radius: expected"),
    ],
)
def test_wrong_options_are_refused(options, message):
    scores, masks = uneven(2)
    with pytest.raises(InputError, match=message):
        PixelCalibration.fit(scores, masks, **options)


def test_images_in_which_all_is_ignored_are_no_fitting_set():
    scores, masks = scene(2)
    with pytest.raises(InputError, match="expected pixels of some class, got 2 images"):
        PixelCalibration.fit(scores, np.full_like(masks, 255))


def test_maps_that_do_not_fit_are_refused():
    scores, masks = uneven(2)
    calibrator: Calibrator = PixelCalibration.fit(scores, masks)
    with pytest.raises(InputError, match="expected maps of the 3 classes of the fit, got 2"):
        calibrator.predict_proba(scores[:, :2])
    broken = scores.clone()
    broken[1, 0, 4, 2] = torch.nan
    with pytest.raises(InputError, match="got NaN in row 4, column 2 of image 1"):
        calibrator.predict_proba(broken)
