"""What the networks share: features with a linear head, checks of their options, He's initialisation."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from torch import Tensor, nn

from calibrant.errors import InputError
from calibrant.inputs import check_count


class Classifier(nn.Module, ABC):
    """The base class of the networks: features, then one linear layer that turns them into logits.

    A subclass sets ``head`` and defines :meth:`features`. Losses of embeddings, feature clipping and
    out-of-distribution scores read the features, and ``CalibratedModel`` hooks the layer named ``"head"``.
    """

    head: nn.Linear

    @abstractmethod
    def features(self, inputs: Tensor) -> Tensor:
        """Return the input of the head, of shape ``(n, d)``."""

    @property
    def n_features(self) -> int:
        """Number of features of a sample."""
        return self.head.in_features

    @property
    def n_classes(self) -> int:
        """Number of logits of a sample."""
        return self.head.out_features

    def forward(self, inputs: Tensor) -> Tensor:
        """Return logits of shape ``(n, k)``."""
        return self.logits_and_features(inputs)[0]

    def logits_and_features(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits of shape ``(n, k)`` and features of shape ``(n, d)`` from one pass."""
        h = self.features(inputs)
        return self.head(h), h


class WrappedClassifier(nn.Module):
    """A network of the user's own; its features are the input of its last linear layer.

    That layer is the last ``nn.Linear`` with one output per class. The features are ``None`` if there is no
    such layer, or if one pass calls it more than once or on anything but a table of shape ``(n, d)``.

    Args:
        model: Returns logits of shape ``(n, k)``.
        n_classes: Number of logits of a sample.

    Example:
        >>> model = WrappedClassifier(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)), n_classes=3)
        >>> model.n_features
        8
    """

    def __init__(self, model: nn.Module, *, n_classes: int) -> None:
        super().__init__()
        self.model = model
        self.n_classes = n_classes

    @property
    def head(self) -> nn.Linear | None:
        """The layer that turns features into logits, if there is one."""
        layers = linear_modules(self.model, self.n_classes)
        return layers[-1][1] if layers else None

    @property
    def n_features(self) -> int | None:
        """Number of features of a sample, if there is a head."""
        return None if self.head is None else self.head.in_features

    def forward(self, inputs: Tensor) -> Tensor:
        """Return logits of shape ``(n, k)``."""
        logits: Tensor = self.model(inputs)
        return logits

    def features(self, inputs: Tensor) -> Tensor | None:
        """Return the input of the head, of shape ``(n, d)``, or ``None``."""
        return self.logits_and_features(inputs)[1]

    def logits_and_features(self, inputs: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return logits of shape ``(n, k)`` and features of shape ``(n, d)``, or ``None``, from one pass."""
        head = self.head
        if head is None:
            return self.model(inputs), None
        seen: list[Tensor] = []
        hook = head.register_forward_pre_hook(lambda _, arguments: seen.append(arguments[0]))
        try:
            logits = self.model(inputs)
        finally:
            hook.remove()
        return logits, seen[0] if len(seen) == 1 and seen[0].ndim == 2 else None


def linear_modules(model: nn.Module, n_outputs: int) -> list[tuple[str, nn.Linear]]:
    """Return the linear layers with this many outputs, each with its name."""
    return [
        (name, layer)
        for name, layer in model.named_modules()
        if isinstance(layer, nn.Linear) and layer.out_features == n_outputs
    ]


def check_image_shape(
    shape: Sequence[int], *, at_least: int = 1, multiple_of: int = 1
) -> tuple[int, int, int]:
    """Return ``(channels, height, width)`` of an image, or refuse a shape that the network cannot take.

    Args:
        shape: Of one image, without the batch.
        at_least: Smallest side in pixels.
        multiple_of: Each side must be a multiple of this number.
    """
    if len(shape) != 3:
        raise InputError(f"shape: expected (channels, height, width) of an image, got {tuple(shape)}")
    channels, height, width = (check_count(size, "shape") for size in shape)
    if min(height, width) < at_least:
        raise InputError(f"shape: expected at least {at_least} pixels a side, got {height} x {width}")
    if height % multiple_of or width % multiple_of:
        raise InputError(f"shape: expected sides that are multiples of {multiple_of}, got {height} x {width}")
    return channels, height, width


def check_counts(values: object, name: str, *, at_least: int = 1) -> tuple[int, ...]:
    """Return a size for each of several layers, such as their widths, or refuse them."""
    if not isinstance(values, (list, tuple)) or len(values) < at_least:
        raise InputError(f"{name}: expected a list of whole numbers such as [2, 4], got {values!r}")
    return tuple(check_count(value, name) for value in values)


def check_probability(value: float, name: str) -> float:
    """Return a probability below 1, such as that of dropout, or refuse it."""
    if not isinstance(value, (int, float)) or not 0 <= value < 1:
        raise InputError(f"{name}: expected a number from 0 up to, but not including, 1, got {value!r}")
    return value


def he_initialise(model: nn.Module) -> None:
    r"""Draw the weights of convolutions so that rectifiers keep the variance of the gradient.

    Weights are normal with variance :math:`2 / n`, where :math:`n` is the number of outputs that one input
    reaches; normalisation starts as the identity, and biases start at zero. The linear head keeps PyTorch's
    weights, as in the authors' programs.

    References:
        He et al., "Delving Deep into Rectifiers", ICCV 2015.
    """
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        elif isinstance(module, nn.BatchNorm2d):
            nn.init.ones_(module.weight)
        if isinstance(module, nn.Conv2d | nn.BatchNorm2d | nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)
