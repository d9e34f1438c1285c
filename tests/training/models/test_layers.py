"""The parts of the networks, against their definitions."""

import math

import pytest
import torch
from torch import nn

from calibrant.errors import InputError
from calibrant.training.models import make_model
from calibrant.training.models.resnet import (
    BottleneckBlock,
    PreActivationBlock,
    ResidualBlock,
    ResNet,
    WideResNet,
)
from calibrant.training.models.small import MLP, TextCNN
from calibrant.training.models.vision_transformers import VisionTransformer
from tests.training.models.tiny import inputs_of, tiny_model


def test_the_shortcut_takes_every_second_pixel_and_fills_new_channels_with_zeros():
    block = ResidualBlock(2, 4)
    nn.init.zeros_(block.residual[-1].weight)
    x = torch.rand(3, 2, 7, 7)
    result = block(x)
    assert result.shape == (3, 4, 4, 4)
    assert torch.equal(result[:, :2], x[:, :, ::2, ::2])
    assert not result[:, 2:].any()


def test_nothing_stands_in_the_way_of_the_sum_when_normalisation_comes_first():
    block = PreActivationBlock(3, 3, 1, nn.Conv2d(3, 3, 1))
    for parameter in block.layers.parameters():
        nn.init.zeros_(parameter)
    x = torch.randn(2, 3, 4, 4)
    assert torch.equal(block(x), x)


def test_stages_halve_the_size_and_double_the_channels():
    sizes = []
    with torch.device("meta"):
        model = ResNet(n_classes=10, shape=(3, 32, 32), depth=20)
        for block in model.blocks:
            block.register_forward_hook(
                lambda _module, _inputs, output: sizes.append(tuple(output.shape[1:]))
            )
        model(torch.empty(1, 3, 32, 32))
    assert sizes == [(16, 32, 32)] * 3 + [(32, 16, 16)] * 3 + [(64, 8, 8)] * 3


def sizes_of_stages(**options):
    """Channels, height and width after each stage of ResNet-50."""
    sizes = []
    with torch.device("meta"):
        model = make_model("resnet50", n_classes=10, **options).eval()
        for block in model.blocks:
            block.register_forward_hook(
                lambda _module, _inputs, output: sizes.append(tuple(output.shape[1:]))
            )
        model(torch.empty(1, *options["shape"]))
    assert len(sizes) == 3 + 4 + 6 + 3
    return [sizes[place] for place in (2, 6, 12, 15)]


@pytest.mark.parametrize(
    ("side", "options", "first"),
    [(32, {}, 32), (64, {}, 64), (65, {}, 17), (224, {}, 56), (224, {"stem": "cifar"}, 224)],
)
def test_the_stem_of_resnet_50_follows_the_size_of_the_image(side, options, first):
    halves = [first, -(-first // 2), -(-first // 4), -(-first // 8)]
    expected = [(256 * 2**stage, half, half) for stage, half in enumerate(halves)]
    assert sizes_of_stages(shape=(3, side, side), **options) == expected


def test_a_small_image_may_have_the_stem_of_imagenet():
    assert sizes_of_stages(shape=(3, 32, 32), stem="imagenet")[0] == (256, 8, 8)


def test_a_bottleneck_adds_to_its_shortcut():
    same, wider = BottleneckBlock(8, 2, stride=1), BottleneckBlock(8, 4, stride=2)
    x = torch.rand(3, 8, 6, 6)
    for block in (same.eval(), wider.eval()):
        nn.init.zeros_(block.residual[-1].weight)
    assert torch.equal(same(x), x)
    expected = torch.einsum("oi,nihw->nohw", wider.shortcut[0].weight[:, :, 0, 0], x[:, :, ::2, ::2])
    torch.testing.assert_close(wider(x), (expected / math.sqrt(1 + 1e-5)).relu())


def test_convolutions_start_with_hes_deviation():
    torch.manual_seed(0)
    model = WideResNet(n_classes=10, shape=(3, 32, 32), depth=10, width=2)
    for layer in model.modules():
        if isinstance(layer, nn.Conv2d) and layer.weight.numel() > 5000:
            expected = math.sqrt(2 / (layer.kernel_size[0] ** 2 * layer.out_channels))
            assert layer.weight.std().item() == pytest.approx(expected, rel=0.05)
    assert not model.head.bias.any()


def test_a_freshly_made_residual_network_is_unsure():
    """Neither swelling nor fading: the logits are of the order of one."""
    torch.manual_seed(0)
    model = ResNet(n_classes=10, shape=(3, 8, 8), depth=32)
    assert 0.05 < model(torch.randn(8, 3, 8, 8)).std().item() < 5


def test_without_hidden_layers_a_perceptron_is_logistic_regression():
    model = MLP(n_classes=3, shape=(2, 2), hidden=())
    x = torch.randn(5, 2, 2)
    assert torch.equal(model.features(x), x.flatten(1))


def test_layers_of_a_transformer_start_with_weights_of_their_own():
    model = tiny_model("vit_small")
    first, second = model.encoder.layers
    assert not torch.equal(first.linear1.weight, second.linear1.weight)
    assert not torch.equal(first.self_attn.in_proj_weight, second.self_attn.in_proj_weight)


def test_weights_of_a_transformer_have_deviation_002():
    torch.manual_seed(0)
    model = VisionTransformer(n_classes=2, shape=(1, 8, 8), width=96, depth=1)
    attention = model.encoder.layers[0].self_attn
    for weight in (
        attention.in_proj_weight,
        attention.out_proj.weight,
        model.encoder.layers[0].linear1.weight,
    ):
        assert weight.std().item() == pytest.approx(0.02, rel=0.05)


def test_a_transformer_knows_where_a_patch_was():
    model, x = tiny_model("vit_small").eval(), inputs_of("vit_small")
    assert not torch.allclose(model.features(x), model.features(x.flip(2)), atol=1e-4)
    nn.init.zeros_(model.positions)
    moved = x.roll(4, dims=2)  # by one patch
    torch.testing.assert_close(model.features(x), model.features(moved))


def test_a_text_feature_is_the_best_match_of_a_filter():
    torch.manual_seed(0)
    model = TextCNN(n_classes=2, shape=(6,), n_words=9, width=4, windows=(3,), filters=2).eval()
    text = torch.tensor([[5, 2, 7, 7, 1, 3]])
    between_padding = [0, 0, 0, *text[0].tolist(), 0, 0, 0]
    layer = model.filters[0]
    for feature in range(2):
        answers = [0.0]
        for start in range(len(between_padding) - 2):
            phrase = model.embedding.weight[between_padding[start : start + 3]]
            answers.append(((layer.weight[feature].T * phrase).sum() + layer.bias[feature]).item())
        assert model.features(text)[0, feature].item() == pytest.approx(max(answers), abs=1e-5)


@pytest.mark.parametrize("more", [1, 10])
def test_padding_a_text_changes_nothing(more):
    model, text = tiny_model("text_cnn").eval(), inputs_of("text_cnn")
    padded = torch.cat([text, torch.zeros(len(text), more, dtype=torch.long)], dim=1)
    torch.testing.assert_close(model(padded), model(text))


def test_trained_vectors_are_used_and_may_stay_as_they_are():
    vectors = torch.randn(20, 6)
    model = tiny_model("text_cnn", vectors=vectors, frozen=True)
    assert torch.equal(model.embedding.weight[1:], vectors[1:])
    assert not model.embedding.weight[0].any()
    assert not model.embedding.weight.requires_grad
    with pytest.raises(InputError, match=r"^vectors: expected a tensor of shape \(20, 6\), got \(20, 5\)$"):
        tiny_model("text_cnn", vectors=vectors[:, :5])


def test_a_text_is_a_row_of_words():
    with pytest.raises(
        InputError, match=r"^shape: expected \(length,\) of a text in words, got \(1, 8, 8\)$"
    ):
        make_model("text_cnn", n_classes=2, shape=(1, 8, 8), n_words=5)


@pytest.mark.parametrize("name", ["mlp", "wide_resnet28_10", "densenet121", "vit_small", "text_cnn"])
def test_dropout_acts_in_training_only(name):
    model, x = tiny_model(name, dropout=0.5), inputs_of(name)
    for layer in model.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.eval()
    assert not torch.equal(model(x), model(x))
    model.eval()
    assert torch.equal(model(x), model(x))
