"""The fast gradient sign method (FGSM): small changes of images that mislead a network."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from calibrant.errors import InputError
from calibrant.inputs import check_number

# Samples whose gradient is computed at once.
_BATCH = 128
# The search for the smallest step that matters begins at this share of the largest one and goes on by this
# factor; then the last interval is halved this often.
_FIRST, _FACTOR, _HALVINGS = 2.0**-14, 2.0**0.5, 12


def fgsm(
    model: nn.Module,
    inputs: Tensor,
    labels: Tensor,
    *,
    epsilon: float,
    bounds: tuple[float, float] = (0.0, 1.0),
) -> Tensor:
    r"""Move each input so that the loss of its class rises as fast as possible.

    .. math:: x' = \mathrm{clip}\big(x + \epsilon\,\mathrm{sign}\,\nabla_x\,\mathrm{CE}(f(x), y)\big)

    The network is in evaluation mode meanwhile, and the gradients of its parameters stay as they are.

    Args:
        model: Returns logits of shape ``(n, k)``, such as a network of
            :func:`~calibrant.training.load_network`.
        inputs: Images as uint8, or floats.
        labels: The classes to move away from, of shape ``(n,)``.
        epsilon: The change of each value. That of bytes is a share of 255, rounded to whole bytes.
        bounds: Smallest and largest value that floats can have; bytes have 0 and 255.

    Example:
        >>> model = nn.Linear(2, 2)
        >>> weights = {"weight": torch.tensor([[1.0, -2.0], [0.0, 0.0]]), "bias": torch.zeros(2)}
        >>> _ = model.load_state_dict(weights)
        >>> fgsm(model, torch.tensor([[0.5, 0.95]]), torch.tensor([0]), epsilon=0.1)
        tensor([[0.4000, 1.0000]])

    References:
        Goodfellow et al., "Explaining and Harnessing Adversarial Examples", ICLR 2015.
    """
    check_number(epsilon, "epsilon", at_least=0)
    if labels.shape != (len(inputs),) or labels.is_floating_point():
        raise InputError(
            f"labels: expected whole numbers of shape ({len(inputs)},), got {labels.dtype} of shape "
            f"{tuple(labels.shape)}"
        )
    moved = torch.cat([attack.moved(epsilon) for attack in _attacks(model, inputs, labels, bounds)])
    return (moved.round() if inputs.dtype == torch.uint8 else moved).to(inputs)


def fgsm_distance(
    model: nn.Module, inputs: Tensor, *, largest: float = 1.0, bounds: tuple[float, float] = (0.0, 1.0)
) -> Tensor:
    """Return the smallest ``epsilon`` of :func:`fgsm` that changes the predicted class, of shape ``(n,)``.

    This is the distance to the decision boundary along the attack (SMART, figure 1 a). Each input moves away
    from the class that is predicted for it. Steps are tried from small to large, each 1.4 times the one
    before, and the first interval in which the prediction changes is halved twelve times. Where it never
    changes, the distance is infinite. Bytes are not rounded here.

    Args:
        model: Returns logits of shape ``(n, k)``.
        inputs: Images as uint8, or floats.
        largest: The largest step to try; for bytes, a share of 255.
        bounds: Smallest and largest value that floats can have; bytes have 0 and 255.

    Example:
        >>> model = nn.Linear(2, 2)
        >>> weights = {"weight": torch.tensor([[1.0, -2.0], [0.0, 0.0]]), "bias": torch.zeros(2)}
        >>> _ = model.load_state_dict(weights)
        >>> round(float(fgsm_distance(model, torch.tensor([[0.9, 0.15]]))), 3)  # 0.6 = 3 x 0.2
        0.2
    """
    check_number(largest, "largest")
    attacks = _attacks(model, inputs, None, bounds)
    return torch.cat([_first_change(attack, largest) for attack in attacks]).to(inputs.device)


@dataclass(frozen=True, eq=False)
class _Attack:
    """Inputs of one batch, and the direction in which the loss of their classes rises."""

    model: nn.Module
    inputs: Tensor
    labels: Tensor
    direction: Tensor
    bounds: tuple[float, float]

    def moved(self, epsilon: Tensor | float) -> Tensor:
        """Return the inputs after a step, the same for all or one for each."""
        if isinstance(epsilon, Tensor):
            epsilon = epsilon.view(-1, *[1] * (self.inputs.ndim - 1))
        return (self.inputs + epsilon * self.direction).clamp(*self.bounds)

    @torch.no_grad()
    def misleads(self, epsilon: Tensor | float) -> Tensor:
        """Return which inputs have another predicted class than their label after a step."""
        logits: Tensor = self.model(self.moved(epsilon))
        return logits.argmax(dim=1) != self.labels


def _attacks(
    model: nn.Module, inputs: Tensor, labels: Tensor | None, bounds: tuple[float, float]
) -> Iterator[_Attack]:
    """Yield the attack on each batch; without labels, on the predicted classes."""
    if not (inputs.dtype == torch.uint8 or inputs.is_floating_point()) or len(inputs) == 0:
        raise InputError(
            f"inputs: expected images as uint8 or floats, at least one, got {inputs.dtype} of shape "
            f"{tuple(inputs.shape)}"
        )
    is_bytes = inputs.dtype == torch.uint8
    device = next((each.device for each in model.parameters()), inputs.device)
    was_training = model.training
    model.eval()
    try:
        for rows in torch.arange(len(inputs)).split(_BATCH):
            x = inputs[rows].to(device, torch.get_default_dtype() if is_bytes else None).requires_grad_()
            with torch.enable_grad():
                logits = model(x)
                y = logits.detach().argmax(dim=1) if labels is None else labels[rows].to(device)
                # The samples do not depend on each other, so the sum has the gradient of each.
                (slope,) = torch.autograd.grad(F.cross_entropy(logits, y, reduction="sum"), x)
            direction = slope.sign() * (255 if is_bytes else 1)
            yield _Attack(model, x.detach(), y, direction, (0.0, 255.0) if is_bytes else bounds)
    finally:
        model.train(was_training)


def _first_change(attack: _Attack, largest: float) -> Tensor:
    """Return the smallest step that changes each prediction, or infinity."""
    n = len(attack.inputs)
    below = torch.zeros(n, device=attack.inputs.device)
    above = torch.full_like(below, float("inf"))
    step = _FIRST * largest
    while above.isinf().any() and step <= largest * (1 + 1e-6):
        changed = attack.misleads(step) & above.isinf()
        above[changed] = step
        below[above.isinf()] = step
        step *= _FACTOR
    reached = above.isfinite()
    for _ in range(_HALVINGS):
        middle = torch.where(reached, (below + above) / 2, 0.0)
        changed = attack.misleads(middle)
        above = torch.where(reached & changed, middle, above)
        below = torch.where(reached & ~changed, middle, below)
    return above
