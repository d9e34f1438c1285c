"""A network that was not written for Calibrant, made to show its features where it can."""

from torch import Tensor, nn


class WrappedClassifier(nn.Module):
    """Any network from inputs to logits; its features are what its last linear layer sees.

    That layer is the last ``nn.Linear`` with as many outputs as there are classes. A network without one, or
    one that runs it other than once on a table of shape ``(n, d)``, has no features, and says ``None``.

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
        layers = [
            layer
            for layer in self.model.modules()
            if isinstance(layer, nn.Linear) and layer.out_features == self.n_classes
        ]
        return layers[-1] if layers else None

    @property
    def n_features(self) -> int | None:
        """Number of features of a sample, if there are any."""
        return None if self.head is None else self.head.in_features

    def forward(self, inputs: Tensor) -> Tensor:
        """Return logits of shape ``(n, k)``."""
        logits: Tensor = self.model(inputs)
        return logits

    def features(self, inputs: Tensor) -> Tensor | None:
        """Return what the head sees, of shape ``(n, d)``, or ``None``."""
        return self.logits_and_features(inputs)[1]

    def logits_and_features(self, inputs: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return both from one pass, of shapes ``(n, k)`` and ``(n, d)``; the latter may be ``None``."""
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
