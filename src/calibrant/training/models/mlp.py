"""The multilayer perceptron: for embeddings, tables and small images."""

import math
from collections.abc import Sequence

from torch import Tensor, nn

from calibrant.inputs import check_count
from calibrant.training.models.classifier import Classifier, check_probability


class MLP(Classifier):
    """Fully connected layers with rectifiers, for inputs of any shape.

    Without hidden layers it is multinomial logistic regression, and its features are the inputs.

    Args:
        n_classes: Number of classes.
        shape: Of one input, without the batch; the input is flattened.
        hidden: Width of each hidden layer.
        dropout: Probability with which a hidden unit is dropped in training.

    Example:
        >>> MLP(n_classes=10, shape=(1, 8, 8), hidden=(32,)).n_features
        32

    References:
        Weights by He et al., "Delving Deep into Rectifiers", ICCV 2015; biases start at zero.
    """

    def __init__(
        self,
        *,
        n_classes: int,
        shape: Sequence[int],
        hidden: Sequence[int] = (256, 256),
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        check_count(n_classes, "n_classes", at_least=2)
        check_probability(dropout, "dropout")
        widths = [math.prod(check_count(size, "shape") for size in shape)]
        layers: list[nn.Module] = []
        for width in hidden:
            layers += [nn.Linear(widths[-1], check_count(width, "hidden")), nn.ReLU(), nn.Dropout(dropout)]
            widths.append(width)
        self.body = nn.Sequential(nn.Flatten(), *layers)
        self.head = nn.Linear(widths[-1], n_classes)
        for layer in self.body:
            if isinstance(layer, nn.Linear):
                nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
                nn.init.zeros_(layer.bias)
        nn.init.zeros_(self.head.bias)

    def features(self, inputs: Tensor) -> Tensor:
        """Return the last hidden layer."""
        h: Tensor = self.body(inputs)
        return h
