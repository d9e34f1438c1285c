"""RefCal's stages: an encoder learns while the head waits, then the head learns while it waits."""

import math

import pytest
import torch
from torch import nn

from calibrant.errors import InputError
from calibrant.training import train
from calibrant.training.config.settings import ModelSettings
from calibrant.training.datasets import load_dataset
from calibrant.training.encoder import FrozenEncoder, ProjectedEncoder, class_mean_logits, freeze_all_but_head
from calibrant.training.models.classifier import WrappedClassifier
from calibrant.training.network import Network, make_network
from tests.training.small import ENCODER, differing, final_weights, small_config


@pytest.fixture(scope="module")
def digits():
    return load_dataset("digits", limit=100)


@pytest.fixture
def network(digits):
    """With batch normalisation and dropout."""
    torch.manual_seed(0)
    return make_network(ModelSettings("small_cnn"), digits)


def steps(module, digits, n=3):
    """Train as a stage does, on whatever the module gives."""
    optimizer = torch.optim.SGD([p for p in module.parameters() if p.requires_grad], lr=0.5)
    module.train()
    for _ in range(n):
        optimizer.zero_grad()
        module(digits.train.inputs[:32])[:, 0].square().sum().backward()
        optimizer.step()


@pytest.mark.parametrize("hidden", [None, 0, 7])
def test_projections_are_unit_vectors(network, digits, hidden):
    said = ProjectedEncoder(network, projection=5, hidden=hidden)(digits.train.inputs[:9])
    assert said.shape == (9, 5)
    for row in said.tolist():
        assert math.sqrt(sum(value**2 for value in row)) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize(("hidden", "layers"), [(None, 2), (0, 1), (7, 2)])
def test_the_projection_has_a_hidden_layer_unless_its_width_is_0(network, hidden, layers):
    projection = ProjectedEncoder(network, projection=5, hidden=hidden).projection
    linear = [layer for layer in projection if isinstance(layer, nn.Linear)]
    assert len(linear) == layers
    if layers == 2:
        assert linear[0].out_features == (hidden or network.n_features)


def test_the_head_waits_while_the_encoder_learns(network, digits):
    before = {name: value.clone() for name, value in network.state_dict().items()}
    module = ProjectedEncoder(network, projection=5, hidden=None)
    # Not even asked for a gradient, for which several processes would wait.
    assert not any(p.requires_grad for p in network.head.parameters())
    steps(module, digits)
    changed = differing(before, network.state_dict())
    assert not any(name.startswith("model.head.") for name in changed)
    assert any(name.endswith("weight") for name in changed)


def test_the_encoder_waits_while_the_head_learns_with_its_running_statistics(network, digits):
    assert any("running_mean" in name for name in network.state_dict())
    before = {name: value.clone() for name, value in network.state_dict().items()}
    steps(FrozenEncoder(network), digits)
    assert differing(before, network.state_dict()) == ["model.head.weight", "model.head.bias"]


def test_a_frozen_encoder_drops_no_features_out(digits):
    network = make_network(ModelSettings("mlp", {"hidden": [16], "dropout": 0.5}), digits)
    frozen = FrozenEncoder(network).train()
    inputs = digits.train.inputs[:9]
    assert torch.equal(frozen(inputs), frozen(inputs))


@pytest.mark.parametrize("make", [lambda n: ProjectedEncoder(n, projection=4, hidden=0), FrozenEncoder])
def test_a_network_without_a_linear_head_is_refused(make):
    network = Network(WrappedClassifier(nn.Sequential(nn.Flatten(), nn.Linear(4, 8), nn.ReLU()), n_classes=3))
    with pytest.raises(InputError, match="expected a .*linear head"):
        make(network)


def test_freezing_leaves_the_head_alone_to_learn(network):
    freeze_all_but_head(network)
    learning = [name for name, parameter in network.named_parameters() if parameter.requires_grad]
    assert learning == ["model.head.weight", "model.head.bias"]


def test_class_means_classify_as_a_plain_loop_does():
    generator = torch.Generator().manual_seed(0)
    known, features = torch.randn(30, 4, generator=generator), torch.randn(6, 4, generator=generator)
    labels = torch.arange(30) % 3

    def unit(vector):
        length = math.sqrt(sum(value**2 for value in vector))
        return [value / length for value in vector]

    expected = []
    for sample in features.tolist():
        logits = []
        for label in range(3):
            members = [
                unit(row) for row, own in zip(known.tolist(), labels.tolist(), strict=True) if own == label
            ]
            mean = unit([sum(column) / len(members) for column in zip(*members, strict=True)])
            logits.append(sum(a * b for a, b in zip(unit(sample), mean, strict=True)) / 0.5)
        expected.append(logits)
    found = class_mean_logits(known, labels, features, n_classes=3, temperature=0.5)
    assert found.tolist() == [pytest.approx(row, abs=1e-5) for row in expected]


def test_a_class_that_nobody_knows_is_never_chosen():
    known = torch.tensor([[1.0, 0.0], [0.9, 0.1]])
    logits = class_mean_logits(known, torch.tensor([0, 2]), torch.tensor([[-1.0, 0.0]]), n_classes=4)
    assert set(logits.topk(2).indices[0].tolist()) == {0, 2}
    assert logits.isfinite().all()


@pytest.mark.parametrize("model", ["mlp", "small_cnn"])
def test_features_computed_once_lead_to_the_same_head_as_computing_them_in_every_step(
    tmp_path, monkeypatch, model
):
    changes = (*ENCODER, f"model.name={model}", "training.augment=false", "encoder.epochs=1")
    config = small_config(*changes)
    once = train(config, tmp_path / "once")
    monkeypatch.setattr(
        "calibrant.training.stages._trained_part",
        lambda _, network, splits: (FrozenEncoder(network), splits.train),
    )
    every = train(config, tmp_path / "every")
    for name, value in final_weights(once.folder).items():
        torch.testing.assert_close(final_weights(every.folder)[name], value, rtol=1e-4, atol=1e-5)
    assert once.metrics[-1]["train_loss"] == pytest.approx(every.metrics[-1]["train_loss"], rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("augment", ["true", "false"])
def test_the_second_stage_of_a_run_leaves_the_encoder_as_the_first_left_it(tmp_path, augment):
    options = (*ENCODER, "encoder.epochs=1", "model.name=small_cnn")
    run = train(
        small_config(*options, f"training.augment={augment}", "training.epochs=1"), tmp_path / "short"
    )
    more = train(
        small_config(*options, f"training.augment={augment}", "training.epochs=3"), tmp_path / "long"
    )
    changed = differing(final_weights(run.folder), final_weights(more.folder))
    assert changed == ["model.head.bias", "model.head.weight"]
