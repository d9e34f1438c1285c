"""Models by name: the papers' networks, and ``module:factory`` for the user's own."""

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

from torch import nn

from calibrant.catalogue import Catalogue
from calibrant.errors import InputError, did_you_mean
from calibrant.inputs import check_count
from calibrant.training.models.classifier import Classifier, WrappedClassifier, check_counts
from calibrant.training.models.densenet import DenseNet
from calibrant.training.models.huggingface import HuggingFaceClassifier
from calibrant.training.models.resnet import BottleneckResNet, PreResNet, ResNet, WideResNet
from calibrant.training.models.small import MLP, ConvMLP, SmallCNN, TextCNN
from calibrant.training.models.vision_transformers import SwinTransformer, VisionTransformer
from calibrant.training.own_code import imported, is_code

#: Makes a network from the keywords ``n_classes``, ``shape``, and further options.
Factory: TypeAlias = Callable[..., Any]

#: The networks, by the name that ``model.name`` has in a configuration.
MODELS: Catalogue[Callable[..., Classifier]] = Catalogue(
    "model",
    "the name of a model",
    {
        "mlp": MLP,
        "small_cnn": SmallCNN,
        "conv_mlp": ConvMLP,
        "resnet20": partial(ResNet, depth=20),
        "resnet32": partial(ResNet, depth=32),
        "resnet56": partial(ResNet, depth=56),
        "resnet110": partial(ResNet, depth=110),
        "resnet50": partial(BottleneckResNet, blocks=(3, 4, 6, 3)),
        "preresnet56": partial(PreResNet, depth=56),
        "wide_resnet28_10": partial(WideResNet, depth=28, width=10),
        "densenet121": partial(DenseNet, growth=32, blocks=(6, 12, 24, 16)),
        "vit_small": partial(VisionTransformer, patch=4, width=384, depth=12, heads=6),
        "swin_tiny": partial(
            SwinTransformer, patch=4, width=96, depths=(2, 2, 6, 2), heads=(3, 6, 12, 24), window=7
        ),
        "text_cnn": TextCNN,
        "huggingface": HuggingFaceClassifier,
    },
)


def make_model(
    name: str | Factory, *, n_classes: int, shape: Sequence[int], **options: object
) -> Classifier | WrappedClassifier:
    """Make a model with random weights, the same ones after the same ``torch.manual_seed``.

    Args:
        name: One of :data:`MODELS`, a function of the same keywords, or ``"module:factory"`` for such a
            function, which is imported and called: take this text only from those who may run code. A network
            that is not a :class:`Classifier` is wrapped: its features are the input of its last linear layer,
            or ``None``.
        n_classes: Number of classes.
        shape: Of one input, without the batch: ``(channels, height, width)`` of an image, ``(length,)`` of a
            text.
        **options: Further keywords of the model, including the sizes that a name such as ``resnet20`` sets.

    Example:
        >>> model = make_model("resnet20", n_classes=10, shape=(3, 32, 32))
        >>> sum(p.numel() for p in model.parameters())
        269722
    """
    check_count(n_classes, "n_classes", at_least=2)
    if isinstance(name, str):
        factory = imported(name, "model") if is_code(name) else _known(name)
    else:
        factory, name = name, getattr(name, "__name__", repr(name))
    arguments = {"n_classes": n_classes, "shape": check_counts(shape, "shape", at_least=0), **options}
    try:
        inspect.signature(factory).bind(**arguments)
    except TypeError as error:
        given = ", ".join(arguments)
        raise InputError(f"model: expected options that {name} takes, got {given} ({error})") from None
    model = factory(**arguments)
    if not isinstance(model, nn.Module):
        raise InputError(f"model: expected {name} to return an nn.Module, got {type(model).__name__}")
    return model if isinstance(model, Classifier) else WrappedClassifier(model, n_classes=n_classes)


def _known(name: str) -> Callable[..., Any]:
    if name not in MODELS:
        hint = did_you_mean(name, MODELS) or f"; known are {', '.join(MODELS)}, and 'module:factory'"
        raise InputError(f"model: expected the name of a model, got {name!r}{hint}")
    return MODELS[name]
