"""As many parameters as the papers say: rounded from their tables, and exactly, added up by hand.

The large networks are made on the device "meta", where weights have a shape but no numbers.
"""

import pytest
import torch

from calibrant.training.models import make_model
from calibrant.training.models.densenet import DenseNet
from calibrant.training.models.resnet import PreResNet, ResNet, WideResNet
from calibrant.training.models.vision_transformers import VisionTransformer
from tests.training.models.tiny import n_parameters

CIFAR = {"n_classes": 10, "shape": (3, 32, 32)}


def norm(*channels):
    """A scale and a shift per channel."""
    return 2 * sum(channels)


def residual_stages(n):
    """Three stages of 2n convolutions of 3 x 3, without what stands around them."""
    return sum(
        9 * (first * width + (2 * n - 1) * width * width) for first, width in ((16, 16), (16, 32), (32, 64))
    )


# A first convolution, the stages, normalisation after each convolution, and a head of 64 x 10 + 10.
RESNET = {n: 27 * 16 + residual_stages(n) + norm(16, *[16, 32, 64] * (2 * n)) + 650 for n in (3, 5, 9, 18)}
# Shortcuts of 1 x 1; normalisation before each convolution, at first of the channels of the stage before.
PRERESNET_56 = (
    27 * 16
    + residual_stages(9)
    + (16 * 32 + 32 * 64)
    + norm(*[16] * 18, 16, *[32] * 17, 32, *[64] * 17, 64)
    + 650
)
WIDE_RESNET_28_10 = (
    27 * 16
    + 9 * (16 * 160 + 7 * 160**2 + 160 * 320 + 7 * 320**2 + 320 * 640 + 7 * 640**2)
    + (16 * 160 + 160 * 320 + 320 * 640)
    + norm(16, *[160] * 7, 160, *[320] * 7, 320, *[640] * 7, 640)
    + 6410
)
# DenseNet-121 for ImageNet has 7,978,856 with its 1,000 classes. Here the head has 10, the first convolution
# is 3 x 3 instead of 7 x 7, and no normalisation follows it.
DENSENET_121 = 7_978_856 - 1025 * (1000 - 10) - 3 * 64 * (49 - 9) - norm(64)
VIT_LAYER = norm(384, 384) + 4 * (384 * 384 + 384) + (384 * 1536 + 1536) + (1536 * 384 + 384)
VIT_SMALL = (3 * 16 * 384 + 384) + 384 + 65 * 384 + 12 * VIT_LAYER + norm(384) + 3850


def resnet_50(n_classes, *, stem):
    """The stem, 16 bottlenecks in four stages with a shortcut in the first of each, and a head."""
    total, n = 3 * stem**2 * 64 + norm(64), 64
    for width, n_blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(n_blocks):
            total += n * width + 9 * width**2 + width * 4 * width + norm(width, width, 4 * width)
            if block == 0:
                total += n * 4 * width + norm(4 * width)
            n = 4 * width
    return total + (n + 1) * n_classes


def swin_tiny(n_classes):
    """Patches, four stages with a merging before each but the first, and a head."""
    total, d = 3 * 16 * 96 + 96 + norm(96), 96
    for stage, (depth, heads) in enumerate(((2, 3), (2, 6), (6, 12), (2, 24))):
        if stage:
            total += norm(4 * d) + 4 * d * 2 * d
            d *= 2
        attention = 3 * (d + 1) * d + (d + 1) * d + 13**2 * heads
        perceptron = (d + 1) * 4 * d + (4 * d + 1) * d
        total += depth * (norm(d, d) + attention + perceptron)
    return total + norm(d) + (d + 1) * n_classes


EXACT = {
    "small_cnn": (9 * (3 * 32 + 32 * 64 + 64 * 128) + norm(32, 64, 128) + 1290, 94_762),
    "conv_mlp": (9 * (3 * 32 + 32 * 64 + 64 * 128) + 224 + 2049 * 512 + 5130, 1_147_466),
    "mlp": (3073 * 256 + 257 * 256 + 257 * 10, 855_050),
    "resnet20": (RESNET[3], 269_722),
    "resnet32": (RESNET[5], 464_154),
    "resnet56": (RESNET[9], 853_018),
    "resnet110": (RESNET[18], 1_727_962),
    "resnet50": (resnet_50(10, stem=3), 23_520_842),
    "preresnet56": (PRERESNET_56, 855_578),
    "wide_resnet28_10": (WIDE_RESNET_28_10, 36_479_194),
    "densenet121": (DENSENET_121, 6_956_298),
    "vit_small": (VIT_SMALL, 21_342_346),
}


@pytest.mark.parametrize("name", EXACT)
def test_the_exact_number(name):
    by_hand, written_out = EXACT[name]
    with torch.device("meta"):
        model = make_model(name, **CIFAR)
    assert n_parameters(model) == by_hand == written_out


@pytest.mark.parametrize(
    ("factory", "options", "millions"),
    [
        # He et al., CVPR 2016, table 6.
        (ResNet, {"depth": 20}, 0.27),
        (ResNet, {"depth": 32}, 0.46),
        (ResNet, {"depth": 44}, 0.66),
        (ResNet, {"depth": 56}, 0.85),
        (ResNet, {"depth": 110}, 1.7),
        # Zagoruyko and Komodakis, tables 4 and 5, where the thin pre-activated networks stand too.
        (PreResNet, {"depth": 110}, 1.7),
        (PreResNet, {"depth": 164, "bottleneck": True}, 1.7),
        (WideResNet, {"depth": 40, "width": 1}, 0.6),
        (WideResNet, {"depth": 40, "width": 4}, 8.9),
        (WideResNet, {"depth": 16, "width": 8}, 11.0),
        (WideResNet, {"depth": 28, "width": 10}, 36.5),
        # Huang et al., table 2: DenseNet-BC of 100 and 190 layers.
        (DenseNet, {"growth": 12, "blocks": (16,) * 3}, 0.8),
        (DenseNet, {"growth": 40, "blocks": (31,) * 3}, 25.6),
    ],
)
def test_the_papers_tables_on_cifar(factory, options, millions):
    with torch.device("meta"):
        model = factory(**CIFAR, **options)
    digits = len(str(millions).partition(".")[2])
    assert round(n_parameters(model) / 1e6, digits) == millions


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"width": 192, "heads": 3}, 5_717_416),
        ({"width": 384, "heads": 6}, 22_050_664),
        ({"width": 768, "heads": 12}, 86_567_656),
    ],
)
def test_transformers_of_imagenet_have_the_published_size(options, expected):
    """DeiT-Ti, DeiT-S and ViT-B with patches of 16: 5.7, 22 and 86 million in Touvron et al., table 1."""
    with torch.device("meta"):
        model = VisionTransformer(n_classes=1000, shape=(3, 224, 224), patch=16, **options)
    assert n_parameters(model) == expected


@pytest.mark.parametrize(
    ("name", "by_hand", "published"),
    [
        ("resnet50", resnet_50(1000, stem=7), 25_557_032),
        ("swin_tiny", swin_tiny(1000), 28_288_354),
    ],
)
def test_networks_for_imagenet_have_the_published_size(name, by_hand, published):
    with torch.device("meta"):
        model = make_model(name, n_classes=1000, shape=(3, 224, 224))
    assert n_parameters(model) == by_hand == published


def test_a_text_network_as_in_kims_table_1():
    with torch.device("meta"):
        model = make_model("text_cnn", n_classes=2, shape=(20,), n_words=18_765)
    filters = 100 * 300 * (3 + 4 + 5) + 300
    assert n_parameters(model) == 18_765 * 300 + filters + 301 * 2
