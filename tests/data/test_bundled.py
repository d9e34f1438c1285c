"""The predictions that come with the package: real, overconfident, small."""

from importlib.resources import files

import pytest
import torch
from safetensors.torch import load_file

from calibrant import evaluate
from calibrant.data import load_bundled
from calibrant.errors import InputError

FOLDER = files("calibrant.data.bundled")


@pytest.mark.parametrize(
    ("name", "n"), [("cifar10_val", 5000), ("cifar10_test", 10000), ("cifar10_test_noise", 10000)]
)
def test_every_set_has_logits_labels_features_and_names(name, n):
    predictions = load_bundled(name)
    assert predictions.logits.shape == (n, 10)
    assert predictions.features.shape == (n, 64)
    assert predictions.features.dtype == torch.float16
    assert predictions.class_names[:2] == ("airplane", "automobile")


def test_the_network_is_good_and_clearly_overconfident():
    clean, noisy = (evaluate(load_bundled(name)).metrics for name in ("cifar10_test", "cifar10_test_noise"))
    assert clean["accuracy"] > 0.7
    assert clean["ece"] > 0.05
    assert clean["mean_confidence"] > clean["accuracy"]
    assert noisy["ece"] > clean["ece"]


def test_the_head_makes_the_logits_from_the_features():
    head = load_file(str(FOLDER / "cifar10_head.safetensors"))
    test = load_bundled("cifar10_test")
    logits = test.features.float() @ head["weight"].T + head["bias"]
    assert torch.allclose(logits, test.logits, atol=0.01)


def test_no_test_image_was_a_validation_image():
    validation, test = (load_bundled(name).logits for name in ("cifar10_val", "cifar10_test"))
    assert not {tuple(row) for row in validation.tolist()} & {tuple(row) for row in test.tolist()}


def test_the_files_are_at_most_four_megabytes():
    assert sum(len(f.read_bytes()) for f in FOLDER.iterdir() if f.is_file()) <= 4_000_000


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(InputError, match="^name: expected one of cifar10_val, cifar10_test, .*got 'mnist'"):
        load_bundled("mnist")
