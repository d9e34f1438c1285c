"""Attention within shifted windows, against a loop over the windows and against another implementation."""

import math
import re

import pytest
import torch
from torch import nn

from calibrant.training.models import make_model
from calibrant.training.models.vision_transformers import PatchMerging, SwinTransformer, WindowAttention


def attention_in_a_loop(layer, x, *, window, shift):
    """Attend from each token to those of its window, which begin ``shift`` tokens before the image."""
    height, breadth, width = x.shape
    d = width // layer.heads
    three = layer.query_key_value(x).reshape(height, breadth, 3, layer.heads, d)
    result = torch.empty_like(x)
    places = [(row, column) for row in range(height) for column in range(breadth)]

    def window_of(place):
        return tuple((at + side - by) // side for at, side, by in zip(place, window, shift, strict=True))

    for row, column in places:
        others = [place for place in places if window_of(place) == window_of((row, column))]
        heads = []
        for head in range(layer.heads):
            scores = []
            for other_row, other_column in others:
                down, right = row - other_row + window[0] - 1, column - other_column + window[1] - 1
                bias = layer.bias[down * (2 * window[1] - 1) + right, head]
                query, key = three[row, column, 0, head], three[other_row, other_column, 1, head]
                scores.append((query @ key) / math.sqrt(d) + bias)
            weights = torch.softmax(torch.stack(scores), dim=0)
            values = torch.stack([three[r, c, 2, head] for r, c in others])
            heads.append(weights @ values)
        result[row, column] = layer.projection(torch.cat(heads))
    return result


@pytest.mark.parametrize("shifted", [False, True])
@pytest.mark.parametrize(
    ("size", "window"),
    [
        ((4, 4), 2),  # whole windows
        ((6, 9), 3),
        ((5, 7), 3),  # windows with padding
        ((2, 6), 4),  # an image that is lower than a window
        ((3, 3), 7),  # one window
    ],
)
def test_attention_is_that_of_a_loop_over_windows(size, window, shifted):
    torch.manual_seed(0)
    layer = WindowAttention(6, 2, size, window, shifted=shifted).double()
    nn.init.normal_(layer.bias)
    x = torch.randn(2, *size, 6, dtype=torch.float64)
    sides = tuple(min(window, side) for side in size)
    shift = tuple(
        side // 2 if shifted and side < of_image else 0 for side, of_image in zip(sides, size, strict=True)
    )
    for image, result in zip(x, layer(x), strict=True):
        torch.testing.assert_close(
            result, attention_in_a_loop(layer, image, window=sides, shift=shift), rtol=1e-9, atol=1e-9
        )


def test_merging_reads_two_by_two_tokens_and_zeros_beyond_the_border():
    torch.manual_seed(0)
    layer = PatchMerging(3)
    x = torch.randn(1, 3, 4, 3)
    padded = torch.cat([x, torch.zeros(1, 1, 4, 3)], dim=1)
    result = layer(x)
    assert result.shape == (1, 2, 2, 6)
    for row in range(2):
        for column in range(2):
            four = [padded[0, 2 * row + down, 2 * column + right] for right in (0, 1) for down in (0, 1)]
            torch.testing.assert_close(result[0, row, column], layer.reduction(layer.norm(torch.cat(four))))


# Our names in the order of the replacements, for the names in old and new versions of transformers.
RENAMED = (
    (r"^swin\.embeddings\.patch_embeddings\.projection", "patches"),
    (r"^swin\.embeddings\.norm", "norm_of_patches"),
    (r"^swin\.layernorm", "norm"),
    (r"^classifier", "head"),
    (r"layernorm_before", "norm_of_attention"),
    (r"layernorm_after", "norm_of_perceptron"),
    (r"attention\..*relative_position_bias_table", "attention.bias"),
    (r"attention\.(output\.dense|o_proj)", "attention.projection"),
    (r"attention\.(self\.query|q_proj)", "attention.query"),
    (r"attention\.(self\.key|k_proj)", "attention.key"),
    (r"attention\.(self\.value|v_proj)", "attention.value"),
    (r"(intermediate\.dense|mlp\.fc1)", "perceptron.0"),
    (r"(output\.dense|mlp\.fc2)", "perceptron.2"),
)


def weights_of(reference, depths):
    """Return the weights of a network of transformers under our names."""
    weights = {}
    for theirs, value in reference.named_parameters():
        ours = theirs
        for pattern, replacement in RENAMED:
            ours = re.sub(pattern, replacement, ours)
        weights[re.sub(r"^swin\.encoder\.layers\.(\d)\.(blocks\.)?(\d|downsample)", _place(depths), ours)] = (
            value
        )
    for name in [name for name in weights if ".query." in name]:
        three = [weights.pop(name.replace("query", part)) for part in ("query", "key", "value")]
        weights[name.replace("query", "query_key_value")] = torch.cat(three)
    return weights


def _place(depths):
    """Return the name of a layer from the match of its stage and block; a merging ends each stage."""

    def place(match):
        stage, block = int(match[1]), match[3]
        return (
            f"layers.{sum(depths[:stage]) + stage + (depths[stage] if block == 'downsample' else int(block))}"
        )

    return place


def test_logits_and_features_are_those_of_transformers():
    transformers = pytest.importorskip("transformers", reason="transformers is not installed (extra train)")
    depths = (2, 2, 1)
    config = transformers.SwinConfig(
        image_size=48, patch_size=2, embed_dim=12, depths=depths, num_heads=(1, 2, 4), window_size=6,
        num_labels=5,
    )  # fmt: skip
    torch.manual_seed(0)
    reference = transformers.SwinForImageClassification(config).eval()
    for parameter in reference.parameters():
        nn.init.normal_(parameter, std=0.2)
    model = SwinTransformer(
        n_classes=5, shape=(3, 48, 48), patch=2, width=12, depths=depths, heads=(1, 2, 4), window=6
    ).eval()
    model.load_state_dict(weights_of(reference, depths))
    x = torch.randn(2, 3, 48, 48)
    theirs = reference(pixel_values=x, output_hidden_states=True)
    assert theirs.logits.std() > 0.1
    torch.testing.assert_close(model(x), theirs.logits, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(
        model.features(x), reference.swin(pixel_values=x).pooler_output, rtol=1e-4, atol=1e-4
    )


def test_every_second_block_shifts_where_a_stage_is_larger_than_a_window():
    with torch.device("meta"):
        model = make_model("swin_tiny", n_classes=10, shape=(3, 224, 224))
    shifts = [layer.attention.shift for layer in model.layers if not isinstance(layer, PatchMerging)]
    assert shifts == [(0, 0), (3, 3)] * 5 + [(0, 0), (0, 0)]
    assert model.n_features == 768


def test_tiny_imagenet_has_four_tokens_in_the_last_stage_and_cifar_needs_smaller_patches():
    with torch.device("meta"):
        for shape, options in (((3, 64, 64), {}), ((3, 36, 36), {}), ((3, 32, 32), {"patch": 2})):
            model = make_model("swin_tiny", n_classes=10, shape=shape, **options)
            assert model.layers[-1].attention.size == (2, 2)
            assert model(torch.empty(2, *shape)).shape == (2, 10)


def test_weights_start_with_deviation_002():
    torch.manual_seed(0)
    model = SwinTransformer(n_classes=2, shape=(3, 32, 32), patch=2, width=48, depths=(1, 1), heads=(8, 8))
    attention = model.layers[0].attention
    for weight in (attention.query_key_value.weight, model.layers[0].perceptron[0].weight, attention.bias):
        assert weight.std().item() == pytest.approx(0.02, rel=0.1)


def test_blocks_are_skipped_in_training_and_the_last_most_often():
    model = SwinTransformer(
        n_classes=2, shape=(3, 8, 8), patch=2, width=4, depths=(2, 1), heads=(1, 1), window=2, drop_path=0.4
    )
    blocks = [layer for layer in model.layers if not isinstance(layer, PatchMerging)]
    assert [block.drop_path for block in blocks] == pytest.approx([0, 0.2, 0.4])
    torch.manual_seed(0)
    x = torch.randn(400, 2, 2, 8)
    block = blocks[-1]
    nn.init.zeros_(block.perceptron[-1].weight)
    nn.init.zeros_(block.perceptron[-1].bias)
    skipped = (block(x) == x).flatten(1).all(dim=1)
    assert skipped.double().mean().item() == pytest.approx(0.4, abs=0.08)
    whole = block.eval()(x) - x
    again = block.train()(x) - x
    kept = again.flatten(1).any(dim=1)
    torch.testing.assert_close(again[kept], whole[kept] / 0.6)
