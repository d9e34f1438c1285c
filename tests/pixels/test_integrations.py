"""Networks with a calibrator of score maps, metrics over batches, and Lightning."""

import pytest
import torch
from torch import nn

from calibrant import CalibratedModel, load_calibrator
from calibrant.errors import InputError
from calibrant.pixels import evaluate_pixels, images_of_batches
from calibrant.posthoc import LocalTemperature, PixelCalibration, VectorScaling
from tests.pixels.scenes import scene, uneven


class _Network(nn.Module):
    """Returns its input as score maps, in the way of torchvision."""

    def forward(self, maps):
        return {"out": maps}


def _loader(scores, masks, size=4):
    return [(scores[i : i + size], masks[i : i + size]) for i in range(0, len(scores), size)]


def test_a_network_with_its_calibrator_is_that_of_the_whole_set():
    scores, masks = uneven(10)
    model = CalibratedModel.fit(_Network(), _loader(scores, masks), LocalTemperature, radius=3)
    whole = PixelCalibration.fit(scores, masks, method="local_temperature", radius=3)
    assert torch.allclose(model(scores), whole(scores), atol=1e-5)
    assert torch.allclose(model.predict_proba(scores).sum(dim=1), torch.ones(10, 32, 32), atol=1e-5)


def test_a_network_with_its_calibrator_is_measured_and_saved(tmp_path):
    scores, masks = uneven(12)
    model = CalibratedModel.fit(_Network(), _loader(scores[:6], masks[:6]), VectorScaling)
    held_out = _loader(scores[6:], masks[6:])
    before = evaluate_pixels(images_of_batches(held_out))
    after = evaluate_pixels(images_of_batches(held_out, model=model))
    assert after.metrics["nll"] < before.metrics["nll"]
    model.calibrator.save(tmp_path / "pixels.safetensors")
    loaded = load_calibrator(tmp_path / "pixels.safetensors")
    same = evaluate_pixels(images_of_batches(held_out), calibrator=loaded)
    assert same.metrics == pytest.approx(after.metrics)


def test_options_of_the_sample_need_score_maps():
    loader = [(torch.randn(8, 3), torch.arange(8) % 3)]
    with pytest.raises(InputError, match="radius: expected a model that returns maps of shape"):
        CalibratedModel.fit(nn.Identity(), loader, radius=2)


def test_the_metric_of_batches_and_processes_is_that_of_all_images():
    from calibrant.integrations.torchmetrics import PixelCalibrationMetrics

    scores, masks = (torch.as_tensor(each) for each in scene(7))
    left, right = (PixelCalibrationMetrics(n_classes=4) for _ in range(2))
    for metric, batches in ((left, _loader(scores, masks)[:1]), (right, _loader(scores, masks)[1:])):
        for maps, labels in batches:
            metric.update(maps, labels)
    # What torchmetrics does with the states of two processes.
    for name in right.metric_state:
        setattr(right, name, getattr(left, name) + getattr(right, name))
    right._computed = None
    expected = evaluate_pixels(images_of_batches([(scores, masks)]))
    found = right.compute()
    assert {name: float(found[name]) for name in expected.metrics} == pytest.approx(expected.metrics)
    assert float(found["mean_iou"]) == pytest.approx(expected.mean_iou)
    assert float(found["gap_at_1"]) == pytest.approx(expected.bands[0].test.gap)
    left.reset()
    left.update(scores, torch.full_like(masks, 255))
    assert left.compute() == {}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*does not have many workers")
def test_lightning_logs_the_measures_of_score_maps():
    pl = pytest.importorskip("lightning.pytorch")
    from calibrant.integrations.lightning import CalibrationCallback
    from calibrant.losses import FocalLoss

    scores, masks = (torch.as_tensor(each) for each in scene(8, dtype="float32"))

    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = nn.Conv2d(4, 4, 1)
            self.loss = FocalLoss(ignore_index=255)

        def training_step(self, batch, _):
            return self.loss(self.layer(batch[0]), batch[1].long())

        def validation_step(self, batch, _):
            return self.layer(batch[0]), batch[1]

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(scores, masks), batch_size=3)
    trainer = pl.Trainer(
        max_epochs=1,
        accelerator="cpu",
        callbacks=[CalibrationCallback()],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    module = Module()
    trainer.fit(module, loader, loader)
    expected = evaluate_pixels(images_of_batches(loader, model=module.layer))
    logged = {name: float(value) for name, value in trainer.callback_metrics.items()}
    for name in ("accuracy", "nll", "brier", "ece"):
        assert logged[f"val_{name}"] == pytest.approx(expected.metrics[name], abs=1e-6)
    assert logged["val_mean_iou"] == pytest.approx(expected.mean_iou, abs=1e-6)
