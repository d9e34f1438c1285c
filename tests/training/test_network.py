"""A network takes what a data set holds: bytes of images, embeddings, token ids."""

import numpy as np
import pytest
import torch

from calibrant.training.config.settings import ModelSettings
from calibrant.training.datasets import LabelledData, Splits, load_dataset
from calibrant.training.network import Network, make_network


def images(n, *, channels=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    pixels = torch.randint(256, (n, channels, 2, 2), generator=generator, dtype=torch.uint8)
    pixels[:, 0] //= 4  # channels differ in mean and spread
    return LabelledData(pixels, torch.arange(n) % 2, None, "image")


def splits(data, **more):
    return Splits(data, data, data, **more)


def test_training_images_are_brought_to_mean_0_and_deviation_1_of_each_channel():
    data = images(5000)  # more than are measured at once
    network = make_network(ModelSettings("mlp", {"hidden": [4]}), splits(data))
    prepared = network.prepare(data.inputs).double().numpy()
    for channel in range(3):
        values = prepared[:, channel].ravel()
        assert values.mean() == pytest.approx(0, abs=1e-5)
        assert np.sqrt(np.mean((values - values.mean()) ** 2)) == pytest.approx(1, abs=1e-5)


def test_each_pixel_is_its_distance_from_the_mean_in_deviations():
    data = images(50)
    network = make_network(ModelSettings("mlp", {"hidden": [4]}), splits(data))
    channel = [int(value) / 255 for value in data.inputs[:, 1].flatten()]
    mean = sum(channel) / len(channel)
    deviation = (sum((value - mean) ** 2 for value in channel) / len(channel)) ** 0.5
    expected = (int(data.inputs[7, 1, 0, 1]) / 255 - mean) / deviation
    assert float(network.prepare(data.inputs)[7, 1, 0, 1]) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("shade", [0, 77, 255])
def test_a_channel_without_variation_becomes_zero_and_is_not_stretched(shade):
    data = images(30)
    data.inputs[:, 2] = shade
    network = make_network(ModelSettings("mlp", {"hidden": [4]}), splits(data))
    prepared = network.prepare(data.inputs)
    assert prepared[:, 2].abs().max() < 1e-6
    assert prepared.isfinite().all()
    unseen = data.inputs[:1].clone()
    unseen[:, 2] = 100
    expected = (100 - shade) / 255
    assert network.prepare(unseen)[0, 2].flatten().tolist() == pytest.approx([expected] * 4, abs=1e-5)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_the_caller_s_images_are_left_as_they_are(dtype):
    data = images(30)
    network = make_network(ModelSettings("mlp", {"hidden": [4]}), splits(data))
    given = data.inputs.to(dtype)
    kept = given.clone()
    network(given)
    assert torch.equal(given, kept)


def test_float_images_of_0_to_255_mean_the_same_as_bytes():
    data = images(30)
    network = make_network(ModelSettings("mlp", {"hidden": [4]}), splits(data))
    assert torch.equal(network(data.inputs.float()), network(data.inputs))


def test_embeddings_pass_as_they_are_in_single_precision():
    rows = torch.randn(20, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    data = LabelledData(rows, torch.arange(20) % 2, None, "embedding")
    network = make_network(ModelSettings("mlp", {"hidden": [4]}), splits(data))
    assert torch.equal(network.prepare(rows), rows.float())
    assert network.mean is None


def test_token_ids_stay_whole_numbers_and_text_cnn_learns_the_size_of_the_vocabulary():
    ids = torch.randint(9, (20, 6), generator=torch.Generator().manual_seed(0))
    data = LabelledData(ids, torch.arange(20) % 2, None, "text")
    words = ("", "?", *"abcdefg")
    network = make_network(ModelSettings("text_cnn"), splits(data, words=words))
    assert torch.equal(network.prepare(ids), ids)
    tables = [m for m in network.modules() if isinstance(m, torch.nn.Embedding)]
    assert [table.num_embeddings for table in tables] == [len(words)]
    assert network(ids).shape == (20, 2)


def test_the_mean_of_the_training_part_is_used_for_every_part():
    digits = load_dataset("digits")
    network = make_network(ModelSettings("mlp", {"hidden": [4]}), digits)
    expected = np.mean(digits.train.inputs.numpy() / 255)
    assert float(network.mean) == pytest.approx(expected, rel=1e-5)


def test_logits_are_the_head_of_the_features():
    data = images(10)
    network = make_network(ModelSettings("mlp", {"hidden": [4]}), splits(data))
    logits, features = network.logits_and_features(data.inputs)
    assert torch.equal(network.head(features), logits)
    assert torch.equal(network.features(data.inputs), features)
    assert features.shape == (10, network.n_features)
    assert torch.equal(network(data.inputs), logits)


def test_statistics_are_saved_with_the_weights():
    network = make_network(ModelSettings("mlp", {"hidden": [4]}), splits(images(10)))
    assert {"mean", "std"} <= network.state_dict().keys()
    assert isinstance(network, Network)
