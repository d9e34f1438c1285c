"""Models small enough to run, and what they are fed."""

import torch

from calibrant.training.models import make_model

K = 4
IMAGE = (3, 8, 8)
TEXT = (12,)
N_WORDS = 20

TINY = {
    "mlp": (IMAGE, {"hidden": (16, 8)}),
    "small_cnn": (IMAGE, {"widths": (4, 8)}),
    "resnet20": (IMAGE, {"depth": 8}),
    "resnet50": (IMAGE, {"blocks": (1, 2), "width": 4}),
    "preresnet56": (IMAGE, {"depth": 8}),
    "wide_resnet28_10": (IMAGE, {"depth": 10, "width": 1}),
    "densenet121": (IMAGE, {"growth": 4, "blocks": (2, 2)}),
    "vit_small": (IMAGE, {"width": 12, "depth": 2, "heads": 2}),
    "swin_tiny": (IMAGE, {"patch": 2, "width": 8, "depths": (2, 1), "heads": (2, 4), "window": 2}),
    "text_cnn": (TEXT, {"n_words": N_WORDS, "width": 6, "filters": 5, "dropout": 0.0}),
}


def tiny_model(name, *, seed=0, **options):
    """One of the models above, in training mode."""
    shape, sizes = TINY[name]
    torch.manual_seed(seed)
    return make_model(name, n_classes=K, shape=shape, **(sizes | options))


def inputs_of(name, n=6, *, seed=0):
    """Random images or texts."""
    generator = torch.Generator().manual_seed(seed)
    shape, _ = TINY[name]
    if shape == TEXT:
        return torch.randint(1, N_WORDS, (n, *shape), generator=generator)
    return torch.randn((n, *shape), generator=generator)


def n_parameters(model):
    """Number of numbers that training changes."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad)
