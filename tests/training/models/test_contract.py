"""What every model promises, checked once for all."""

import pytest
import torch
import torch.nn.functional as F

from calibrant.errors import InputError
from calibrant.training.models import MODELS, Classifier, make_model
from tests.training.models.tiny import TINY, K, inputs_of, tiny_model

each = pytest.mark.parametrize("name", TINY)
OF_IMAGES = [name for name in MODELS if name not in ("text_cnn", "huggingface")]


@each
def test_logits_are_the_head_of_the_features(name):
    model, x = tiny_model(name).eval(), inputs_of(name)
    h = model.features(x)
    assert isinstance(model, Classifier)
    assert isinstance(model.head, torch.nn.Linear)
    assert h.shape == (len(x), model.n_features)
    assert model(x).shape == (len(x), K) == (len(x), model.n_classes)
    torch.testing.assert_close(model(x), model.head(h))
    for got, expected in zip(model.logits_and_features(x), (model(x), h), strict=True):
        torch.testing.assert_close(got, expected)


@each
def test_a_hook_on_the_head_sees_the_features(name):
    model, x = tiny_model(name).eval(), inputs_of(name)
    seen = []
    model.head.register_forward_pre_hook(lambda _, arguments: seen.append(arguments[0]))
    model(x)
    torch.testing.assert_close(seen[0], model.features(x))


@each
def test_every_parameter_has_a_gradient(name):
    model, x = tiny_model(name), inputs_of(name)
    F.cross_entropy(model(x), torch.arange(len(x)) % K).backward()
    for parameter_name, parameter in model.named_parameters():
        assert parameter.grad is not None, parameter_name
        assert torch.isfinite(parameter.grad).all(), parameter_name
        assert parameter.grad.any(), parameter_name


@pytest.mark.slow
@each
def test_a_few_steps_learn_a_handful_of_samples(name):
    model, x = tiny_model(name), inputs_of(name, n=8)
    y = torch.arange(8) % K
    optimiser = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(25):
        loss = F.cross_entropy(model(x), y)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    assert loss < 0.7 * F.cross_entropy(torch.zeros(8, K), y)


@each
def test_the_seed_decides_the_weights(name):
    first, again, other = (tiny_model(name, seed=seed) for seed in (1, 1, 2))
    assert all(map(torch.equal, first.state_dict().values(), again.state_dict().values()))
    assert not torch.equal(first.head.weight, other.head.weight)


@each
def test_in_evaluation_a_sample_is_judged_alone_and_always_the_same(name):
    model, x = tiny_model(name).eval(), inputs_of(name)
    torch.testing.assert_close(model(x)[:2], model(x[:2]))
    assert torch.equal(model(x), model(x))


@each
def test_weights_go_into_another_instance(name):
    model, other, x = tiny_model(name, seed=1).eval(), tiny_model(name, seed=2).eval(), inputs_of(name)
    other.load_state_dict(model.state_dict())
    assert torch.equal(model(x), other(x))


@pytest.mark.parametrize("name", [name for name in TINY if name != "text_cnn"])
@pytest.mark.parametrize("shape", [(1, 8, 8), (1, 28, 28), (3, 32, 32), (3, 64, 64)])
def test_images_from_the_bundled_digits_to_64_pixels_are_taken(name, shape):
    _, sizes = TINY[name]
    if name == "densenet121":
        sizes = {"growth": 4, "blocks": (1, 1, 1, 1)}
    with torch.device("meta"):
        model = make_model(name, n_classes=7, shape=shape, **sizes)
        logits, features = model.logits_and_features(torch.empty(2, *shape))
    assert logits.shape == (2, 7)
    assert features.shape == (2, model.n_features)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "n_features"),
    [
        ("resnet20", 64),
        ("resnet50", 2048),
        ("wide_resnet28_10", 640),
        ("vit_small", 384),
        ("densenet121", 1024),
    ],
)
def test_the_papers_sizes_take_a_cifar_image(name, n_features):
    with torch.device("meta"):
        model = make_model(name, n_classes=100, shape=(3, 32, 32))
        assert model.n_features == n_features
        assert model(torch.empty(1, 3, 32, 32)).shape == (1, 100)


@each
def test_one_class_is_none(name):
    shape, sizes = TINY[name]
    with pytest.raises(InputError, match="^n_classes: expected a whole number of at least 2, got 1$"):
        MODELS[name](n_classes=1, shape=shape, **sizes)


@pytest.mark.parametrize("name", [name for name in OF_IMAGES if name != "mlp"])
def test_what_is_no_image_is_refused(name):
    with pytest.raises(
        InputError, match=r"^shape: expected \(channels, height, width\) of an image, got \(64,\)$"
    ):
        make_model(name, n_classes=2, shape=(64,))


@pytest.mark.parametrize(
    ("name", "option", "message"),
    [
        ("mlp", {"dropout": 1.0}, "^dropout: expected a number from 0 up to, but not including, 1, got 1.0"),
        ("mlp", {"hidden": (0,)}, "^hidden: expected a whole number of at least 1, got 0"),
        ("resnet20", {"depth": 21}, r"^depth: expected 6 n \+ 2 layers, n at least 1, got 21"),
        ("preresnet56", {"depth": 58, "bottleneck": True}, r"^depth: expected 9 n \+ 2 layers"),
        ("wide_resnet28_10", {"depth": 4}, r"^depth: expected 6 n \+ 4 layers, n at least 1, got 4"),
        ("vit_small", {"heads": 5}, "^width: expected a multiple of the 5 heads, got 384"),
        ("vit_small", {"patch": 3}, "^shape: expected sides that are multiples of 3, got 8 x 8"),
        ("resnet50", {"stem": "large"}, "^stem: expected 'cifar' or 'imagenet', got 'large'"),
        ("resnet50", {"blocks": (1, 0)}, "^blocks: expected a whole number of at least 1, got 0"),
        (
            "swin_tiny",
            {},
            "^shape: expected more than 32 pixels a side with patches of 4 and 4 stages, got 8",
        ),
        ("swin_tiny", {"patch": 3}, "^shape: expected sides that are multiples of 3, got 8 x 8"),
        ("swin_tiny", {"heads": (3, 6)}, "^heads: expected one number for each of 4 stages, got 2"),
        ("swin_tiny", {"heads": (3, 6, 12, 25)}, "^heads: expected a divisor of 768, the width of stage 4"),
        ("swin_tiny", {"window": 1}, "^window: expected a whole number of at least 2, got 1"),
        ("densenet121", {"blocks": (1, 1, 1, 1, 1)}, "^shape: expected at least 16 pixels a side, got 8 x 8"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(name, option, message):
    with pytest.raises(InputError, match=message):
        make_model(name, n_classes=2, shape=(1, 8, 8), **option)
