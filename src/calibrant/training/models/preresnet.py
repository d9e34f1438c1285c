"""Residual networks that normalise first, in their CIFAR form (He et al., ECCV 2016)."""

from collections.abc import Sequence

from torch import Tensor, nn

from calibrant.inputs import check_count
from calibrant.training.models.classifier import Classifier
from calibrant.training.models.he_initialisation import he_initialise
from calibrant.training.models.options import check_image_shape
from calibrant.training.models.pre_activation import PreActivationBody, basic_layers, bottleneck_layers
from calibrant.training.models.resnet import blocks_per_stage


class PreResNet(Classifier):
    """A residual network in which nothing stands in the way of the sum from the first block to the last.

    Normalisation and rectifier come before each convolution instead of after it. The three stages are those
    of :class:`~calibrant.training.models.resnet.ResNet`; where the number of channels changes, the shortcut
    is a 1 x 1 convolution of the activated input (option B, as in the authors' program).

    Args:
        n_classes: Number of classes.
        shape: ``(channels, height, width)``.
        depth: Number of layers: :math:`6n + 2`, or :math:`9n + 2` with bottlenecks.
        bottleneck: Make a block of three convolutions, 1 x 1, 3 x 3 and 1 x 1, the last with four times the
            channels: the paper's form for 164 layers and more. Some programs mean this by "PreResNet-56" too.

    References:
        He et al., "Identity Mappings in Deep Residual Networks", ECCV 2016.
    """

    def __init__(
        self, *, n_classes: int, shape: Sequence[int], depth: int = 56, bottleneck: bool = False
    ) -> None:
        super().__init__()
        check_count(n_classes, "n_classes", at_least=2)
        channels, _, _ = check_image_shape(shape)
        self.body = PreActivationBody(
            channels,
            (16, 32, 64),
            blocks_per_stage(depth, layers_per_block=3 if bottleneck else 2),
            bottleneck_layers if bottleneck else basic_layers,
            expansion=4 if bottleneck else 1,
        )
        self.head = nn.Linear(self.body.n_features, n_classes)
        he_initialise(self)

    def features(self, inputs: Tensor) -> Tensor:
        """Return the mean over the image of the last activation."""
        h: Tensor = self.body(inputs)
        return h
