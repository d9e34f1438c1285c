"""A network with its calibrator."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from calibrant.errors import InputError
from calibrant.posthoc import (
    CalibratedModel,
    FeatureClipping,
    GroupCalibration,
    ProximityCalibration,
    TemperatureScaling,
)
from tests.rounding import assert_equal_up_to_rounding


class Network(nn.Module):
    """Logits are the inputs, times three; dropout and batch normalisation act in training only."""

    def __init__(self, dropout=0.5, k=4):
        super().__init__()
        self.norm = nn.BatchNorm1d(k, affine=False)
        self.drop = nn.Dropout(dropout)
        self.fc = nn.Linear(k, k, bias=False)
        self.fc.weight.data = 3 * torch.eye(k)

    def forward(self, x):
        return self.fc(self.drop(self.norm(x)))


def samples(n=2000, k=4, seed=0):
    """Inputs whose softmax is the true distribution of the labels."""
    rng = np.random.default_rng(seed)
    x = 2 * rng.normal(size=(n, k)).astype(np.float32)
    noise = -np.log(-np.log(rng.random((n, k))))
    return torch.tensor(x), torch.tensor((x + noise).argmax(axis=1))


def loader(x, y, batch_size=256):
    return DataLoader(TensorDataset(x, y), batch_size=batch_size)


def test_the_temperature_is_that_of_the_model_without_dropout():
    network = Network().train()
    calibrated = CalibratedModel.fit(network, loader(*samples()))
    assert float(calibrated.calibrator.temperature) == pytest.approx(3.0, rel=0.1)
    network.eval()
    with torch.no_grad():
        expected = TemperatureScaling.fit(network(samples()[0]), samples()[1])
    assert float(calibrated.calibrator.temperature) == pytest.approx(float(expected.temperature), rel=1e-5)


@pytest.mark.parametrize("fails", [False, True])
def test_every_part_is_left_in_its_own_mode(fails):
    network = Network().train()
    network.drop.eval()
    before = [part.training for part in network.modules()]
    seen = network.norm.running_mean.clone()
    if fails:
        with pytest.raises(RuntimeError):
            CalibratedModel.fit(network, [(torch.ones(2, 9), torch.zeros(2))])
    else:
        CalibratedModel.fit(network, loader(*samples()))
    assert [part.training for part in network.modules()] == before
    assert torch.equal(network.norm.running_mean, seen)


def test_the_output_is_calibrated_log_probabilities():
    x, y = samples()
    calibrated = CalibratedModel.fit(Network(), loader(x, y)).eval()
    expected = torch.log_softmax(calibrated.model(x) / calibrated.calibrator.temperature, dim=1)
    assert torch.allclose(calibrated(x), expected)
    assert torch.allclose(calibrated.train().predict_proba(x), expected.exp())
    assert calibrated.model.drop.training
    assert not calibrated.predict_proba(x).requires_grad


def test_a_model_in_half_precision_is_answered_in_float32():
    x, y = samples(300)
    network = Network().eval()
    calibrated = CalibratedModel.fit(network, loader(x, y)).bfloat16()
    probs = calibrated.predict_proba(x.bfloat16())
    assert probs.dtype == calibrated(x.bfloat16()).dtype == torch.float32
    assert torch.allclose(probs, calibrated.float().predict_proba(x), atol=0.05)


def test_what_was_collected_can_be_differentiated_through():
    x, y = samples(200)
    calibrated = CalibratedModel.fit(
        Network(), loader(x, y), ProximityCalibration, features=lambda inputs: inputs
    )
    calibrated(x).sum().backward()
    assert calibrated.model.fc.weight.grad is not None


@pytest.mark.parametrize("source", ["fc", lambda x: Network().eval().norm(x)])
def test_features_come_from_the_input_of_a_submodule_or_from_a_function(source):
    x, y = samples()
    network = Network()
    calibrated = CalibratedModel.fit(network, loader(x, y), FeatureClipping, features=source)
    network.eval()
    with torch.no_grad():
        h, z = network.norm(x), network(x)
    expected = FeatureClipping.fit(z, y, features=h)
    assert calibrated.predict_proba(x).numpy() == pytest.approx(
        expected.predict_proba(z, h).numpy(), abs=1e-5
    )


def test_options_and_seed_reach_the_method():
    x, y = samples(300)
    fitted = CalibratedModel.fit(
        Network(), loader(x, y), GroupCalibration, seed=3, n_partitions=1, n_groups=3
    )
    expected = GroupCalibration.fit(Network().eval()(x).detach(), y, seed=3, n_partitions=1, n_groups=3)
    assert torch.allclose(fitted.calibrator.temperature, expected.temperature, rtol=1e-3)


def test_batches_and_outputs_of_transformers_are_understood():
    class Named(Network):
        def forward(self, inputs, scale):
            return {"logits": scale * super().forward(inputs)}

    x, y = samples()
    batches = [
        {"inputs": x[:1000], "scale": torch.tensor(1.0), "labels": y[:1000]},
        {"inputs": x[1000:], "scale": torch.tensor(1.0), "labels": y[1000:]},
    ]
    calibrated = CalibratedModel.fit(Named(), batches)
    assert float(calibrated.calibrator.temperature) == pytest.approx(3.0, rel=0.1)
    assert calibrated.predict_proba({"inputs": x[:3], "scale": torch.tensor(1.0)}).shape == (3, 4)


def test_batches_may_have_weights():
    class Named(Network):
        def forward(self, inputs):
            return super().forward(inputs)

    x, y = samples(300)
    weights = torch.rand(300, generator=torch.Generator().manual_seed(0))
    expected = TemperatureScaling.fit(Network().eval()(x).detach(), y, weights=weights).temperature
    triples = DataLoader(TensorDataset(x, y, weights), batch_size=64)
    mappings = [{"inputs": a, "labels": b, "weights": c} for a, b, c in triples]
    for network, batches in ((Network(), triples), (Named(), mappings)):
        found = CalibratedModel.fit(network, batches).calibrator.temperature
        assert float(found) == pytest.approx(float(expected), rel=1e-5)
    with pytest.raises(InputError, match="^loader: expected weights in all batches or in none"):
        CalibratedModel.fit(Network(), [(x, y, weights), (x, y)])


@pytest.mark.parametrize("flat", [False, True])
def test_one_output_is_the_log_odds_of_class_1(flat):
    rng = np.random.default_rng(0)
    x = torch.tensor(rng.normal(size=(2000, 1)), dtype=torch.float32)
    y = torch.tensor(rng.random(2000) < 1 / (1 + np.exp(-x[:, 0].numpy()))).long()
    head = nn.Linear(1, 1, bias=False)
    head.weight.data.fill_(4.0)
    network = nn.Sequential(head, nn.Flatten(0)) if flat else head
    calibrated = CalibratedModel.fit(network, loader(x, y))
    assert float(calibrated.calibrator.temperature) == pytest.approx(4.0, rel=0.15)
    assert calibrated.predict_proba(x[:5]).shape == (5, 2)


def test_it_saves_as_any_module_does():
    x, y = samples()
    calibrated = CalibratedModel.fit(Network(), loader(x, y))
    other = CalibratedModel(Network(), TemperatureScaling(1.0))
    other.load_state_dict(calibrated.state_dict())
    assert_equal_up_to_rounding(other.predict_proba(x), calibrated.predict_proba(x))


@pytest.mark.parametrize("method", [TemperatureScaling, FeatureClipping])
def test_it_exports_as_one_graph(method):
    x, y = samples()
    calibrated = CalibratedModel.fit(Network(), loader(x, y), method, features="fc").eval()
    graph = torch.export.export(
        calibrated, (x[:4],), dynamic_shapes=({0: torch.export.Dim("batch")},), strict=False
    )
    assert torch.allclose(graph.module()(x), calibrated(x), atol=1e-5)


@pytest.mark.parametrize(
    ("batches", "message"),
    [
        ([], "^loader: expected at least one batch, got none"),
        ([torch.ones(2, 4)], "^loader: expected pairs of inputs and labels, .* got Tensor"),
        (
            [{"x": 1}],
            "^loader: expected pairs of inputs and labels, or mappings with a key 'labels', got dict",
        ),
    ],
)
def test_batches_without_labels_are_refused(batches, message):
    with pytest.raises(InputError, match=message):
        CalibratedModel.fit(Network(), batches)


def test_what_is_not_logits_is_refused():
    with pytest.raises(InputError, match="^model: expected logits of shape .n, k.* got shape .2, 4, 1."):
        CalibratedModel(nn.Unflatten(1, (4, 1)), TemperatureScaling(1.0))(torch.ones(2, 4))
    with pytest.raises(InputError, match="^model: expected logits .* got tuple"):
        CalibratedModel(nn.LSTM(4, 4), TemperatureScaling(1.0))(torch.ones(2, 4))


def test_a_submodule_has_to_exist_and_to_run_once():
    with pytest.raises(
        InputError, match="^features: expected the name of a submodule, got 'head'; there are norm"
    ):
        CalibratedModel(Network(), TemperatureScaling(1.0), features="head")
    shared = nn.Linear(4, 4)
    twice = CalibratedModel(nn.Sequential(shared, shared), TemperatureScaling(1.0), features="0")
    with pytest.raises(
        InputError, match="^features: expected a submodule that runs once, but '0' ran 2 times"
    ):
        twice(torch.ones(2, 4))
