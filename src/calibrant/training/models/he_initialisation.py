"""He's initialisation: random weights that neither swell nor fade from layer to layer."""

from torch import nn


def he_initialise(model: nn.Module) -> None:
    r"""Draw the convolutions so that a layer of rectifiers keeps the variance of the gradient.

    Weights are normal with variance :math:`2 / n`, where :math:`n` is the number of outputs one input
    reaches; normalisation starts as the identity, and biases start at zero. The residual networks, the wide
    ones and DenseNet are all trained from here; their linear head keeps PyTorch's weights, as in the authors'
    programs.

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
