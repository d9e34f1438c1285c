"""Wide residual networks (Zagoruyko and Komodakis, BMVC 2016)."""

from collections.abc import Sequence
from functools import partial

from torch import Tensor, nn

from calibrant.errors import InputError
from calibrant.inputs import check_count
from calibrant.training.models.classifier import Classifier
from calibrant.training.models.he_initialisation import he_initialise
from calibrant.training.models.options import check_image_shape, check_probability
from calibrant.training.models.pre_activation import PreActivationBody, basic_layers


class WideResNet(Classifier):
    """A residual network with few layers of many channels: as accurate as the very deep ones, and faster.

    Blocks as in :class:`~calibrant.training.models.preresnet.PreResNet`, with ``width`` times the channels:
    three stages of :math:`16w`, :math:`32w` and :math:`64w`. The paper counts the shortcuts that change the
    number of channels as layers, so that :math:`n` blocks per stage are :math:`6n + 4` layers.

    Args:
        n_classes: Number of classes.
        shape: ``(channels, height, width)``.
        depth: Number of layers, :math:`6n + 4`.
        width: How many times wider than a residual network.
        dropout: Probability with which a unit between the convolutions of a block is left out in training;
            0.3 where the paper uses it.

    References:
        Zagoruyko and Komodakis, "Wide Residual Networks", BMVC 2016.
    """

    def __init__(
        self,
        *,
        n_classes: int,
        shape: Sequence[int],
        depth: int = 28,
        width: int = 10,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        check_count(n_classes, "n_classes", at_least=2)
        channels, _, _ = check_image_shape(shape)
        n, rest = divmod(check_count(depth, "depth") - 4, 6)
        if n < 1 or rest:
            raise InputError(f"depth: expected 6 n + 4 layers, n at least 1, got {depth}")
        check_count(width, "width")
        check_probability(dropout, "dropout")
        self.body = PreActivationBody(
            channels, (16 * width, 32 * width, 64 * width), n, partial(basic_layers, dropout=dropout)
        )
        self.head = nn.Linear(self.body.n_features, n_classes)
        he_initialise(self)

    def features(self, inputs: Tensor) -> Tensor:
        """Return the mean over the image of the last activation."""
        h: Tensor = self.body(inputs)
        return h
