"""Losses and data of the user's own in a configuration, and that a folder never names them."""

import pytest
import torch

from calibrant.errors import InputError
from calibrant.losses.names import make_loss
from calibrant.training.config.toml import load_config
from calibrant.training.datasets import load_dataset
from calibrant.training.folder import check_code
from calibrant.training.own_code import make_any_loss
from calibrant.training.run import train
from tests.losses.batches import batch
from tests.training.small import small_config

CODE = "tests.training.users_code"
SIZES = {"n_classes": 5, "n_samples": 12}


def test_a_loss_of_ones_own_stands_in_a_sum_with_its_options():
    loss = make_any_loss(f"0.5 * {CODE}:Smoothed(alpha=0.1) + focal(gamma=2)", **SIZES)
    logits, labels = batch()
    expected = 0.5 * make_loss("label_smoothing(smoothing=0.1)")(logits, labels)
    torch.testing.assert_close(loss(logits, labels), expected + make_loss("focal(gamma=2)")(logits, labels))
    assert loss.validates
    loss.update(logits, labels)
    assert loss.terms[0].module.updates == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"{CODE}:Smoothed(beta=1)", rf"^loss: {CODE}:Smoothed does not take these options .*'beta'"),
        (f"{CODE}:Smothed", r"^loss: expected a factory in .*, got 'Smothed'.*did you mean 'Smoothed'\?$"),
        (
            f"{CODE}:vectors(n=6)",
            f"^loss: expected {CODE}:vectors to return an nn.Module, got Tens",
        ),
        ("no_such_module:Loss", "^loss: expected a module that can be imported, got 'no_such_module'"),
        (f"{CODE}:Smoothed(alpha=__import__('os'))", "^loss: expected losses with weights"),
    ],
)
def test_a_loss_that_cannot_be_made_is_refused_by_its_name(text, message):
    with pytest.raises(InputError, match=message):
        make_any_loss(text, **SIZES)


def test_the_parser_of_losses_itself_never_imports():
    with pytest.raises(InputError, match="^loss: expected losses with weights"):
        make_loss(f"{CODE}:Smoothed", **SIZES)


def test_a_data_set_is_divided_and_gets_its_options():
    splits = load_dataset(f"{CODE}:vectors", n=90, validation=0.25)
    assert [len(part) for part in (splits.train, splits.validation, splits.test)] == [54, 18, 18]
    assert splits.train.kind == "embedding"


def test_loaders_and_images_of_floats_are_read_in_parts():
    splits = load_dataset(f"{CODE}:images", size=5, validation=0.5, seed=3)
    assert [len(part) for part in (splits.train, splits.validation, splits.test)] == [15, 15, 30]
    assert splits.train.inputs.dtype == torch.uint8
    assert splits.train.inputs.shape[1:] == splits.test.inputs.shape[1:] == (3, 5, 5)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        (
            "normalised",
            {},
            "expected images as uint8, or floats from 0 to 1, got -.* leave the normalisation",
        ),
        ("unlabelled", {}, "expected pairs of an input and a class, got tuple"),
        ("vectors", {"m": 3}, "^data: expected options that .*:vectors takes, got m"),
        ("Smoothed", {"n_classes": 2}, "expected a Dataset with a length, or a DataLoader, got"),
        ("vector", {}, r"^data.name: expected a factory in .*did you mean 'vectors'\?$"),
    ],
)
def test_data_that_cannot_be_read_are_refused_in_one_sentence(name, options, message):
    with pytest.raises(InputError, match=message):
        load_dataset(f"{CODE}:{name}", **options)


def test_a_run_trains_with_own_loss_and_own_data(tmp_path):
    changes = (f"data.name={CODE}:vectors", f"training.loss={CODE}:Smoothed(alpha=0.1)", "training.epochs=1")
    run = train(load_config(changes=[*changes, "model.options={hidden=[4]}"]), tmp_path / "run")
    assert run.predictions["test"].metadata["loss"] == f"{CODE}:Smoothed(alpha=0.1)"


@pytest.mark.parametrize("key", ["data.name", "training.loss", "encoder.loss"])
def test_code_that_only_the_folder_names_is_never_run(key):
    word = f"{key}={CODE}:anything"
    saved = small_config(word)
    with pytest.raises(InputError, match=rf"^{key}: expected no code in .*, got {CODE}:anything"):
        check_code(saved, load_config(), None)
    check_code(saved, load_config(changes=[word]), None)
