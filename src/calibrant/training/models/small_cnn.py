"""A small convolutional network, which trains in minutes on two cores; the papers' networks take days."""

from collections.abc import Sequence

from torch import Tensor, nn

from calibrant.inputs import check_count
from calibrant.training.models.classifier import Classifier, check_image_shape, he_initialise


class SmallCNN(Classifier):
    """Convolutions with batch normalisation, pooling between them, then the mean over the image.

    No paper proposes this network, but it has the same parts (the mean over the image is from Lin et al.,
    "Network in Network", 2014), and it works on images as small as the bundled digits.

    Args:
        n_classes: Number of classes.
        shape: ``(channels, height, width)``.
        widths: Channels of each convolution.

    Example:
        >>> sum(p.numel() for p in SmallCNN(n_classes=10, shape=(1, 8, 8)).parameters())
        94186
    """

    def __init__(
        self, *, n_classes: int, shape: Sequence[int], widths: Sequence[int] = (32, 64, 128)
    ) -> None:
        super().__init__()
        check_count(n_classes, "n_classes", at_least=2)
        check_count(len(widths), "number of widths")
        channels, _, _ = check_image_shape(shape, at_least=2 ** (len(widths) - 1))
        layers: list[nn.Module] = []
        for depth, (n_in, n_out) in enumerate(zip((channels, *widths), widths, strict=False)):
            if depth:
                layers.append(nn.MaxPool2d(2))
            layers += [nn.Conv2d(n_in, n_out, 3, padding=1, bias=False), nn.BatchNorm2d(n_out), nn.ReLU()]
        self.body = nn.Sequential(*layers)
        self.head = nn.Linear(widths[-1], n_classes)
        he_initialise(self)

    def features(self, inputs: Tensor) -> Tensor:
        """Return the mean over the image of the last convolution."""
        h: Tensor = self.body(inputs).mean(dim=(2, 3))
        return h
