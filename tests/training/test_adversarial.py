"""FGSM against gradients by hand, and as test sets of a run."""

import pytest
import torch
from torch import nn

from calibrant.errors import InputError
from calibrant.outcomes import margin
from calibrant.training import fgsm, fgsm_distance, train
from calibrant.training.datasets import load_dataset
from tests.training.small import small_config


@pytest.fixture
def linear():
    """Four features, three classes."""
    torch.manual_seed(0)
    return nn.Linear(4, 3).double()


@pytest.fixture
def inputs():
    return torch.rand(20, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def test_a_linear_model_is_moved_along_the_gradient_by_hand(linear, inputs):
    labels = torch.arange(20) % 3
    moved = fgsm(linear, inputs, labels, epsilon=0.07)
    for x, y, found in zip(inputs, labels, moved, strict=True):
        p = torch.softmax(linear.weight @ x + linear.bias, dim=0).detach()
        for feature in range(4):
            # The slope of -log p_y is the mean weight under p, minus the weight of y.
            slope = sum(p[c] * linear.weight[c, feature] for c in range(3)) - linear.weight[y, feature]
            expected = min(max(x[feature] + 0.07 * (1 if slope > 0 else -1), 0), 1)
            assert found[feature].item() == pytest.approx(float(expected), abs=1e-12)


def test_values_stay_within_their_bounds(linear, inputs):
    labels = torch.zeros(20, dtype=torch.long)
    assert (
        (fgsm(linear, inputs, labels, epsilon=2.0) == 0) | (fgsm(linear, inputs, labels, epsilon=2.0) == 1)
    ).all()
    wide = fgsm(linear, inputs, labels, epsilon=2.0, bounds=(-10.0, 10.0))
    torch.testing.assert_close((wide - inputs).abs(), torch.full_like(inputs, 2.0))
    assert torch.equal(fgsm(linear, inputs, labels, epsilon=0.0), inputs)


def test_the_loss_rises_and_the_model_stays_as_it_was(linear, inputs):
    model = nn.Sequential(linear, nn.BatchNorm1d(3).double(), nn.Dropout(0.5))
    model.train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    labels = torch.arange(20) % 3
    with torch.no_grad():  # callers may have switched gradients off
        moved = fgsm(model, inputs, labels, epsilon=0.05)
    assert model.training
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    model.eval()
    losses = [nn.functional.cross_entropy(model(x), labels, reduction="none") for x in (inputs, moved)]
    assert (losses[1] > losses[0]).all()


def test_bytes_stay_bytes_and_epsilon_is_a_share_of_255():
    torch.manual_seed(0)
    images = torch.randint(0, 256, (300, 1, 3, 3), dtype=torch.uint8)

    class Bytes(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(9, 2)

        def forward(self, x):
            return self.layer(x.flatten(1) / 255)

    moved = fgsm(Bytes(), images, torch.zeros(300, dtype=torch.long), epsilon=8 / 255)
    assert moved.dtype == torch.uint8
    change = (moved.int() - images.int()).abs()
    inside = (images >= 8) & (images <= 247)
    assert (change[inside] == 8).all()
    assert (change <= 8).all()


def test_the_distance_of_a_linear_model_is_its_margin_over_the_difference_of_weights(inputs):
    torch.manual_seed(0)
    model = nn.Linear(4, 2).double()
    for x, found in zip(inputs, fgsm_distance(model, inputs, bounds=(-9.0, 9.0), largest=4.0), strict=True):
        logits = model(x)
        expected = (logits[0] - logits[1]).abs() / (model.weight[0] - model.weight[1]).abs().sum()
        assert found.item() == pytest.approx(expected.item(), rel=1e-3)


def test_a_step_of_the_distance_changes_the_prediction_and_a_smaller_one_does_not():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 20), nn.Tanh(), nn.Linear(20, 3))
    inputs = torch.rand(150, 6)
    predicted = model(inputs).argmax(dim=1)
    distances = fgsm_distance(model, inputs)
    reached = distances.isfinite()
    assert reached.any()
    for row in reached.nonzero()[:40, 0].tolist():
        x, y = inputs[row : row + 1], predicted[row : row + 1]
        after = [fgsm(model, x, y, epsilon=scale * float(distances[row])) for scale in (1.001, 0.99)]
        assert [int(model(each).argmax()) == int(y) for each in after] == [False, True]


def test_a_prediction_that_never_changes_is_infinitely_far_away():
    model = nn.Linear(2, 2)
    nn.init.zeros_(model.weight)
    model.bias.data = torch.tensor([1.0, 0.0])
    assert fgsm_distance(model, torch.rand(3, 2)).isinf().all()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epsilon": -0.1}, "^epsilon: expected a number of at least 0, got -0.1"),
        ({"labels": torch.zeros(3)}, r"^labels: expected whole numbers of shape \(20,\), got torch.float32"),
        ({"inputs": torch.zeros(20, 4, dtype=torch.long)}, "^inputs: expected images as uint8 or floats"),
    ],
)
def test_what_cannot_be_attacked_is_refused(linear, inputs, changes, message):
    arguments = {"inputs": inputs, "labels": torch.arange(20) % 3, "epsilon": 0.1, **changes}
    with pytest.raises(InputError, match=message):
        fgsm(linear, arguments.pop("inputs"), arguments.pop("labels"), **arguments)


@pytest.mark.slow
def test_a_run_predicts_its_test_part_under_attack(tmp_path):
    run = train(small_config("output.fgsm=[4, 40]"), tmp_path / "run")
    names = [name for name in run.predictions if name.startswith("shifted/")]
    assert names == ["shifted/fgsm-4", "shifted/fgsm-40"]
    test = load_dataset("digits", validation=0.2).test
    for shades in (4, 40):
        attacked = fgsm(run.network, test.inputs, test.labels, epsilon=shades / 255)
        found = run.predictions[f"shifted/fgsm-{shades}"]
        torch.testing.assert_close(found.logits, run.network(attacked).detach(), rtol=1e-4, atol=1e-4)
        assert torch.equal(found.labels, test.labels)
    accuracies = [
        float((run.predictions[name].logits.argmax(dim=1) == test.labels).double().mean())
        for name in ("test", *names)
    ]
    assert accuracies[0] > accuracies[1] > accuracies[2]
    # SMART, figure 1 a: the larger the margin, the further away is the decision boundary.
    distance = fgsm_distance(run.network, test.inputs)
    pairs = torch.stack([margin(run.predictions["test"].logits), distance])[:, distance.isfinite()]
    assert torch.corrcoef(pairs)[0, 1] > 0.5


def test_only_images_are_attacked(tmp_path):
    import numpy as np

    rows = {"x_train": np.random.default_rng(0).normal(size=(40, 2)), "y_train": np.arange(40) % 2}
    np.savez(tmp_path / "a.npz", **rows, x_test=rows["x_train"], y_test=rows["y_train"])
    config = small_config(
        "data.name=embeddings", f"data.path={tmp_path / 'a.npz'}", "data.limit=20", "output.fgsm=[8]"
    )
    with pytest.raises(InputError, match="^output.fgsm: expected images, got embedding inputs; leave it out"):
        train(config, tmp_path / "run")
