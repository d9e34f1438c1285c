"""When training cannot go on: what is said, and what can be done from there."""

import resource

import pytest
import torch

from calibrant.errors import FitError, InputError
from calibrant.training import train
from calibrant.training.batches import epoch_batches
from calibrant.training.checkpoint import read_checkpoint
from calibrant.training.session import Watcher
from tests.training import users_models
from tests.training.small import differing, final_weights, small_config

FRAGILE = ("model.name=tests.training.users_models:Fragile", "training.epochs=4")


@pytest.fixture
def spoiled_from(monkeypatch):
    """Spoil the logits of the user's model from a step on."""

    def spoil(part, step):
        monkeypatch.setitem(users_models.SPOILED_FROM, part, step)

    return spoil


def test_a_step_size_that_is_far_too_large_stops_at_once(tmp_path):
    with pytest.raises(FitError) as stopped:
        train(small_config("training.optimizer.lr=1e30", "training.schedule.name=constant"), tmp_path / "run")
    told = str(stopped.value)
    assert "in epoch 1, step " in told
    assert "there is no checkpoint yet" in told
    assert "at step size 1e+30" in told


def test_a_loss_that_is_not_finite_names_its_place_its_batch_and_the_way_back(tmp_path, spoiled_from):
    spoiled_from("training", 2 * 4 + 3)  # four steps an epoch
    with pytest.raises(FitError) as stopped:
        train(small_config(*FRAGILE, "training.augment=false"), tmp_path / "run")
    told = str(stopped.value)
    assert "expected a finite loss, got nan in epoch 3, step 3 of 4 of the classifier" in told
    assert "the batch has 50 samples of " in told
    assert "inputs from 0 to 255 with mean " in told
    assert "no finite output" in told
    weights = tmp_path / "run" / "checkpoints" / "classifier-0002.safetensors"
    assert f"the last good checkpoint is {weights}, classifier epoch 2" in told
    assert weights.exists()


def test_the_statistics_are_those_of_the_batch(tmp_path, spoiled_from, monkeypatch):
    seen = []

    def noting(*arguments, **named):
        for batch in epoch_batches(*arguments, **named):
            seen.append(batch)
            yield batch

    monkeypatch.setattr("calibrant.training.stage.epoch_batches", noting)
    spoiled_from("training", 6)
    with pytest.raises(FitError) as stopped:
        train(small_config(*FRAGILE, "training.augment=false", "data.label_noise=0.3"), tmp_path / "run")
    from calibrant.training.datasets import load_dataset

    data = load_dataset("digits", validation=0.2, limit=200, label_noise=0.3).train
    rows = seen[5].rows
    assert f"of {len(set(data.labels[rows].tolist()))} classes" in str(stopped.value)
    assert f"with mean {float(data.inputs[rows].double().mean()):.3g}," in str(stopped.value)


def test_the_last_good_checkpoint_can_be_gone_on_from(tmp_path, spoiled_from):
    config = small_config(*FRAGILE)
    whole = train(config, tmp_path / "whole")
    spoiled_from("training", 2 * 4 + 3)
    with pytest.raises(FitError):
        train(config, tmp_path / "run")
    spoiled_from("training", None)
    resumed = train(config, tmp_path / "run", resume=True)
    assert differing(final_weights(whole.folder), final_weights(resumed.folder)) == []


def test_validation_outputs_that_are_not_finite_stop_too_and_name_the_way_back(tmp_path, spoiled_from):
    spoiled_from("validation", 3 * 4)
    with pytest.raises(FitError, match=r"after epoch 3; .*the last good checkpoint is .*classifier-0002"):
        train(small_config(*FRAGILE), tmp_path / "run")
    assert read_checkpoint(tmp_path / "run").epoch == 2


class NoRoom(Watcher):
    """Files may not be longer than this from an epoch on, as on a disk that fills up."""

    def __init__(self, epoch, n_bytes):
        self.epoch, self.n_bytes = epoch, n_bytes
        self.old = resource.getrlimit(resource.RLIMIT_FSIZE)

    def epoch_ended(self, row):
        if row["epoch"] == self.epoch:
            resource.setrlimit(resource.RLIMIT_FSIZE, (self.n_bytes, self.old[1]))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        resource.setrlimit(resource.RLIMIT_FSIZE, self.old)


def test_a_disk_that_fills_up_is_named_and_the_run_goes_on_when_there_is_room(tmp_path):
    config = small_config("output.dynamics=0", "model.options.hidden=[64]")
    with (
        NoRoom(epoch=2, n_bytes=10_000) as watcher,
        pytest.raises(
            InputError, match=r"classifier-0002\.safetensors: expected room for [0-9,]+ bytes, got an error: "
        ),
    ):
        train(config, tmp_path / "run", watcher=watcher)
    assert read_checkpoint(tmp_path / "run").epoch == 1
    assert list((tmp_path / "run").rglob(".calibrant-*")) == []
    whole, resumed = train(config, tmp_path / "whole"), train(config, tmp_path / "run", resume=True)
    assert differing(final_weights(whole.folder), final_weights(resumed.folder)) == []


def test_no_room_for_the_predictions_is_named(tmp_path):
    config = small_config("output.dynamics=0", "model.options.hidden=[4]")
    with (
        NoRoom(epoch=3, n_bytes=10_000) as watcher,
        pytest.raises(
            InputError,
            match=r"predictions/validation\.npz: expected a file that can be written, got an",
        ),
    ):
        train(config, tmp_path / "run", watcher=watcher)
    resumed = train(config, tmp_path / "run", resume=True)
    assert torch.equal(resumed.network.head.weight, final_weights(resumed.folder)["model.head.weight"])


def test_a_run_that_failed_goes_on_with_a_smaller_step_size(tmp_path, spoiled_from):
    spoiled_from("training", 10)
    with pytest.raises(FitError, match="resume from it with a lower optimizer.lr"):
        train(small_config(*FRAGILE), tmp_path / "run")
    spoiled_from("training", 10**9)
    saved = small_config(*FRAGILE, "training.optimizer.lr=0.001", "training.clip_gradient=1.0")
    run = train(saved, tmp_path / "run", resume=True)
    assert [row["lr"] <= 0.001 for row in run.metrics] == [row["epoch"] > 2 for row in run.metrics]
