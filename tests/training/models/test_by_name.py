"""Models by name, and the user's own."""

import sys
from typing import Any

import pytest
import torch
from torch import nn

from calibrant.errors import InputError
from calibrant.training import models
from calibrant.training.models import MODELS, make_model
from calibrant.training.models.classifier import WrappedClassifier
from calibrant.training.models.small import MLP

OWN = """
import torch
from torch import nn
from calibrant.training.models.small import MLP

def network(n_classes, shape, width=5):
    return nn.Sequential(nn.Flatten(), nn.Linear(shape[0], width), nn.ReLU(), nn.Linear(width, n_classes))

def convolutions(n_classes, shape):
    return nn.Sequential(nn.Conv1d(1, n_classes, 1), nn.AdaptiveAvgPool1d(1), nn.Flatten())

def per_word(n_classes, shape):
    class Mean(nn.Module):
        def forward(self, x):
            return x.mean(dim=1)
    return nn.Sequential(nn.Linear(shape[-1], n_classes), Mean())

def classifier(n_classes, shape):
    return MLP(n_classes=n_classes, shape=shape, hidden=(3,))

def nothing(n_classes, shape):
    return "a network"

constant = 3
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A module of the user's, importable as long as the test lasts."""
    (tmp_path / "own_networks.py").write_text(OWN)
    (tmp_path / "own_broken.py").write_text("import a_package_that_is_not_there\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield "own_networks"
    for name in ("own_networks", "own_broken"):
        sys.modules.pop(name, None)


def test_all_names_what_is_public():
    public = {name for name in vars(models) if not name.startswith("_")}
    assert set(models.__all__) == {
        name for name in public if not isinstance(getattr(models, name), type(sys))
    }


def test_these_are_the_models():
    assert list(MODELS) == [
        "mlp",
        "small_cnn",
        "conv_mlp",
        "resnet20",
        "resnet32",
        "resnet56",
        "resnet110",
        "resnet50",
        "preresnet56",
        "wide_resnet28_10",
        "densenet121",
        "vit_small",
        "swin_tiny",
        "text_cnn",
        "huggingface",
    ]


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("resnet_20", "resnet20"), ("wideresnet28_10", "wide_resnet28_10"), ("vit_smal", "vit_small")],
)
def test_a_mistyped_name_gives_the_nearest(typed, meant):
    with pytest.raises(
        InputError, match=f"^model: expected the name of a model, got '{typed}'; did you mean '{meant}'"
    ):
        make_model(typed, n_classes=2, shape=(3, 8, 8))


def test_a_name_like_no_other_gives_them_all():
    with pytest.raises(InputError, match="known are mlp, small_cnn, .*, and 'module:factory'$"):
        make_model("qqq", n_classes=2, shape=(3, 8, 8))


def test_an_unknown_option_is_refused():
    with pytest.raises(InputError, match="^model: expected options that mlp takes, got .* argument 'hiden'"):
        make_model("mlp", n_classes=2, shape=(4,), hiden=(3,))


def test_an_option_that_is_missing_is_named():
    with pytest.raises(InputError, match="^model: expected options that text_cnn takes, .*'n_words'"):
        make_model("text_cnn", n_classes=2, shape=(4,))


# For each model, its shape and the options that are counts or lists of them.
SIZES: dict[str, Any] = {
    "mlp": ((4,), {"hidden": 3.5}),
    "small_cnn": ((3, 8, 8), {"widths": 3}),
    "conv_mlp": ((3, 8, 8), {"widths": [8, 3.5], "hidden": True}),
    "resnet20": ((3, 8, 8), {"depth": "20"}),
    "resnet50": ((3, 8, 8), {"blocks": 3.5, "width": None}),
    "wide_resnet28_10": ((3, 8, 8), {"width": [10], "dropout": "x"}),
    "densenet121": ((3, 8, 8), {"blocks": {"a": 1}, "growth": 3.5}),
    "vit_small": ((3, 8, 8), {"heads": 3.5, "depth": [12]}),
    "swin_tiny": ((3, 64, 64), {"depths": 2, "heads": "3"}),
    "text_cnn": ((4,), {"windows": 3.5, "n_words": 3.5, "vectors": [0.5]}),
}


@pytest.mark.parametrize("name", SIZES)
def test_sizes_of_another_type_are_refused_by_name(name):
    shape, wrong = SIZES[name]
    needed = {"n_words": 9} if name == "text_cnn" else {}
    for option, value in {**wrong, "shape": 3.5}.items():
        with pytest.raises(InputError, match=f"^{option}: expected .*, got "):
            make_model(name, **{"n_classes": 2, "shape": shape, **needed, option: value})


def test_ones_own_network_shows_what_its_last_linear_layer_sees(own):
    model = make_model(f"{own}:network", n_classes=3, shape=(4,), width=7)
    x = torch.randn(5, 4)
    assert isinstance(model, WrappedClassifier)
    assert model.n_features == 7
    h = model.features(x)
    torch.testing.assert_close(h, model.model[:-1](x))
    torch.testing.assert_close(model.head(h), model(x))
    logits, features = model.logits_and_features(x)
    assert torch.equal(logits, model(x))
    assert torch.equal(features, h)
    assert not model.head._forward_pre_hooks


def test_features_of_ones_own_network_have_a_gradient(own):
    model = make_model(f"{own}:network", n_classes=3, shape=(4,))
    model.features(torch.randn(5, 4)).sum().backward()
    assert model.model[1].weight.grad.any()


@pytest.mark.parametrize(("factory", "shape"), [("convolutions", (1, 6)), ("per_word", (6, 4))])
def test_a_network_without_features_says_none(own, factory, shape):
    model = make_model(f"{own}:{factory}", n_classes=3, shape=shape)
    x = torch.randn(5, *shape)
    assert model(x).shape == (5, 3)
    assert model.features(x) is None
    assert model.logits_and_features(x)[1] is None


def test_the_head_is_the_layer_with_as_many_outputs_as_classes():
    inner = nn.ModuleDict({"head": nn.Linear(4, 3), "for_something_else": nn.Linear(4, 9)})
    assert WrappedClassifier(inner, n_classes=3).head is inner["head"]
    assert WrappedClassifier(inner, n_classes=5).n_features is None


def test_ones_own_classifier_is_not_wrapped(own):
    assert isinstance(make_model(f"{own}:classifier", n_classes=3, shape=(4,)), MLP)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("own_networks:nothing", "^model: expected own_networks:nothing to return an nn.Module, got str$"),
        ("own_networks:networ", "^model: expected a factory in own_networks, got 'networ'.*mean 'network'"),
        ("own_networks:constant", "^model: expected a factory in own_networks, got 'constant'"),
        ("own_netwerks:network", "^model: expected a module that can be imported, got 'own_netwerks'"),
        ("own_networks:", "^model: expected 'module:factory', got 'own_networks:'"),
        (".relative:network", "^model: expected 'module:factory', got '.relative:network'"),
    ],
)
@pytest.mark.usefixtures("own")
def test_what_is_no_factory_of_networks_is_refused(name, message):
    with pytest.raises(InputError, match=message):
        make_model(name, n_classes=3, shape=(4,))


@pytest.mark.usefixtures("own")
def test_a_fault_inside_the_users_module_is_the_users_to_see():
    with pytest.raises(ModuleNotFoundError, match="a_package_that_is_not_there"):
        make_model("own_broken:network", n_classes=3, shape=(4,))
